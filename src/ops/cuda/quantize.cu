/* ops/cuda/quantize.cu -- kernels of quantize.c: one warp for each group of a row, one block of threads for
 * each block of a weight. */
#include "ops/cuda/cuda.cuh"
#include "ops/quant.h"

namespace {

/* A stack of matrices; a null pointer is an absent output. */
struct Matrices { void *p; int64_t outer, row; };

static Matrices matrices(Tensor t)
{
    return { t.data, t.rank == 3 ? t.s[0] : 0, t.s[t.rank == 3 ? 1 : 0] };
}

template <class T> __device__ T *at(Matrices m, int64_t e, int64_t r)
{
    return (T *)m.p + e * m.outer + r * m.row;
}

/* Elements of the group that starts at `from` of n. */
__device__ inline int group_width(int64_t n, int64_t from)
{
    return (int)min(n - from, (int64_t)QUANT_GROUP);
}

__device__ inline uint32_t warp_max_bits(uint32_t x)
{
    for (int o = 16; o; o >>= 1) x = max(x, __shfl_xor_sync(~0u, x, o));
    return x;
}

template <class T> __global__ void rows_kernel(Matrices q, Matrices scale, Matrices x, int64_t R, int64_t K,
                                               const int32_t *used, bool pow2)
{
    int64_t groups = quant_groups(K), warp = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    int64_t r = warp / groups, g = warp % groups, from = g * QUANT_GROUP;
    int     lane = threadIdx.x % 32, n = group_width(K, from);
    if (r >= (used ? (int64_t)*used : R)) return;
    const T *in = at<T>(x, 0, r) + from;
    float    v[QUANT_GROUP / 32];
    uint32_t amax = 0;
    for (int i = 0; i < QUANT_GROUP / 32; i++) {
        v[i] = lane + 32 * i < n ? to_f32(in[lane + 32 * i]) : 0.0f;
        amax = max(amax, quant_magnitude(v[i]));
    }
    QuantScale s = quant_scale(warp_max_bits(amax), pow2);
    uint8_t *out = at<uint8_t>(q, 0, r) + from;
    for (int i = 0; i < QUANT_GROUP / 32; i++)
        if (lane + 32 * i < n) out[lane + 32 * i] = e4m3_from_f32(v[i] * s.inverse);
    if (lane == 0) at<float>(scale, 0, g)[r] = s.scale;
}

template <class T> __global__ void weight_kernel(Matrices q, Matrices scale, Matrices qt, Matrices scale_t,
                                                 Matrices w, int64_t N, int64_t K, bool pow2)
{
    __shared__ uint32_t part[32];
    int64_t across = quant_groups(K), down = quant_groups(N), e = blockIdx.x / (across * down);
    int64_t nb = blockIdx.x / across % down, kb = blockIdx.x % across;
    int64_t n0 = nb * QUANT_GROUP, k0 = kb * QUANT_GROUP;
    int     rows = group_width(N, n0), cols = group_width(K, k0);
    uint32_t amax = 0;
    for (int i = threadIdx.x; i < rows * cols; i += blockDim.x)
        amax = max(amax, quant_magnitude(to_f32(at<T>(w, e, n0 + i / cols)[k0 + i % cols])));
    amax = warp_max_bits(amax);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = amax;
    __syncthreads();
    amax = 0;
    for (int i = 0; i < blockDim.x / 32; i++) amax = max(amax, part[i]);
    QuantScale s = quant_scale(amax, pow2);
    for (int i = threadIdx.x; i < rows * cols; i += blockDim.x) {
        int64_t n = n0 + i / cols, k = k0 + i % cols;
        uint8_t code = e4m3_from_f32(to_f32(at<T>(w, e, n)[k]) * s.inverse);
        if (q.p)  at<uint8_t>(q, e, n)[k] = code;
        if (qt.p) at<uint8_t>(qt, e, k)[n] = code;
    }
    if (threadIdx.x == 0 && q.p)  at<float>(scale, e, nb)[kb] = s.scale;
    if (threadIdx.x == 0 && qt.p) at<float>(scale_t, e, kb)[nb] = s.scale;
}

}

extern "C" void cuda_quantize_rows(Backend *be, Tensor q, Tensor scale, Tensor x, Tensor offsets, bool pow2)
{
    int64_t R = x.n[0], K = x.n[1], warps = R * quant_groups(K);
    const int32_t *used = t_has(offsets) ? (const int32_t *)offsets.data + t_count(offsets) - 1 : NULL;
    BY_DTYPE(x.dtype, T, LAUNCH(be, "quantize_rows", rows_kernel<T>, ceil_div(warps, 8), 256, 0, matrices(q),
                                matrices(scale), matrices(x), R, K, used, pow2));
}

extern "C" void cuda_quantize_weight(Backend *be, Tensor q, Tensor scale, Tensor qt, Tensor scale_t, Tensor w,
                                     bool pow2)
{
    int64_t E = w.rank == 3 ? w.n[0] : 1, N = w.n[w.rank - 2], K = w.n[w.rank - 1];
    int64_t blocks = E * quant_groups(N) * quant_groups(K);
    BY_DTYPE(w.dtype, T, LAUNCH(be, "quantize_weight", weight_kernel<T>, blocks, 256, 0, matrices(q),
                                matrices(scale), matrices(qt), matrices(scale_t), matrices(w), N, K, pow2));
}
