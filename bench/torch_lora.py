#!/usr/bin/env python3
"""`treb bench step --lora` against transformers and PEFT on one GPU.

    torch_lora.py [--peft DIR] [--base bf16|nf4|nf4-all] [--layers 48] [--rank 16] [--tokens 8192] [--doc 2048] [--images 4]
                  [--grid 32x64] [--budget SECONDS]

Needs torch, transformers and accelerate; PEFT and, for --base nf4, bitsandbytes are imported from DIR (their wheels, unpacked)
if they are not installed. The model is Qwen3-VL-30B-A3B with random bf16 weights generated on the GPU, LoRA adapters on every
linear weight except routers and head (on experts by `target_parameters`), and fused AdamW. A pack is TOKENS tokens in
documents of DOC with IMAGES images of GRID patches, as in `treb bench step`: documents are rows of equal length, so there is
no padding and no mask.

With gradient checkpointing off and on, the script times the largest batch of --packs that fits, and one pack where the
largest is another; batches that do not fit are listed. Adapters and their moments are bf16 and there is no auxiliary loss,
both of which favour PyTorch (--adapters fp32: PEFT's default, under autocast). FLOPs are model FLOPs, counted as treb counts
them: base products once forward and once for the gradient of their input, adapters three times, head for supervised rows,
nothing for recompute. Prints one JSON line; after --budget seconds it prints the results so far.

--base nf4 has the decoder's linear modules in bitsandbytes' NF4 with double quantisation (Linear4bit, bf16 products). That is
all that transformers' BitsAndBytesConfig reaches there: transformers 5 has a layer's experts in two 3-d parameters, which stay
bf16. --base nf4-all has them in NF4 too, by a hook of this script that decodes a layer's experts before their forward; PEFT
then adds adapters to them as to a bf16 base. (bitsandbytes.nn.parametrize would decode them as well, but PEFT 0.21 does not
work on it: it finds such parameters by full names alone, leaves an adapter behind in every forward and fails in recompute.)
Tower, mergers, embeddings, routers, norms and head are bf16 in both, as in `treb bench step --base nf4`. "frozen" counts the
elements of each type.
"""

import argparse
import collections
import contextlib
import gc
import importlib.metadata
import json
import os
import statistics
import sys
import threading
import time
import warnings

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import torch
import transformers
from transformers import Qwen3VLMoeConfig

import torch_gpu

TINY = Qwen3VLMoeConfig(
    text_config=dict(
        vocab_size=torch_gpu.V, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, moe_intermediate_size=24, num_experts=8, num_experts_per_tok=2,
        rope_parameters=dict(rope_type="default", rope_theta=5e6, mrope_interleaved=True, mrope_section=[4, 2, 2]),
    ),
    vision_config=dict(
        depth=3, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=64, num_position_embeddings=64,
        deepstack_visual_indexes=[0, 1],
    ),
    tie_word_embeddings=False,
)
MODULES = r".*\.(q_proj|k_proj|v_proj|o_proj|qkv|attn\.proj|linear_fc1|linear_fc2)"
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


class Report:
    """The results so far; printed once, at the end of the work or of the time budget, whichever is first."""

    def __init__(self, budget, **head):
        self.head, self.tried, self.lock = head, [], threading.Lock()
        self.started, self.budget = time.monotonic(), budget
        self.timer = threading.Timer(budget, self.late)
        self.timer.daemon = True
        self.timer.start()

    def left(self):
        return self.budget - (time.monotonic() - self.started)

    def late(self):
        self.print(ended=f"out of time after {self.budget:.0f} s")
        os._exit(0)

    def print(self, **tail):
        with self.lock:
            self.timer.cancel()
            done = [t for t in self.tried if "tokens_per_s" in t and "error" not in t]
            best = max(done, key=lambda t: t["tokens_per_s"], default=None)
            print(json.dumps(short({**self.head, "best": best, "tried": self.tried, **tail})), flush=True)


def short(x):
    """The same value with numbers rounded to five digits."""
    if isinstance(x, dict):
        return {k: short(v) for k, v in x.items()}
    if isinstance(x, list):
        return [short(v) for v in x]
    return float(f"{x:.5g}") if isinstance(x, float) else x


# ------------------------------------------------------------------------------------------------------------ FLOPs

def adapter(rows, rank, *sizes):
    """FLOPs of forward and backward of LoRA adapters on weights of the given (in, out)."""
    return 3 * 2 * rows * rank * sum(i + o for i, o in sizes)


def decoder_flops(c, rank, rows, doc, supervised):
    t, tokens = c.text_config, rows * doc
    h, q, kv, i, k = (t.hidden_size, t.num_attention_heads * t.head_dim, t.num_key_value_heads * t.head_dim,
                      t.moe_intermediate_size, t.num_experts_per_tok)
    products = 2 * tokens * h * (2 * q + 2 * kv + t.num_experts) + 6 * tokens * k * h * i
    core = 4 * q * rows * doc * (doc + 1) / 2
    pairs = adapter(tokens, rank, (h, q), (h, kv), (h, kv), (q, h)) + adapter(tokens * k, rank, (h, 2 * i), (i, h))
    return t.num_hidden_layers * (2 * products + 3 * core + pairs) + 2 * 2 * supervised * h * t.vocab_size


def tower_flops(c, rank, images, grid, trained):
    v, n = c.vision_config, images * grid[0] * grid[1]
    h, f, wide, m = v.hidden_size, v.intermediate_size, v.hidden_size * v.spatial_merge_size**2, v.spatial_merge_size**2
    mergers = 1 + len(v.deepstack_visual_indexes)
    times = (2, 3) if trained else (1, 1)
    flops = 2 * n * v.in_channels * v.temporal_patch_size * v.patch_size**2 * h
    flops += v.depth * (times[0] * n * (8 * h * h + 4 * h * f) + times[1] * 4 * h * n * grid[0] * grid[1])
    flops += mergers * times[0] * n / m * 2 * (wide * wide + wide * v.out_hidden_size)
    if trained:
        flops += v.depth * adapter(n, rank, (h, 3 * h), (h, h), (h, f), (f, h))
        flops += mergers * adapter(n / m, rank, (wide, wide), (wide, v.out_hidden_size))
    return flops


# ------------------------------------------------------------------------------------------------------------- work

def linears_to_nf4(model):
    """As transformers does it for BitsAndBytesConfig(load_in_4bit=True, "nf4", double quantisation)."""
    import bitsandbytes as bnb
    for parent in list(model.modules()):
        for name, linear in list(parent.named_children()):
            if type(linear) is torch.nn.Linear:
                w, kw = linear.weight, dict(compress_statistics=True, quant_type="nf4")
                coded = bnb.nn.Linear4bit(w.shape[1], w.shape[0], False, compute_dtype=w.dtype, device="meta", **kw)
                coded.weight = bnb.nn.Params4bit(w.data, requires_grad=False, module=coded, **kw).to(w.device)
                coded.bias = linear.bias
                setattr(parent, name, coded)


def experts_to_nf4(model):
    """Experts are codes between two passes. Their product reads the sum of weights and adapters, so autograd keeps that sum
    and not the decoded weights, which are free again after the forward."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    def decode(block, _):
        for p, codes in block.coded:
            p.data = dequantize_4bit(*codes)

    def free(block, *_):
        for p, _ in block.coded:
            p.data = p.data.new_empty(0)

    for block in model.modules():
        if type(block).__name__ == "Qwen3VLMoeTextSparseMoeBlock":
            experts = getattr(block.experts, "get_base_layer", lambda: block.experts)()
            block.coded = [(p, quantize_4bit(p.data, compress_statistics=True, quant_type="nf4"))
                           for p in (experts.gate_up_proj, experts.down_proj)]
            free(block)
            block.register_forward_pre_hook(decode)
            block.register_forward_hook(free, always_call=True)


def frozen(model):
    """Elements of frozen weights by type."""
    count = collections.Counter()
    for block in model.modules():
        count["nf4"] += sum(codes[1].shape.numel() for _, codes in getattr(block, "coded", []))
    for p in model.parameters():
        if not p.requires_grad:
            codes = getattr(p, "quant_state", None)
            count["nf4" if codes else str(p.dtype)[6:]] += codes.shape.numel() if codes else p.numel()
    return dict(count)


def make_model(args, device, c):
    import peft
    m = torch_gpu.model(c, device)
    if args.base != "bf16":
        linears_to_nf4(m.model.language_model)
        m.is_loaded_in_4bit = True
    lora = peft.LoraConfig(
        r=args.rank, lora_alpha=2 * args.rank, target_modules=MODULES, target_parameters=EXPERTS,
        exclude_modules=r".*\.visual\..*" if args.no_vision else None,
    )
    with torch.device(device):
        m = peft.get_peft_model(m, lora, autocast_adapter_dtype=args.adapters == "fp32")
    if args.base == "nf4-all":
        experts_to_nf4(m)
    return m.train()


def make_batch(args, c, rows, images, device):
    """Documents that begin with their images, a token after each; only text is supervised."""
    g = torch.Generator().manual_seed(1)
    h, w = args.grid
    run = h * w // c.vision_config.spatial_merge_size**2
    ids = torch.randint(0, c.text_config.vocab_size - 1, (rows, args.doc), generator=g)
    ids[ids == c.image_token_id] = 0
    ids[ids == c.video_token_id] = 0
    for d in range(rows):
        for i in range(images * (d + 1) // rows - images * d // rows):
            assert (i + 1) * (run + 1) <= args.doc, "pictures do not fit a document"
            ids[d, i * (run + 1) : i * (run + 1) + run] = c.image_token_id
    visual = ids == c.image_token_id
    v = c.vision_config
    pixels = v.in_channels * v.temporal_patch_size * v.patch_size**2
    batch = dict(input_ids=ids, labels=ids.masked_fill(visual, -100), mm_token_type_ids=visual.int())
    if images:
        batch["pixel_values"] = torch.randn(images * h * w, pixels, generator=g).to(torch.bfloat16)
        batch["image_grid_thw"] = torch.tensor([[1, h, w]] * images)
    supervised = int((~visual[:, 1:]).sum())
    return {k: t.to(device) for k, t in batch.items()}, supervised


def sync(device):
    if device == "cuda":
        torch.cuda.synchronize()


def clean(model, device):
    model.zero_grad(set_to_none=True)
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def timed(args, report, row, model, optimizer, c, device):
    """Steps on a batch of row["packs"] packs; the row holds the median so far, without the first two steps."""
    rows, images = max(1, round(row["packs"] * args.tokens / args.doc)), round(row["packs"] * args.images)
    batch, supervised = make_batch(args, c, rows, images, device)
    params = [p for p in model.parameters() if p.requires_grad]
    auto = torch.autocast(device, torch.bfloat16) if args.adapters == "fp32" else contextlib.nullcontext()
    flops = decoder_flops(c, args.rank, rows, args.doc, supervised)
    flops += tower_flops(c, args.rank, images, args.grid, not args.no_vision)
    seconds = []
    while len(seconds) < args.repeats + 2 and (len(seconds) < 3 or report.left() > 3 * max(seconds)):
        sync(device)
        started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with auto:
            loss = model(**batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        sync(device)
        seconds.append(time.perf_counter() - started)
        second = statistics.median(seconds[2:] or seconds)
        row.update(
            ms=second * 1e3, first_ms=seconds[0] * 1e3, steps=len(seconds), tokens_per_s=rows * args.doc / second,
            mfu=flops / second / torch_gpu.PEAK, tflop=flops / 1e12, supervised=supervised,
            patches=images * args.grid[0] * args.grid[1], loss=loss.item(),
            gib=torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None,
        )


def attempt(args, report, model, optimizer, c, packs, checkpointing, device):
    """Returns whether the batch fits."""
    row = dict(checkpointing=checkpointing, packs=packs, tokens=round(packs * args.tokens))
    report.tried.append(row)
    clean(model, device)
    try:
        timed(args, report, row, model, optimizer, c, device)
    except torch.OutOfMemoryError:
        row["error"] = "out of memory"
    except RuntimeError as e:  # an allocation that failed inside a library is reported like this
        row["error"] = str(e).splitlines()[0][:200]
        if "memory" not in row["error"] and "alloc" not in row["error"].lower():
            raise
    print(json.dumps(short(row)), file=sys.stderr, flush=True)
    return "error" not in row


def run(args, report, device):
    c = TINY if args.tiny else torch_gpu.config(args.layers)
    model = make_model(args, device, c)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=1e-4, fused=True)
    sync(device)
    report.head.update(
        layers=c.text_config.num_hidden_layers, frozen=frozen(model), trained=sum(p.numel() for p in params),
        start_s=time.monotonic() - report.started,
        weights_gib=torch.cuda.memory_allocated() / 2**30 if device == "cuda" else None,
    )
    for checkpointing in {"both": [False, True], "on": [True], "off": [False]}[args.checkpointing]:
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        fits = next((p for p in args.packs if attempt(args, report, model, optimizer, c, p, checkpointing, device)), 0)
        if fits > 1:
            attempt(args, report, model, optimizer, c, 1, checkpointing, device)
    report.print(ended="complete")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--peft", help="folder that holds the package peft")
    p.add_argument("--base", choices=("bf16", "nf4", "nf4-all"), default="bf16")
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--layers", type=int, default=48)
    p.add_argument("--tokens", type=int, default=8192)
    p.add_argument("--doc", type=int, default=2048)
    p.add_argument("--images", type=int, default=4)
    p.add_argument("--grid", default="32x64")
    p.add_argument("--packs", default="8,4,2,1,0.5,0.25", help="batches tried, from the largest")
    p.add_argument("--checkpointing", choices=("both", "on", "off"), default="both")
    p.add_argument("--adapters", choices=("bf16", "fp32"), default="bf16")
    p.add_argument("--no-vision", action="store_true", help="no adapters on tower and mergers")
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--budget", type=float, default=480)
    p.add_argument("--tiny", action="store_true", help="a small model, to try the script itself")
    args = p.parse_args()
    args.grid = tuple(map(int, args.grid.split("x")))
    args.packs = [float(x) for x in args.packs.split(",")]
    if args.peft:
        sys.path.insert(0, args.peft)
    libs = ["torch", "transformers", "peft"] + ["bitsandbytes"] * (args.base != "bf16")
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    report = Report(
        args.budget, case="lora", base=args.base, rank=args.rank, adapters=args.adapters, vision=not args.no_vision,
        attention="sdpa", experts="grouped_mm", **{lib: importlib.metadata.version(lib) for lib in libs},
        device=torch.cuda.get_device_name() if device == "cuda" else "cpu",
    )
    run(args, report, device)


if __name__ == "__main__":
    main()
