#!/usr/bin/env python3
"""The image pipeline of treb against Pillow: decode, EXIF orientation, RGB, bicubic resize, on one core.

    pillow_decode.py FILE ... [--treb build/treb] [--repeat N] [--min-pixels N] [--max-pixels N] [--json]

Needs Pillow from PyPI. Both process each image, one after the other, N times each, from bytes in memory; the medians are
summed. Rates are megapixels of the files per second of CPU time, so other load on the machine changes them little. Both
resize to the size that treb chose; treb also cuts patches, which is timed separately since Pillow has no such step.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import time

from PIL import Image, ImageOps


def pillow_seconds(path, size, repeat):
    with open(path, "rb") as f:
        data = f.read()
    decode, resize = [], []
    for _ in range(repeat + 1):                       # the first is a warm-up
        start = time.thread_time()
        picture = Image.open(io.BytesIO(data))
        picture.load()
        if picture.getexif().get(0x0112, 1) != 1:
            picture = ImageOps.exif_transpose(picture)
        if picture.mode != "RGB":
            picture = picture.convert("RGB")
        middle = time.thread_time()
        if picture.size != size:
            picture.resize(size, Image.Resampling.BICUBIC)
        decode.append(middle - start)
        resize.append(time.thread_time() - middle)
    return statistics.median(decode[1:]), statistics.median(resize[1:])


def treb_record(args, path):
    command = [args.treb, "image", path, "--json", "--repeat", str(args.repeat)]
    command += ["--min-pixels", str(args.min_pixels), "--max-pixels", str(args.max_pixels)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--treb", default="build/treb")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--min-pixels", type=int, default=65536)
    parser.add_argument("--max-pixels", type=int, default=16777216)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    total = dict.fromkeys(("pixels", "treb_decode", "treb_resize", "treb_patches", "pillow_decode", "pillow_resize"), 0.0)
    for path in args.files:
        record = treb_record(args, path)
        size = (record["grid"][2] * 16, record["grid"][1] * 16)
        decode, resize = pillow_seconds(path, size, args.repeat)
        pixels = record["width"] * record["height"]
        for key, value in zip(total, (pixels, *record["seconds"].values(), decode, resize)):
            total[key] += value
        if not args.json:
            ours = record["seconds"]["decode"] + record["seconds"]["resize"]
            print(f"{os.path.basename(path):26} {pixels / 1e6:6.2f} MP  decode {pixels / record['seconds']['decode'] / 1e6:5.0f}"
                  f" vs {pixels / decode / 1e6:5.0f}  decode+resize {pixels / ours / 1e6:5.0f}"
                  f" vs {pixels / (decode + resize) / 1e6:5.0f} MP/s  x{(decode + resize) / ours:.2f}")
    pixels = total["pixels"]
    ours, theirs = total["treb_decode"] + total["treb_resize"], total["pillow_decode"] + total["pillow_resize"]
    result = {"megapixels": pixels / 1e6, "treb_decode": pixels / total["treb_decode"] / 1e6,
              "pillow_decode": pixels / total["pillow_decode"] / 1e6, "treb_decode_resize": pixels / ours / 1e6,
              "pillow_decode_resize": pixels / theirs / 1e6, "ratio": theirs / ours,
              "treb_all": pixels / (ours + total["treb_patches"]) / 1e6}
    print(json.dumps({key: round(value, 3) for key, value in result.items()}))


if __name__ == "__main__":
    main()
