/* ops/cuda/weight_code.cu -- kernels of weight_code.c. Decoding is bound by the memory that it writes: a
 * thread reads the codes of eight elements at once and stores them as one pack. */
#include "ops/cuda/weight_decode.cuh"

namespace {

enum { THREADS = 256 };

__device__ inline float reciprocal(float x, float of) { return x == 0 ? 0 : of / x; }

/* ---- statistics ---- */

__device__ inline uint32_t most_of_block(uint32_t m)                    /* over THREADS threads */
{
    __shared__ uint32_t part[THREADS / 32];
    m = lanes_max<32>(m);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = m;
    __syncthreads();
    return lanes_max<THREADS / 32>(part[threadIdx.x % (THREADS / 32)]);
}

template <class T> __global__ void row_amax(float *amax, const T *w, int64_t K)
{
    uint32_t most = 0;
    for (int64_t i = threadIdx.x; i < K; i += THREADS)
        most = max(most, quant_magnitude(to_f32(w[blockIdx.x * K + i])));
    most = most_of_block(most);
    if (threadIdx.x == 0) amax[blockIdx.x] = quant_float(most);
}

/* A warp takes a block of 64. */
template <class T> __global__ void block_amax(float *amax, const T *w, int64_t blocks)
{
    int64_t b = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    int     lane = threadIdx.x % 32;
    if (b >= blocks) return;
    uint32_t m = max(quant_magnitude(to_f32(w[b * NF4_BLOCK + lane])),
                     quant_magnitude(to_f32(w[b * NF4_BLOCK + 32 + lane])));
    m = lanes_max<32>(m);
    if (lane == 0) amax[b] = quant_float(m);
}

/* One block: thread i sums every 256th amax from the i-th on, then the sums are added in order. */
__global__ void mean_kernel(float *group, const float *amax, int64_t n)
{
    __shared__ double part[NF4_GROUP];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += NF4_GROUP) sum += amax[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < NF4_GROUP && i < n; i++) sum += part[i];
    group[1] = (float)(sum / (double)n);
}

__global__ void group_kernel(float *group, const float *amax, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * NF4_GROUP + threadIdx.x;
    float   offset = group[1];
    uint32_t most = most_of_block(i < n ? quant_magnitude(amax[i] - offset) : 0);
    if (threadIdx.x) return;
    group[2 * blockIdx.x] = quant_float(most);
    if (blockIdx.x) group[2 * blockIdx.x + 1] = offset;
}

/* ---- codes ---- */

__device__ inline uint8_t dynamic_code(float x)
{
    int low = 0, high = 255;
    while (low < high) {
        int middle = (low + high) / 2;
        if (code_midpoint(dynamic_value(middle), dynamic_value(middle + 1)) < x) low = middle + 1;
        else high = middle;
    }
    return (uint8_t)low;
}

struct Runs { int64_t n, at, stride; };                /* elements of a run; see weight_code.c */

__global__ void nf4_scales(uint8_t *scale, const float *amax, const float *group, Runs p, int64_t all)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= all) return;
    int64_t      b = p.at + i / p.n * p.stride + i % p.n;
    const float *of = group + b / NF4_GROUP * 2;
    scale[i] = dynamic_code((amax[b] - of[1]) * reciprocal(of[0], 1.0f));
}

__global__ void int8_scales(float *scale, const float *amax, Runs p, int64_t all)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < all) scale[i] = amax[p.at + i / p.n * p.stride + i % p.n] / 127.0f;
}

__device__ inline int nf4_code(float x)
{
    int code = 0;
    #pragma unroll
    for (int k = 0; k < 15; k++) code += x > code_midpoint(nf4_table[k], nf4_table[k + 1]);
    return code;
}

template <class T> __global__ void nf4_codes(uint8_t *q, const T *w, const float *amax, Runs p, int64_t bytes)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, e = 2 * i;
    if (i >= bytes) return;
    int64_t at = p.at + e / p.n * p.stride + e % p.n;
    float   inverse = reciprocal(amax[at / NF4_BLOCK], 1.0f);
    q[i] = (uint8_t)(nf4_code(to_f32(w[at]) * inverse) << 4 | nf4_code(to_f32(w[at + 1]) * inverse));
}

template <class T>
__global__ void int8_codes(int8_t *q, const T *w, const float *amax, Runs p, int64_t K, int64_t all)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= all) return;
    int64_t at = p.at + i / p.n * p.stride + i % p.n;
    q[i] = (int8_t)(int)rintf(to_f32(w[at]) * reciprocal(amax[at / K], 127.0f));
}

/* ---- elements ---- */

/* The tile (n, k) of the matrices of a stack from e on, which begins at row and col of each; `all`
 * elements. */
struct Tile { int e, row, col, n, k; int64_t all; };

/* Element `col` of row `row` of matrix e. */
template <int FORMAT>
__device__ inline float element(const Codes &d, const Tables &t, int e, int row, int col)
{
    int64_t all = row_of_stack(d, e, row), i = all * d.K + col;
    if (FORMAT == CODE_NF4)
        return t.value[(d.q[i / 2] >> (i % 2 ? 0 : 4) & 15) * 2] * nf4_amax(d, t, e, row, col);
    if (FORMAT == CODE_INT8) return (float)((const int8_t *)d.q)[i] * ((const float *)d.scale)[all];
    return e4m3_to_f32(d.q[i]) * fp8_scale(d, e, row, col);
}

template <class T, int FORMAT> __global__ void __launch_bounds__(THREADS) decode_any(T *w, Codes d, Tile at)
{
    __shared__ Tables t;
    fill_tables<THREADS>(t);
    __syncthreads();
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, r = i / at.k;
    if (i >= at.all) return;
    w[i] = from_f32<T>(element<FORMAT>(d, t, at.e + (int)(r / at.n), at.row + (int)(r % at.n),
                                       at.col + (int)(i % at.k)));
}

/* Columns and widths are multiples of 8; bf16. Units of 8 are counted over the tile, fewer than 2^31. */
template <int FORMAT> __global__ void __launch_bounds__(THREADS) decode_units(bf16 *w, Codes d, Tile at)
{
    __shared__ Tables t;
    fill_tables<THREADS>(t);
    __syncthreads();
    uint32_t units = at.k / UNIT, all = (uint32_t)(at.all / UNIT), n = at.n;
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < all; i += gridDim.x * THREADS) {
        uint32_t r = i / units;
        int      e = at.e + r / n, row = at.row + r % n, col = at.col + (int)(i - r * units) * UNIT;
        uint2    codes = unit_codes<FORMAT>(d.q, row_of_stack(d, e, row) * d.K + col);
        ((uint4 *)w)[i] = unit_bf16<FORMAT>(codes, unit_scale<FORMAT>(d, t, e, row, col), t.value);
    }
}

template <int FORMAT> void decode(Backend *be, Tensor w, const Codes &d, const Tile &at)
{
    bool units = w.dtype == BF16 && !(d.K % UNIT || at.col % UNIT || at.k % UNIT) &&
                 at.all / UNIT < (1u << 31) && (intptr_t)d.q % UNIT == 0 && (intptr_t)w.data % 16 == 0;
    if (!at.all) return;
    if (units)
        LAUNCH(be, "decode_weight", decode_units<FORMAT>, cuda_blocks(be, at.all / UNIT, THREADS, 8), THREADS,
               0, (bf16 *)w.data, d, at);
    else
        BY_DTYPE(w.dtype, T, { LAUNCH(be, "decode_weight", (decode_any<T, FORMAT>), ceil_div(at.all, THREADS),
                                      THREADS, 0, (T *)w.data, d, at); });
}

}

extern "C" void cuda_weight_stats(Backend *be, CodeFormat format, Tensor amax, Tensor group, Tensor w)
{
    int64_t n = t_count(amax);
    float  *out = (float *)amax.data;
    if (!n) return;
    if (format == CODE_INT8) {
        BY_DTYPE(w.dtype, T, { LAUNCH(be, "weight_stats", row_amax<T>, n, THREADS, 0, out, (const T *)w.data,
                                      w.n[1]); });
        return;
    }
    BY_DTYPE(w.dtype, T, {
        LAUNCH(be, "weight_stats", block_amax<T>, ceil_div(n, THREADS / 32), THREADS, 0, out,
               (const T *)w.data, n);
    });
    LAUNCH(be, "weight_stats", mean_kernel, 1, NF4_GROUP, 0, (float *)group.data, out, n);
    LAUNCH(be, "weight_stats", group_kernel, group.n[0], NF4_GROUP, 0, (float *)group.data, out, n);
}

extern "C" void cuda_code_scales(Backend *be, CodeFormat format, Tensor scale, Tensor amax, Tensor group,
                                 int64_t at, int64_t stride)
{
    int64_t n = t_count(scale);
    Runs    p = { scale.n[1], at, stride };
    if (!n) return;
    if (format == CODE_INT8)
        LAUNCH(be, "code_scales", int8_scales, ceil_div(n, THREADS), THREADS, 0, (float *)scale.data,
               (const float *)amax.data, p, n);
    else
        LAUNCH(be, "code_scales", nf4_scales, ceil_div(n, THREADS), THREADS, 0, (uint8_t *)scale.data,
               (const float *)amax.data, (const float *)group.data, p, n);
}

extern "C" void cuda_code_weight(Backend *be, CodeFormat format, Tensor q, Tensor w, Tensor amax, int64_t at,
                                 int64_t stride, int64_t K)
{
    int64_t n = t_count(q);
    Runs    p = { q.n[1] * 8 / code_bits(format), at, stride };
    if (!n) return;
    BY_DTYPE(w.dtype, T, {
        if (format == CODE_INT8)
            LAUNCH(be, "code_weight", int8_codes<T>, ceil_div(n, THREADS), THREADS, 0, (int8_t *)q.data,
                   (const T *)w.data, (const float *)amax.data, p, K, n);
        else
            LAUNCH(be, "code_weight", nf4_codes<T>, ceil_div(n, THREADS), THREADS, 0, (uint8_t *)q.data,
                   (const T *)w.data, (const float *)amax.data, p, n);
    });
}

extern "C" void cuda_decode_weight(Backend *be, Tensor w, WeightCodes z, TileAt at)
{
    int   r = w.rank;
    Codes d = codes_of(z);
    Tile  tile = { (int)at.e, (int)at.row, (int)at.col, (int)w.n[r - 2], (int)w.n[r - 1], t_count(w) };
    if (z.format == CODE_NF4)       decode<CODE_NF4>(be, w, d, tile);
    else if (z.format == CODE_INT8) decode<CODE_INT8>(be, w, d, tile);
    else                            decode<CODE_FP8>(be, w, d, tile);
}
