#!/usr/bin/env python3
"""Records what PEFT computes for adapters on the models of tests/gold: the cases of tests/gold_lora.

    make_gold_lora.py all                        all cases, one folder each; run at the root of the repository
    make_gold_lora.py vl-moe-all                 one of them
    make_gold_lora.py --check vl-moe-all         recompute it from its files and compare

Needs torch, transformers and peft from PyPI (the recorded cases were made with torch 2.11, transformers 5.17, peft 0.21).

A case uses the model and the inputs of a case of tests/gold, and adds:

    adapter/              adapter_config.json and adapter_model.safetensors as PEFT's save_pretrained writes them
    expected.safetensors  loss, aux_loss, logits and grad.<name in adapter_model.safetensors> of every trained parameter
    info.json             base (the folder of that case, relative to this one), losses and gradient norms of five AdamW steps,
                          aux_coef, router_gap

B is random too, since the gradient of A is zero where B is zero; modules that are trained in full differ from the base's values.
"""

import argparse
import json
import os
import shutil
import sys
import warnings
from dataclasses import dataclass

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

import make_gold as gold

BASES, CASES = "tests/gold", "tests/gold_lora"
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


@dataclass
class Case:
    name: str
    base: str
    seed: int
    lora: dict


def recorded_cases():
    return [
        Case("vl-moe-all", "vl-moe-mix", 1, dict(
            r=4, lora_alpha=6, target_parameters=EXPERTS, exclude_modules=["patch_embed.proj"],
            target_modules=[
                "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
                "qkv", "proj", "linear_fc1", "linear_fc2",
            ],
            rank_pattern={"k_proj": 3, "layers.2.mlp.experts.down_proj": 2, "visual.merger.linear_fc1": 5},
            alpha_pattern={"v_proj": 3, "mlp.experts.gate_up_proj": 10},
        )),
        Case("moe-rslora", "moe-rawtopk", 2, dict(
            r=3, lora_alpha=2.5, use_rslora=True, target_parameters=EXPERTS,
            target_modules=r"(.*\.)?(q_proj|o_proj|lm_head)",
        )),
        Case("moe-down", "moe-rawtopk", 3, dict(
            r=2, lora_alpha=4, target_modules=["k_proj"], target_parameters=EXPERTS[1:],
        )),
        Case("vl-dense-save", "vl-dense-bias", 4, dict(
            r=2, lora_alpha=2, target_modules=["q_proj", "v_proj", "gate_proj", "linear_fc2"],
            modules_to_save=["lm_head", "visual.merger.norm"],
        )),
        Case("dense-all-linear", "dense-tied-left", 5, dict(r=2, lora_alpha=8, target_modules="all-linear")),
        Case("mla-all", "deepseek-mtp", 7, dict(
            r=3, lora_alpha=5, target_parameters=EXPERTS, rank_pattern={"kv_a_proj_with_mqa": 2},
            target_modules=[
                "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
            ],
        )),
        Case("dense-tied-save", "dense-tied-left", 6, dict(
            r=2, lora_alpha=3, target_modules=["o_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True,
        )),
    ]


def trained(model):
    """Parameters that are trained, by their names in adapter_model.safetensors."""
    return {
        n.replace(".default", "").replace(".modules_to_save", ""): p
        for n, p in model.named_parameters() if p.requires_grad
    }


def draw(model, gen):
    """Random values: A scaled by its fan-in, B not zero, modules trained in full near the base's values."""
    with torch.no_grad():
        for name, p in trained(model).items():
            noise = torch.randn(p.shape, generator=gen)
            if ".lora_A." in name:
                p.copy_(noise / p.shape[1] ** 0.5)
            elif ".lora_B." in name:
                p.copy_(0.3 * noise)
            else:
                p.add_(0.1 * noise)


def compute(model, inputs):
    """The tensors of expected.safetensors, and the smallest router gap."""
    inside = model.get_base_model()
    recorder = gold.Recorder(inside)
    model.zero_grad(set_to_none=True)
    out = gold.forward(model, inputs)
    recorder.close()
    out.loss.backward()
    expected = {"loss": out.loss.reshape(1), "logits": out.logits}
    if getattr(out, "aux_loss", None) is not None:
        expected["aux_loss"] = out.aux_loss.reshape(1)
    expected.update({f"grad.{n}": p.grad for n, p in trained(model).items()})
    expected = {k: v.detach().clone().contiguous() for k, v in expected.items()}
    return expected, gold.router_gap(recorder.got, inputs, inside.config)


def train(model, inputs):
    """The short training of make_gold.py, over the parameters that are trained here."""
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    recorder = gold.Recorder(model.get_base_model())
    losses, norms, gaps = [], [], []
    for _ in range(gold.STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = gold.forward(model, inputs).loss
        gaps.append(gold.router_gap(recorder.got, inputs, model.get_base_model().config))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(params, 1.0).item())
        losses.append(loss.item())
        optimizer.step()
    recorder.close()
    return losses, norms, min((g for g in gaps if g is not None), default=None)


def save(case, folder, model, expected, info):
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(os.path.join(folder, "adapter"))
    os.remove(os.path.join(folder, "adapter", "README.md"))  # a template to fill in
    stored = load_file(os.path.join(folder, "adapter", "adapter_model.safetensors"))
    missing = [n for n in trained(model) if n not in stored]
    assert not missing, f"{case.name}: trained but not stored under that name: {missing}"
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    with open(os.path.join(folder, "info.json"), "w") as f:
        json.dump(info, f, indent=1)
        f.write("\n")


def attempt(case, number):
    """Draws, computes and saves a case; returns False if some routing decision is too close."""
    base = os.path.join(BASES, case.base)
    inputs = load_file(os.path.join(base, "inputs.safetensors"))
    model = peft.get_peft_model(gold.load_model(base), peft.LoraConfig(**case.lora)).train()
    draw(model, torch.Generator().manual_seed(case.seed * 1000 + number))
    at_start = {n: p.detach().clone() for n, p in trained(model).items()}
    expected, gap = compute(model, inputs)
    losses, norms, train_gap = train(model, inputs)
    if gap is not None and (gap < gold.GAP_FIRST or train_gap < gold.GAP_TRAIN):
        return False
    with torch.no_grad():
        for name, p in trained(model).items():
            p.copy_(at_start[name])
    info = {
        "base": os.path.relpath(base, os.path.join(CASES, case.name)),
        "transformers": transformers.__version__, "torch": torch.__version__, "peft": peft.__version__,
        "loss": expected["loss"].item(), "train": {"optimizer": gold.OPTIMIZER, "losses": losses, "grad_norms": norms},
    }
    if gap is not None:
        info["router_gap"] = gap
        info["aux_coef"] = getattr(gold.text_config(model.get_base_model().config), "router_aux_loss_coef", 0.0)
    save(case, os.path.join(CASES, case.name), model, expected, info)
    return True


def make(case):
    for number in range(200):
        if attempt(case, number):
            folder = os.path.join(CASES, case.name)
            size = sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(folder) for f in fs)
            print(f"{case.name}: draw {number}, {size // 1024} KiB")
            return
    sys.exit(f"{case.name}: no draw without a near tie in routing")


def check(case, tolerance=2e-5):
    """Loads a case as a user of PEFT would and compares; returns whether everything agrees."""
    folder, base = os.path.join(CASES, case.name), os.path.join(BASES, case.base)
    inputs = load_file(os.path.join(base, "inputs.safetensors"))
    want = load_file(os.path.join(folder, "expected.safetensors"))
    with open(os.path.join(folder, "info.json")) as f:
        info = json.load(f)
    model = peft.PeftModel.from_pretrained(
        gold.load_model(base), os.path.join(folder, "adapter"), is_trainable=True
    ).train()
    got, _ = compute(model, inputs)
    worst = {}
    for name, tensor in want.items():
        error = gold.relative(gold.real_rows(name, got[name], inputs), gold.real_rows(name, tensor, inputs))
        kind = name.split(".")[0]
        worst[kind] = max(worst.get(kind, (0.0, "")), (error, name))
    losses, norms, _ = train(model, inputs)
    for kind, mine in (("losses", losses), ("grad_norms", norms)):
        worst["train " + kind] = (gold.relative(torch.tensor(mine), torch.tensor(info["train"][kind])), "")
    for kind, (error, name) in worst.items():
        print(f"{kind:18} {error:.2e}  {name}")
    same = got.keys() == want.keys() and all(e <= tolerance for e, _ in worst.values())
    print(f"{case.name}: {'agrees' if same else 'DIFFERS'}")
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", help="name of a case, or all")
    parser.add_argument("--check", action="store_true", help="recompute and compare")
    args = parser.parse_args()
    torch.set_num_threads(1)  # a fixed order of summation
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    known = {c.name: c for c in recorded_cases()}
    if args.case != "all" and args.case not in known:
        parser.error(f"no case {args.case}; there are {', '.join(known)}")
    chosen = list(known.values()) if args.case == "all" else [known[args.case]]
    if args.check:
        sys.exit(0 if all([check(case) for case in chosen]) else 1)
    for case in chosen:
        make(case)


if __name__ == "__main__":
    main()
