#!/usr/bin/env python3
"""Checks that PEFT and transformers compute the same logits as treb from files that treb wrote.

    check_peft.py BASE ADAPTER [--merged MODEL] [--ours FILE]

BASE is a case of tests/gold (its inputs are used), ADAPTER a PEFT folder for it, MODEL the base with the adapter merged
(`treb convert --merge`), FILE the output of `treb parity --out` for the adapter. The logits of PEFT are compared with the
other logits at the positions of real tokens. Needs torch, transformers and peft.
"""

import argparse
import sys
import warnings

import peft
import torch
import transformers
from safetensors.torch import load_file

import make_gold as gold


def logits(model, inputs):
    with torch.no_grad():
        return gold.real_rows("logits", gold.forward(model.eval(), inputs).logits, inputs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("adapter")
    parser.add_argument("--merged")
    parser.add_argument("--ours")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    inputs = load_file(f"{args.base}/inputs.safetensors")
    plain = gold.load_model(args.base)
    without = logits(plain, inputs)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = peft.PeftModel.from_pretrained(plain, args.adapter)
    for w in said:  # PEFT only warns about missing keys
        print(f"PEFT: {w.message}")
    missing = any("missing" in str(w.message) for w in said)
    want = logits(model, inputs)
    got = {"without the adapter": without}
    if args.merged:
        got["merged"] = logits(gold.load_model(args.merged), inputs)
    if args.ours:
        got["treb"] = gold.real_rows("logits", load_file(args.ours)["logits"], inputs)
    errors = {name: gold.relative(x, want) for name, x in got.items()}
    for name, error in errors.items():
        print(f"{name:20} {error:.2e} of PEFT's largest logit")
    differs = errors.pop("without the adapter") > args.tolerance
    sys.exit(0 if differs and not missing and all(e <= args.tolerance for e in errors.values()) else 1)


if __name__ == "__main__":
    main()
