#!/usr/bin/env python3
"""Records reference cases of the families beside Qwen3, in the form of make_gold.py.

    make_gold_families.py --out tests/gold all       every case below, one folder each
    make_gold_families.py --out DIR deepseek-mtp     one of them

Needs torch and transformers from PyPI (the recorded cases were made with torch 2.15 and transformers 5.22), as
make_gold.py does, whose inputs, optimizer and files it shares. Cases of the layer that predicts further tokens (MTP) add
`main_loss` and `mtp_loss` to expected.safetensors and `mtp_loss_weight` to info.json: transformers leaves the layer out of
training, so it is put together here from the model's own classes, as DeepSeek's report and Megatron define it.
"""

import argparse
import json
import os
import random

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import create_causal_mask

import make_gold
from make_gold import GAP_FIRST, GAP_TRAIN, IGNORE, OPTIMIZER, STEPS, Case, Row, build_inputs

MTP_WEIGHT = 0.3


class FurtherTokens(nn.Module):
    """The layer behind the last: predicts the token after the next."""

    def __init__(self, model):
        super().__init__()
        last, config = model.model.layers[-1], model.config
        norm = type(model.model.norm)
        self.layer = type(last)(config, config.num_hidden_layers)
        self.enorm, self.hnorm, self.norm = (norm(config.hidden_size, eps=config.rms_norm_eps) for _ in range(3))
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)

    def forward(self, model, hidden, ids):
        positions = torch.arange(ids.shape[1])[None]
        x = self.eh_proj(torch.cat([self.enorm(model.model.embed_tokens(ids)), self.hnorm(hidden)], -1))
        mask = create_causal_mask(config=model.config, inputs_embeds=x, attention_mask=None, past_key_values=None,
                                  position_ids=positions)
        x = self.layer(x, attention_mask=mask, position_ids=positions,
                       position_embeddings=model.model.rotary_emb(x, positions))
        return model.lm_head(self.norm(x))

    def file_name(self, name, layer):
        name = name.replace("layer.", "", 1) if name.startswith("layer.") else name
        return f"model.layers.{layer}." + ("shared_head.norm.weight" if name == "norm.weight" else name)


class Reference(nn.Module):
    """A model with its further layer, if the case has one. Rows are padded on the right."""

    def __init__(self, case):
        super().__init__()
        config = AutoConfig.for_model(case.family, tie_word_embeddings=case.tied, **case.text)
        config._experts_implementation = "eager"
        self.model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
        self.layers = config.num_hidden_layers
        self.aux_coef = getattr(config, "router_aux_loss_coef", None) if has_aux(case) else None
        self.mtp = FurtherTokens(self.model).float() if config.to_dict().get("num_nextn_predict_layers") else None

    def named(self):
        """Parameters and router biases by the names of memory."""
        out = dict(self.model.named_parameters())
        out.update({n: b for n, b in self.model.named_buffers() if n.endswith("e_score_correction_bias")})
        if self.mtp:
            tensors = list(self.mtp.named_parameters()) + list(self.mtp.named_buffers())
            out.update({self.mtp.file_name(n, self.layers): p for n, p in tensors})
        return out

    def losses(self, inputs):
        aux = {"output_router_logits": True} if self.aux_coef is not None else {}
        hidden = []
        hook = self.model.model.norm.register_forward_hook(lambda _m, _a, out: hidden.append(out))
        out = self.model(**inputs, use_cache=False, **aux)
        hook.remove()
        if not self.mtp:
            return out, None
        ids, labels = inputs["input_ids"], inputs["labels"]
        real = inputs.get("attention_mask", torch.ones_like(ids)).bool()
        after = F.pad(real[:, 1:], (0, 1))
        logits = self.mtp(self.model, hidden[0], torch.where(after, F.pad(ids[:, 1:], (0, 1)), 0))
        targets = torch.where(F.pad(real[:, 2:], (0, 2)), F.pad(labels[:, 2:], (0, 2), value=IGNORE), IGNORE)
        return out, F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORE)

    def loss(self, inputs):
        out, further = self.losses(inputs)
        return out.loss if further is None else out.loss + MTP_WEIGHT * further


def has_aux(case):
    return case.family in ("olmoe", "mixtral", "gpt_oss", "qwen3_next", "qwen3_5_moe_text")


def draw(name, shape, case, gen):
    noise = torch.randn(shape, generator=gen)
    if name.endswith("e_score_correction_bias"):
        return 0.15 * noise
    if name.endswith("sinks"):
        return noise
    if name.endswith("A_log"):  # some heads keep their state over many tokens
        return torch.log(0.005 * 400 ** torch.rand(shape, generator=gen))
    if name.endswith("conv1d.weight"):
        return noise / shape[-1] ** 0.5
    if name.endswith(("mlp.gate.weight", "mlp.router.weight")):
        return 2.0 * noise / shape[-1] ** 0.5
    if name.endswith(("_bias", "bias")):
        return 0.1 * noise
    if case.family == "gpt_oss" and len(shape) == 3:
        return noise / shape[1] ** 0.5
    return make_gold.draw_weight(name, shape, case, gen)


class Watch:
    """Outputs of layers and logits of routers, and how near the routers' choices are to others."""

    def __init__(self, ref):
        self.got, self.gaps, self.hooks = {}, [], []
        layers = list(ref.model.model.layers) + ([ref.mtp.layer] if ref.mtp else [])
        moe = 0
        for i, layer in enumerate(layers):
            if i < ref.layers:
                self.hook(layer, lambda m, out, i=i: self.got.update({f"decoder.{i}.out": out}))
            router = getattr(layer.mlp, "gate", None) or getattr(layer.mlp, "router", None)
            if router is not None:
                self.hook(router, lambda m, out, n=moe, keep=i < ref.layers: self.route(m, out, n, keep))
                moe += 1

    def hook(self, module, see):
        self.hooks.append(module.register_forward_hook(lambda m, _a, out: see(m, out)))

    def route(self, module, out, n, keep):
        logits, chosen = out[0].detach(), out[2]
        if keep:
            self.got[f"router.{n}.logits"] = logits.reshape(-1, logits.shape[-1])
        scores = logits.reshape(-1, logits.shape[-1])
        if hasattr(module, "e_score_correction_bias"):
            scores = scores.sigmoid() + module.e_score_correction_bias
            groups = scores.view(scores.shape[0], module.num_group, -1).topk(2, -1).values.sum(-1)
            if module.num_group > module.topk_group:
                best = groups.topk(module.topk_group + 1).values
                self.gaps.append((best[:, -2] - best[:, -1]).min().item())
                kept = groups >= best[:, -2:-1]
                scores = scores.masked_fill(~kept.repeat_interleave(scores.shape[1] // kept.shape[1], 1), -9)
        k = chosen.shape[-1]
        top = scores.topk(min(k + 1, scores.shape[1])).values
        if top.shape[1] > k:
            self.gaps.append((top[:, k - 1] - top[:, k]).min().item())

    def close(self):
        for hook in self.hooks:
            hook.remove()
        return min(self.gaps, default=1.0)


def expected_of(ref, inputs):
    watch = Watch(ref)
    ref.zero_grad(set_to_none=True)
    out, further = ref.losses(inputs)
    loss = out.loss if further is None else out.loss + MTP_WEIGHT * further
    loss.backward()
    gap = watch.close()
    named = ref.named()
    want = {"loss": loss, "logits": out.logits, **watch.got}
    if further is not None:
        want.update(main_loss=out.loss, mtp_loss=further)
    if ref.aux_coef is not None:
        want["aux_loss"] = out.aux_loss
    want.update({f"grad.{n}": p.grad for n, p in named.items() if p.grad is not None})
    without = [n for n, p in named.items() if p.requires_grad and p.grad is None]
    return {k: (v.reshape(1) if v.dim() == 0 else v).detach().clone().contiguous() for k, v in want.items()}, without, gap


def train(ref, inputs):
    optimizer = torch.optim.AdamW(ref.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses, norms = [], []
    watch = Watch(ref)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = ref.loss(inputs)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(ref.parameters(), 1.0).item())
        losses.append(loss.item())
        optimizer.step()
    return losses, norms, watch.close()


def save_model(ref, folder):
    """As save_pretrained does; the further layer with a tensor per expert, as on the hub."""
    ref.model.save_pretrained(folder)
    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    for name, p in (ref.named() if ref.mtp else {}).items():
        if not name.startswith(f"model.layers.{ref.layers}."):
            continue
        p = p.detach().clone()
        if name.endswith("experts.gate_up_proj"):
            for e in range(p.shape[0]):
                gate, up = p[e].chunk(2)
                tensors[name.replace("gate_up_proj", f"{e}.gate_proj.weight")] = gate.contiguous()
                tensors[name.replace("gate_up_proj", f"{e}.up_proj.weight")] = up.contiguous()
        elif name.endswith("experts.down_proj"):
            for e in range(p.shape[0]):
                tensors[name.replace("down_proj", f"{e}.down_proj.weight")] = p[e].contiguous()
        else:
            tensors[name] = p
    save_file(tensors, path, metadata={"format": "pt"})


def attempt(case, folder, number):
    gen = torch.Generator().manual_seed(case.seed * 1000 + number)
    ref = Reference(case)
    with torch.no_grad():
        for name, p in ref.named().items():
            p.copy_(draw(name, p.shape, case, gen))
    inputs = build_inputs(case, gen, random.Random(case.seed * 1000 + number))
    want, without, gap = expected_of(ref, inputs)
    save_model(ref, folder)
    losses, norms, train_gap = train(ref, inputs)
    if gap < GAP_FIRST or train_gap < GAP_TRAIN:
        return False
    info = {
        "transformers": transformers.__version__, "torch": torch.__version__, "loss": want["loss"].item(),
        "no_grad_params": without, "router_gap": gap, "aux_coef": ref.aux_coef or 0.0,
        "train": {"optimizer": OPTIMIZER, "losses": losses, "grad_norms": norms},
    }
    if ref.mtp:
        info["mtp_loss_weight"] = MTP_WEIGHT
    save_file(inputs, os.path.join(folder, "inputs.safetensors"))
    save_file(want, os.path.join(folder, "expected.safetensors"))
    with open(os.path.join(folder, "info.json"), "w") as f:
        json.dump(info, f, indent=1)
        f.write("\n")
    return True


def rope(theta, **more):
    return {"rope_theta": theta, "rope_type": "default", **more}


def recorded_cases():
    """Tiny and asymmetric: odd head counts, two documents of different lengths, every width another."""
    common = dict(vocab_size=61, hidden_size=24, max_position_embeddings=256, pad_token_id=None, bos_token_id=0,
                  eos_token_id=1)
    rows = [Row([("text", 19)]), Row([("text", 13)])]
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0)
    latent = dict(kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5)
    experts = dict(moe_intermediate_size=7, first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5,
                   intermediate_size=34, num_experts_per_tok=2)
    delta = dict(num_attention_heads=3, num_key_value_heads=1, head_dim=8, linear_key_head_dim=5,
                 linear_value_head_dim=7, linear_conv_kernel_dim=4, moe_intermediate_size=7, num_experts=5,
                 num_experts_per_tok=2, shared_expert_intermediate_size=9, rms_norm_eps=1e-6,
                 router_aux_loss_coef=0.02, rope_parameters=rope(10000.0, partial_rotary_factor=0.5))
    return [
        # no low-rank queries, one group, no shared expert: its weights are tensors without elements
        Case("deepseek-plain", "deepseek_v3", seed=31, rows=rows, text=dict(
            common, **latent, **experts, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
            q_lora_rank=None, n_routed_experts=5, n_shared_experts=0, n_group=1, topk_group=1, rms_norm_eps=1e-5,
            num_nextn_predict_layers=0, rope_parameters=rope(50000.0))),
        Case("deepseek-mtp", "deepseek_v3", seed=32, rows=rows, text=dict(
            common, **latent, **experts, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=5,
            q_lora_rank=12, n_routed_experts=6, n_shared_experts=1, n_group=3, topk_group=2, rms_norm_eps=1e-6,
            num_nextn_predict_layers=1,
            rope_parameters=rope(10000.0, **yarn, mscale=1.0, mscale_all_dim=0.8))),
        # biases, halves rotate together, every expert group but one, weights that do not sum to 1, no dense layer
        Case("deepseek-bias", "deepseek_v3", seed=39, tied=True, rows=[Row([("text", 23)]), Row([("text", 9)])], text=dict(
            common, **dict(experts, norm_topk_prob=False, first_k_dense_replace=0, num_experts_per_tok=3),
            num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, kv_lora_rank=7, qk_nope_head_dim=3,
            qk_rope_head_dim=2, v_head_dim=5, q_lora_rank=5, n_routed_experts=8, n_shared_experts=2, n_group=4,
            topk_group=3, rms_norm_eps=1e-5, num_nextn_predict_layers=0, rope_interleave=False, attention_bias=True,
            rope_parameters=rope(10000.0, **dict(yarn, beta_fast=16.0), mscale=0.707, mscale_all_dim=1.0))),
        Case("glm-mtp", "glm4_moe", seed=33, rows=rows, text=dict(
            common, **experts, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=8,
            n_routed_experts=5, n_shared_experts=2, n_group=1, topk_group=1, rms_norm_eps=1e-5, use_qk_norm=False,
            attention_bias=True, num_nextn_predict_layers=1,
            rope_parameters=rope(10000.0, partial_rotary_factor=0.5))),
        Case("gpt-oss", "gpt_oss", seed=34, rows=rows, text=dict(
            common, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=8,
            intermediate_size=18, num_local_experts=5, num_experts_per_tok=2, sliding_window=5, attention_bias=True,
            rms_norm_eps=1e-5, router_aux_loss_coef=0.05, layer_types=["sliding_attention", "full_attention"],
            rope_parameters=rope(150000.0, **yarn, truncate=False))),
        # a window of one token, one key head, no biases of attention, the last layer has a window
        Case("gpt-oss-odd", "gpt_oss", seed=40, tied=True, rows=[Row([("text", 17)]), Row([("text", 5)])], text=dict(
            common, num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=1, head_dim=4, intermediate_size=11,
            num_local_experts=4, num_experts_per_tok=3, sliding_window=1, attention_bias=False, rms_norm_eps=1e-6,
            router_aux_loss_coef=0.0, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters=rope(10000.0))),
        Case("gpt-oss-types", "gpt_oss", seed=49, rows=rows, text=dict(
            common, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, head_dim=6, intermediate_size=7,
            num_local_experts=3, num_experts_per_tok=2, sliding_window=3, attention_bias=True, rms_norm_eps=1e-5,
            router_aux_loss_coef=0.0, layer_types=["full_attention", "sliding_attention", "sliding_attention"],
            rope_parameters=rope(100.0))),
        Case("olmoe", "olmoe", seed=35, rows=rows, text=dict(
            common, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, intermediate_size=14,
            num_experts=5, num_experts_per_tok=2, norm_topk_prob=False, clip_qkv=None, rms_norm_eps=1e-5,
            router_aux_loss_coef=0.01, rope_parameters=rope(10000.0))),
        Case("mixtral", "mixtral", seed=36, rows=rows, text=dict(
            common, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=8,
            intermediate_size=14, num_local_experts=4, num_experts_per_tok=2, sliding_window=7, rms_norm_eps=1e-5,
            router_aux_loss_coef=0.02, rope_parameters=rope(1000000.0))),
        # one expert for a token, whose weight is always 1: gradients of routers are rounding of 0; YaRN
        Case("mixtral-one", "mixtral", seed=45, rows=[Row([("text", 23)]), Row([("text", 9)])], text=dict(
            common, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=6,
            intermediate_size=10, num_local_experts=3, num_experts_per_tok=1, sliding_window=3, rms_norm_eps=1e-5,
            router_aux_loss_coef=0.0, rope_parameters=rope(10000.0, **yarn))),
        # one row of three documents, one of a single token
        Case("mixtral-packed", "mixtral", seed=48, packed=True, rows=[Row([("text", n)]) for n in (11, 1, 9)], text=dict(
            common, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=4,
            intermediate_size=10, num_local_experts=3, num_experts_per_tok=2, sliding_window=3, rms_norm_eps=1e-5,
            router_aux_loss_coef=0.02, rope_parameters=rope(100.0))),
        # delta nets: value heads share keys, more rows than a tile has; input projections in both orders
        Case("qwen3-next", "qwen3_next", seed=43, rows=[Row([("text", 71)]), Row([("text", 13)])], text=dict(
            common, **delta, num_hidden_layers=3, full_attention_interval=3, mlp_only_layers=[1], intermediate_size=34,
            linear_num_key_heads=2, linear_num_value_heads=6)),
        Case("qwen3_5-text", "qwen3_5_moe_text", seed=42, rows=rows, text=dict(
            common, **delta, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
            linear_num_key_heads=3, linear_num_value_heads=3)),
        # no shared expert, all experts for a token, one key head, layers without a pattern
        Case("qwen3_5-plain", "qwen3_5_moe_text", seed=54, rows=rows, text=dict(
            common, **dict(delta, num_experts=3, num_experts_per_tok=3, shared_expert_intermediate_size=0),
            num_hidden_layers=2, layer_types=["full_attention", "linear_attention"], linear_num_key_heads=1,
            linear_num_value_heads=2)),
        Case("llama", "llama", seed=37, rows=rows, tied=True, text=dict(
            common, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=8,
            intermediate_size=34, rms_norm_eps=1e-5,
            rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                                 high_freq_factor=4.0, original_max_position_embeddings=32))),
        Case("llama-linear", "llama", seed=47, rows=rows, text=dict(
            common, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=10,
            intermediate_size=14, rms_norm_eps=1e-5, attention_bias=True,
            rope_parameters=dict(rope_type="linear", rope_theta=100.0, factor=4.0))),
        Case("mistral", "mistral", seed=38, rows=rows, text=dict(
            common, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3, head_dim=6,
            intermediate_size=34, sliding_window=5, rms_norm_eps=1e-5, rope_parameters=rope(10000.0))),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", help="name of a case, or all")
    parser.add_argument("--out", required=True, help="folder under which a folder per case is made")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    chosen = [c for c in recorded_cases() if args.case in (c.name, "all")]
    if not chosen:
        parser.error(f"no case {args.case}; there are {', '.join(c.name for c in recorded_cases())}")
    for case in chosen:
        make_gold.make(case, args.out, attempt, draws=400)


if __name__ == "__main__":
    main()
