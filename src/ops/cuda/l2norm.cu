/* ops/cuda/l2norm.cu -- kernels of l2norm.c: a warp per head of a row, any strides and dtypes. */
#include "ops/cuda/rows.cuh"

namespace {

enum { WARPS = 8 };

typedef struct L2norm { RowView y, x, dy; float *rstd; int64_t stride, rows; int H, C; float eps; } L2norm;

__device__ inline float *stat_at(const L2norm &a, int64_t r) { return a.rstd + r / a.H * a.stride + r % a.H; }

static __global__ void __launch_bounds__(32 * WARPS) l2norm_rows(L2norm a)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.rows) return;
    int64_t x = view_row(a.x, r), y = view_row(a.y, r);
    float   sum = 0.0f;
    for (int i = threadIdx.x & 31; i < a.C; i += 32) sum += view_get(a.x, x + i) * view_get(a.x, x + i);
    float s = 1.0f / sqrtf(warp_sum(sum) + a.eps);
    for (int i = threadIdx.x & 31; i < a.C; i += 32) view_put(a.y, y + i, view_get(a.x, x + i) * s);
    if (!(threadIdx.x & 31)) *stat_at(a, r) = s;
}

/* x: dx. */
static __global__ void __launch_bounds__(32 * WARPS) l2norm_grads(L2norm a)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.rows) return;
    int64_t x = view_row(a.x, r), y = view_row(a.y, r), d = view_row(a.dy, r);
    float   along = 0.0f, s = *stat_at(a, r);
    for (int i = threadIdx.x & 31; i < a.C; i += 32) along += view_get(a.dy, d + i) * view_get(a.y, y + i);
    along = warp_sum(along);
    for (int i = threadIdx.x & 31; i < a.C; i += 32)
        view_put(a.x, x + i, s * (view_get(a.dy, d + i) - view_get(a.y, y + i) * along));
}

}

extern "C" void cuda_l2norm_fwd(Backend *be, Tensor y, Tensor rstd, Tensor x, float eps)
{
    L2norm a = { view_of(y), view_of(x), {}, (float *)rstd.data, rstd.s[0], count_rows(x), (int)x.n[1],
                 (int)x.n[2], eps };
    LAUNCH(be, "l2norm_fwd", l2norm_rows, ceil_div(a.rows, WARPS), 32 * WARPS, 0, a);
}

extern "C" void cuda_l2norm_bwd(Backend *be, Tensor dx, Tensor dy, Tensor y, Tensor rstd)
{
    L2norm a = { view_of(y), view_of(dx), view_of(dy), (float *)rstd.data, rstd.s[0], count_rows(y),
                 (int)y.n[1], (int)y.n[2], 0.0f };
    LAUNCH(be, "l2norm_bwd", l2norm_grads, ceil_div(a.rows, WARPS), 32 * WARPS, 0, a);
}
