/* ops/cuda/portable_attention.cuh -- what forward and backward attention of portable_attention*.cu share: the
 * rows of tiles, their copies into shared memory, products of tiles by mma.sync.
 *
 * A tile is rows of one head in shared memory, CP columns of bf16: the head's C or fewer, the others zero.
 * Its lines are CP elements and 16 bytes apart, an odd number of 16-byte chunks, so that the 8 rows of an
 * ldmatrix lie in different banks. Copies are 16 bytes by cp.async.
 *
 * Segment i's tiles of n rows have the numbers from starts[i] / n + i on, which leaves each segment enough
 * numbers; a block finds its segment by bisection. */
#ifndef OPS_CUDA_PORTABLE_ATTENTION_CUH
#define OPS_CUDA_PORTABLE_ATTENTION_CUH

#include "ops/cuda/attention_cuda.h"
#include "ops/cuda/ptx.cuh"

#include <math.h>

namespace {

constexpr float LOG2E = 1.44269504f;

/* A tensor (rows, heads, C) with strides in elements. */
typedef struct HeadRows { bf16 *p; int64_t row, head; int C; } HeadRows;

typedef struct FlashArgs {
    HeadRows     q, k, v, o, dq, dk, dv, dout;
    float       *lse, *delta;                   /* (H, T) */
    int64_t      lse_row, delta_row;
    const int   *starts;
    int          n, H, G, tiles;                /* tiles: numbers of them */
    float        scale;
    bool         causal;
    int          window;                        /* keys that a query sees at most */
} FlashArgs;

/* Rows first .. end - 1 of a segment that begins at `begin` and ends at `end`; first is the tile's. */
typedef struct Rows { int begin, end, first; } Rows;

/* Tile number `at` of n rows; false: the number is unused. */
__device__ inline bool rows_find(const FlashArgs &a, int at, int n, Rows *t)
{
    int lo = 0, hi = a.n;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (a.starts[mid] / n + mid <= at) lo = mid;
        else                               hi = mid;
    }
    t->begin = a.starts[lo], t->end = a.starts[lo + 1];
    t->first = t->begin + (at - t->begin / n - lo) * n;
    return at >= t->begin / n + lo && t->first < t->end;
}

/* Whether query row q sees key row k of the same segment. */
__device__ inline bool sees(const FlashArgs &a, int q, int k)
{
    return !a.causal || (k <= q && k > q - a.window);
}
/* Whether every query of q0 .. q1 sees every key of k0 .. k1, the last ones included. */
__device__ inline bool all_seen(const FlashArgs &a, int q0, int q1, int k0, int k1)
{
    return !a.causal || (k1 <= q0 && k0 > q1 - a.window);
}

template <int CP> struct Lines { enum { BYTES = CP * 2 + 16 }; };

/* Copies ROWS rows from `row` on; from `end` on they are zero, as are columns from C on. */
template <int ROWS, int CP, int THREADS>
__device__ inline void rows_copy(uint32_t tile, const HeadRows &t, int head, int row, int end)
{
    const bf16 *p = t.p + head * t.head;
    #pragma unroll
    for (int i = threadIdx.x; i < ROWS * (CP / 8); i += THREADS) {
        int r = i / (CP / 8), c = i % (CP / 8) * 8;
        int bytes = row + r < end && c < t.C ? 16 : 0;
        copy_async16(tile + r * Lines<CP>::BYTES + c * 2, bytes ? p + (row + r) * t.row + c : p, bytes);
    }
}

/* --- products by a warp: 16 rows of sums, N columns, in the layout of mma_bf16 --- */

/* The 16 x 16 words of a at (row, 16 k). */
template <int CP> __device__ inline void words_a(uint32_t (&w)[4], uint32_t tile, int row, int k)
{
    int lane = threadIdx.x % 32;
    ldmatrix4(tile + (row + lane % 16) * Lines<CP>::BYTES + (k * 2 + lane / 16) * 16, w);
}
/* Words of b' for 16 rows of b from `row` on, its columns 16 k ..: along K the columns. */
template <int CP> __device__ inline void words_rows(uint32_t (&w)[4], uint32_t tile, int row, int k)
{
    int lane = threadIdx.x % 32;
    ldmatrix4(tile + (row + lane / 16 * 8 + lane % 8) * Lines<CP>::BYTES + (k * 2 + lane / 8 % 2) * 16, w);
}
/* Words of b for 16 rows of b from `row` on, along K, and its columns 16 j ... */
template <int CP> __device__ inline void words_cols(uint32_t (&w)[4], uint32_t tile, int row, int j)
{
    int lane = threadIdx.x % 32;
    ldmatrix4_transposed(tile + (row + lane / 8 % 2 * 8 + lane % 8) * Lines<CP>::BYTES +
                         (j * 2 + lane / 16) * 16, w);
}

/* s (16 M rows, N) = a b': rows from `row` on of tile a, N rows of tile b. */
template <int M, int N, int CP>
__device__ inline void rows_by_rows(float (&s)[M][N / 8][4], uint32_t a, int row, uint32_t b)
{
    #pragma unroll
    for (int i = 0; i < M * N / 8 * 4; i++) (&s[0][0][0])[i] = 0.0f;
    #pragma unroll
    for (int k = 0; k < CP / 16; k++) {
        uint32_t wa[M][4];
        #pragma unroll
        for (int i = 0; i < M; i++) words_a<CP>(wa[i], a, row + i * 16, k);
        #pragma unroll
        for (int j = 0; j < N / 16; j++) {
            uint32_t wb[4];
            words_rows<CP>(wb, b, j * 16, k);
            #pragma unroll
            for (int i = 0; i < M; i++) {
                mma_bf16(s[i][2 * j], wa[i], wb[0], wb[1]);
                mma_bf16(s[i][2 * j + 1], wa[i], wb[2], wb[3]);
            }
        }
    }
}

/* o (16 M, CP) += p b: p (16 M, N) rounded, N rows of tile b. */
template <int M, int N, int CP>
__device__ inline void add_rows(float (&o)[M][CP / 8][4], const float (&p)[M][N / 8][4], uint32_t b)
{
    #pragma unroll
    for (int k = 0; k < N / 16; k++) {
        uint32_t wa[M][4];
        #pragma unroll
        for (int i = 0; i < M; i++)
            #pragma unroll
            for (int w = 0; w < 4; w++) {
                const float *x = p[i][2 * k + w / 2] + w % 2 * 2;
                __nv_bfloat162 two = __floats2bfloat162_rn(x[0], x[1]);
                wa[i][w] = *(uint32_t *)&two;
            }
        #pragma unroll
        for (int j = 0; j < CP / 16; j++) {
            uint32_t wb[4];
            words_cols<CP>(wb, b, k * 16, j);
            #pragma unroll
            for (int i = 0; i < M; i++) {
                mma_bf16(o[i][2 * j], wa[i], wb[0], wb[1]);
                mma_bf16(o[i][2 * j + 1], wa[i], wb[2], wb[3]);
            }
        }
    }
}

__device__ inline float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Stores a lane's columns of one row: half h of sums, times `by`. */
template <int CP>
__device__ inline void row_put(const HeadRows &t, int head, int64_t row, const float (&d)[CP / 8][4], int h,
                               float by)
{
    bf16 *p = t.p + row * t.row + head * t.head + threadIdx.x % 4 * 2;
    #pragma unroll
    for (int j = 0; j < CP / 8; j++)
        if (j * 8 < t.C)
            *(__nv_bfloat162 *)(p + j * 8) = __floats2bfloat162_rn(d[j][2 * h] * by, d[j][2 * h + 1] * by);
}

/* --- host --- */

HeadRows head_rows(Tensor t)
{
    HeadRows r = { (bf16 *)t.data, t.s[0], t.s[1], (int)t.n[2] };
    return r;
}

FlashArgs flash_args(const Attn *x)
{
    FlashArgs a = { };
    a.q = head_rows(x->q), a.k = head_rows(x->k), a.v = head_rows(x->v), a.o = head_rows(x->o);
    a.dq = head_rows(x->dq), a.dk = head_rows(x->dk), a.dv = head_rows(x->dv), a.dout = head_rows(x->dout);
    a.lse = (float *)x->lse.data, a.lse_row = x->lse.s[0];
    a.delta = (float *)x->delta.data, a.delta_row = x->delta.s[0];
    a.starts = (const int *)x->seg.starts.data, a.n = (int)x->seg.n;
    a.H = (int)x->q.n[1], a.G = (int)x->k.n[1], a.scale = x->scale, a.causal = x->seg.causal;
    a.window = x->seg.window ? (int)x->seg.window : 1 << 30;
    return a;
}

}

#endif
