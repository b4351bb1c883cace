#!/usr/bin/env python3
"""Writes tests/tiff/: small TIFF and run-length BMP files, and cases.json with the size and the CRC-32 of the RGB
pixels that Pillow reads from each. Needs Pillow and numpy; run in the repository's root."""
import json
import os
import struct
import zlib

import numpy as np
from PIL import Image, ImageOps

OUT = "tests/tiff"
rng = np.random.default_rng(5)
y, x = np.mgrid[0:37, 0:53]
RGB = np.stack([(x * 5 + y) % 256, (x // 8 * 40 + y * 3) % 256, (y * 7) % 256], -1).astype(np.uint8)
RGB[10:20, 10:30] = (200, 30, 60)


def save(name, image, **more):
    image.save(f"{OUT}/{name}", **more)


def tiff(order, tags, data):
    """A file of one directory; tags: {tag: (kind, values)}, strips or tiles in data."""
    sizes, codes = {1: 1, 3: 2, 4: 4}, {1: "B", 3: "H", 4: "I"}
    tags = dict(tags)
    at, offsets = 8, []
    for part in data:
        offsets.append(at)
        at += len(part) + len(part) % 2
    tags[324 if 322 in tags else 273] = (4, offsets)
    tags[325 if 322 in tags else 279] = (4, [len(p) for p in data])
    body = b"".join(p + b"\0" * (len(p) % 2) for p in data)
    extra, entries, base = b"", b"", at + 2 + 12 * len(tags) + 4
    for tag in sorted(tags):
        kind, values = tags[tag]
        raw = struct.pack(f"{order}{len(values)}{codes[kind]}", *values)
        if len(raw) <= 4:
            field = raw.ljust(4, b"\0")
        else:
            field = struct.pack(order + "I", base + len(extra))
            extra += raw + b"\0" * (len(raw) % 2)
        entries += struct.pack(order + "HHI", tag, kind, len(raw) // sizes[kind]) + field
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, at)
    return head + body + struct.pack(order + "H", len(tags)) + entries + b"\0" * 4 + extra


def by_hand():
    h, w = RGB.shape[:2]
    base = {256: (3, [w]), 257: (3, [h]), 258: (3, [8, 8, 8]), 259: (3, [1]), 262: (3, [2]), 277: (3, [3])}
    tiles = []
    for ty in range(0, h, 16):
        for tx in range(0, w, 32):
            t = np.zeros((16, 32, 3), np.uint8)
            part = RGB[ty:ty + 16, tx:tx + 32]
            t[:part.shape[0], :part.shape[1]] = part
            tiles.append(zlib.compress(t.tobytes()))
    yield "tiles-deflate.tif", tiff("<", base | {259: (3, [8]), 322: (3, [32]), 323: (3, [16])}, tiles)
    planes = [RGB[:, :, i].tobytes() for i in range(3)]
    yield "planes-big.tif", tiff(">", base | {284: (3, [2]), 278: (3, [h])}, planes)
    strips = [RGB[i:i + 9].tobytes() for i in range(0, h, 9)]
    yield "turned-big.tif", tiff(">", base | {278: (3, [9]), 274: (3, [6])}, strips)
    grey4 = np.zeros((h, (w + 1) // 2), np.uint8)
    v = (x // 4 % 16).astype(np.uint8)
    grey4 |= v[:, 0::2] << 4
    grey4[:, :w // 2] |= v[:, 1::2]
    yield "white4.tif", tiff("<", {256: (3, [w]), 257: (3, [h]), 258: (3, [4]), 259: (3, [1]), 262: (3, [0]), 278: (3, [h])},
                             [grey4.tobytes()])


def bmp(bits, runs, w, h):
    palette = b"".join(bytes([(i * 37) % 256, (i * 91) % 256, (i * 13) % 256, 0]) for i in range(1 << bits))
    head = struct.pack("<IiiHHIIiiII", 40, w, h, 1, bits, 1 if bits == 8 else 2, len(runs), 0, 0, 1 << bits, 0)
    at = 14 + 40 + len(palette)
    return b"BM" + struct.pack("<IHHI", at + len(runs), 0, 0, at) + head + palette + runs


def main():
    os.makedirs(OUT, exist_ok=True)
    image = Image.fromarray(RGB)
    save("raw.tif", image)
    for kind in ("tiff_lzw", "tiff_adobe_deflate", "packbits"):
        save(kind.replace("tiff_", "") + ".tif", image, compression=kind)
    noise = Image.fromarray(rng.integers(0, 255, (90, 70, 3), np.uint8))
    save("lzw-noise.tif", noise, compression="tiff_lzw")
    save("lzw-predictor.tif", image, compression="tiff_lzw", tiffinfo={317: 2})
    save("grey-lzw.tif", image.convert("L"), compression="tiff_lzw")
    save("bits.tif", image.convert("1"))
    save("palette.tif", image.quantize(40), compression="packbits")
    alpha = Image.fromarray(np.dstack([RGB, (x * 4 % 256).astype(np.uint8)]))
    save("alpha.tif", alpha, compression="tiff_adobe_deflate")
    save("cmyk.tif", image.convert("CMYK"), compression="tiff_lzw")
    for name, data in by_hand():
        open(f"{OUT}/{name}", "wb").write(data)
    rle8 = b"".join(bytes([5, i, 0, 3, 1, 2, i % 256, 0, 6, 9, 0, 0]) for i in range(1, 12)) + b"\0\1"
    open(f"{OUT}/rle8.bmp", "wb").write(bmp(8, rle8, 14, 11))
    rle4 = b"".join(bytes([5, 0x12, 0, 4, 0x34, 0x56, 5, 0x70 + i, 0, 0]) for i in range(9)) + b"\0\1"
    open(f"{OUT}/rle4.bmp", "wb").write(bmp(4, rle4, 14, 9))
    cases = []
    for name in sorted(os.listdir(OUT)):
        if not name.endswith((".tif", ".bmp")):
            continue
        v = np.asarray(ImageOps.exif_transpose(Image.open(f"{OUT}/{name}")).convert("RGB"))
        cases.append({"file": name, "h": v.shape[0], "w": v.shape[1], "crc": zlib.crc32(v.tobytes())})
    with open(OUT + "/cases.json", "w") as f:
        f.write("[" + ",\n".join(json.dumps(c) for c in cases) + "]\n")


main()
