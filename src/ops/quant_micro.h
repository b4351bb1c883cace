/* ops/quant_micro.h -- the microscaled formats of Blackwell GPUs, defined for every device; the CPU alone
 * computes in them (quantize_micro.c, gemm_micro.c).
 *
 * MXFP8 (OCP Microscaling 1.0): groups of 32 along the dimension that is summed; elements e4m3, scales e8m0.
 *
 *   e8m0   a power of two, 2^(code - 127); 0xff is NaN, there is no zero and no sign
 *   scale  the least 2^e with amax <= 448 2^e: nothing saturates (OCP's own rule, floor(log2 amax) - 8, lets
 *          up to 1/7 of the range saturate; GPUs round up as here)
 *
 * NVFP4: groups of 16; elements e2m1, scales e4m3, and one f32 scale for the whole tensor.
 *
 *   e2m1          1 sign, 2 exponent (bias 1), 1 fraction bit: 0, 0.5, 1, 1.5, 2, 3, 4, 6; two codes a byte,
 *                 the first in the low half. Rounds to nearest, ties to even, saturates at ±6, infinities
 *                 too; it has no NaN: NaN becomes 6, and the scale of its group is NaN
 *   tensor scale  amax of the tensor / (448 * 6), so that scales of groups fit e4m3
 *   scale         amax of the group / 6 / tensor scale, rounded to e4m3; the largest element may saturate
 *   at random     an element between two codes takes the upper one with the probability by which it lies
 *                 above the lower one, to 2^-17: on average codes stand for the elements, but for those that
 *                 saturate
 *
 * An element is its code times the scale of its group, times the tensor scale. For both, as in quant.h: amax
 * 0 has scale 1; a group with an element that is not finite has a NaN scale. */
#ifndef OPS_QUANT_MICRO_H
#define OPS_QUANT_MICRO_H

#include "base/rng.h"
#include "ops/quant.h"

enum { MXFP8_GROUP = 32, NVFP4_GROUP = 16 };

OPS_INLINE int64_t micro_group(Precision p) { return p == PREC_MXFP8 ? MXFP8_GROUP : NVFP4_GROUP; }
OPS_INLINE int64_t micro_groups(Precision p, int64_t K) { return (K + micro_group(p) - 1) / micro_group(p); }
/* Bytes of codes of a row. */
OPS_INLINE int64_t micro_bytes(Precision p, int64_t K) { return p == PREC_MXFP8 ? K : (K + 1) / 2; }
OPS_INLINE DType micro_code_type(Precision p)  { return p == PREC_MXFP8 ? E4M3 : U8; }
OPS_INLINE DType micro_scale_type(Precision p) { return p == PREC_MXFP8 ? U8 : E4M3; }

/* ---- e8m0 ---- */

OPS_INLINE float e8m0_to_f32(uint8_t code)
{
    if (code == 0xff) return quant_float(0x7fc00000u);
    return code ? quant_float((uint32_t)code << 23) : 0x1p-127f;
}

/* The scale of an MXFP8 group: quant_scale of power-of-two scales, down to 2^-127. */
OPS_INLINE uint8_t e8m0_scale(uint32_t amax)
{
    uint32_t field = (amax + 0x1fffffu) >> 23;
    if (amax >= 0x7f800000u) return 0xff;
    if (amax == 0) return 127;
    return (uint8_t)(field > 8 ? field - 8 : 0);
}

/* 1 / scale: up to 2^127; NaN for NaN. */
OPS_INLINE float e8m0_inverse(uint8_t code)
{
    if (code == 0xff) return quant_float(0x7fc00000u);
    return code < 254 ? quant_float((254u - code) << 23) : 0x1p-127f;
}

/* ---- e2m1 ---- */

OPS_INLINE float e2m1_to_f32(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 8) << 28, mag = code & 7;
    if (mag < 2) return quant_float(sign | (mag ? 0x3f000000u : 0));
    return quant_float(sign | ((mag << 22) + (126u << 23)));
}

/* Below 1 codes count steps of 0.5, the last place of a float from 2^22 on; from there on the fraction is cut
 * by 22 bits. */
OPS_INLINE uint8_t e2m1_from_f32(float x)
{
    uint32_t u = quant_bits(x), sign = u >> 28 & 8, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return 7;
    if (mag >= 0x40c00000u) return (uint8_t)(sign | 7);
    if (mag < 0x3f800000u) return (uint8_t)(sign | (quant_bits(quant_float(mag) + 0x1p22f) - 0x4a800000u));
    return (uint8_t)(sign | (((mag + 0x1fffffu + (mag >> 22 & 1)) >> 22) - (126u << 1)));
}

/* random: 16 bits. */
OPS_INLINE uint8_t e2m1_at_random(float x, uint32_t random)
{
    uint32_t sign = quant_bits(x) >> 28 & 8, mag = quant_magnitude(x);
    float    m = quant_float(mag);
    if (mag > 0x7f800000u) return 7;
    if (m >= 6.0f) return (uint8_t)(sign | 7);
    uint32_t low = m < 1.0f ? m >= 0.5f : (mag >> 22) - (126u << 1);
    float    at = e2m1_to_f32((uint8_t)low), step = e2m1_to_f32((uint8_t)(low + 1)) - at;
    return (uint8_t)(sign | (low + ((float)random + 0.5f < (m - at) / step * 65536.0f)));
}

/* ---- NVFP4 ---- */

/* The random numbers of eight columns of a row, the first in the low half of the first word. */
enum { NVFP4_RANDOM = 8 };
OPS_INLINE Rng4 nvfp4_random(uint64_t seed, uint64_t stream, int64_t row, int64_t col)
{
    Rng4 at = rng_counter(stream, (uint64_t)row << 32 | (uint64_t)(col / NVFP4_RANDOM));
    return rng_rounds(at, (uint32_t)seed, (uint32_t)(seed >> 32), 7);
}

OPS_INLINE float nvfp4_tensor_scale(uint32_t amax)
{
    if (amax == 0) return 1.0f;
    if (amax >= 0x7f800000u) return quant_float(0x7fc00000u);
    float s = quant_float(amax) / (448.0f * 6.0f);
    return s < 0x1p-126f ? 0x1p-126f : s;
}

/* e4m3, of a group; amax of the group. */
OPS_INLINE uint8_t nvfp4_scale(uint32_t amax, float tensor)
{
    if (amax == 0) return 0x38;
    return amax >= 0x7f800000u ? 0x7f : e4m3_from_f32(quant_float(amax) / 6.0f / tensor);
}

/* What elements of a group are multiplied by; 0 where the scale was rounded to 0. */
OPS_INLINE float nvfp4_inverse(uint8_t scale, float tensor)
{
    float s = e4m3_to_f32(scale) * tensor;
    return s > 0 || s != s ? 1.0f / s : 0.0f;
}

#endif
