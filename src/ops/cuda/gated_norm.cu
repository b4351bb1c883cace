/* ops/cuda/gated_norm.cu -- kernels of gated_norm.c: a warp per head of a row, any strides and dtypes. Sums
 * of dw: a warp's in shared memory, of its rows in order, then the warps', then the blocks'. */
#include "ops/cuda/rows.cuh"

namespace {

enum { WARPS = 8, MOST = 2048 };                          /* columns of a head */

typedef struct Gated {
    RowView y, o, z, w, dz, dy;                           /* backward: y is dx */
    float  *rstd, *part;
    int64_t stride, rows;
    int     H, C;
    float   eps;
    bool    narrow;
} Gated;

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float *stat_at(const Gated &a, int64_t r) { return a.rstd + r / a.H * a.stride + r % a.H; }

/* Where the gates of head r begin; M = H / n1 of them lie side by side. */
__device__ inline int64_t gate_row(const Gated &a, RowView z, int64_t r)
{
    int M = a.H / (int)z.n1;
    return view_row(z, r / M) + r % M * a.C;
}

static __global__ void __launch_bounds__(32 * WARPS) gated_rows(Gated a)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.rows) return;
    int64_t o = view_row(a.o, r), y = view_row(a.y, r), z = gate_row(a, a.z, r);
    float   sum = 0.0f;
    for (int i = threadIdx.x & 31; i < a.C; i += 32) sum += view_get(a.o, o + i) * view_get(a.o, o + i);
    float s = 1.0f / sqrtf(warp_sum(sum) / (float)a.C + a.eps);
    for (int i = threadIdx.x & 31; i < a.C; i += 32) {
        float n = view_get(a.o, o + i) * s, gate = view_get(a.z, z + i), w = view_get(a.w, i);
        n = w * (a.narrow ? rounded<bf16>(n) : n);
        view_put(a.y, y + i, (a.narrow ? rounded<bf16>(n) : n) * gate * sigmoid(gate));
    }
    if (!(threadIdx.x & 31)) *stat_at(a, r) = s;
}

__device__ inline void head_grads(const Gated &a, int64_t r, float *dw)
{
    int64_t o = view_row(a.o, r), y = view_row(a.y, r), z = gate_row(a, a.z, r), dz = gate_row(a, a.dz, r);
    int64_t d = view_row(a.dy, r);
    float   along = 0.0f, s = *stat_at(a, r);
    for (int i = threadIdx.x & 31; i < a.C; i += 32) {
        float gate = view_get(a.z, z + i);
        along += view_get(a.w, i) * view_get(a.dy, d + i) * gate * sigmoid(gate) * view_get(a.o, o + i);
    }
    along = warp_sum(along) * s * s * s / (float)a.C;
    for (int i = threadIdx.x & 31; i < a.C; i += 32) {
        float gate = view_get(a.z, z + i), on = sigmoid(gate), dy = view_get(a.dy, d + i);
        float out = view_get(a.o, o + i), w = view_get(a.w, i), n = dy * gate * on;
        dw[i] += n * out * s;
        view_put(a.dz, dz + i, dy * w * out * s * on * (1.0f + gate * (1.0f - on)));
        view_put(a.y, y + i, s * w * n - out * along);
    }
}

static __global__ void __launch_bounds__(32 * WARPS) gated_grads(Gated a)
{
    extern __shared__ float sums[];                       /* (WARPS, C) */
    float *own = sums + (threadIdx.x >> 5) * a.C;
    for (int i = threadIdx.x & 31; i < a.C; i += 32) own[i] = 0.0f;
    for (int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5); r < a.rows;
         r += (int64_t)gridDim.x * WARPS)
        head_grads(a, r, own);
    __syncthreads();
    for (int i = threadIdx.x; a.part && i < a.C; i += blockDim.x) {
        float sum = 0.0f;
        for (int k = 0; k < WARPS; k++) sum += sums[k * a.C + i];
        a.part[(int64_t)blockIdx.x * a.C + i] = sum;
    }
}

static Gated args_of(Tensor y, Tensor rstd, Tensor o, Tensor z, Tensor w)
{
    Gated a = {};
    a.y = view_of(y), a.o = view_of(o), a.z = view_of(z), a.w = view_of(w), a.rstd = (float *)rstd.data;
    a.stride = rstd.s[0], a.rows = count_rows(o), a.H = (int)o.n[1], a.C = (int)o.n[2];
    return a;
}

}

extern "C" void cuda_gated_norm_fwd(Backend *be, Tensor y, Tensor rstd, Tensor o, Tensor z, Tensor w,
                                    float eps)
{
    Gated a = args_of(y, rstd, o, z, w);
    a.eps = eps, a.narrow = y.dtype != F32;
    LAUNCH(be, "gated_norm_fwd", gated_rows, ceil_div(a.rows, WARPS), 32 * WARPS, 0, a);
}

extern "C" void cuda_gated_norm_bwd(Backend *be, Tensor dx, Tensor dz, Tensor dw, Tensor dy, Tensor o,
                                    Tensor z, Tensor w, Tensor rstd)
{
    Gated   a = args_of(dx, rstd, o, z, w);
    int64_t blocks = min_i64(ceil_div(a.rows, WARPS), 4 * SPLIT);
    REQUIRE(a.C <= MOST, "gated_norm_bwd: heads of %d", a.C);
    a.dz = view_of(dz), a.dy = view_of(dy);
    a.part = t_has(dw) ? (float *)cuda_workspace(be, (size_t)(blocks * a.C) * sizeof(float)) : NULL;
    if (be->sticky) return;
    LAUNCH(be, "gated_norm_bwd", gated_grads, blocks, 32 * WARPS, (size_t)(WARPS * a.C) * sizeof(float), a);
    if (t_has(dw)) parts_add(be, "gated_norm_bwd", dw, a.part, blocks, a.C);
}
