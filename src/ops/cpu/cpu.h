/* ops/cpu/cpu.h -- what the CPU ops share: workspace, rows as floats, fast exponentials, run-time dispatch.
 *
 * Every op reads rows of any float type as f32 and rounds once when it stores. Hot loops are in
 * functions marked HOT (base/hot.h). */
#ifndef OPS_CPU_CPU_H
#define OPS_CPU_CPU_H

#include "base/hot.h"
#include "base/num.h"
#include "ops/ops.h"

#include <math.h>
#include <omp.h>

/* Workspace, mapped at start: one buffer shared by all threads, and one per thread. */
#define CPU_SHARED ((size_t)64 << 20)
#define CPU_OWN    ((size_t)8 << 20)

enum { CPU_FILES = 1024 };               /* mappings that other processes may open */

typedef struct CpuFile { void *base; int fd; } CpuFile;
typedef struct Cpu { char *shared; size_t bytes; int threads, files; CpuFile file[CPU_FILES]; } Cpu;

INLINE float *cpu_shared(Backend *be) { return (float *)((Cpu *)be->priv)->shared; }
INLINE float *cpu_own(Backend *be)            /* of the calling OpenMP thread */
{
    return (float *)(((Cpu *)be->priv)->shared + CPU_SHARED + (size_t)omp_get_thread_num() * CPU_OWN);
}
/* The op keeps `rows` rows of `width` floats in a thread's workspace. */
INLINE void cpu_check_own(const char *op, int64_t rows, int64_t width)
{
    REQUIRE((size_t)(rows * width) * sizeof(float) <= CPU_OWN,
            "%s: %lld rows of %lld floats in a thread's workspace", op, (long long)rows, (long long)width);
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
/* The buffer to compute row r in, and the rounding store after it. */
INLINE float *row_edit(Tensor t, int64_t r, float *buf)
{
    return t.dtype == F32 ? (float *)row_ptr(t, r) : buf;
}
INLINE void row_store(Tensor t, int64_t r, const float *buf)
{
    if (t.dtype != F32) cpu_narrow((uint16_t *)row_ptr(t, r), buf, row_width(t));
}
INLINE bool is_float(Tensor t) { return t.dtype == F32 || t.dtype == BF16; }

/* exp(x) for x from -88 to 88 in 12 vector instructions, within 1 ulp (2 without FMA). n = x / ln 2, rounded,
 * comes out in the low bits of a sum whose last place is 1, with an exponent's bias on top; the rest is a
 * polynomial (Remez, 3e-9). From -87.33 down exp is denormal, from -87.68 down this is 0. */
INLINE float exp_inside(float x)
{
    const float place = 0x1.8p23f + 127.0f;
    float t = x * 1.44269504088896341f + place, n = t - place;
    float r = x - n * 0.693145751953125f - n * 1.42860682030941723e-6f;
    float p = 1.0f + r * (1.0f + r * (0.499999933334f + r * (0.166665189398f + r * (0.0416684080372f +
              r * (0.0083689217073f + r * 0.00138141696839f)))));
    union { float f; uint32_t u; } s = { t };
    s.u <<= 23;
    return p * s.f;
}

/* exp(x) for x up to 88, since softmaxes subtract their maximum: 0 below -87.33, and NaN stays. */
INLINE float fast_exp(float x) { return x < -87.33f ? 0.0f : exp_inside(x); }

/* exp(-a) for a >= 0. The limit is an integer minimum of the bits, which is cheaper than a float minimum that
 * handles NaN. NaN counts as large. */
INLINE float fast_decay(float a)
{
    union { float f; uint32_t u; } c = { a }, most = { 88.0f };
    c.u = c.u < most.u ? c.u : most.u;
    return exp_inside(-c.f);
}

INLINE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* sigmoid(x) and its slope s (1 - s). Computed from exp(-|x|) both are accurate at either end. NaN
 * counts as large: the callers multiply by x. */
INLINE float fast_sigmoid(float x, float *slope)
{
    float e = fast_decay(__builtin_fabsf(x)), d = 1.0f / (1.0f + e);
    *slope = e * d * d;
    return x < 0.0f ? e * d : d;
}

#endif
