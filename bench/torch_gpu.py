#!/usr/bin/env python3
"""`treb bench` against PyTorch on one GPU: an expert layer, a text step, a step on photographs.

    torch_gpu.py [experts] [text:ROWS] [photos:N] [--compile] [--repeats N]

Needs torch and transformers. Prints one JSON line a case, to compare with `treb bench ops` and `treb bench step` of the same run.

experts   forward and backward of 128 experts, 8 a token, 32,768 tokens, through torch._grouped_mm with tokens sorted by expert
text      ROWS rows of 4,096 tokens through Qwen3-VL-30B-A3B's layers, 8 of them, sdpa attention, grouped experts, AdamW
photos    N photographs of about 640 x 480 with short texts in one padded batch, vision tower trained

Weights and moments are bf16 here, where treb keeps f32 masters, moments and gradients: that favours PyTorch. FLOPs are
counted as treb counts them, except for the head: PyTorch computes it for every row, and all these FLOPs are counted.
"""

import argparse
import gc
import json
import statistics

import torch
from transformers import Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration

PEAK = 989.4e12
H, E, K, I, V, LAYERS = 2048, 128, 8, 768, 151936, 8
IMAGE, START, END, PAD = 151655, 151652, 151653, 151643


def median_ms(step, repeats, warm=3):
    for _ in range(warm):
        step()
    times = []
    for _ in range(repeats):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        step()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    return statistics.median(times)


def experts(tokens, repeats):
    kw = dict(device="cuda", dtype=torch.bfloat16)
    x = torch.randn(tokens, H, requires_grad=True, **kw)
    up = (torch.randn(E, 2 * I, H, **kw) * 0.02).requires_grad_()
    down = (torch.randn(E, H, I, **kw) * 0.02).requires_grad_()
    weight, chosen = torch.randn(tokens, E, device="cuda").softmax(-1).topk(K, -1)
    grad = torch.randn(tokens, H, **kw)

    def forward():
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        ends = torch.bincount(flat, minlength=E).cumsum(0).to(torch.int32)
        rows = x[order // K]
        gate, value = torch._grouped_mm(rows, up.transpose(1, 2), offs=ends).chunk(2, -1)
        out = torch._grouped_mm(torch.nn.functional.silu(gate) * value, down.transpose(1, 2), offs=ends)
        out = out * weight.flatten()[order, None].to(out.dtype)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel(), device="cuda")
        return out[back].view(tokens, K, H).sum(1)

    def both():
        x.grad = up.grad = down.grad = None
        forward().backward(grad)

    flops = 2 * 3 * tokens * K * H * I
    with torch.no_grad():
        fwd = median_ms(forward, repeats)
    all_ms = median_ms(both, repeats)
    return dict(fwd_ms=fwd, fwd_tflops=flops / fwd / 1e9, ms=all_ms, tflops=3 * flops / all_ms / 1e9)


def config(layers):
    text = dict(
        vocab_size=V, hidden_size=H, intermediate_size=6144, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=4, head_dim=128, moe_intermediate_size=I, num_experts=E, num_experts_per_tok=K,
        norm_topk_prob=True, rms_norm_eps=1e-6, max_position_embeddings=262144,
        rope_parameters=dict(
            rope_type="default", rope_theta=5e6, mrope_interleaved=True, mrope_section=[24, 20, 20],
        ),
    )
    vision = dict(
        depth=27, hidden_size=1152, intermediate_size=4304, num_heads=16, out_hidden_size=H,
        num_position_embeddings=2304, deepstack_visual_indexes=[8, 16, 24],
    )
    return Qwen3VLMoeConfig(text_config=text, vision_config=vision, tie_word_embeddings=False)


def model(conf, device="cuda"):
    """Random bf16 weights, generated on the GPU."""
    conf._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        m = Qwen3VLMoeForConditionalGeneration(conf)
    torch.set_default_dtype(torch.float32)
    m.set_experts_implementation("grouped_mm")
    return m.train()


def decoder_flops(lengths):
    a_token = 2 * H * (32 + 8) * 128 + 2 * 32 * 128 * H + 2 * H * E + K * 3 * 2 * H * I
    attention = sum(2 * 32 * 128 * n * n for n in lengths)
    return LAYERS * (a_token * sum(lengths) + attention) + 2 * H * V * sum(lengths)


def tower_flops(grids):
    flops = 0
    for h, w in grids:
        n = h * w
        flops += 2 * n * 1536 * 1152 + 27 * (2 * n * 1152 * (4 * 1152 + 2 * 4304) + 4 * 1152 * n * n)
        flops += 4 * (n // 4) * 2 * (4608 * 4608 + 4608 * H)
    return flops


def text_batch(rows):
    ids = torch.randint(0, 150000, (rows, 4096), device="cuda")
    return dict(input_ids=ids, labels=ids), [4096] * rows, []


def photo_batch(n):
    g = torch.Generator().manual_seed(1)
    draw = lambda lo, hi: int(torch.randint(lo, hi, (1,), generator=g))
    grids, rows = [], []
    for _ in range(n):
        h, w, words = draw(22, 42) // 2 * 2, draw(26, 42) // 2 * 2, draw(14, 30)
        visual = h * w // 4
        row = torch.randint(0, 150000, (words + visual + 2,), generator=g)
        row[4], row[5 + visual] = START, END
        row[5 : 5 + visual] = IMAGE
        grids.append((h, w))
        rows.append(row)
    longest = max(map(len, rows))
    ids = torch.full((n, longest), PAD)
    seen = torch.zeros((n, longest), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)], seen[i, : len(row)] = row, 1
    labels = ids.masked_fill((seen == 0) | (ids == IMAGE), -100)
    batch = dict(
        input_ids=ids, attention_mask=seen, labels=labels, mm_token_type_ids=(ids == IMAGE).int(),
        pixel_values=torch.randn(sum(h * w for h, w in grids), 1536, dtype=torch.bfloat16),
        image_grid_thw=torch.tensor([[1, h, w] for h, w in grids]),
    )
    return {k: v.cuda() for k, v in batch.items()}, list(map(len, rows)), grids


def steps(batch, lengths, grids, compiled, repeats):
    m = model(config(LAYERS))
    opt = torch.optim.AdamW(m.parameters(), lr=1e-5, fused=True)
    if compiled:
        m.model.language_model = torch.compile(m.model.language_model)

    def step():
        m.zero_grad(set_to_none=True)
        m(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()

    ms = median_ms(step, repeats)
    flops = 3 * (decoder_flops(lengths) + tower_flops(grids))
    return dict(
        ms=ms, tokens=sum(lengths), tokens_per_s=sum(lengths) / ms * 1e3, mfu=flops / ms / 1e-3 / PEAK,
        gib=torch.cuda.max_memory_allocated() / 2**30,
    )


def run_cases(default, run):
    """Runs each case of the command line by run(kind, [numbers], compiled, repeats) and prints what it returns."""
    p = argparse.ArgumentParser()
    p.add_argument("case", nargs="*", default=default)
    p.add_argument("--compile", action="store_true")
    p.add_argument("--repeats", type=int, default=5)
    a = p.parse_args()
    for case in a.case:
        kind, *n = case.split(":")
        try:
            r = run(kind, list(map(int, n)), a.compile, a.repeats)
        except torch.cuda.OutOfMemoryError:
            r = dict(error="out of memory")
        print(json.dumps({"case": case, "compiled": a.compile, **r}), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def run(kind, n, compiled, repeats):
    if kind == "experts":
        return experts(n[0] if n else 32768, repeats)
    return steps(*(text_batch if kind == "text" else photo_batch)(n[0]), compiled, repeats)


if __name__ == "__main__":
    run_cases(["experts", "text:4", "photos:22"], run)
