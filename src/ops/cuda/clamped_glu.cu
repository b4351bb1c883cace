/* ops/cuda/clamped_glu.cu -- kernels of clamped_glu.c: a warp per row; by Packs where all rows have one dtype
 * and start on 16 bytes, else any strides and dtypes. */
#include "ops/cuda/rows.cuh"

namespace {

enum { WARPS = 8 };

struct Glu { float g, u, s; bool g_in, u_in; };

__device__ inline Glu glu_of(float g, float u)
{
    Glu x = { fminf(g, 7.0f), fminf(fmaxf(u, -7.0f), 7.0f), 0.0f, g <= 7.0f, u >= -7.0f && u <= 7.0f };
    x.s = 1.0f / (1.0f + expf(-1.702f * x.g));
    return x;
}

typedef struct Args { RowView h, gu, dh, dgu; const float *gate; float *dgate; const int *offsets;
                      int64_t gate_row, dgate_row, R; int E, F; } Args;

__device__ inline float forward(Glu x, float by) { return (x.u + 1.0f) * x.g * x.s * by; }

/* dg and du; returns what the element adds to dgate. */
__device__ inline float backward(float *dg, float *du, float dh, Glu x, float by)
{
    float up = x.g * x.s, d = dh * by;
    *dg = x.g_in ? d * (x.u + 1.0f) * (x.s + 1.702f * x.g * x.s * (1.0f - x.s)) : 0.0f;
    *du = x.u_in ? d * up : 0.0f;
    return dh * (x.u + 1.0f) * up;
}

/* A Pack of h comes of two of gu. */
template <class T> static __global__ void __launch_bounds__(32 * WARPS) glu_packs(Args a)
{
    constexpr int E = Pack<T>::N;
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= (a.offsets ? a.offsets[a.E] : a.R)) return;
    T       *h = row_of<T>(a.h, r);
    const T *gu = row_of<T>(a.gu, r);
    float    by = a.gate ? a.gate[r * a.gate_row] : 1.0f;
#pragma unroll 2
    for (int i = (threadIdx.x & 31) * E; i < a.F; i += 32 * E) {
        Unit<T, 2 * E> in = unit_stream<2 * E>(gu + 2 * i);
        float out[E];
#pragma unroll
        for (int j = 0; j < E; j++)
            out[j] = forward(glu_of(unit_get(in, 2 * j), unit_get(in, 2 * j + 1)), by);
        pack_store(h + i, pack_of<T>(out));
    }
}

template <class T> static __global__ void __launch_bounds__(32 * WARPS) glu_grad_packs(Args a)
{
    constexpr int E = Pack<T>::N;
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.R) return;
    const T *dh = row_of<T>(a.dh, r), *gu = row_of<T>(a.gu, r);
    T       *dgu = row_of<T>(a.dgu, r);
    float    by = a.gate ? a.gate[r * a.gate_row] : 1.0f, sum = 0.0f;
#pragma unroll 2
    for (int i = (threadIdx.x & 31) * E; i < a.F; i += 32 * E) {
        Unit<T, 2 * E> in = unit_stream<2 * E>(gu + 2 * i);
        Pack<T>        d = pack_stream(dh + i);
        float out[2 * E];
#pragma unroll
        for (int j = 0; j < E; j++)
            sum += backward(out + 2 * j, out + 2 * j + 1, to_f32(d.v[j]),
                            glu_of(unit_get(in, 2 * j), unit_get(in, 2 * j + 1)), by);
        unit_store<2 * E>(dgu + 2 * i, out);
    }
    sum = warp_sum(sum);
    if (a.dgate && !(threadIdx.x & 31)) a.dgate[r * a.dgate_row] = sum;
}

static __global__ void __launch_bounds__(32 * WARPS) glu_rows(Args a)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= (a.offsets ? a.offsets[a.E] : a.R)) return;
    int64_t h = view_row(a.h, r), gu = view_row(a.gu, r);
    float   by = a.gate ? a.gate[r * a.gate_row] : 1.0f;
    for (int i = threadIdx.x & 31; i < a.F; i += 32) {
        Glu x = glu_of(view_get(a.gu, gu + 2 * i), view_get(a.gu, gu + 2 * i + 1));
        view_put(a.h, h + i, forward(x, by));
    }
}

static __global__ void __launch_bounds__(32 * WARPS) glu_grads(Args a)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.R) return;
    int64_t dh = view_row(a.dh, r), gu = view_row(a.gu, r), dgu = view_row(a.dgu, r);
    float   by = a.gate ? a.gate[r * a.gate_row] : 1.0f, sum = 0.0f;
    for (int i = threadIdx.x & 31; i < a.F; i += 32) {
        Glu   x = glu_of(view_get(a.gu, gu + 2 * i), view_get(a.gu, gu + 2 * i + 1));
        float dg, du;
        sum += backward(&dg, &du, view_get(a.dh, dh + i), x, by);
        view_put(a.dgu, dgu + 2 * i, dg);
        view_put(a.dgu, dgu + 2 * i + 1, du);
    }
    sum = warp_sum(sum);
    if (a.dgate && !(threadIdx.x & 31)) a.dgate[r * a.dgate_row] = sum;
}

}

extern "C" void cuda_clamped_glu_fwd(Backend *be, Tensor h, Tensor gu, Tensor gate, Tensor offsets)
{
    Args a = {};
    a.h = view_of(h), a.gu = view_of(gu), a.gate = (const float *)gate.data, a.gate_row = gate.s[0];
    a.offsets = (const int *)offsets.data, a.E = t_has(offsets) ? (int)t_count(offsets) - 1 : 0;
    a.R = h.n[0], a.F = (int)h.n[1];
    if (packs_as(h, gu.dtype) && packs_as(gu, gu.dtype))
        BY_DTYPE(gu.dtype, T,
            LAUNCH(be, "clamped_glu_fwd", glu_packs<T>, ceil_div(a.R, WARPS), 32 * WARPS, 0, a));
    else
        LAUNCH(be, "clamped_glu_fwd", glu_rows, ceil_div(a.R, WARPS), 32 * WARPS, 0, a);
}

extern "C" void cuda_clamped_glu_bwd(Backend *be, Tensor dgu, Tensor dgate, Tensor dh, Tensor gu, Tensor gate)
{
    Args a = {};
    a.dgu = view_of(dgu), a.dh = view_of(dh), a.gu = view_of(gu);
    a.gate = (const float *)gate.data, a.gate_row = gate.s[0];
    a.dgate = (float *)dgate.data, a.dgate_row = dgate.s[0], a.R = dh.n[0], a.F = (int)dh.n[1];
    if (packs_as(dh, gu.dtype) && packs_as(gu, gu.dtype) && packs_as(dgu, gu.dtype))
        BY_DTYPE(gu.dtype, T,
            LAUNCH(be, "clamped_glu_bwd", glu_grad_packs<T>, ceil_div(a.R, WARPS), 32 * WARPS, 0, a));
    else
        LAUNCH(be, "clamped_glu_bwd", glu_grads, ceil_div(a.R, WARPS), 32 * WARPS, 0, a);
}
