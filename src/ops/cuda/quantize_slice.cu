/* ops/cuda/quantize_slice.cu -- kernels of quantize_slice.c. A block of threads takes a block of a weight;
 * transposed codes go through shared memory. */
#include "ops/cuda/quant_block.cuh"

namespace {

enum { THREADS = 256 };

/* A slice of n elements of a stack of matrices. */
struct Slice { WeightSlice of; int64_t n; };

/* The place in the slice of element i of block w; outside [0, n): the slice does not have it. */
__device__ inline int64_t place(const Slice &s, const Where &w, int i)
{
    return (w.e * s.of.N + w.n + i / w.cols) * s.of.K + w.k + i % w.cols - s.of.at;
}

template <class T> __global__ void __launch_bounds__(THREADS) amax_kernel(float *amax, const T *x, Slice s)
{
    Where    w = where(s.of.N, s.of.K);
    uint32_t most = 0;
    for (int i = threadIdx.x; i < w.rows * w.cols; i += THREADS) {
        int64_t p = place(s, w, i);
        if (p >= 0 && p < s.n) most = max(most, quant_magnitude(to_f32(x[p])));
    }
    most = block_max(most);
    if (threadIdx.x == 0) amax[blockIdx.x] = quant_float(min(most, 0x7f800000u));
}

__global__ void scales_kernel(float *scale, const float *amax, int64_t n, bool pow2)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) scale[i] = quant_scale(quant_bits(amax[i]), pow2).scale;
}

template <class T> __global__ void __launch_bounds__(THREADS)
slice_kernel(uint8_t *q, const T *x, const float *scale, Slice s)
{
    Where w = where(s.of.N, s.of.K);
    float inverse = quant_inverse(scale[blockIdx.x]);
    for (int i = threadIdx.x; i < w.rows * w.cols; i += THREADS) {
        int64_t p = place(s, w, i);
        if (p >= 0 && p < s.n) q[p] = e4m3_from_f32(to_f32(x[p]) * inverse);
    }
}

/* Rows begin on 16 bytes on both sides. Thread t holds 8 bytes of rows t / 16, t / 16 + 16, ... */
__global__ void __launch_bounds__(THREADS) codes_by_units(Matrices y, Matrices x, int64_t N, int64_t K)
{
    __shared__ uint32_t code[CODE_WORDS];
    Where w = where(N, K);
    int   row = threadIdx.x / 16, col = threadIdx.x % 16 * 8;
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        int r = row + i * 16;
        if (r >= w.rows || col >= w.cols) continue;
        uint2 two = *(const uint2 *)(at<uint8_t>(x, w.e, w.n + r) + w.k + col);
        code[code_at(r, col / 4)] = two.x, code[code_at(r, col / 4 + 1)] = two.y;
    }
    __syncthreads();
    store_transposed(y, code, w);
}

template <class T> __global__ void by_elements(Matrices y, Matrices x, int64_t N, int64_t K)
{
    Where w = where(N, K);
    for (int i = threadIdx.x; i < w.rows * w.cols; i += THREADS)
        at<T>(y, w.e, w.k + i % w.cols)[w.n + i / w.cols] = at<T>(x, w.e, w.n + i / w.cols)[w.k + i % w.cols];
}

int64_t blocks_of(Tensor x, int64_t N, int64_t K)
{
    return (x.rank == 3 ? x.n[0] : 1) * quant_groups(N) * quant_groups(K);
}

}

extern "C" void cuda_weight_amax(Backend *be, Tensor amax, Tensor w, WeightSlice of)
{
    Slice s = { of, t_count(w) };
    BY_DTYPE(w.dtype, T, {
        LAUNCH(be, "weight_amax", amax_kernel<T>, t_count(amax), THREADS, 0, (float *)amax.data,
               (const T *)w.data, s);
    });
}

extern "C" void cuda_amax_scales(Backend *be, Tensor scale, Tensor amax, bool pow2)
{
    int64_t n = t_count(amax);
    LAUNCH(be, "amax_scales", scales_kernel, ceil_div(n, THREADS), THREADS, 0, (float *)scale.data,
           (const float *)amax.data, n, pow2);
}

extern "C" void cuda_quantize_slice(Backend *be, Tensor q, Tensor w, Tensor scale, WeightSlice of)
{
    Slice s = { of, t_count(w) };
    BY_DTYPE(w.dtype, T, {
        LAUNCH(be, "quantize_slice", slice_kernel<T>, t_count(scale), THREADS, 0, (uint8_t *)q.data,
               (const T *)w.data, (const float *)scale.data, s);
    });
}

extern "C" void cuda_transpose(Backend *be, Tensor y, Tensor x)
{
    int64_t N = x.n[x.rank - 2], K = x.n[x.rank - 1], blocks = blocks_of(x, N, K);
    if (dtype_size((DType)x.dtype) == 4)
        LAUNCH(be, "transpose", by_elements<uint32_t>, blocks, THREADS, 0, matrices(y), matrices(x), N, K);
    else if (packs(x) && packs(y))
        LAUNCH(be, "transpose", codes_by_units, blocks, THREADS, 0, matrices(y), matrices(x), N, K);
    else
        LAUNCH(be, "transpose", by_elements<uint8_t>, blocks, THREADS, 0, matrices(y), matrices(x), N, K);
}
