/* ops/cuda/pack_rows.cu -- kernels of pack_rows.c: a warp for each group of a row, four elements a lane. */
#include "ops/cuda/quant.cuh"

namespace {

enum { WARPS = 8 };

/* Rows of x, and their records. */
template <class T> struct Rows { T *x; int64_t stride, R, K; uint8_t *record; };

template <class T> Rows<T> rows_of(Tensor x, Tensor y)
{
    return { (T *)x.data, x.s[0], x.n[0], x.n[1], (uint8_t *)y.data };
}

/* The group that this warp has. */
struct Group { int64_t r, g, k; int n; };

__device__ inline Group group_of(int64_t K)
{
    int64_t groups = quant_groups(K), warp = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int64_t g = warp % groups, k = g * QUANT_GROUP;
    return { warp / groups, g, k, (int)min(K - k, (int64_t)QUANT_GROUP) };
}

template <class T> __device__ inline uint8_t *record_of(const Rows<T> &a, int64_t r)
{
    return a.record + r * quant_packed_width(a.K) * 2;
}

/* The bytes behind codes and scales, and between them, are zeros. */
template <class T> __device__ inline void zero_padding(const Rows<T> &a, int64_t r)
{
    uint8_t *record = record_of(a, r);
    int64_t  scales = quant_scales_at(a.K), end = scales + 4 * quant_groups(a.K);
    for (int64_t i = a.K + threadIdx.x % 32; i < scales; i += 32) record[i] = 0;
    for (int64_t i = end + threadIdx.x % 32; i < quant_packed_width(a.K) * 2; i += 32) record[i] = 0;
}

/* by_four: groups and rows begin on four elements, so that a lane has four neighbours; else every 32nd. */
template <class T> __global__ void __launch_bounds__(WARPS * 32) pack_kernel(Rows<T> a, bool by_four)
{
    Group    w = group_of(a.K);
    int      lane = threadIdx.x % 32;
    float    v[4] = { };
    uint32_t amax = 0;
    if (w.r >= a.R) return;
    const T *x = a.x + w.r * a.stride + w.k;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        int at = by_four ? 4 * lane + i : lane + 32 * i;
        if (at < w.n) v[i] = to_f32(x[at]);
        amax = max(amax, quant_magnitude(v[i]));
    }
    QuantScale s = quant_scale(lanes_max<32>(amax), true);
    uint8_t   *code = record_of(a, w.r) + w.k;
    if (by_four && 4 * lane < w.n)
        *(uint32_t *)(code + 4 * lane) = e4m3_four(v[0] * s.inverse, v[1] * s.inverse, v[2] * s.inverse,
                                                   v[3] * s.inverse);
    for (int i = 0; i < 4 && !by_four; i++)
        if (lane + 32 * i < w.n) code[lane + 32 * i] = e4m3_from_f32(v[i] * s.inverse);
    if (lane == 0) ((float *)(record_of(a, w.r) + quant_scales_at(a.K)))[w.g] = s.scale;
    if (w.g == 0) zero_padding(a, w.r);
}

/* Codes and scales as quantize_rows has them; q NULL: not wanted. */
struct Codes { uint8_t *q; float *scale; int64_t row, scale_row; };

Codes codes_of(Tensor q, Tensor scale)
{
    if (!t_has(q)) return { };
    return { (uint8_t *)q.data, (float *)scale.data, q.s[0], scale.s[0] };
}

template <class T> __global__ void __launch_bounds__(WARPS * 32)
unpack_kernel(Rows<T> a, Codes out, const int32_t *used, bool by_four)
{
    Group w = group_of(a.K);
    int   lane = threadIdx.x % 32;
    if (w.r >= (used ? (int64_t)*used : a.R)) return;
    const uint8_t *code = record_of(a, w.r) + w.k;
    float          scale = ((const float *)(record_of(a, w.r) + quant_scales_at(a.K)))[w.g];
    T             *x = a.x + w.r * a.stride + w.k;
    uint32_t       four = by_four && 4 * lane < w.n ? *(const uint32_t *)(code + 4 * lane) : 0;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        int at = by_four ? 4 * lane + i : lane + 32 * i;
        if (at >= w.n) continue;
        uint8_t byte = by_four ? (uint8_t)(four >> 8 * i) : code[at];
        x[at] = from_f32<T>(e4m3_to_f32(byte) * scale);
        if (out.q) out.q[w.r * out.row + w.k + at] = byte;
    }
    if (out.q && lane == 0) out.scale[w.g * out.scale_row + w.r] = scale;
}

int64_t blocks_of(Tensor x) { return ceil_div(x.n[0] * quant_groups(x.n[1]), WARPS); }

}

extern "C" void cuda_pack_rows(Backend *be, Tensor y, Tensor x)
{
    BY_DTYPE(x.dtype, T, {
        LAUNCH(be, "pack_rows", pack_kernel<T>, blocks_of(x), WARPS * 32, 0, rows_of<T>(x, y),
               x.n[1] % 4 == 0);
    });
}

extern "C" void cuda_unpack_rows(Backend *be, Tensor x, Tensor q, Tensor scale, Tensor y, Tensor offsets)
{
    const int32_t *used = t_has(offsets) ? (const int32_t *)offsets.data + t_count(offsets) - 1 : NULL;
    BY_DTYPE(x.dtype, T, {
        LAUNCH(be, "unpack_rows", unpack_kernel<T>, blocks_of(x), WARPS * 32, 0, rows_of<T>(x, y),
               codes_of(q, scale), used, x.n[1] % 4 == 0);
    });
}
