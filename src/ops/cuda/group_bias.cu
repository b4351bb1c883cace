/* ops/cuda/group_bias.cu -- kernels of group_bias.c: forward a warp per row, and backward of the gates;
 * backward of the biases a block for columns of an expert. By Packs where all rows have one dtype and start
 * on 16 bytes: a warp of the block then takes each eighth row, and the warps are added in order; else a
 * thread per column walks the rows in order. */
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

template <class T> static __global__ void __launch_bounds__(32 * WARPS) bias_packs(Args a)
{
    constexpr int E = Pack<T>::N;
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.offsets[a.E]) return;
    T       *y = row_of<T>(a.y, r);
    const T *b = row_of<T>(a.b, expert_of(a, r));
    float    by = a.gate ? a.gate[r * a.gate_row] : 1.0f;
#pragma unroll 4
    for (int i = (threadIdx.x & 31) * E; i < a.N; i += 32 * E) {
        Pack<T> in = pack_stream(y + i), add = pack_load(b + i);
        float   out[E];
#pragma unroll
        for (int j = 0; j < E; j++) out[j] = to_f32(in.v[j]) + by * to_f32(add.v[j]);
        pack_store(y + i, pack_of<T>(out));
    }
}

template <class T> static __global__ void __launch_bounds__(32 * WARPS) bias_sum_packs(Args a)
{
    constexpr int E = Pack<T>::N;
    __shared__ float part[WARPS][32 * E];
    int per = (a.N + 32 * E - 1) / (32 * E), e = blockIdx.x / per, lane = threadIdx.x & 31;
    int warp = threadIdx.x >> 5, from = blockIdx.x % per * 32 * E, i = from + lane * E;
    float sum[E] = {};
#pragma unroll 4
    for (int r = a.offsets[e] + warp; i < a.N && r < a.offsets[e + 1]; r += WARPS) {
        Pack<T> in = pack_load(row_of<T>(a.y, r) + i);
        float   by = a.gate ? a.gate[r * a.gate_row] : 1.0f;
#pragma unroll
        for (int j = 0; j < E; j++) sum[j] += by * to_f32(in.v[j]);
    }
#pragma unroll
    for (int j = 0; j < E; j++) part[warp][lane * E + j] = sum[j];
    __syncthreads();
    for (int c = threadIdx.x; c < 32 * E && from + c < a.N; c += 32 * WARPS) {
        float all = 0.0f;
        for (int w = 0; w < WARPS; w++) all += part[w][c];
        a.db[e * a.db_row + from + c] += all;
    }
}

template <class T> static __global__ void __launch_bounds__(32 * WARPS) gate_packs(Args a)
{
    constexpr int E = Pack<T>::N;
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.offsets[a.E]) return;
    const T *y = row_of<T>(a.y, r), *b = row_of<T>(a.b, expert_of(a, r));
    float    sum = 0.0f;
#pragma unroll 4
    for (int i = (threadIdx.x & 31) * E; i < a.N; i += 32 * E) {
        Pack<T> in = pack_load(y + i), by = pack_load(b + i);
#pragma unroll
        for (int j = 0; j < E; j++) sum += to_f32(in.v[j]) * to_f32(by.v[j]);
    }
    sum = warp_sum(sum);
    if (!(threadIdx.x & 31)) a.dgate[r * a.dgate_row] += sum;
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
    int64_t blocks = ceil_div(y.n[0], WARPS);
    if (packs_as(y, y.dtype) && packs_as(b, y.dtype))
        BY_DTYPE(y.dtype, T, LAUNCH(be, "group_bias_fwd", bias_packs<T>, blocks, 32 * WARPS, 0, a));
    else
        LAUNCH(be, "group_bias_fwd", bias_rows, blocks, 32 * WARPS, 0, a);
}

static void sum_packs(Backend *be, const Args &a, int dtype, int64_t blocks)
{
    BY_DTYPE(dtype, T,
        if (a.db) LAUNCH(be, "group_bias_bwd", bias_sum_packs<T>, ceil_div(a.N, 32 * Pack<T>::N) * a.E,
                         32 * WARPS, 0, a);
        if (a.dgate) LAUNCH(be, "group_bias_bwd", gate_packs<T>, blocks, 32 * WARPS, 0, a));
}

extern "C" void cuda_group_bias_bwd(Backend *be, Tensor db, Tensor dgate, Tensor dy, Tensor b, Tensor offsets,
                                    Tensor gate)
{
    Args a = args_of(dy, b, offsets, gate);
    a.db = (float *)db.data, a.db_row = db.s[0], a.dgate = (float *)dgate.data, a.dgate_row = dgate.s[0];
    int64_t blocks = ceil_div(dy.n[0], WARPS);
    if (packs_as(dy, dy.dtype) && packs_as(b, dy.dtype)) { sum_packs(be, a, dy.dtype, blocks); return; }
    if (a.db)    LAUNCH(be, "group_bias_bwd", bias_sums, ceil_div(a.N, THREADS) * a.E, THREADS, 0, a);
    if (a.dgate) LAUNCH(be, "group_bias_bwd", gate_sums, blocks, 32 * WARPS, 0, a);
}
