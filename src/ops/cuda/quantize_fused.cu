/* ops/cuda/quantize_fused.cu -- kernels of expand_rows_fp8: a warp reads a token once, quantises it in
 * registers and writes its rows. Rows that do not begin and end on 16 bytes take a warp for each group,
 * element by element. (swiglu_bwd_fp8 is in swiglu.cu.) */
#include "ops/cuda/quant.cuh"

namespace {

struct Expand {
    void       *y;                              /* NULL: codes alone */
    uint8_t    *q;
    float      *scale;
    const void *x;
    const int  *rows;
    int64_t     ys, qs, ss, xs, T;
    int         D, K;
    bool        pow2;
};

enum { EXPAND_WARPS = 8, FLIGHT = 4, GROUP_LANES = QUANT_GROUP / 8 };

/* Eight elements of a lane: their bits, their codes, the scale of their group. */
template <class T> struct Eight {
    Pack<T>  bits[8 / Pack<T>::N];
    uint2    code;
    float    scale;

    __device__ void read(const T *p, bool some)
    {
        #pragma unroll
        for (int i = 0; i < 8 / Pack<T>::N; i++)
            if (some) bits[i] = pack_load(p + i * Pack<T>::N);
    }
    __device__ float at(int i) const { return to_f32(bits[i / Pack<T>::N].v[i % Pack<T>::N]); }

    __device__ uint32_t four(int i, float f) const
    {
        return e4m3_four(at(i) * f, at(i + 1) * f, at(i + 2) * f, at(i + 3) * f);
    }
    __device__ void quantize(bool some, bool pow2)
    {
        uint32_t amax = 0;
        #pragma unroll
        for (int i = 0; i < 8; i++) amax = max(amax, some ? quant_magnitude(at(i)) : 0u);
        QuantScale s = quant_scale(lanes_max<GROUP_LANES>(amax), pow2);
        code = make_uint2(four(0, s.inverse), four(4, s.inverse));
        scale = s.scale;
    }
    __device__ void write(const Expand &e, int64_t row, int col) const
    {
        #pragma unroll
        for (int i = 0; i < 8 / Pack<T>::N; i++)
            if (e.y) pack_store((T *)e.y + row * e.ys + col + i * Pack<T>::N, bits[i]);
        *(uint2 *)(e.q + row * e.qs + col) = code;
        if (col % QUANT_GROUP == 0) e.scale[col / QUANT_GROUP * e.ss + row] = scale;
    }
};

template <class T> __global__ void __launch_bounds__(EXPAND_WARPS * 32) expand_by_units(Expand e)
{
    int64_t t = (int64_t)blockIdx.x * EXPAND_WARPS + threadIdx.x / 32;
    if (t >= e.T) return;
    for (int from = threadIdx.x % 32 * 8; from - (int)(threadIdx.x % 32 * 8) < e.D; from += FLIGHT * 256) {
        Eight<T> v[FLIGHT];
        #pragma unroll
        for (int i = 0; i < FLIGHT; i++)
            v[i].read((const T *)e.x + t * e.xs + from + i * 256, from + i * 256 < e.D);
        #pragma unroll
        for (int i = 0; i < FLIGHT; i++) v[i].quantize(from + i * 256 < e.D, e.pow2);
        for (int k = 0; k < e.K; k++) {
            int row = e.rows[t * e.K + k];
            if (row < 0) continue;
            #pragma unroll
            for (int i = 0; i < FLIGHT; i++)
                if (from + i * 256 < e.D) v[i].write(e, row, from + i * 256);
        }
    }
}

template <class T> __global__ void __launch_bounds__(256) expand_by_elements(Expand e)
{
    int64_t warp = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32, groups = quant_groups(e.D);
    int64_t t = warp / groups, g = warp % groups;
    int     lane = threadIdx.x % 32, from = (int)g * QUANT_GROUP, n = min(e.D - from, (int)QUANT_GROUP);
    if (t >= e.T) return;
    T        v[QUANT_GROUP / 32];
    uint32_t amax = 0;
    for (int i = 0; i < QUANT_GROUP / 32; i++) {
        if (lane + 32 * i < n) v[i] = ((const T *)e.x)[t * e.xs + from + lane + 32 * i];
        if (lane + 32 * i < n) amax = max(amax, quant_magnitude(to_f32(v[i])));
    }
    QuantScale s = quant_scale(lanes_max<32>(amax), e.pow2);
    for (int k = 0; k < e.K; k++) {
        int64_t row = e.rows[t * e.K + k];
        if (row < 0) continue;
        for (int i = 0; i < QUANT_GROUP / 32; i++) {
            int col = from + lane + 32 * i;
            if (lane + 32 * i >= n) break;
            if (e.y) ((T *)e.y)[row * e.ys + col] = v[i];
            e.q[row * e.qs + col] = e4m3_from_f32(to_f32(v[i]) * s.inverse);
        }
        if (!lane) e.scale[g * e.ss + row] = s.scale;
    }
}

}

extern "C" void cuda_expand_rows_fp8(Backend *be, Tensor y, Tensor q, Tensor scale, Tensor x, Tensor rows,
                                     bool pow2)
{
    Expand e = { y.data, (uint8_t *)q.data, (float *)scale.data, x.data, (const int *)rows.data, y.s[0],
                 q.s[0], scale.s[0], x.s[0], x.n[0], (int)x.n[1], (int)rows.n[1], pow2 };
    int64_t blocks = ceil_div(e.T, EXPAND_WARPS), groups = ceil_div(e.T * quant_groups(e.D), 8);
    bool units = packs(x) && packs(q) && (!t_has(y) || packs(y));
    BY_DTYPE(x.dtype, T, {
        if (units)
            LAUNCH(be, "expand_rows_fp8", expand_by_units<T>, blocks, EXPAND_WARPS * 32, 0, e);
        else
            LAUNCH(be, "expand_rows_fp8", expand_by_elements<T>, groups, 256, 0, e);
    });
}
