/* ops/normal.c -- random weights: contract, cost, CPU.
 *
 *   normal     y[r, c] = std * number first + r stride + c of (seed, stream), base/rng.h's normals
 *   uniform    y[r, c] = that number of base/rng.h's uniforms, between -bound and bound
 *
 * both rounded to y's dtype. y is dense, f32 or bf16, of any rank: a row is its last dim. A value
 * depends on its number alone: it is the same on every device (normals except for rare last bits), and the
 * same in a part of a tensor as in the whole. */
#include "ops/cpu/cpu.h"

#include "base/rng.h"

Cost normal_cost(Backend *be, Tensor y, uint64_t seed, uint64_t stream, uint64_t first, int64_t stride,
                 float std)
{
    REQUIRE(t_dense(y) && is_float(y), "normal: y%s", t_fmt(y));
    return (Cost){ .flops = 16.0 * (double)t_count(y), .wr = t_bytes(y) };
}

Cost uniform_cost(Backend *be, Tensor y, uint64_t seed, uint64_t stream, uint64_t first, int64_t stride,
                  float bound)
{
    REQUIRE(t_dense(y) && is_float(y), "uniform: y%s", t_fmt(y));
    return (Cost){ .flops = 16.0 * (double)t_count(y), .wr = t_bytes(y) };
}

typedef void Fill(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first, float spread);

static void fill_normal(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first, float std)
{
    rng_fill_normal(out, n, seed, stream, first, 0.0f, std);
}

/* Uniforms between -1 and 1 are exact, so there is one rounding. */
static void fill_uniform(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first, float bound)
{
    rng_fill_uniform(out, n, seed, stream, first, -1.0f, 1.0f);
    for (int64_t i = 0; i < n; i++) out[i] *= bound;
}

static void draw(Tensor y, Fill *fill, uint64_t seed, uint64_t stream, uint64_t first, int64_t stride,
                 float spread)
{
    enum { PART = 4096 };                                     /* elements at a time */
    int64_t cols = y.n[y.rank - 1], rows = cols ? t_count(y) / cols : 0, parts = (cols + PART - 1) / PART;
    #pragma omp parallel for
    for (int64_t i = 0; i < rows * parts; i++) {
        float stage[PART];
        int64_t r = i / parts, c = i % parts * PART, k = cols - c < PART ? cols - c : PART;
        int64_t at = r * cols + c;
        float  *out = y.dtype == F32 ? (float *)y.data + at : stage;
        fill(out, k, seed, stream, first + (uint64_t)(r * stride + c), spread);
        if (y.dtype != F32) cpu_narrow((uint16_t *)y.data + at, stage, k);
    }
}

void cpu_normal(Backend *be, Tensor y, uint64_t seed, uint64_t stream, uint64_t first, int64_t stride,
                float std)
{
    draw(y, fill_normal, seed, stream, first, stride, std);
}

void cpu_uniform(Backend *be, Tensor y, uint64_t seed, uint64_t stream, uint64_t first, int64_t stride,
                 float bound)
{
    draw(y, fill_uniform, seed, stream, first, stride, bound);
}
