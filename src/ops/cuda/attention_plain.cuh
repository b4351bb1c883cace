/* ops/cuda/attention_plain.cuh -- tiles of attention_plain.cu: which rows they have, loads into shared
 * memory, products of two tiles, reductions over a half warp. */
#ifndef OPS_CUDA_ATTENTION_PLAIN_CUH
#define OPS_CUDA_ATTENTION_PLAIN_CUH

#include "ops/cuda/attention_cuda.h"

namespace {

/* A tensor (rows, heads, C) with strides in elements. packed: the rows of every head are multiples of 16
 * bytes and aligned to 16. */
struct HeadView { char *p; int64_t row, head; int C; bool half, packed; };

struct Args {
    HeadView           q, k, v, o, dq, dk, dv, dout;
    float         *lse, *delta;                     /* (H, T) */
    int64_t        lse_row, delta_row, T, S;        /* rows of queries, of keys */
    const int32_t *starts, *kv_starts, *kv_used;
    int            n, H, G, C;
    int            stack, queries;                  /* heads and queries of a forward tile */
    int            parts;                           /* of the keys */
    float         *part_o, *part_max, *part_sum;    /* (parts, T, H, C), (parts, T, H) */
    float          scale;
    bool           causal;
    int            window;                          /* keys that a query sees at most;
        all where it has none */
};

__device__ static float view_get(const HeadView &t, int64_t at)
{
    return t.half ? to_f32(((const bf16 *)t.p)[at]) : ((const float *)t.p)[at];
}

__device__ static void view_put(const HeadView &t, int64_t row, int head, int c, float x)
{
    int64_t at = row * t.row + head * t.head + c;
    if (t.half) ((bf16 *)t.p)[at] = from_f32<bf16>(x);
    else        ((float *)t.p)[at] = x;
}

/* Which queries and keys a tile has. */
struct Tile { int q0, q1, end, k0, k1, ahead; };

/* Tile number `at` of tiles of n rows; false: the number is unused. */
__device__ static bool tile_find(const Args &a, int at, int n, Tile *t)
{
    int lo = 0, hi = a.n;                           /* the last segment that starts at or before this tile */
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (a.starts[mid] / n + mid <= at) lo = mid;
        else                               hi = mid;
    }
    t->q0  = a.starts[lo] + (at - a.starts[lo] / n - lo) * n;
    t->end = a.starts[lo + 1];
    if (at < a.starts[lo] / n + lo || t->q0 >= t->end) return false;
    t->q1 = min(t->q0 + n, t->end);
    const int32_t *keys = a.kv_starts ? a.kv_starts : a.starts;
    t->k0    = keys[lo];
    t->k1    = a.kv_used ? keys[lo] + a.kv_used[lo] : keys[lo + 1];
    t->ahead = t->k1 - t->end;                      /* distance from a query's row to the last key it sees */
    return true;
}

/* Loads B rows of CP columns as f32; at(r) is the address of row r, -1 gives zeros. Loads are 16 bytes where
 * the tensor allows it, and all of a thread's loads are in flight before the first store. */
template <class T, int B, int CP, class At>
__device__ static void tile_load_packs(float *dst, const HeadView &t, float scale, At at)
{
    constexpr int N = Pack<T>::N, EACH = (B * CP / N + 255) / 256;
    Pack<T> x[EACH];
    #pragma unroll
    for (int i = 0; i < EACH; i++) {
        int     e = (threadIdx.x + 256 * i) * N, c = e % CP;
        int64_t from = e < B * CP && c < t.C ? at(e / CP) : -1;
        if (from >= 0) x[i] = pack_load((const T *)t.p + from + c);
        else           *(int4 *)&x[i] = make_int4(0, 0, 0, 0);
    }
    #pragma unroll
    for (int i = 0; i < EACH; i++) {
        int e = (threadIdx.x + 256 * i) * N;
        if (e >= B * CP) continue;
        #pragma unroll
        for (int j = 0; j < N; j += 4)
            *(float4 *)(dst + e / CP * (CP + 4) + e % CP + j) =
                make_float4(scale * to_f32(x[i].v[j]), scale * to_f32(x[i].v[j + 1]),
                            scale * to_f32(x[i].v[j + 2]), scale * to_f32(x[i].v[j + 3]));
    }
}

template <int B, int CP, class At>
__device__ static void tile_load_from(float *dst, const HeadView &t, float scale, At at)
{
    if (t.packed && t.half) { tile_load_packs<bf16, B, CP>(dst, t, scale, at); return; }
    if (t.packed)           { tile_load_packs<float, B, CP>(dst, t, scale, at); return; }
    #pragma unroll 4
    for (int e = threadIdx.x; e < B * CP; e += 256) {
        int     c = e % CP;
        int64_t from = c < t.C ? at(e / CP) : -1;
        dst[e / CP * (CP + 4) + c] = from < 0 ? 0.0f : scale * view_get(t, from + c);
    }
}

/* Rows row .. end - 1 of one head. */
template <int B, int CP>
__device__ static void tile_load(float *dst, const HeadView &t, int head, int row, int end, float scale)
{
    tile_load_from<B, CP>(dst, t, scale, [&](int r) -> int64_t {
        return row + r < end ? (row + r) * t.row + head * t.head : -1;
    });
}

/* s[i][j] = row ty + 16 i of x by row tx + 16 j of y. */
template <int R, int K, int CP>
__device__ static void tile_dot(float (&s)[R][K], const float *x, const float *y)
{
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    #pragma unroll
    for (int i = 0; i < R; i++)
        #pragma unroll
        for (int j = 0; j < K; j++) s[i][j] = 0.0f;
    #pragma unroll 2
    for (int c = 0; c < CP; c += 4) {
        float4 a[R], b[K];
        #pragma unroll
        for (int i = 0; i < R; i++) a[i] = *(const float4 *)(x + (ty + 16 * i) * (CP + 4) + c);
        #pragma unroll
        for (int j = 0; j < K; j++) b[j] = *(const float4 *)(y + (tx + 16 * j) * (CP + 4) + c);
        #pragma unroll
        for (int i = 0; i < R; i++)
            #pragma unroll
            for (int j = 0; j < K; j++) {
                s[i][j] = fmaf(a[i].x, b[j].x, s[i][j]);
                s[i][j] = fmaf(a[i].y, b[j].y, s[i][j]);
                s[i][j] = fmaf(a[i].z, b[j].z, s[i][j]);
                s[i][j] = fmaf(a[i].w, b[j].w, s[i][j]);
            }
    }
}

/* Column j of the NJ that thread tx has of a width of 16 NJ: neighbours by 4 or 2 where NJ allows, one load
 * each. */
template <int NJ> struct Columns {
    static constexpr int V = NJ % 4 == 0 ? 4 : NJ % 2 == 0 ? 2 : 1;
    __device__ static int at(int j) { return j / V * 16 * V + (threadIdx.x % 16) * V + j % V; }
};

/* acc[i][j] += row ty + 16 i of the weights w by the thread's column j of x. */
template <int R, int K, int NJ>
__device__ static void tile_add(float (&acc)[R][NJ], const float *w, const float *x)
{
    constexpr int B = 16 * K, LD = 16 * NJ + 4, V = Columns<NJ>::V;
    struct alignas(4 * V) Few { float v[V]; };
    int ty = threadIdx.x / 16;
    #pragma unroll 2
    for (int k = 0; k < B; k += 4) {
        float a[R][4];
        #pragma unroll
        for (int i = 0; i < R; i++) *(float4 *)a[i] = *(const float4 *)(w + (ty + 16 * i) * (B + 4) + k);
        #pragma unroll
        for (int j = 0; j < NJ; j += V)
            #pragma unroll
            for (int d = 0; d < 4; d++) {
                Few b = *(const Few *)(x + (k + d) * LD + Columns<NJ>::at(j));
                #pragma unroll
                for (int i = 0; i < R; i++)
                    #pragma unroll
                    for (int v = 0; v < V; v++) acc[i][j + v] = fmaf(a[i][d], b.v[v], acc[i][j + v]);
            }
    }
}

/* The thread's scores to shared memory; its half warp alone reads them. */
template <int R, int K>
__device__ static void tile_keep(float *w, const float (&s)[R][K])
{
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    __syncwarp();
    #pragma unroll
    for (int i = 0; i < R; i++)
        #pragma unroll
        for (int j = 0; j < K; j++) w[(ty + 16 * i) * (16 * K + 4) + tx + 16 * j] = s[i][j];
    __syncwarp();
}

/* Maximum and sum over a half warp, the same in each of its lanes. */
__device__ static float half_max(float x)
{
    for (int o = 8; o; o >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
    return x;
}

__device__ static float half_sum(float x)
{
    for (int o = 8; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
    return x;
}

}

#endif
