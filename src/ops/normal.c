/* ops/normal.c -- random weights: contract, price, CPU.
 *
 *   y[i] = std * number i of (seed, stream), base/rng.h's normals, rounded to y's dtype
 *
 * y is dense, f32 or bf16. A value depends on its index alone: the same on every machine but for rare last
 * bits. */
#include "ops/cpu.h"

#include "base/rng.h"

Cost normal_cost(Backend *be, Tensor y, uint64_t seed, uint64_t stream, float std)
{
    REQUIRE(t_dense(y) && is_float(y), "normal: y%s", t_fmt(y));
    return (Cost){ .flops = 16.0 * (double)t_count(y), .wr = t_bytes(y) };
}

void cpu_normal(Backend *be, Tensor y, uint64_t seed, uint64_t stream, float std)
{
    enum { PART = 1 << 20 };                           /* elements at a time: a multiple of a block of four */
    float *stage = cpu_shared(be);
    for (int64_t i = 0, n = t_count(y); i < n; i += PART) {
        int64_t k = n - i < PART ? n - i : PART;
        float  *out = y.dtype == F32 ? (float *)y.data + i : stage;
        rng_fill_normal(out, k, seed, stream, (uint64_t)i, 0.0f, std);
        if (y.dtype != F32) cpu_narrow((uint16_t *)y.data + i, stage, k);
    }
}
