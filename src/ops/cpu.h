/* ops/cpu.h -- what the CPU ops share: workspace, rows as floats, fast exponentials, run-time dispatch.
 *
 * Every op reads rows of any float type as f32 and rounds once when it stores. Code that must be fast is
 * a function marked HOT, compiled for several instruction sets and chosen at start; OpenMP regions stay
 * outside of it, because the compiler outlines them before it clones. */
#ifndef OPS_CPU_H
#define OPS_CPU_H

#include "base/hot.h"
#include "ops/ops.h"

#include <math.h>
#include <omp.h>

/* Workspace, mapped at start: one piece for all threads together, one for each. */
#define CPU_SHARED ((size_t)64 << 20)
#define CPU_OWN    ((size_t)8 << 20)

typedef struct Cpu { char *shared; size_t bytes; int threads; } Cpu;

INLINE float *cpu_shared(Backend *be) { return (float *)((Cpu *)be->priv)->shared; }
INLINE float *cpu_own(Backend *be)            /* of the calling OpenMP thread */
{
    return (float *)(((Cpu *)be->priv)->shared + CPU_SHARED + (size_t)omp_get_thread_num() * CPU_OWN);
}

/* Sums over rows are cut into the same chunks whatever the number of threads, and the chunks are added in
 * order: the result depends on the shape alone. */
enum { CPU_CHUNKS = 32 };
INLINE int64_t chunk_begin(int64_t rows, int chunk) { return rows * chunk / CPU_CHUNKS; }

/* A matrix seen by rows; a rank-3 tensor has n[0] * n[1] rows of n[2]. */
INLINE int64_t row_count(Tensor t) { return t.rank == 3 ? t.n[0] * t.n[1] : t.rank == 2 ? t.n[0] : 1; }
INLINE int64_t row_width(Tensor t) { return t.n[t.rank - 1]; }
INLINE char *row_ptr(Tensor t, int64_t r)
{
    int64_t at = t.rank == 3 ? r / t.n[1] * t.s[0] + r % t.n[1] * t.s[1] : t.rank == 2 ? r * t.s[0] : 0;
    return (char *)t.data + (size_t)at * dtype_size((DType)t.dtype);
}

void cpu_widen(float *dst, const uint16_t *bf16, int64_t n);     /* exact */
void cpu_narrow(uint16_t *bf16, const float *src, int64_t n);    /* nearest even */

/* Row r as floats: the row itself when it is f32, else a copy in buf. */
INLINE const float *row_read(Tensor t, int64_t r, float *buf)
{
    char *p = row_ptr(t, r);
    if (t.dtype == F32) return (const float *)p;
    cpu_widen(buf, (const uint16_t *)p, row_width(t));
    return buf;
}
/* Where to compute row r, and the rounding store after it. */
INLINE float *row_edit(Tensor t, int64_t r, float *buf)
{
    return t.dtype == F32 ? (float *)row_ptr(t, r) : buf;
}
INLINE void row_store(Tensor t, int64_t r, const float *buf)
{
    if (t.dtype != F32) cpu_narrow((uint16_t *)row_ptr(t, r), buf, row_width(t));
}
INLINE bool is_float(Tensor t) { return t.dtype == F32 || t.dtype == BF16; }

/* exp by range reduction and a degree-6 polynomial: within 2 ulp, vectorises. Below -87.33 it is 0, where the
 * exact value would be denormal; above 88.37 it stays there, since softmaxes subtract their maximum. */
INLINE float fast_exp(float x)
{
    float c = x < -87.33f ? -87.33f : x > 88.37f ? 88.37f : x;
    float n = __builtin_rintf(c * 1.44269504088896341f);
    float r = c - n * 0.693145751953125f - n * 1.42860682030941723e-6f;
    float p = 1.0f + r * (1.0f + r * (0.5f + r * (0.166666671633720f + r * (0.0416664853692055f +
              r * (0.00833356380462646f + r * 0.00139304355252534f)))));
    uint32_t bits = ((uint32_t)(int32_t)n + 127u) << 23;
    union { uint32_t u; float f; } s = { .u = x < -87.33f ? 0u : bits };    /* selects integers: no branch */
    return p * s.f;
}
INLINE float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }
INLINE float fast_tanh(float x)
{
    float a = __builtin_fabsf(x), e = fast_exp(-2.0f * a), t = (1.0f - e) / (1.0f + e);
    float q = x * x, s = a * (1.0f + q * (-0.333333333f + q * (0.133333333f - q * 0.0539682540f)));
    return __builtin_copysignf(a < 0.1f ? s : t, x);             /* near 0 the quotient would cancel */
}

#endif
