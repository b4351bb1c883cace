/* ops/cuda/gate.cu -- kernels of gate.c: a warp per row, any strides and dtypes. */
#include "ops/cuda/rows.cuh"

namespace {

enum { WARPS = 8 };

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

typedef struct Gate { RowView y, x, g, res; int64_t rows; int C; bool one; } Gate;

static __global__ void __launch_bounds__(32 * WARPS) gate_rows(Gate a)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.rows) return;
    int64_t y = view_row(a.y, r), x = view_row(a.x, r), g = view_row(a.g, r);
    int64_t res = a.res.p ? view_row(a.res, r) : 0;
    for (int i = threadIdx.x & 31; i < a.C; i += 32) {
        float add = a.res.p ? view_get(a.res, res + i) : 0.0f;
        view_put(a.y, y + i, sigmoid(view_get(a.g, g + (a.one ? 0 : i))) * view_get(a.x, x + i) + add);
    }
}

typedef struct GateGrads { RowView dx, dg, dy, x, g; int64_t rows; int C; bool one; } GateGrads;

static __global__ void __launch_bounds__(32 * WARPS) gate_grads(GateGrads a)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.rows) return;
    int64_t dx = view_row(a.dx, r), dg = view_row(a.dg, r), dy = view_row(a.dy, r), x = view_row(a.x, r);
    int64_t g = view_row(a.g, r);
    float   sum = 0.0f;
    for (int i = threadIdx.x & 31; i < a.C; i += 32) {
        float s = sigmoid(view_get(a.g, g + (a.one ? 0 : i))), d = view_get(a.dy, dy + i);
        float to = s * (1.0f - s) * d * view_get(a.x, x + i);
        if (a.one) sum += to;
        else       view_put(a.dg, dg + i, to);
        view_put(a.dx, dx + i, s * d);
    }
    if (!a.one) return;
    sum = warp_sum(sum);
    if (!(threadIdx.x & 31)) view_put(a.dg, dg, sum);
}

}

extern "C" void cuda_gate_fwd(Backend *be, Tensor y, Tensor x, Tensor g, Tensor res)
{
    Gate a = { view_of(y), view_of(x), view_of(g), view_of(res), count_rows(x), (int)x.n[2],
               g.n[2] != x.n[2] };
    LAUNCH(be, "gate_fwd", gate_rows, ceil_div(a.rows, WARPS), 32 * WARPS, 0, a);
}

extern "C" void cuda_gate_bwd(Backend *be, Tensor dx, Tensor dg, Tensor dy, Tensor x, Tensor g)
{
    GateGrads a = { view_of(dx), view_of(dg), view_of(dy), view_of(x), view_of(g), count_rows(x),
                    (int)x.n[2], g.n[2] != x.n[2] };
    LAUNCH(be, "gate_bwd", gate_grads, ceil_div(a.rows, WARPS), 32 * WARPS, 0, a);
}
