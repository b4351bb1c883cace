#!/usr/bin/env python3
"""One training step in PyTorch, to compare with treb: forward and backward of a small Qwen3-VL-MoE on the CPU.

    torch_step.py [--dtype f32|bf16|autocast] [--experts auto|eager|grouped_mm] [--repeats N] [--threads N]
    torch_step.py --write-config DIR     writes config.json and the batch (inputs.safetensors) for treb to run

Needs torch and transformers from PyPI. Prints one JSON line with the median seconds of forward + backward (the auxiliary
loss included, no optimizer step) after warm-up. Attention is sdpa. `bf16` holds the weights in bfloat16, `autocast` holds
them in float32 and uses torch.autocast; `--experts auto` times both ways of running the experts and keeps the faster.

The batch: 4 rows of 512 tokens, each with one image of 16 x 16 patches (64 visual tokens). The model has the proportions
of Qwen3-VL-30B-A3B at a quarter of its width; with the expert width of 192 the hidden size D differs from 2F, so that the
layout of expert tensors follows from their shape.
"""

import argparse
import contextlib
import json
import os
import statistics
import time

import torch
import transformers
from safetensors.torch import save_file
from transformers import Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration

ROWS, LENGTH, GRID, VOCAB = 4, 512, 16, 8192
IMAGE, VIDEO, START, END = VOCAB - 6, VOCAB - 5, VOCAB - 4, VOCAB - 3
TEXT = dict(
    vocab_size=VOCAB, hidden_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
    intermediate_size=1536, moe_intermediate_size=192, num_experts=16, num_experts_per_tok=4, norm_topk_prob=True,
    decoder_sparse_step=1, mlp_only_layers=[], router_aux_loss_coef=0.001, max_position_embeddings=4096,
    rope_parameters={
        "rope_type": "default", "rope_theta": 5e6, "mrope_interleaved": True, "mrope_section": [12, 10, 10],
    },
)
VISION = dict(
    depth=6, hidden_size=256, num_heads=4, intermediate_size=1024, in_channels=3, patch_size=16, temporal_patch_size=2,
    spatial_merge_size=2, num_position_embeddings=2304, out_hidden_size=512, deepstack_visual_indexes=[1, 3],
)


def build_config():
    config = Qwen3VLMoeConfig(
        text_config=dict(TEXT), vision_config=dict(VISION), tie_word_embeddings=False, image_token_id=IMAGE,
        video_token_id=VIDEO, vision_start_token_id=START, vision_end_token_id=END,
    )
    config.architectures = ["Qwen3VLMoeForConditionalGeneration"]
    return config


def build_batch():
    gen = torch.Generator().manual_seed(1)
    visual = GRID * GRID // 4
    ids = torch.randint(0, IMAGE, (ROWS, LENGTH), generator=gen)
    ids[:, 8], ids[:, 9:9 + visual], ids[:, 9 + visual] = START, IMAGE, END
    labels = ids.clone()
    labels[:, :10 + visual] = -100
    features = VISION["in_channels"] * VISION["temporal_patch_size"] * VISION["patch_size"] ** 2
    return {
        "input_ids": ids, "labels": labels, "mm_token_type_ids": (ids == IMAGE).long(),
        "pixel_values": torch.randn(ROWS * GRID * GRID, features, generator=gen),
        "image_grid_thw": torch.tensor([[1, GRID, GRID]] * ROWS),
    }


def write_config(folder):
    os.makedirs(folder, exist_ok=True)
    build_config().save_pretrained(folder)
    save_file(build_batch(), os.path.join(folder, "inputs.safetensors"))


def build_model(dtype, experts):
    """The model with the random initialization of its class."""
    torch.manual_seed(0)
    model = Qwen3VLMoeForConditionalGeneration._from_config(
        build_config(), dtype=torch.bfloat16 if dtype == "bf16" else torch.float32, attn_implementation="sdpa",
        experts_implementation=experts,
    )
    return model.train()


def step(model, batch, dtype):
    """Seconds of the forward pass, of forward and backward together, and the loss."""
    model.zero_grad(set_to_none=True)
    cast = torch.autocast("cpu", dtype=torch.bfloat16) if dtype == "autocast" else contextlib.nullcontext()
    begin = time.perf_counter()
    with cast:
        loss = model(**batch, use_cache=False, output_router_logits=True).loss
    middle = time.perf_counter()
    loss.backward()
    return middle - begin, time.perf_counter() - begin, loss.item()


def measure(dtype, experts, batch, warmup, repeats):
    model = build_model(dtype, experts)
    for _ in range(warmup):
        step(model, batch, dtype)
    load = os.getloadavg()[0]
    runs = [step(model, batch, dtype) for _ in range(repeats)]
    seconds = [total for _, total, _ in runs]
    median = statistics.median(seconds)
    return {
        "bench": "torch_step", "torch": torch.__version__, "transformers": transformers.__version__, "dtype": dtype,
        "experts": experts, "attention": "sdpa", "threads": torch.get_num_threads(), "repeats": repeats,
        "parameters": sum(p.numel() for p in model.parameters()), "tokens": ROWS * LENGTH,
        "loss": round(runs[0][2], 4), "forward_s": round(statistics.median(f for f, _, _ in runs), 4),
        "median_s": round(median, 4), "min_s": round(min(seconds), 4), "max_s": round(max(seconds), 4),
        "tokens_per_s": round(ROWS * LENGTH / median, 1), "load_before": round(load, 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["f32", "bf16", "autocast"], default="f32")
    parser.add_argument("--experts", choices=["auto", "eager", "grouped_mm"], default="auto")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write-config", metavar="DIR", help="write config.json and inputs.safetensors, then stop")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    if args.write_config:
        return write_config(args.write_config)
    batch = build_batch()
    choices = ["eager", "grouped_mm"] if args.experts == "auto" else [args.experts]
    trials = {e: measure(args.dtype, e, batch, 1, 2)["median_s"] for e in choices} if len(choices) > 1 else {}
    best = min(trials, key=trials.get) if trials else choices[0]
    print(json.dumps({**measure(args.dtype, best, batch, args.warmup, args.repeats), "trials": trials}))


if __name__ == "__main__":
    main()
