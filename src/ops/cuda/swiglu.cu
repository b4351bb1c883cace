/* ops/cuda/swiglu.cu -- kernels of swiglu.c: a warp takes one row, so that the row's gate is read once and
 * its dgate is a sum inside the warp.
 *
 * A lane holds up to N Packs of g, u (and dh) at a time and has read them all before it writes, since dgu may
 * lie over gu, or its first half over dh. */
#include "ops/cuda/quant.cuh"
#include "ops/cuda/rows.cuh"
#include "ops/cuda/swiglu.cuh"

namespace {

enum { WARPS = 8 };

/* used: how many of the R rows there are; NULL: all. */
typedef struct Forward {
    RowView      h, gu;
    const float *gate;
    int64_t      gate_stride, R, F;
    const int   *used;
} Forward;

template <class T, int N> static __global__ void __launch_bounds__(32 * WARPS, 3) forward_packs(Forward a)
{
    constexpr int E = Pack<T>::N;
    int64_t       r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.R || (a.used && r >= *a.used)) return;
    int      packs = (int)(a.F / E);
    float    gate = a.gate ? a.gate[r * a.gate_stride] : 1.0f;
    const T *g = row_of<T>(a.gu, r), *u = g + a.F;
    T       *h = row_of<T>(a.h, r);
    for (int from = threadIdx.x & 31; from < packs; from += 32 * N) {
        Pack<T> gk[N], uk[N];
#pragma unroll
        for (int k = 0; k < N; k++) {
            int p = from + 32 * k;
            if (p < packs) gk[k] = pack_stream(g + p * E), uk[k] = pack_stream(u + p * E);
        }
#pragma unroll
        for (int k = 0; k < N; k++) {
            int p = from + 32 * k;
            if (p >= packs) continue;
            float v[E];
#pragma unroll
            for (int i = 0; i < E; i++) {
                float x = to_f32(gk[k].v[i]);
                v[i] = swiglu<T>(x, to_f32(uk[k].v[i]), gate);
            }
            pack_store(h + p * E, pack_of<T>(v));
        }
    }
}

static __global__ void __launch_bounds__(32 * WARPS) forward_any(Forward a)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.R || (a.used && r >= *a.used)) return;
    int64_t gu = view_row(a.gu, r), h = view_row(a.h, r);
    float   gate = a.gate ? a.gate[r * a.gate_stride] : 1.0f;
    for (int64_t i = threadIdx.x & 31; i < a.F; i += 32) {
        float g = view_get(a.gu, gu + i), u = view_get(a.gu, gu + a.F + i);
        view_put(a.h, h + i, a.gu.f32 ? swiglu<float>(g, u, gate) : swiglu<bf16>(g, u, gate));
    }
}

}

/* Packs a lane holds at once, 1 to 3: 768 bf16 are 3. */
#define BY_HELD(packs, N, ...)                                          \
    do {                                                                \
        int64_t packs_ = (packs);                                       \
        if (packs_ <= 32)      { constexpr int N = 1; __VA_ARGS__; }    \
        else if (packs_ <= 64) { constexpr int N = 2; __VA_ARGS__; }    \
        else                   { constexpr int N = 3; __VA_ARGS__; }    \
    } while (0)

/* The halves of gu start on 16 bytes only if F, not just 2F, is whole Packs; h says so. */
extern "C" void cuda_swiglu_fwd(Backend *be, Tensor h, Tensor gu, Tensor gate, Tensor offsets)
{
    const int *used = t_has(offsets) ? (const int *)offsets.data + t_count(offsets) - 1 : NULL;
    Forward a = { view_of(h), view_of(gu), (const float *)gate.data, gate.s[0], h.n[0], h.n[1], used };
    int     d = gu.dtype;
    int64_t blocks = ceil_div(a.R, WARPS);
    if (!a.R) return;
    if (packs_as(h, d) && packs_as(gu, d))
        BY_DTYPE(d, T, BY_HELD(a.F / Pack<T>::N, N,
            LAUNCH(be, "swiglu_fwd", (forward_packs<T, N>), blocks, 32 * WARPS, 0, a)));
    else
        LAUNCH(be, "swiglu_fwd", forward_any, blocks, 32 * WARPS, 0, a);
}

namespace {

typedef struct Backward {
    RowView         dgu, dh, gu;
    float       *dgate;
    const float *gate;
    int64_t      dgate_stride, gate_stride, R, F;
    const int   *used, *from;                   /* rows *from .. *used - 1 alone; NULL: from 0; all */
    uint8_t     *q;                             /* codes of dgu and their scales, where they are wanted */
    float       *scale;
    int64_t      q_row, scale_row;
    bool         pow2;
} Backward;

/* Codes of the values of a lane from column p E of a half of row r on, by all lanes of a warp; 128 / E
 * neighbouring lanes share a group, and F is whole groups. */
template <class T> static __device__ inline void put_codes(const Backward &a, int64_t r, int p, int64_t half,
                                                           const Pack<T> &x)
{
    constexpr int E = Pack<T>::N;
    uint32_t amax = 0;
    #pragma unroll
    for (int i = 0; i < E; i++) amax = max(amax, quant_magnitude(to_f32(x.v[i])));
    QuantScale s = quant_scale(lanes_max<QUANT_GROUP / E>(amax), a.pow2);
    int64_t    col = half + p * E;
    if (p * E >= a.F) return;
    #pragma unroll
    for (int i = 0; i < E; i += 4)
        *(uint32_t *)(a.q + r * a.q_row + col + i) =
            e4m3_four(to_f32(x.v[i]) * s.inverse, to_f32(x.v[i + 1]) * s.inverse,
                      to_f32(x.v[i + 2]) * s.inverse, to_f32(x.v[i + 3]) * s.inverse);
    if (col % QUANT_GROUP == 0) a.scale[col / QUANT_GROUP * a.scale_row + r] = s.scale;
}

template <class T, int N, bool CODES>
static __global__ void __launch_bounds__(32 * WARPS, 2) backward_packs(Backward a)
{
    constexpr int E = Pack<T>::N;
    int64_t       r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.R || (a.used && r >= *a.used) || (a.from && r < *a.from)) return;
    int      packs = (int)(a.F / E), lane = threadIdx.x & 31;
    float    gate = a.gate ? a.gate[r * a.gate_stride] : 1.0f, sum = 0.0f;
    const T *g = row_of<T>(a.gu, r), *u = g + a.F, *dh = row_of<T>(a.dh, r);
    T       *dg = row_of<T>(a.dgu, r), *du = dg + a.F;
    for (int from = 0; from < packs; from += 32 * N) {
        Pack<T> gk[N], uk[N], dk[N];
#pragma unroll
        for (int k = 0; k < N; k++) {
            int p = from + lane + 32 * k;
            if (p >= packs) continue;
            gk[k] = pack_stream(g + p * E), uk[k] = pack_stream(u + p * E);
            dk[k] = pack_stream(dh + p * E);
        }
#pragma unroll
        for (int k = 0; k < N; k++) {
            int   p = from + lane + 32 * k;
            float vg[E] = { }, vu[E] = { };
            if (p < packs) {
#pragma unroll
                for (int i = 0; i < E; i++)
                    sum += dswiglu<T>(&vg[i], &vu[i], to_f32(dk[k].v[i]), to_f32(gk[k].v[i]),
                                      to_f32(uk[k].v[i]), gate);
            }
            Pack<T> both[2] = { pack_of<T>(vg), pack_of<T>(vu) };
            if (p < packs) pack_store(dg + p * E, both[0]), pack_store(du + p * E, both[1]);
            if (CODES) put_codes(a, r, p, 0, both[0]), put_codes(a, r, p, a.F, both[1]);
        }
    }
    sum = warp_sum(sum);
    if (a.dgate && !lane) a.dgate[r * a.dgate_stride] = sum;
}

static __global__ void __launch_bounds__(32 * WARPS) backward_any(Backward a)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.R || (a.used && r >= *a.used) || (a.from && r < *a.from)) return;
    int64_t gu = view_row(a.gu, r), dh = view_row(a.dh, r), dgu = view_row(a.dgu, r);
    float   gate = a.gate ? a.gate[r * a.gate_stride] : 1.0f, sum = 0.0f, dg, du;
    for (int64_t i = threadIdx.x & 31; i < a.F; i += 32) {
        float g = view_get(a.gu, gu + i), u = view_get(a.gu, gu + a.F + i);
        float d = view_get(a.dh, dh + i);
        sum += a.gu.f32 ? dswiglu<float>(&dg, &du, d, g, u, gate) : dswiglu<bf16>(&dg, &du, d, g, u, gate);
        view_put(a.dgu, dgu + i, dg);
        view_put(a.dgu, dgu + a.F + i, du);
    }
    sum = warp_sum(sum);
    if (a.dgate && !(threadIdx.x & 31)) a.dgate[r * a.dgate_stride] = sum;
}

Backward backward_of(Tensor dgu, Tensor dgate, Tensor dh, Tensor gu, Tensor gate, const int *used)
{
    Backward a = { view_of(dgu), view_of(dh), view_of(gu), (float *)dgate.data, (const float *)gate.data,
                   dgate.s[0], gate.s[0], dh.n[0], dh.n[1], used };
    return a;
}

}

void swiglu_bwd_used(Backend *be, Tensor dgu, Tensor dgate, Tensor dh, Tensor gu, Tensor gate,
                     const int *used, const int *from)
{
    Backward a = backward_of(dgu, dgate, dh, gu, gate, used);
    a.from = from;
    int      d = gu.dtype;
    int64_t  blocks = ceil_div(a.R, WARPS);
    if (!a.R) return;
    if (packs_as(dgu, d) && packs_as(dh, d) && packs_as(gu, d))
        BY_DTYPE(d, T, BY_HELD(a.F / Pack<T>::N, N,
            LAUNCH(be, "swiglu_bwd", (backward_packs<T, N, false>), blocks, 32 * WARPS, 0, a)));
    else
        LAUNCH(be, "swiglu_bwd", backward_any, blocks, 32 * WARPS, 0, a);
}

extern "C" void cuda_swiglu_bwd(Backend *be, Tensor dgu, Tensor dgate, Tensor dh, Tensor gu, Tensor gate)
{
    swiglu_bwd_used(be, dgu, dgate, dh, gu, gate, NULL, NULL);
}

extern "C" void cuda_swiglu_bwd_fp8(Backend *be, Tensor dgu, Tensor q, Tensor scale, Tensor dgate, Tensor dh,
                                    Tensor gu, Tensor gate, Tensor offsets, bool pow2)
{
    const int *used = t_has(offsets) ? (const int *)offsets.data + t_count(offsets) - 1 : NULL;
    int        d = gu.dtype;
    bool       packed = packs_as(dgu, d) && packs_as(dh, d) && packs_as(gu, d) && packs(q);
    if (!dh.n[0]) return;
    if (!packed || dh.n[1] % QUANT_GROUP) {
        swiglu_bwd_used(be, dgu, dgate, dh, gu, gate, used, NULL);
        cuda_quantize_rows(be, q, scale, dgu, offsets, pow2);
        return;
    }
    Backward a = backward_of(dgu, dgate, dh, gu, gate, used);
    a.q = (uint8_t *)q.data, a.scale = (float *)scale.data, a.q_row = q.s[0], a.scale_row = scale.s[0];
    a.pow2 = pow2;
    BY_DTYPE(d, T, BY_HELD(a.F / Pack<T>::N, N,
        LAUNCH(be, "swiglu_bwd_fp8", (backward_packs<T, N, true>), ceil_div(a.R, WARPS), 32 * WARPS, 0, a)));
}
