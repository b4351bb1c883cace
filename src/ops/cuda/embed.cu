/* ops/cuda/embed.cu -- kernels of embed.c: a warp copies one row; gradients are sums of rows by key
 * (scatter.cuh).
 *
 * An id outside the table traps on the device, as it aborts on the CPU: the backend then reports the failed
 * launch. */
#include "ops/cuda/rows.cuh"
#include "ops/cuda/scatter.cuh"

namespace {

enum { WARPS = 8, HELD = 4 };                 /* loads in flight per lane */

typedef struct Forward { RowView y, table; const int32_t *ids; int64_t T, V, D; } Forward;

__device__ static inline int64_t checked(int32_t id, int64_t V)
{
    if (id < -1 || id >= V) __trap();
    return id;
}

template <class Y, class X> static __global__ void __launch_bounds__(32 * WARPS) forward_units(Forward a)
{
    constexpr int U = Wide<Y, X>::U;
    int64_t       t = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (t >= a.T) return;
    int64_t  id = checked(a.ids[t], a.V);
    int      units = (int)(a.D / U);
    Y       *y = row_of<Y>(a.y, t);
    const X *x = row_of<X>(a.table, id < 0 ? 0 : id);
    for (int from = threadIdx.x & 31; from < units; from += 32 * HELD) {
        Unit<X, U> u[HELD] = {};
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if (id >= 0 && from + 32 * k < units) u[k] = unit_load<U>(x + (from + 32 * k) * U);
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            if (from + 32 * k >= units) continue;
            float v[U];
#pragma unroll
            for (int i = 0; i < U; i++) v[i] = unit_get(u[k], i);
            unit_store<U>(y + (from + 32 * k) * U, v);
        }
    }
}

static __global__ void __launch_bounds__(32 * WARPS) forward_any(Forward a)
{
    int64_t t = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (t >= a.T) return;
    int64_t id = checked(a.ids[t], a.V), y = view_row(a.y, t), x = view_row(a.table, id < 0 ? 0 : id);
    for (int64_t i = threadIdx.x & 31; i < a.D; i += 32)
        view_put(a.y, y + i, id < 0 ? 0.0f : view_get(a.table, x + i));
}

}

extern "C" void cuda_embed_fwd(Backend *be, Tensor y, Tensor table, Tensor ids)
{
    Forward a = { view_of(y), view_of(table), (const int32_t *)ids.data, y.n[0], table.n[0], y.n[1] };
    int64_t blocks = ceil_div(a.T, WARPS);
    if (!a.T) return;
    if (!packs(y) || !packs(table))
        LAUNCH(be, "embed_fwd", forward_any, blocks, 32 * WARPS, 0, a);
    else
        BY_DTYPE(y.dtype, Y, BY_DTYPE(table.dtype, X,
            LAUNCH(be, "embed_fwd", (forward_units<Y, X>), blocks, 32 * WARPS, 0, a)));
}

namespace {

static __global__ void make_keys(uint32_t *key, const int32_t *ids, int64_t T, int64_t V, int64_t skip)
{
    int64_t t = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= T) return;
    int64_t id = checked(ids[t], V);
    key[t] = (uint32_t)(id < 0 || id == skip ? V : id);
}

}

extern "C" void cuda_embed_bwd(Backend *be, Tensor dtable, Tensor dy, Tensor ids, int64_t skip)
{
    int64_t T = dy.n[0], V = dtable.n[0];
    if (!t_count(dy)) return;
    Scatter s = scatter_open(be, T, V, dy.n[1], false);
    if (be->sticky) return;
    LAUNCH(be, "embed_bwd", make_keys, ceil_div(T, 256), 256, 0, s.key[0], (const int32_t *)ids.data, T, V,
           skip);
    scatter_add(be, "embed_bwd", s, dtable, dy, 1);
}

namespace {

static __global__ void slice(int32_t *y, const int32_t *ids, int64_t T, int64_t from, int64_t n)
{
    int64_t t = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= T) return;
    int64_t at = ids[t] - from;
    y[t] = ids[t] >= 0 && at >= 0 && at < n ? (int32_t)at : -1;
}

}

extern "C" void cuda_slice_ids(Backend *be, Tensor y, Tensor ids, int64_t from, int64_t n)
{
    LAUNCH(be, "slice_ids", slice, ceil_div(y.n[0], 256), 256, 0, (int32_t *)y.data,
           (const int32_t *)ids.data, y.n[0], from, n);
}
