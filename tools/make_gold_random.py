#!/usr/bin/env python3
"""Draws reference cases of random shapes, of every family, and runs `treb parity` on them.

    make_gold_random.py --out DIR gpt_oss --seeds 1-20         twenty cases of a family, DIR/gpt_oss-N
    make_gold_random.py --out DIR all --seeds 7 --treb build/treb
                                                               one of each family, each compared and removed if it agrees
    make_gold_random.py --f64 CASE_DIR --treb build/treb       errors of PyTorch in f32 and of treb against f64

Needs what make_gold_families.py needs. Shapes are drawn from extremes more often than a fair draw would: one key head, as
many as query heads, every expert for a token or one, windows of one token, documents of one token, odd widths.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

import make_gold
import make_gold_families
from make_gold import Case, Row
from make_gold_families import rope


# ------------------------------------------------------------------------------------------------------------ shapes

def rows_of(rng, longest):
    """Rows of plain text; the first has targets, others may be of one token."""
    lengths = [rng.choice([12, 17, rng.randint(12, longest)])]
    for _ in range(rng.choice([0, 1, 1, 2])):
        lengths.append(rng.choice([1, 2, 5, rng.randint(3, longest)]))
    return [Row([("text", n)]) for n in lengths]


def rope_of(rng, dim_share=None):
    """Rotary positions of some kind. Small bases and borders, so that each kind matters at a hundred tokens."""
    more = {} if dim_share is None else {"partial_rotary_factor": dim_share}
    theta = rng.choice([50.0, 1e4, 1.5e5, 1e6])
    kind = rng.choice(["default", "default", "yarn", "yarn", "llama3", "linear"])
    if kind == "linear":
        more.update(rope_type="linear", factor=rng.choice([1.0, 2.0, 4.0]))
    if kind == "llama3":
        more.update(rope_type="llama3", factor=rng.choice([2.0, 8.0, 32.0]), low_freq_factor=rng.choice([1.0, 2.0]),
                    high_freq_factor=4.0, original_max_position_embeddings=rng.choice([16, 64]))
    if kind == "yarn":
        more.update(rope_type="yarn", factor=rng.choice([1.0, 2.0, 4.0, 40.0]),
                    original_max_position_embeddings=rng.choice([16, 32, 128]))
        for key, values in (("beta_fast", (32.0, 16.0, 4.0)), ("beta_slow", (1.0, 2.0)), ("truncate", (False, True)),
                            ("attention_factor", (1.3, 0.9))):
            if rng.random() < 0.5:
                more[key] = rng.choice(values)
        if rng.random() < 0.5:
            more.update(mscale=rng.choice([0.707, 1.0]), mscale_all_dim=rng.choice([0.707, 1.0]))
    return rope(theta, **more)


def common(rng):
    hidden = rng.choice([15, 20, 24, 33, 40, 64])
    return dict(
        vocab_size=rng.randrange(47, 200), hidden_size=hidden, num_hidden_layers=rng.choice([1, 2, 2, 3, 4]),
        max_position_embeddings=rng.choice([128, 256, 4096]), rms_norm_eps=rng.choice([1e-6, 1e-5, 1e-3]),
        initializer_range=0.02, bos_token_id=0, eos_token_id=1,
        pad_token_id=rng.randrange(40) if rng.random() < 0.2 else None,
    )


def heads(rng, sizes=(2, 4, 6, 10, 12, 16, 18, 34)):
    kv = rng.choice([1, 1, 2, 3])
    return dict(num_attention_heads=kv * rng.choice([1, 1, 2, 3, 5]), num_key_value_heads=kv, head_dim=rng.choice(sizes))


def experts(rng):
    """(experts, experts for a token)"""
    n = rng.choice([1, 2, 3, 4, 5, 7, 8])
    return n, rng.choice([1, n, rng.randint(1, n)])


def layer_types(rng, other, layers):
    """One of a few patterns, or none."""
    every = rng.choice([2, 2, 3, 4])
    if rng.random() < 0.4:
        return [rng.choice([other, "full_attention"]) for _ in range(layers - 1)] + [other]
    return [other if (i + 1) % every else "full_attention" for i in range(layers)]


def width(rng):
    return rng.choice([1, 3, 7, 16, 21, 30])


def deepseek_v3(rng):
    text = common(rng)
    groups = rng.choice([1, 1, 2, 3, 4])
    each = rng.choice([2, 2, 3, 4]) if groups > 1 else rng.choice([2, 3, 5, 8])
    top_groups = rng.randint(1, groups)
    nh, nope, half = rng.choice([1, 2, 3, 5]), rng.choice([1, 3, 6, 16]), rng.choice([1, 2, 3, 8])
    layers = text["num_hidden_layers"]
    text.update(
        num_attention_heads=nh, num_key_value_heads=nh, q_lora_rank=rng.choice([None, 5, 12, 20]),
        kv_lora_rank=rng.choice([3, 7, 10, 32]), qk_nope_head_dim=nope, qk_rope_head_dim=2 * half,
        v_head_dim=rng.randint(1, nope + 2 * half), n_routed_experts=groups * each, n_group=groups, topk_group=top_groups,
        num_experts_per_tok=rng.choice([1, top_groups * each, rng.randint(1, top_groups * each)]),
        n_shared_experts=rng.choice([0, 1, 1, 2, 3]), first_k_dense_replace=rng.choice([0, 1, layers]),
        norm_topk_prob=rng.random() < 0.6, routed_scaling_factor=rng.choice([1.0, 2.5, 0.7]),
        intermediate_size=width(rng), moe_intermediate_size=width(rng), attention_bias=rng.random() < 0.3,
        rope_interleave=rng.random() < 0.7, num_nextn_predict_layers=rng.choice([0, 0, 1]), rope_parameters=rope_of(rng),
    )
    return text


def glm4_moe(rng):
    text = common(rng)
    layers, n, k = text["num_hidden_layers"], *experts(rng)
    n = max(n, 2)
    share, sizes = rng.choice([(0.5, (4, 8, 12, 20, 36)), (0.5, (16, 36)), (0.75, (8, 16, 40)), (1.0, (6, 16))])
    text.update(
        heads(rng, sizes), n_routed_experts=n, num_experts_per_tok=min(k, n), n_group=1, topk_group=1,
        n_shared_experts=rng.choice([0, 1, 1, 2, 3]), first_k_dense_replace=rng.choice([0, 1, layers]),
        norm_topk_prob=rng.random() < 0.6, routed_scaling_factor=rng.choice([1.0, 2.5]), intermediate_size=width(rng),
        moe_intermediate_size=width(rng), attention_bias=rng.random() < 0.6, use_qk_norm=rng.random() < 0.5,
        num_nextn_predict_layers=rng.choice([0, 0, 1]), rope_parameters=rope_of(rng, share),
    )
    return text


def gpt_oss(rng):
    text = common(rng)
    n, k = experts(rng)
    text.update(
        heads(rng), intermediate_size=width(rng), num_local_experts=n, num_experts_per_tok=k,
        sliding_window=rng.choice([1, 2, 3, 12, 1000]), attention_bias=rng.random() < 0.7,
        router_aux_loss_coef=rng.choice([0.0, 0.05, 0.9]), rope_parameters=rope_of(rng),
        layer_types=layer_types(rng, "sliding_attention", text["num_hidden_layers"]),
    )
    return text


def olmoe(rng):
    text = common(rng)
    n, k = experts(rng)
    shape = heads(rng, (2, 4, 6, 10, 16))
    shape.update(hidden_size=shape["num_attention_heads"] * shape.pop("head_dim"))
    text.update(
        shape, intermediate_size=width(rng), num_experts=n, num_experts_per_tok=k, norm_topk_prob=rng.random() < 0.4,
        clip_qkv=None, attention_bias=rng.random() < 0.3, router_aux_loss_coef=rng.choice([0.0, 0.01]),
        rope_parameters=rope_of(rng),
    )
    return text


def mixtral(rng):
    text = common(rng)
    n, k = experts(rng)
    text.update(
        heads(rng), intermediate_size=width(rng), num_local_experts=n, num_experts_per_tok=k,
        sliding_window=rng.choice([None, 1, 2, 3, 1000]), router_aux_loss_coef=rng.choice([0.0, 0.02]),
        rope_parameters=rope_of(rng),
    )
    return text


def llama(rng):
    text = common(rng)
    text.update(heads(rng), intermediate_size=width(rng), attention_bias=rng.random() < 0.4, rope_parameters=rope_of(rng))
    text["hidden_size"] = text["num_attention_heads"] * rng.choice([3, 8, 11])  # a multiple is demanded
    return text


def mistral(rng):
    text = common(rng)
    text.update(heads(rng), intermediate_size=width(rng), sliding_window=rng.choice([None, 1, 2, 3, 1000]),
                rope_parameters=rope_of(rng))
    return text


def qwen3(rng):
    text = common(rng)
    text.update(heads(rng), intermediate_size=width(rng), attention_bias=rng.random() < 0.4, rope_parameters=rope_of(rng))
    return text


def qwen3_moe(rng):
    text = common(rng)
    n, k = experts(rng)
    layers = text["num_hidden_layers"]
    text.update(
        heads(rng), intermediate_size=width(rng), moe_intermediate_size=width(rng), num_experts=n, num_experts_per_tok=k,
        norm_topk_prob=rng.random() < 0.5, decoder_sparse_step=rng.choice([1, 1, 2]),
        mlp_only_layers=sorted(rng.sample(range(layers), rng.randint(0, layers - 1))) if rng.random() < 0.4 else [],
        attention_bias=rng.random() < 0.4, router_aux_loss_coef=rng.choice([0.0, 0.01]), rope_parameters=rope_of(rng),
    )
    return text


def delta(rng, text, size, share):
    n, k = experts(rng)
    key_heads = rng.choice([1, 2, 3])
    kv = rng.choice([1, 1, 2])
    return dict(
        num_attention_heads=kv * rng.choice([1, 2, 3]), num_key_value_heads=kv, head_dim=size,
        linear_num_key_heads=key_heads, linear_num_value_heads=key_heads * rng.choice([1, 2, 3]),
        linear_key_head_dim=rng.choice([3, 5, 8, 16]), linear_value_head_dim=rng.choice([3, 7, 8, 16]),
        linear_conv_kernel_dim=rng.choice([2, 3, 4, 4]), moe_intermediate_size=width(rng), num_experts=n,
        num_experts_per_tok=k, shared_expert_intermediate_size=rng.choice([0, width(rng), width(rng)]), attention_bias=rng.random() < 0.3,
        router_aux_loss_coef=rng.choice([0.0, 0.02]), rms_norm_eps=rng.choice([1e-6, 1e-6, 1e-5]),
        rope_parameters=rope(rng.choice([100.0, 1e4, 1e7]), partial_rotary_factor=share),
    )


def qwen3_next(rng):
    text = common(rng)
    layers = text["num_hidden_layers"]
    text.update(delta(rng, text, *rng.choice([(8, 0.25), (8, 0.5), (16, 0.25), (12, 0.5), (6, 1.0)])))
    text.update(
        layer_types=layer_types(rng, "linear_attention", layers), intermediate_size=width(rng), norm_topk_prob=rng.random() < 0.7,
        decoder_sparse_step=rng.choice([1, 1, 2]),
        mlp_only_layers=[rng.randrange(layers)] if layers > 1 and rng.random() < 0.3 else [],
    )
    return text


def qwen3_5_moe_text(rng):
    text = common(rng)
    text.update(delta(rng, text, *rng.choice([(8, 0.25), (8, 0.5), (16, 0.25), (12, 0.5), (6, 1.0)])))
    text["layer_types"] = layer_types(rng, "linear_attention", text["num_hidden_layers"])
    return text


def visual_sections(rng, text, share):
    half = int(text["head_dim"] * share) // 2
    h, w = rng.randint(0, half // 3), rng.randint(0, half // 3)
    text["rope_parameters"].update(mrope_interleaved=True, mrope_section=[half - h - w, h, w])


def qwen3_5_moe(rng):
    size, share = rng.choice([(8, 1.0), (16, 0.5), (24, 0.5), (32, 0.25), (20, 0.3)])
    text = common(rng)
    text.update(delta(rng, text, size, share))
    text["layer_types"] = layer_types(rng, "linear_attention", text["num_hidden_layers"])
    visual_sections(rng, text, share)
    return text


def visual_text(rng, text):
    size = rng.choice([6, 10, 12, 16, 22])
    text.update(head_dim=size)
    if text["rope_parameters"]["rope_type"] == "llama3":
        text["rope_parameters"] = rope(1e3)
    visual_sections(rng, text, 1)
    return text


def qwen3_vl(rng):
    return visual_text(rng, qwen3(rng))


def qwen3_vl_moe(rng):
    return visual_text(rng, qwen3_moe(rng))


SHAPES = {f.__name__: f for f in (
    qwen3, qwen3_moe, qwen3_vl, qwen3_vl_moe, llama, mistral, mixtral, olmoe, deepseek_v3, gpt_oss, glm4_moe, qwen3_next,
    qwen3_5_moe, qwen3_5_moe_text,
)}


def vision_of(rng, family, hidden):
    vision = make_gold.random_vision(rng, hidden)
    vision["patch_size"] = rng.choice([2, 4, 8, 14])
    if family == "qwen3_5_moe":
        del vision["deepstack_visual_indexes"]
    return vision


def visual_rows(rng):
    """Rows with media of one merged patch, many images, videos of several frames; one of text alone at times."""
    rows = []
    for _ in range(rng.choice([1, 2, 2])):
        segments = [] if rng.random() < 0.3 else [("text", rng.randint(1, 9))]
        for _ in range(rng.choice([0, 1, 2, 7])):
            h, w = rng.choice([(2, 2), (2, 2), (2, 14), (10, 4), (4, 6), (8, 2), (6, 6)])
            segments.append(("video", rng.randint(1, 5), h, w) if rng.random() < 0.4 else ("image", h, w))
            if rng.random() < 0.5:
                segments.append(("text", rng.randint(1, 6)))
        segments.append(("text", rng.randint(6, 18)))
        rows.append(Row(segments, pad=rng.choice(["left", "right"])))
    return rows


def can_be_packed(family, text):
    """Delta nets and gpt_oss of transformers 5.23 do not look at position_ids for documents."""
    return not family.startswith(("gpt_oss", "qwen3_")) and not text.get("num_nextn_predict_layers")


def random_case(family, seed):
    rng = random.Random(f"{family} {seed}")
    text = SHAPES[family](rng)
    case = Case(f"{family}-{seed}", family, text, rows=[], tied=rng.random() < 0.3, seed=5000 + seed)
    case.label_drop = rng.choice([0.0, 0.3])
    if is_visual(family):
        case.vision, case.rows = vision_of(rng, family, text["hidden_size"]), visual_rows(rng)
        case.patch_scale = rng.choice([1.0, 0.05])
    else:
        case.rows = rows_of(rng, 150 if "qwen3_" in family else 60)
        case.packed = can_be_packed(family, text) and rng.random() < 0.2
        if not case.packed and not text.get("num_nextn_predict_layers") and rng.random() < 0.3:
            for row in case.rows:
                row.pad = "left"
    return case


def is_visual(family):
    return family in ("qwen3_vl", "qwen3_vl_moe", "qwen3_5_moe")


def make(case, out, draws):
    attempt = make_gold.attempt if is_visual(case.family) else make_gold_families.attempt
    make_gold.make(case, out, attempt, draws)


# --------------------------------------------------------------------------------------------------------------- f64

class Doubled:
    """Within, what the models compute in f32 by name they compute in f64."""

    def __enter__(self):
        self.kept = torch.float32, torch.float, torch.Tensor.float
        torch.float32 = torch.float = torch.float64
        torch.Tensor.float = torch.Tensor.double
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_):
        torch.float32, torch.float, torch.Tensor.float = self.kept
        torch.set_default_dtype(torch.float32)


def expected_in_f64(folder):
    """The tensors of expected.safetensors that do not depend on further tokens, losses and norms of AdamW steps."""
    inputs = load_file(os.path.join(folder, "inputs.safetensors"))
    with open(os.path.join(folder, "config.json")) as f:
        visual = "vision_config" in json.load(f)
    auto = AutoModelForImageTextToText if visual else AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                 experts_implementation="eager").double()
    with Doubled():
        for module in model.modules():
            if hasattr(module, "inv_freq") and hasattr(module, "config"):
                module.__init__(module.config)
        inputs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
        tensors = make_gold.compute_expected(model, inputs)[0]
        return tensors, make_gold.train(model, inputs)[:2]


def compare_f64(folder, treb):
    """Prints, by kind, the worst error of PyTorch's f32 and of treb against f64. Not of cases with further tokens."""
    inputs = load_file(os.path.join(folder, "inputs.safetensors"))
    want, steps = expected_in_f64(folder)
    torch32 = load_file(os.path.join(folder, "expected.safetensors"))
    mine = os.path.join(folder, "treb.safetensors")
    done = subprocess.run([treb, "parity", folder, "--out", mine], capture_output=True, text=True)
    ours = load_file(mine)
    os.remove(mine)
    top = max(t.abs().max().item() for n, t in want.items() if n.startswith("grad.") and t.numel())
    worst = {}
    for name, tensor in want.items():
        if name not in ours or name not in torch32 or not tensor.numel() or tensor.abs().max() < 1e-7 * top:
            continue
        exact = make_gold.real_rows(name, tensor, inputs)
        errors = [make_gold.relative(make_gold.real_rows(name, t[name].double().reshape(tensor.shape), inputs), exact)
                  for t in (torch32, ours)]
        kind = name.split(".")[0]
        for i in range(2):
            best = worst.setdefault(kind, [(0.0, "")] * 2)
            best[i] = max(best[i], (errors[i], name))
    print(f"{folder}: worst error against f64")
    with open(os.path.join(folder, "info.json")) as f:
        recorded = json.load(f)["train"]
    lines = [line.split() for line in done.stderr.splitlines() if line.startswith("step ")]
    for kind, exact, at in (("losses", steps[0], 3), ("grad_norms", steps[1], 5)):
        runs = recorded[kind], [float(line[at]) for line in lines]
        worst["AdamW " + kind] = [(max(abs(a / b - 1) for a, b in zip(run, exact)), "") for run in runs]
    for kind, ((theirs, at), (error, where)) in worst.items():
        print(f"  {kind:16} PyTorch {theirs:.2e}  treb {error:.2e}  {at} {where if where != at else ''}")


# --------------------------------------------------------------------------------------------------------------- run

def check(case, out, treb):
    folder = os.path.join(out, case.name)
    done = subprocess.run([treb, "parity", folder], capture_output=True, text=True)
    if done.returncode == 0:
        shutil.rmtree(folder)
        return True
    print(done.stdout, done.stderr, sep="")
    return False


def parse_seeds(text):
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", nargs="?", help=f"all, or one of {', '.join(SHAPES)}")
    parser.add_argument("--out", help="folder under which a folder per case is made")
    parser.add_argument("--seeds", default="1", metavar="A-B")
    parser.add_argument("--draws", type=int, default=60, help="draws of weights before a shape is given up")
    parser.add_argument("--treb", help="program that is compared")
    parser.add_argument("--f64", metavar="CASE_DIR")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if args.f64:
        return compare_f64(args.f64, args.treb)
    chosen = list(SHAPES) if args.family == "all" else [args.family]
    if not args.out or not set(chosen) <= set(SHAPES):
        parser.error("give --out DIR and all or a family")
    bad = total = 0
    for family in chosen:
        for seed in parse_seeds(args.seeds):
            case = random_case(family, seed)
            try:
                make(case, args.out, args.draws)
            except (SystemExit, IndexError, RuntimeError, ValueError) as why:
                print(f"{case.name}: not drawn: {why}")
                shutil.rmtree(os.path.join(args.out, case.name), ignore_errors=True)
                continue
            total += 1
            if args.treb and not check(case, args.out, args.treb):
                bad += 1
            sys.stdout.flush()
    print(f"{total} cases, {bad} differ")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
