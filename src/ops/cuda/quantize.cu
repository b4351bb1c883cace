/* ops/cuda/quantize.cu -- kernels of quantize.c.
 *
 * Where rows begin and end on 16 bytes, a thread holds 16 elements of a row, or 64 of a block of a weight,
 * from the search of amax to the codes: everything is read once. The transposed codes of a block go through
 * shared memory. Other calls take one warp for each group of a row and one block of threads for each block of
 * a weight, element by element. */
#include "ops/cuda/quant_block.cuh"

namespace {

/* --- rows --- */

/* N elements from 16-byte loads, and their amax. */
template <int N, class T> __device__ inline uint32_t load_units(float (&v)[N], const T *p)
{
    uint32_t amax = 0;
    Pack<T>  x[N / Pack<T>::N];
    #pragma unroll
    for (int i = 0; i < N / Pack<T>::N; i++) x[i] = pack_stream(p + i * Pack<T>::N);
    #pragma unroll
    for (int i = 0; i < N; i++) {
        v[i] = to_f32(x[i / Pack<T>::N].v[i % Pack<T>::N]);
        amax = max(amax, quant_magnitude(v[i]));
    }
    return amax;
}

/* Each warp takes four groups of a row, eight lanes a group. The warps of a block take eight rows: their
 * scales lie together. */
enum { ROW_WARPS = 8, ROW_GROUPS = 4 };

template <class T> __global__ void __launch_bounds__(ROW_WARPS * 32)
rows_by_units(Matrices q, Matrices scale, Matrices x, int64_t R, int64_t K, const int32_t *used, bool pow2)
{
    unsigned across = (unsigned)(quant_groups(K) + ROW_GROUPS - 1) / ROW_GROUPS;
    int64_t  r = (int64_t)(blockIdx.x / across) * ROW_WARPS + threadIdx.x / 32;
    int64_t  g = blockIdx.x % across * ROW_GROUPS + threadIdx.x % 32 / 8;
    int64_t  col = g * QUANT_GROUP + threadIdx.x % 8 * 16;
    if (r >= (used ? (int64_t)*used : R)) return;
    float    v[16];
    uint32_t code[4], amax = 0;
    if (col < K) amax = load_units(v, at<const T>(x, 0, r) + col);
    QuantScale s = quant_scale(lanes_max<8>(amax), pow2);
    if (col >= K) return;
    encode(code, v, s.inverse);
    *(uint4 *)(at<uint8_t>(q, 0, r) + col) = make_uint4(code[0], code[1], code[2], code[3]);
    if (threadIdx.x % 8 == 0) at<float>(scale, 0, g)[r] = s.scale;
}

template <class T> __global__ void rows_by_elements(Matrices q, Matrices scale, Matrices x, int64_t R,
                                                    int64_t K, const int32_t *used, bool pow2)
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
    QuantScale s = quant_scale(lanes_max<32>(amax), pow2);
    uint8_t *out = at<uint8_t>(q, 0, r) + from;
    for (int i = 0; i < QUANT_GROUP / 32; i++)
        if (lane + 32 * i < n) out[lane + 32 * i] = e4m3_from_f32(v[i] * s.inverse);
    if (lane == 0) at<float>(scale, 0, g)[r] = s.scale;
}

/* --- weights --- */

/* Thread t holds 8 columns of rows t / 16, t / 16 + 16, ... of the block. */
template <class T> __global__ void __launch_bounds__(256)
weight_by_units(Matrices q, Matrices scale, Matrices qt, Matrices scale_t, Matrices x, int64_t N, int64_t K,
                bool pow2)
{
    __shared__ uint32_t code[CODE_WORDS];
    Where    w = where(N, K);
    int      row = threadIdx.x / 16, col = threadIdx.x % 16 * 8;
    float    v[8][8] = { };
    uint32_t amax = 0;
    #pragma unroll
    for (int i = 0; i < 8; i++)
        if (row + i * 16 < w.rows && col < w.cols)
            amax = max(amax, load_units(v[i], at<const T>(x, w.e, w.n + row + i * 16) + w.k + col));
    QuantScale s = quant_scale(block_max(amax), pow2);
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t two[2];
        int      r = row + i * 16;
        encode(two, v[i], s.inverse);
        if (qt.p) code[code_at(r, col / 4)] = two[0], code[code_at(r, col / 4 + 1)] = two[1];
        if (q.p && r < w.rows && col < w.cols)
            *(uint2 *)(at<uint8_t>(q, w.e, w.n + r) + w.k + col) = make_uint2(two[0], two[1]);
    }
    store_scale(q, scale, qt, scale_t, w, s.scale);
    if (!qt.p) return;
    __syncthreads();
    store_transposed(qt, code, w);
}

template <class T> __global__ void __launch_bounds__(256)
weight_by_elements(Matrices q, Matrices scale, Matrices qt, Matrices scale_t, Matrices x, int64_t N,
                   int64_t K, bool pow2)
{
    Where    w = where(N, K);
    uint32_t amax = 0;
    for (int i = threadIdx.x; i < w.rows * w.cols; i += blockDim.x)
        amax = max(amax, quant_magnitude(to_f32(at<T>(x, w.e, w.n + i / w.cols)[w.k + i % w.cols])));
    QuantScale s = quant_scale(block_max(amax), pow2);
    for (int i = threadIdx.x; i < w.rows * w.cols; i += blockDim.x) {
        int64_t n = w.n + i / w.cols, k = w.k + i % w.cols;
        uint8_t code = e4m3_from_f32(to_f32(at<T>(x, w.e, n)[k]) * s.inverse);
        if (q.p)  at<uint8_t>(q, w.e, n)[k] = code;
        if (qt.p) at<uint8_t>(qt, w.e, k)[n] = code;
    }
    store_scale(q, scale, qt, scale_t, w, s.scale);
}

bool absent_or_packs(Tensor t) { return !t_has(t) || packs(t); }

}

extern "C" void cuda_quantize_rows(Backend *be, Tensor q, Tensor scale, Tensor x, Tensor offsets, bool pow2)
{
    int64_t R = x.n[0], K = x.n[1], groups = quant_groups(K);
    int64_t blocks = ceil_div(R, ROW_WARPS) * ceil_div(groups, ROW_GROUPS);
    const int32_t *used = t_has(offsets) ? (const int32_t *)offsets.data + t_count(offsets) - 1 : NULL;
    bool units = packs(q) && packs(x);
    BY_DTYPE(x.dtype, T, {
        if (units)
            LAUNCH(be, "quantize_rows", rows_by_units<T>, blocks, ROW_WARPS * 32, 0, matrices(q),
                   matrices(scale), matrices(x), R, K, used, pow2);
        else
            LAUNCH(be, "quantize_rows", rows_by_elements<T>, ceil_div(R * groups, 8), 256, 0, matrices(q),
                   matrices(scale), matrices(x), R, K, used, pow2);
    });
}

extern "C" void cuda_quantize_weight(Backend *be, Tensor q, Tensor scale, Tensor qt, Tensor scale_t, Tensor w,
                                     bool pow2)
{
    int64_t E = w.rank == 3 ? w.n[0] : 1, N = w.n[w.rank - 2], K = w.n[w.rank - 1];
    int64_t blocks = E * quant_groups(N) * quant_groups(K);
    bool    units = packs(w) && absent_or_packs(q) && absent_or_packs(qt);
    BY_DTYPE(w.dtype, T, {
        if (units)
            LAUNCH(be, "quantize_weight", weight_by_units<T>, blocks, 256, 0, matrices(q), matrices(scale),
                   matrices(qt), matrices(scale_t), matrices(w), N, K, pow2);
        else
            LAUNCH(be, "quantize_weight", weight_by_elements<T>, blocks, 256, 0, matrices(q), matrices(scale),
                   matrices(qt), matrices(scale_t), matrices(w), N, K, pow2);
    });
}
