/* ops/cuda/attention.cu -- CUDA attention: the choice of an implementation, and what all of them share.
 *
 * The kernel set goes first: on Hopper it takes vision heads (attention_vision.cu), elsewhere all bf16 heads
 * (portable_attention.cu). Other bf16 calls that cuDNN supports go to cuDNN (attention_cudnn.cu), those that
 * it does not, and all without cuDNN, to portable_attention.cu; f32, KV caches and odd rows to our plain
 * kernels (attention_plain.cu). This file zeroes the rows outside the segments and computes delta. */
#include "ops/cuda/kernel_set.cuh"

namespace {

/* Rows before starts[0] and from starts[n] on; without starts all T. */
struct Outside { const int32_t *starts; int n; int64_t T; };

__device__ static int64_t outside_count(const Outside &s)
{
    return s.starts ? s.starts[0] + s.T - s.starts[s.n] : s.T;
}
__device__ static int64_t outside_row(const Outside &s, int64_t i)
{
    return !s.starts || i < s.starts[0] ? i : s.starts[s.n] + i - s.starts[0];
}

/* A tensor (T, heads, C) as 2-byte pieces; an f32 element is two of them. */
struct Pieces { uint16_t *p; int64_t row, head; int heads, width; };
struct Outputs { Pieces t[3]; int n; };

__global__ static void zero_rows_kernel(Outputs out, Outside s)
{
    int64_t count = outside_count(s);
    for (int64_t i = blockIdx.x; i < count; i += gridDim.x)
        for (int k = 0; k < out.n; k++) {
            const Pieces &t = out.t[k];
            uint16_t     *row = t.p + outside_row(s, i) * t.row;
            for (int e = threadIdx.x; e < t.heads * t.width; e += blockDim.x)
                row[e / t.width * t.head + e % t.width] = 0;
        }
}

__global__ static void zero_stat_kernel(float *stat, int64_t row, int H, Outside s)
{
    int64_t count = outside_count(s);
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count * H; i += step)
        stat[i / count * row + outside_row(s, i % count)] = 0.0f;
}

static Outside outside(Segments seg, int64_t T)
{
    return Outside{ (const int32_t *)seg.starts.data, (int)seg.n, T };
}

static void zero_rows(Backend *be, const char *op, const Tensor *t, int n, Outside where)
{
    Outputs out = {};
    for (out.n = 0; out.n < n; out.n++) {
        const Tensor &x = t[out.n];
        int k = (int)dtype_size((DType)x.dtype) / 2;
        out.t[out.n] = Pieces{ (uint16_t *)x.data, x.s[0] * k, x.s[1] * k, (int)x.n[1], (int)x.n[2] * k };
    }
    LAUNCH(be, op, zero_rows_kernel, cuda_blocks(be, t->n[0], 1, 2), 128, 0, out, where);
}

/* delta[h,t] = dout[t,h,:].o[t,h,:], a warp each. */
template <class D, class O>
__global__ static void delta_kernel(float *delta, int64_t delta_row, const D *dout, const O *o, int64_t d_row,
                                    int64_t d_head, int64_t o_row, int64_t o_head, int64_t T, int H, int C)
{
    int64_t at = blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32, t = at / H;
    int     h = (int)(at % H), lane = threadIdx.x % 32;
    float   sum = 0.0f;
    if (t >= T) return;
    for (int c = lane; c < C; c += 32)
        sum += to_f32(dout[t * d_row + h * d_head + c]) * to_f32(o[t * o_row + h * o_head + c]);
    sum = warp_sum(sum);
    if (!lane) delta[h * delta_row + t] = sum;
}

}

void attention_delta(Backend *be, Tensor delta, Tensor dout, Tensor o)
{
    int64_t T = o.n[0], H = o.n[1];
    BY_DTYPE(dout.dtype, D, BY_DTYPE(o.dtype, O,
        LAUNCH(be, "attention_bwd", (delta_kernel<D, O>), ceil_div(T * H, 8), 256, 0, (float *)delta.data,
               delta.s[0], (const D *)dout.data, (const O *)o.data, dout.s[0], dout.s[1], o.s[0], o.s[1], T,
               (int)H, (int)o.n[2])));
}

void cuda_attention_fwd(Backend *be, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Segments seg,
                        float scale)
{
    Attn    x = {};
    int64_t T = q.n[0], H = q.n[1];
    x.q = q, x.k = k, x.v = v, x.o = o, x.lse = lse, x.seg = seg, x.scale = scale;
    if (!T || !H) return;
    zero_rows(be, "attention_fwd", &o, 1, outside(seg, T));
    LAUNCH(be, "attention_fwd", zero_stat_kernel, cuda_blocks(be, T * H, 256, 1), 256, 0, (float *)lse.data,
           lse.s[0], (int)H, outside(seg, T));
    const KernelSet *set = cuda_of(be)->kernels;
    if (!seg.n || (set->attention_fwd && set->attention_fwd(be, &x))) return;
    if (!dnn_fwd(be, &x) && !flash_fwd(be, &x)) plain_fwd(be, &x);
}

void cuda_attention_bwd(Backend *be, Tensor dq, Tensor dk, Tensor dv, Tensor delta, Tensor dout, Tensor o,
                        Tensor lse, Tensor q, Tensor k, Tensor v, Segments seg, float scale)
{
    Attn x = { q, k, v, o, lse, dq, dk, dv, delta, dout, seg, scale };
    const Tensor outs[] = { dq, dk, dv };
    bool elsewhere = t_has(seg.kv_starts);                   /* any row of k may be one that no query sees */
    if (!q.n[0] || !q.n[1]) return;
    zero_rows(be, "attention_bwd", outs, elsewhere ? 1 : 3, outside(seg, q.n[0]));
    if (elsewhere) zero_rows(be, "attention_bwd", outs + 1, 2, Outside{ NULL, 0, k.n[0] });
    const KernelSet *set = cuda_of(be)->kernels;
    if (seg.n && set->attention_bwd && set->attention_bwd(be, &x)) return;
    if (seg.n && (dnn_bwd(be, &x) || flash_bwd(be, &x))) return;
    attention_delta(be, delta, dout, o);
    if (seg.n) plain_bwd(be, &x);
}
