#!/usr/bin/env python3
"""Records what the models of tests/gold compute with FP8 products: the cases of tests/gold_fp8.

    make_gold_fp8.py                             all cases, one folder each; run at the root of the repository
    make_gold_fp8.py qwen3-next                  one of them

Needs torch and transformers from PyPI. PyTorch casts to float8_e4m3fn; groups, scales and the choice of products are written
here a second time, from docs/precision.md: y = x w' and dx = dy w of every linear layer but router, patch embedding, the
gate of a shared expert and a tied head have operands rounded to e4m3, rows in groups of 128, weights in blocks of 128 x 128, power-of-two scales; dw stays in f32. q, k
and v are one weight, and so are gate and up, and the inputs of a gated delta net; the router's weight multiplies the input of an expert's down product.

A case uses the model and the inputs of a case of tests/gold, and adds:

    expected.safetensors  as tests/gold has it
    info.json             base (the folder of that case, relative to this one), precision, fp8_products, aux_coef, router_gap
"""

import json
import os
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

import make_gold as gold

BASES, CASES, GROUP = "tests/gold", "tests/gold_fp8", 128
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("in_proj_qkvz", "in_proj_ba"))
ALL = ("moe-rawtopk", "vl-dense-bias", "vl-moe-mix", "deepseek-plain", "qwen3-next")
PRODUCTS = ["experts", "attention", "mlp", "tower", "mergers", "head"]


def rounded(x, amax):
    """x in e4m3 with the least power-of-two scale that holds amax, as f32."""
    scale = torch.exp2(torch.ceil(torch.log2(amax.double() / 448.0))).float()
    scale = torch.where(amax > 0, scale, torch.ones_like(scale))
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


def by_rows(x):
    parts = x.split(GROUP, dim=-1)
    return torch.cat([rounded(p, p.abs().amax(dim=-1, keepdim=True)) for p in parts], dim=-1)


def by_blocks(w):
    rows = [torch.cat([rounded(b, b.abs().max()) for b in r.split(GROUP, dim=1)], dim=1) for r in w.split(GROUP)]
    return torch.cat(rows)


class Product(torch.autograd.Function):
    """y = x w', with dx from rounded operands and dw from wide ones."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return by_rows(x) @ by_blocks(w).t()

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        flat = dy.reshape(-1, dy.shape[-1])
        return by_rows(dy) @ by_blocks(w), flat.t() @ x.reshape(-1, x.shape[-1])


def product(x, w, b=None):
    y = Product.apply(x, w)
    return y if b is None else y + b


def fuse(parts):
    """Linear layers of one input become one product, computed where the first of them is called."""
    kept = {}

    def call(i):
        def forward(x):
            if i == 0:
                bias = torch.cat([p.bias for p in parts]) if parts[0].bias is not None else None
                y = product(x, torch.cat([p.weight for p in parts]), bias)
                kept["y"] = y.split([p.weight.shape[0] for p in parts], dim=-1)
            return kept["y"][i]
        return forward

    for i, part in enumerate(parts):
        part.forward = call(i)


def experts_forward(experts):
    def forward(x, index, weights):
        y = torch.zeros_like(x)
        for e in range(experts.num_experts):
            token, slot = torch.where(index == e)
            if len(token):
                gate, up = product(x[token], experts.gate_up_proj[e]).chunk(2, dim=-1)
                h = experts.act_fn(gate) * up * weights[token, slot, None]
                y = y.index_add(0, token, product(h, experts.down_proj[e]))
        return y
    return forward


def takes(module):
    """A linear layer; shared experts may have a width of 0."""
    return isinstance(module, torch.nn.Linear) and module.weight.numel() > 0


def quantize(model):
    for name, module in model.named_modules():
        if hasattr(module, "gate_up_proj") and hasattr(module, "num_experts"):
            module.forward = experts_forward(module)
        tied = getattr(module, "weight", None) is model.get_input_embeddings().weight
        if takes(module) and not tied and not name.endswith(("shared_expert_gate", "mlp.gate")):
            module.forward = lambda x, m=module: product(x, m.weight, m.bias)
    for module in model.modules():
        for names in FUSED:
            if all(takes(getattr(module, n, None)) for n in names):
                fuse([getattr(module, n) for n in names])


def make(name):
    base, folder = os.path.join(BASES, name), os.path.join(CASES, name)
    inputs = load_file(os.path.join(base, "inputs.safetensors"))
    model = gold.load_model(base)
    quantize(model)
    expected, without = gold.compute_expected(model, inputs)
    expected = {name: t for name, t in expected.items() if t.numel()}
    info = {
        "base": os.path.relpath(base, folder), "precision": "fp8_block", "fp8_products": PRODUCTS,
        "transformers": transformers.__version__, "torch": torch.__version__, "loss": expected["loss"].item(),
        "no_grad_params": without,
    }
    gap = gold.router_gap(expected, inputs, model.config)
    if gap is not None:
        info["router_gap"] = gap
    if "aux_loss" in expected:
        info["aux_coef"] = gold.text_config(model.config).router_aux_loss_coef
    os.makedirs(folder, exist_ok=True)
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    with open(os.path.join(folder, "info.json"), "w") as f:
        json.dump(info, f, indent=1)
        f.write("\n")
    print(f"{name}: loss {info['loss']:.6f}, router gap {gap}")


for case in sys.argv[1:] or ALL:
    make(case)
