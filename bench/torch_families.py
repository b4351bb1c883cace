#!/usr/bin/env python3
"""`treb bench` against PyTorch on one GPU, other families: whole steps through transformers, and the gated delta rule.

    torch_families.py [moonlight | qwen3next | gpt-oss]:LAYERS:ROWS [delta:ROWS] [--compile] [--repeats N]

Needs torch and transformers; `delta` needs fla-core (flash-linear-attention) and einops. Prints one JSON line a case, to
compare with `treb bench step --model NAME --layers LAYERS` and `treb bench ops --only "delta rule"` of the same run.

steps   ROWS rows of 4,096 tokens through LAYERS layers, sdpa attention (gpt-oss: eager, as transformers has it), grouped experts,
        clipped gradients, fused AdamW; weights and moments in bf16, which favours PyTorch
delta   ROWS documents of 4,096 tokens (8, as in `treb bench ops`), 16 key heads, 32 value heads, 128 wide: fla's chunk_gated_delta_rule
"""

import torch
from torch_gpu import median_ms, run_cases

ROW = 4096


def moonlight(layers):
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
    return DeepseekV3ForCausalLM, DeepseekV3Config(
        num_hidden_layers=layers, vocab_size=163840, hidden_size=2048, intermediate_size=11264, first_k_dense_replace=1,
        num_attention_heads=16, num_key_value_heads=16, q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=64, n_shared_experts=2, moe_intermediate_size=1408,
        num_experts_per_tok=6, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.446,
        max_position_embeddings=8192,
    )


def qwen3next(layers):
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM
    return Qwen3NextForCausalLM, Qwen3NextConfig(
        num_hidden_layers=layers, vocab_size=151936, hidden_size=2048, num_attention_heads=16, num_key_value_heads=2,
        head_dim=256, linear_conv_kernel_dim=4, linear_num_key_heads=16, linear_num_value_heads=32,
        linear_key_head_dim=128, linear_value_head_dim=128, num_experts=512, num_experts_per_tok=10,
        moe_intermediate_size=512, shared_expert_intermediate_size=512,
    )


def gpt_oss(layers):
    from transformers import GptOssConfig, GptOssForCausalLM
    return GptOssForCausalLM, GptOssConfig(num_hidden_layers=layers)


MODELS = {"moonlight": moonlight, "qwen3next": qwen3next, "gpt-oss": gpt_oss}


def model(name, layers):
    """Random bf16 weights, generated on the GPU."""
    kind, conf = MODELS[name](layers)
    conf._attn_implementation = "eager" if name == "gpt-oss" else "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        m = kind(conf)
    torch.set_default_dtype(torch.float32)
    m.set_experts_implementation("grouped_mm")
    return m.train()


def steps(name, layers, rows, compiled, repeats):
    m = model(name, layers)
    opt = torch.optim.AdamW(m.parameters(), lr=1e-5, fused=True)
    run = torch.compile(m) if compiled else m
    ids = torch.randint(0, 150000, (rows, ROW), device="cuda")

    def step():
        m.zero_grad(set_to_none=True)
        run(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()

    ms = median_ms(step, repeats)
    return dict(
        ms=ms, tokens=rows * ROW, tokens_per_s=rows * ROW / ms * 1e3,
        parameters=sum(p.numel() for p in m.parameters()), gib=torch.cuda.max_memory_allocated() / 2**30,
    )


def delta_rule(rows, repeats, keys=16, values=32, width=128):
    import fla
    import triton
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    kw = dict(device="cuda", dtype=torch.bfloat16)
    unit = lambda: torch.nn.functional.normalize(torch.randn(1, rows * ROW, keys, width, **kw), dim=-1).requires_grad_()
    q, k, v = unit(), unit(), torch.randn(1, rows * ROW, values, width, **kw).requires_grad_()
    g = torch.full((1, rows * ROW, values), -0.05, device="cuda").requires_grad_()
    beta = torch.full((1, rows * ROW, values), 0.5, **kw).requires_grad_()
    starts = torch.arange(rows + 1, device="cuda") * ROW
    grad = torch.randn_like(v)

    def forward():
        return chunk_gated_delta_rule(q, k, v, g=g, beta=beta, scale=width**-0.5, cu_seqlens=starts)[0]

    fwd, both = median_ms(forward, repeats), median_ms(lambda: forward().backward(grad), repeats)
    return dict(fwd_ms=fwd, fwd_bwd_ms=both, tokens=rows * ROW, fla=fla.__version__, triton=triton.__version__)


def run(kind, n, compiled, repeats):
    return delta_rule(*n, repeats) if kind == "delta" else steps(kind, *n, compiled, repeats)


if __name__ == "__main__":
    run_cases(["moonlight:8:4", "qwen3next:4:4", "delta:8"], run)
