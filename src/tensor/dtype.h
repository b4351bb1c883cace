/* tensor/dtype.h -- element types and their conversions to and from float.
 *
 * One row per type: DTYPE(enum, bytes, name here, name in safetensors). The 8- and 16-bit floats round to
 * nearest even; e4m3 has no infinity and saturates at 448, as hardware does. */
#ifndef TENSOR_DTYPE_H
#define TENSOR_DTYPE_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DTYPES(DTYPE)                       \
    DTYPE(F32,  4, "f32",  "F32")           \
    DTYPE(BF16, 2, "bf16", "BF16")          \
    DTYPE(F16,  2, "f16",  "F16")           \
    DTYPE(F64,  8, "f64",  "F64")           \
    DTYPE(E4M3, 1, "e4m3", "F8_E4M3")       \
    DTYPE(E5M2, 1, "e5m2", "F8_E5M2")       \
    DTYPE(I64,  8, "i64",  "I64")           \
    DTYPE(I32,  4, "i32",  "I32")           \
    DTYPE(I16,  2, "i16",  "I16")           \
    DTYPE(I8,   1, "i8",   "I8")            \
    DTYPE(U8,   1, "u8",   "U8")            \
    DTYPE(BOOL, 1, "bool", "BOOL")

typedef enum {
#define DTYPE(e, bytes, name, file) e,
    DTYPES(DTYPE)
#undef DTYPE
    DTYPE_N
} DType;

size_t      dtype_size(DType d);
const char *dtype_name(DType d);
const char *dtype_file_name(DType d);                       /* as safetensors spells it */
MUST Status dtype_parse(DType *d, const char *name);        /* f32, float32, bfloat16, F8_E4M3, … */

/* n elements; src may be unaligned (files promise nothing), dst not. */
void dtype_convert(void *dst, DType to, const void *src, DType from, int64_t n);

static inline float bf16_to_f32(uint16_t b)
{
    uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint16_t bf16_from_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t r = u + 0x7fffu + ((u >> 16) & 1);
    r = f == f ? r : u | 0x400000u;                         /* NaN stays NaN, quiet */
    return (uint16_t)(r >> 16);
}

/* An f32 split into a bf16 and the 16 low bits, losslessly. The bf16 is rounded to nearest, ties away from
 * zero: the top bit of the low half then tells whether it was rounded up. A NaN is made quiet first, so that
 * it stays a NaN. */
static inline uint32_t bits_quiet(uint32_t u) { return (u & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : u; }
static inline uint16_t bits_near(uint32_t u)  { return (uint16_t)((u + 0x8000u) >> 16); }
static inline uint16_t bits_rest(uint32_t u)  { return (uint16_t)u; }
static inline uint32_t bits_join(uint16_t near, uint16_t rest)
{
    return (uint32_t)(uint16_t)(near - (rest >> 15)) << 16 | rest;
}

#ifdef __cplusplus
}
#endif
#endif
