#!/usr/bin/env python3
"""Writes tests/fp8_torch.h: e4m3 and e2m1 codes and scales as PyTorch computes them. Needs torch, torchao.

    python3 tools/make_fp8_cases.py > tests/fp8_torch.h
"""
import torch
from torchao.prototype.mx_formats.kernels import f32_to_f4_unpacked

ROWS, COLS, GROUP = 4, 160, 128


def bits(t):
    return [v & 0xFFFFFFFF for v in t.float().contiguous().view(torch.int32).flatten().tolist()]


def array(name, values, per_line, form):
    lines = [", ".join(form % v for v in values[i:i + per_line]) for i in range(0, len(values), per_line)]
    return "%s = {\n    %s,\n};" % (name, ",\n    ".join(lines))


def quantize(x, pow2):
    codes, scales = torch.empty(ROWS, COLS, dtype=torch.uint8), []
    for at in range(0, COLS, GROUP):
        group = x[:, at:at + GROUP]
        scale = group.abs().amax(dim=1) / 448.0
        if pow2:
            scale = torch.exp2(torch.ceil(torch.log2(scale.double()))).float()
        inverse = (1.0 / scale).unsqueeze(1)
        codes[:, at:at + GROUP] = (group * inverse).to(torch.float8_e4m3fn).view(torch.uint8)
        scales.append(scale)
    return codes.flatten().tolist(), bits(torch.stack(scales))


def microscale(x):
    groups = x.reshape(-1, 32)
    scale = torch.exp2(torch.ceil(torch.log2((groups.abs().amax(dim=1) / 448.0).double()))).float()
    codes = (groups / scale.unsqueeze(1)).to(torch.float8_e4m3fn).view(torch.uint8)
    return codes.flatten().tolist(), scale.to(torch.float8_e8m0fnu).view(torch.uint8).tolist()


def nvfp4(x):
    """Two codes a byte, e4m3 scales of groups of 16, the scale of the tensor."""
    tensor = x.abs().amax() / (448.0 * 6.0)
    groups = x.reshape(-1, 16)
    scale = (groups.abs().amax(dim=1) / 6.0 / tensor).to(torch.float8_e4m3fn)
    inverse = torch.where(scale.float() > 0, 1.0 / (scale.float() * tensor), 0.0)
    codes = f32_to_f4_unpacked(groups * inverse.unsqueeze(1)).flatten()
    packed = codes[0::2] | codes[1::2] << 4
    return packed.tolist(), scale.view(torch.uint8).tolist(), bits(tensor.reshape(1))[0]


def main():
    torch.manual_seed(16)
    x = torch.randn(ROWS, COLS) * torch.tensor([1.0, 1e-6, 300.0, 1.0]).unsqueeze(1)
    x[3] *= torch.exp2(torch.randint(-20, 0, (COLS,)).float())       # many subnormal codes
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn)
    print("/* tests/fp8_torch.h -- rows quantised by PyTorch %s; written by tools/make_fp8_cases.py. */"
          % torch.__version__.split("+")[0])
    print("#ifndef TESTS_FP8_TORCH_H\n#define TESTS_FP8_TORCH_H\n\n#include <stdint.h>\n")
    print("enum { TORCH_ROWS = %d, TORCH_COLS = %d, TORCH_GROUPS = %d };\n" % (ROWS, COLS, -(-COLS // GROUP)))
    print("/* Bits of f32; then [pow2]: codes, and bits of scales by group and row. */")
    print(array("static const uint32_t torch_x[TORCH_ROWS * TORCH_COLS]", bits(x), 8, "0x%08x"))
    both = [quantize(x, False), quantize(x, True)]
    for name, kind, size, i, per, form in (("torch_q", "uint8_t", "TORCH_ROWS * TORCH_COLS", 0, 16, "0x%02x"),
                                           ("torch_scale", "uint32_t", "TORCH_GROUPS * TORCH_ROWS", 1, 8,
                                            "0x%08x")):
        print("static const %s %s[2][%s] = {" % (kind, name, size))
        for pair in both:
            v = pair[i]
            rows = [", ".join(form % c for c in v[at:at + per]) for at in range(0, len(v), per)]
            print("    { %s }," % ",\n      ".join(rows))
        print("};")
    print("\n/* Bits of every code's value; of a NaN not compared. */")
    print(array("static const uint32_t torch_e4m3[256]", bits(every), 8, "0x%08x"))
    print(array("static const uint32_t torch_e8m0[256]", bits(every.view(torch.float8_e8m0fnu)), 8, "0x%08x"))
    print("\n/* MXFP8: codes, and e8m0 scales of groups of 32. */")
    codes, scales = microscale(x)
    print(array("static const uint8_t torch_mx_q[TORCH_ROWS * TORCH_COLS]", codes, 16, "0x%02x"))
    print(array("static const uint8_t torch_mx_scale[TORCH_ROWS * TORCH_COLS / 32]", scales, 16, "0x%02x"))
    print("\n/* NVFP4: codes, e4m3 scales of groups of 16, bits of the scale of the tensor. */")
    codes, scales, tensor = nvfp4(x)
    print(array("static const uint8_t torch_nv_q[TORCH_ROWS * TORCH_COLS / 2]", codes, 16, "0x%02x"))
    print(array("static const uint8_t torch_nv_scale[TORCH_ROWS * TORCH_COLS / 16]", scales, 16, "0x%02x"))
    print("static const uint32_t torch_nv_tensor = 0x%08x;" % tensor)
    print("\n#endif")


main()
