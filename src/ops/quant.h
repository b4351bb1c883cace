/* ops/quant.h -- the 8-bit format of quantised matrices: codes, scales and their groups, on every device.
 *
 * e4m3 has 1 sign, 4 exponent (bias 7) and 3 fraction bits: ±448 at most, 2^-6 the least normal number, 2^-9
 * the least of all; 0x7f and 0xff are NaN, and there is no infinity. From f32 it rounds to nearest, ties to
 * even, and saturates at ±448, infinities too; NaN becomes 0x7f; zeros keep their sign. This is what
 * cvt.rn.satfinite.e4m3x2.f32 of a GPU does. (PyTorch's cast to float8_e4m3fn is the same up to 464; from
 * there on it gives NaN.)
 *
 * A group of elements has one scale: QUANT_GROUP of a row, or a block of QUANT_GROUP x QUANT_GROUP of a
 * weight; groups at an edge are smaller. An element is its code times the scale. The scale is a function of
 * amax, the largest magnitude of the group:
 *
 *   f32 scales            amax / 448, at least 2^-126
 *   power-of-two scales   the least 2^e with amax <= 448 2^e, e at least -126
 *   amax is 0             1
 *   an element is infinite or NaN      NaN, and every code of the group is 0x7f: quantisation hides nothing
 *
 * The code of x is that of x times `inverse`, the reciprocal of the scale rounded to f32; with power-of-two
 * scales neither rounds. amax is compared as the bits of |x|, an unsigned integer. */
#ifndef OPS_QUANT_H
#define OPS_QUANT_H

#include "ops/ops.h"

enum { QUANT_GROUP = 128 };

OPS_INLINE int64_t quant_groups(int64_t n) { return (n + QUANT_GROUP - 1) / QUANT_GROUP; }

OPS_INLINE uint32_t quant_bits(float x)
{
    union { float f; uint32_t u; } v = { x };
    return v.u;
}

OPS_INLINE float quant_float(uint32_t bits)
{
    union { uint32_t u; float f; } v = { bits };
    return v.f;
}

/* Below 2^-6 codes count steps of 2^-9, which is the last place of a float from 2^14 on: the addition rounds.
 * From there on the fraction is cut by 20 bits, and a carry raises the exponent. */
OPS_INLINE uint8_t e4m3_from_f32(float x)
{
    uint32_t u = quant_bits(x), sign = u >> 24 & 0x80, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return 0x7f;
    if (mag >= 0x43e00000u) return (uint8_t)(sign | 0x7e);
    if (mag < 0x3c800000u) return (uint8_t)(sign | (quant_bits(quant_float(mag) + 0x1p14f) - 0x46800000u));
    return (uint8_t)(sign | (((mag + 0x7ffffu + (mag >> 20 & 1)) >> 20) - (120u << 3)));
}

OPS_INLINE float e4m3_to_f32(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80) << 24, mag = code & 0x7f;
    if (mag == 0x7f) return quant_float(sign | 0x7fc00000u);
    if (mag < 8) return quant_float(sign | quant_bits((float)mag * 0x1p-9f));
    return quant_float(sign | ((mag << 20) + (120u << 23)));
}

OPS_INLINE uint32_t quant_magnitude(float x) { return quant_bits(x) & 0x7fffffffu; }

typedef struct QuantScale { float scale, inverse; } QuantScale;

/* Exponent field of the power of two: that of amax, one more where its fraction is above 1.75, less the 8 of
 * 448 = 1.75 * 2^8. */
OPS_INLINE QuantScale quant_scale_pow2(uint32_t amax)
{
    uint32_t field = (amax + 0x1fffffu) >> 23;
    field = field > 8 ? field - 8 : 1;
    QuantScale s = { quant_float(field << 23), quant_float((254 - field) << 23) };
    return s;
}

OPS_INLINE QuantScale quant_scale(uint32_t amax, bool pow2)
{
    QuantScale s = { 1.0f, 1.0f };
    if (amax == 0) return s;
    if (amax >= 0x7f800000u) {
        s.scale = s.inverse = quant_float(0x7fc00000u);
        return s;
    }
    if (pow2) return quant_scale_pow2(amax);
    s.scale = quant_float(amax) / 448.0f;
    if (s.scale < 0x1p-126f) s.scale = 0x1p-126f;
    s.inverse = 1.0f / s.scale;
    return s;
}

/* Rows of experts as columns of codes (ops/quantize_cols.c): those of an expert begin on a group, the column
 * below, and its last group is filled with zeros. Experts with R rows in all take quant_columns. */
OPS_INLINE int64_t quant_column(int64_t first_row, int64_t e)
{
    return (first_row / QUANT_GROUP + e) * QUANT_GROUP;
}
OPS_INLINE int64_t quant_columns(int64_t R, int64_t E) { return (R / QUANT_GROUP + E) * QUANT_GROUP; }

/* The rows of the j-th group of columns: `rows` from `row` on, of expert e; none: it belongs to no expert. */
typedef struct ColumnGroup { int32_t e, row, rows; } ColumnGroup;

OPS_INLINE ColumnGroup quant_column_group(const int32_t *offsets, int32_t E, int32_t j)
{
    int32_t low = 0, high = E;
    while (high - low > 1) {
        int32_t at = (low + high) / 2;
        if (offsets[at] / QUANT_GROUP + at <= j) low = at;
        else                                     high = at;
    }
    int32_t row = offsets[low] + (j - offsets[low] / QUANT_GROUP - low) * QUANT_GROUP;
    int32_t rows = offsets[low + 1] - row;
    if (row < offsets[low] || rows < 0) rows = 0;
    ColumnGroup g = { low, row, rows < QUANT_GROUP ? rows : (int32_t)QUANT_GROUP };
    return g;
}

/* A packed row (ops/pack_rows.c): the byte that its scales begin at, and its width in 2-byte elements, which
 * is a multiple of 16 bytes. */
OPS_INLINE int64_t quant_scales_at(int64_t K) { return (K + 3) / 4 * 4; }
OPS_INLINE int64_t quant_packed_width(int64_t K)
{
    return (quant_scales_at(K) + 4 * quant_groups(K) + 15) / 16 * 8;
}

/* QuantScale.inverse of a scale. */
OPS_INLINE float quant_inverse(float scale) { return 1.0f / scale; }

#endif
