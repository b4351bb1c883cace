/* ops/cuda/portable_attention.cu -- forward attention on every GPU since compute capability 8.0: bf16, any
 * head width up to 256, causal or not, windows, shared key heads, segments.
 *
 * A block computes BM rows of queries of one head with four warps, 16 M rows each. It walks the keys BN
 * at a time: values are copied while the scores are computed, the next keys while the values are added. The
 * probabilities stay in registers; they are rounded to bf16 for the second product, their sum is not. Each
 * element is summed over ascending keys. */
#include "ops/cuda/portable_attention.cuh"

namespace {

enum { THREADS = 128 };

/* 16-row blocks of a warp, and keys of a step: fewer for wide heads, whose outputs take more registers. */
template <int CP> struct Shape {
    enum { M = CP <= 128 ? 2 : 1, BM = 64 * M, BN = CP == 128 ? 32 : 64,
           BYTES = (BM + 2 * BN) * Lines<CP>::BYTES };
};

/* The running softmax of a lane's rows: maxima of the scores, and its columns' share of the sums. */
template <int M> struct Soft { float max[2 * M], sum[2 * M]; };

template <int M, int BN>
__device__ inline void mask(float (&s)[M][BN / 8][4], const FlashArgs &a, int q0, int k0, int end)
{
    #pragma unroll
    for (int i = 0; i < M * BN / 8 * 4; i++) {
        int m = i / (BN / 2), j = i / 4 % (BN / 8), e = i % 4;
        int q = q0 + m * 16 + e / 2 * 8 + threadIdx.x % 32 / 4, k = k0 + j * 8 + threadIdx.x % 4 * 2 + e % 2;
        if (k >= end || !sees(a, q, k)) s[m][j][e] = -INFINITY;
    }
}

/* Turns scores into 2^(scale (s - max)) and scales the output so far; `scale` includes log2(e). A row that
 * has seen no key yet has a maximum of -inf. */
template <int M, int BN, int CP>
__device__ inline void soften(float (&s)[M][BN / 8][4], Soft<M> &x, float (&o)[M][CP / 8][4], float scale)
{
    #pragma unroll
    for (int r = 0; r < 2 * M; r++) {
        float top = x.max[r], sum = 0.0f;
        #pragma unroll
        for (int j = 0; j < BN / 8; j++)
            top = fmaxf(top, fmaxf(s[r / 2][j][r % 2 * 2], s[r / 2][j][r % 2 * 2 + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        float base = top == -INFINITY ? 0.0f : top, fade = exp2_fast((x.max[r] - base) * scale);
        #pragma unroll
        for (int j = 0; j < BN / 8; j++)
            #pragma unroll
            for (int e = r % 2 * 2; e < r % 2 * 2 + 2; e++) {
                s[r / 2][j][e] = exp2_fast(fmaf(s[r / 2][j][e], scale, -base * scale));
                sum += s[r / 2][j][e];
            }
        x.sum[r] = fmaf(x.sum[r], fade, sum), x.max[r] = top;
        #pragma unroll
        for (int j = 0; j < CP / 8; j++) o[r / 2][j][r % 2 * 2] *= fade, o[r / 2][j][r % 2 * 2 + 1] *= fade;
    }
}

template <int M, int CP>
__device__ inline void finish(const FlashArgs &a, int head, int q0, int end, Soft<M> &x,
                              const float (&o)[M][CP / 8][4])
{
    #pragma unroll
    for (int r = 0; r < 2 * M; r++) {
        int row = q0 + r * 8 + threadIdx.x % 32 / 4;
        x.sum[r] += __shfl_xor_sync(~0u, x.sum[r], 1);
        x.sum[r] += __shfl_xor_sync(~0u, x.sum[r], 2);
        if (row >= end) continue;
        if (threadIdx.x % 4 == 0)
            a.lse[head * a.lse_row + row] = x.max[r] * a.scale + logf(x.sum[r]);
        row_put<CP>(a.o, head, row, o[r / 2], r % 2, 1.0f / x.sum[r]);
    }
}

template <int CP> __global__ void __launch_bounds__(THREADS, CP <= 80 ? 2 : 1) forward(FlashArgs a)
{
    enum { M = Shape<CP>::M, BM = Shape<CP>::BM, BN = Shape<CP>::BN };
    extern __shared__ __align__(128) char smem[];
    uint32_t q = smem_at(smem), k = q + BM * Lines<CP>::BYTES, v = k + BN * Lines<CP>::BYTES;
    int      head = blockIdx.x % a.H, kv = head / (a.H / a.G), own = threadIdx.x / 32 * 16 * M;
    Rows     t;
    if (!rows_find(a, a.tiles - 1 - blockIdx.x / a.H, BM, &t)) return;
    int last = min(t.end, t.first + BM) - 1, end = a.causal ? last + 1 : t.end;
    int k0 = t.begin + max(0, t.first - a.window + 1 - t.begin) / BN * BN;
    float   s[M][BN / 8][4], o[M][CP / 8][4] = { };
    Soft<M> x;
    #pragma unroll
    for (int r = 0; r < 2 * M; r++) x.max[r] = -INFINITY, x.sum[r] = 0.0f;
    rows_copy<BM, CP, THREADS>(q, a.q, head, t.first, t.end);
    rows_copy<BN, CP, THREADS>(k, a.k, kv, k0, end);
    copy_async_commit();
    #pragma unroll 1
    for (; k0 < end; k0 += BN) {
        copy_async_wait<0>();
        __syncthreads();                        /* keys are here, and all have used the values before */
        rows_copy<BN, CP, THREADS>(v, a.v, kv, k0, end);
        copy_async_commit();
        rows_by_rows<M, BN, CP>(s, q, own, k);
        if (k0 + BN > end || !all_seen(a, t.first, last, k0, k0 + BN - 1))
            mask<M, BN>(s, a, t.first + own, k0, end);
        soften<M, BN, CP>(s, x, o, a.scale * LOG2E);
        copy_async_wait<0>();
        __syncthreads();                        /* values are here, and all have used the keys */
        rows_copy<BN, CP, THREADS>(k, a.k, kv, k0 + BN, end);
        copy_async_commit();
        add_rows<M, BN, CP>(o, s, v);
    }
    copy_async_wait<0>();
    finish<M, CP>(a, head, t.first + own, t.end, x, o);
}

template <int CP> void launch(Backend *be, FlashArgs a, int64_t T)
{
    a.tiles = (int)(T / Shape<CP>::BM + a.n + 1);
    LAUNCH(be, "attention_fwd", forward<CP>, (int64_t)a.tiles * a.H, THREADS, Shape<CP>::BYTES, a);
}

}

bool flash_takes(const Attn *x)
{
    const Tensor all[] = { x->q, x->k, x->v, x->o, x->dout, x->dq, x->dk, x->dv };
    if (t_has(x->seg.kv_starts) || x->q.n[2] > 256 || !(x->scale > 0)) return false;
    for (const Tensor &t : all)
        if (t_has(t) && (t.dtype != BF16 || !packs(t))) return false;
    return true;
}

bool flash_fwd(Backend *be, const Attn *x)
{
    FlashArgs a = flash_args(x);
    int64_t   T = x->q.n[0], C = x->q.n[2];
    if (!flash_takes(x)) return false;
    if (C <= 64)       launch<64>(be, a, T);
    else if (C <= 80)  launch<80>(be, a, T);
    else if (C <= 128) launch<128>(be, a, T);
    else if (C <= 192) launch<192>(be, a, T);
    else               launch<256>(be, a, T);
    return true;
}
