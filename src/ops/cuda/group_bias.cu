/* ops/cuda/group_bias.cu -- kernels of group_bias.c: forward a warp per row, backward a thread per column
 * of an expert, which walks its rows in order, and a warp per row for the gates. */
#include "ops/cuda/rows.cuh"

namespace {

enum { WARPS = 8, THREADS = 128 };

typedef struct Args { RowView y, b; const float *gate; float *db, *dgate; const int *offsets;
                      int64_t gate_row, dgate_row, db_row; int E, N; } Args;

__device__ inline int expert_of(const Args &a, int64_t r)
{
    int lo = 0, hi = a.E;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (a.offsets[mid] <= r) lo = mid;
        else                     hi = mid;
    }
    return lo;
}

static __global__ void __launch_bounds__(32 * WARPS) bias_rows(Args a)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.offsets[a.E]) return;
    int64_t y = view_row(a.y, r), b = view_row(a.b, expert_of(a, r));
    float   by = a.gate ? a.gate[r * a.gate_row] : 1.0f;
    for (int i = threadIdx.x & 31; i < a.N; i += 32)
        view_put(a.y, y + i, view_get(a.y, y + i) + by * view_get(a.b, b + i));
}

static __global__ void __launch_bounds__(THREADS) bias_sums(Args a)
{
    int per = (a.N + THREADS - 1) / THREADS, e = blockIdx.x / per;
    int i = blockIdx.x % per * THREADS + threadIdx.x;
    if (i >= a.N) return;
    float sum = 0.0f;
    for (int64_t r = a.offsets[e]; r < a.offsets[e + 1]; r++)
        sum += (a.gate ? a.gate[r * a.gate_row] : 1.0f) * view_get(a.y, view_row(a.y, r) + i);
    a.db[e * a.db_row + i] += sum;
}

static __global__ void __launch_bounds__(32 * WARPS) gate_sums(Args a)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.offsets[a.E]) return;
    int64_t y = view_row(a.y, r), b = view_row(a.b, expert_of(a, r));
    float   sum = 0.0f;
    for (int i = threadIdx.x & 31; i < a.N; i += 32) sum += view_get(a.y, y + i) * view_get(a.b, b + i);
    sum = warp_sum(sum);
    if (!(threadIdx.x & 31)) a.dgate[r * a.dgate_row] += sum;
}

static Args args_of(Tensor y, Tensor b, Tensor offsets, Tensor gate)
{
    Args a = {};
    a.y = view_of(y), a.b = view_of(b), a.gate = (const float *)gate.data, a.gate_row = gate.s[0];
    a.offsets = (const int *)offsets.data, a.E = (int)b.n[0], a.N = (int)b.n[1];
    return a;
}

}

extern "C" void cuda_group_bias_fwd(Backend *be, Tensor y, Tensor b, Tensor offsets, Tensor gate)
{
    Args a = args_of(y, b, offsets, gate);
    LAUNCH(be, "group_bias_fwd", bias_rows, ceil_div(y.n[0], WARPS), 32 * WARPS, 0, a);
}

extern "C" void cuda_group_bias_bwd(Backend *be, Tensor db, Tensor dgate, Tensor dy, Tensor b, Tensor offsets,
                                    Tensor gate)
{
    Args a = args_of(dy, b, offsets, gate);
    a.db = (float *)db.data, a.db_row = db.s[0], a.dgate = (float *)dgate.data, a.dgate_row = dgate.s[0];
    if (a.db)    LAUNCH(be, "group_bias_bwd", bias_sums, ceil_div(a.N, THREADS) * a.E, THREADS, 0, a);
    if (a.dgate) LAUNCH(be, "group_bias_bwd", gate_sums, ceil_div(dy.n[0], WARPS), 32 * WARPS, 0, a);
}
