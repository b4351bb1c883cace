/* ops/cuda/turn.cu -- kernels of turn.c: a warp per row and head of the output, any strides and dtypes. */
#include "ops/cuda/rows.cuh"

namespace {

enum { WARPS = 8 };

typedef struct Turn { RowView y, x; const float *cs; int64_t cs_stride, rows; int H, Hx, R; bool pairs;
                      } Turn;

static __global__ void __launch_bounds__(32 * WARPS) turn_rows(Turn a)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.rows) return;
    int64_t      y = view_row(a.y, r), x = view_row(a.x, a.Hx == a.H ? r : r / a.H);
    const float *cs = a.cs + r / a.H * a.cs_stride;
    for (int j = threadIdx.x & 31; j < a.R / 2; j += 32) {
        int   p = a.pairs ? 2 * j : j, q = a.pairs ? 2 * j + 1 : a.R / 2 + j;
        float u = view_get(a.x, x + p), v = view_get(a.x, x + q), c = cs[j], s = cs[a.R / 2 + j];
        view_put(a.y, y + p, u * c - v * s);
        view_put(a.y, y + q, v * c + u * s);
    }
}

/* y is dx, x is dy, whose heads are summed where dx has one. */
static __global__ void __launch_bounds__(32 * WARPS) turn_back(Turn a)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.rows) return;
    int          each = a.Hx == a.H ? 1 : a.Hx;
    const float *cs = a.cs + r / a.H * a.cs_stride;
    for (int j = threadIdx.x & 31; j < a.R / 2; j += 32) {
        int   p = a.pairs ? 2 * j : j, q = a.pairs ? 2 * j + 1 : a.R / 2 + j;
        float u = 0.0f, v = 0.0f, c = cs[j], s = cs[a.R / 2 + j];
        for (int h = 0; h < each; h++) {
            int64_t x = view_row(a.x, r * each + h);
            u += view_get(a.x, x + p), v += view_get(a.x, x + q);
        }
        int64_t y = view_row(a.y, r);
        view_put(a.y, y + p, u * c + v * s);
        view_put(a.y, y + q, v * c - u * s);
    }
}

static Turn args_of(Tensor y, Tensor x, Tensor cs, bool pairs)
{
    Turn a = { view_of(y), view_of(x), (const float *)cs.data, cs.s[0], count_rows(y), (int)y.n[1],
               (int)x.n[1],
               (int)y.n[2], pairs };
    return a;
}

}

extern "C" void cuda_turn_fwd(Backend *be, Tensor y, Tensor x, Tensor cs, bool pairs)
{
    Turn a = args_of(y, x, cs, pairs);
    LAUNCH(be, "turn_fwd", turn_rows, ceil_div(a.rows, WARPS), 32 * WARPS, 0, a);
}

extern "C" void cuda_turn_bwd(Backend *be, Tensor dx, Tensor dy, Tensor cs, bool pairs)
{
    Turn a = args_of(dx, dy, cs, pairs);
    LAUNCH(be, "turn_bwd", turn_back, ceil_div(a.rows, WARPS), 32 * WARPS, 0, a);
}
