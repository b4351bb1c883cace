/* ops/cuda/code_stats.cu -- kernel of code_stats.c: a warp counts the groups of one row, a block adds its
 * warps' counts to the cells. Integers add up in any order. */
#include "ops/cuda/quant_block.cuh"

namespace {

enum { WARPS = 8 };

struct Counts { uint32_t amax, elements, flushed, saturated, groups, not_finite; };

template <class T>
__device__ inline void count_group(Counts &c, const T *x, const uint8_t *q, float scale, int n)
{
    float most = 448.0f * scale;
    int   lane = threadIdx.x % 32;
    c.groups += lane == 0;
    if (scale != scale) {
        c.not_finite += lane == 0;
        return;
    }
    for (int i = lane; i < n; i += 32) {
        float    v = to_f32(x[i]);
        uint32_t m = quant_magnitude(v);
        if (m < 0x7f800000u) c.amax = max(c.amax, m);
        c.elements++;
        c.flushed   += (q[i] & 0x7f) == 0 && v != 0.0f;
        c.saturated += fabsf(v) > most;
    }
}

__device__ inline void add_cell(long long *cell, uint32_t n)
{
    n = __reduce_add_sync(0xffffffffu, n);
    if (threadIdx.x % 32 == 0 && n) atomicAdd((unsigned long long *)cell, (unsigned long long)n);
}

template <class T> __global__ void __launch_bounds__(WARPS * 32)
stats_kernel(long long *cell, Matrices x, Matrices q, Matrices scale, int64_t R, int64_t K,
             const int32_t *used, int64_t every)
{
    int64_t r = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * every;
    if (r >= (used ? (int64_t)*used : R)) return;
    Counts c = { };
    for (int64_t k = 0; k < K; k += QUANT_GROUP)
        count_group(c, at<T>(x, 0, r) + k, at<uint8_t>(q, 0, r) + k, at<float>(scale, 0, k / QUANT_GROUP)[r],
                    group_width(K, k));
    uint32_t amax = __reduce_max_sync(0xffffffffu, c.amax);
    if (threadIdx.x % 32 == 0) atomicMax((unsigned long long *)cell + CODE_AMAX, (unsigned long long)amax);
    add_cell(cell + CODE_ELEMENTS, c.elements), add_cell(cell + CODE_FLUSHED, c.flushed);
    add_cell(cell + CODE_SATURATED, c.saturated), add_cell(cell + CODE_GROUPS, c.groups);
    add_cell(cell + CODE_NOT_FINITE, c.not_finite);
}

}

extern "C" void cuda_code_stats(Backend *be, Tensor cell, Tensor x, Tensor q, Tensor scale, Tensor offsets,
                                int64_t every)
{
    int64_t rows = ceil_div(x.n[0], every);
    const int32_t *used = t_has(offsets) ? (const int32_t *)offsets.data + t_count(offsets) - 1 : NULL;
    BY_DTYPE(x.dtype, T, {
        LAUNCH(be, "code_stats", stats_kernel<T>, ceil_div(rows, WARPS), WARPS * 32, 0,
               (long long *)cell.data, matrices(x), matrices(q), matrices(scale), x.n[0], x.n[1], used,
               every);
    });
}
