/* ops/cuda/delta_rule_wy.cuh -- what a tile gives by itself: the inverse of 1 + M, U and W; for backward the
 * inverse and P' dout as well. See delta_rule_fast.cuh. */
#ifndef OPS_CUDA_DELTA_RULE_WY_CUH
#define OPS_CUDA_DELTA_RULE_WY_CUH

#include "ops/cuda/delta_rule_fast.cuh"

namespace {

enum { FLD = TILE + 4, BLD = 20 };             /* floats of a row of a square in f32, of a block of 16 */

struct alignas(16) FloatSquare { float at[TILE * FLD]; };
typedef float InverseBlocks[3][16][BLD];

/* Forward ends before q. */
struct WyShared {
    RowsMatrix   k, v;
    FloatSquare  m, t;
    alignas(16) InverseBlocks block;
    SquareMatrix a, b;
    TileRows     r;
    RowsMatrix   q;
    RowsMatrix   dout;
};

/* Diagonal blocks of 16, a warp each and a lane a column: t = (1 + m)^-1 by forward substitution. */
__device__ inline void invert_diagonal(FloatSquare &t, const FloatSquare &m)
{
    int   b = threadIdx.x / 32 * 16, j = threadIdx.x % 32;
    float x[16];
    if (b >= TILE || j >= 16) return;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        x[i] = i == j ? 1.0f : 0.0f;
#pragma unroll
        for (int k = 0; k < i; k++) x[i] -= m.at[(b + i) * FLD + b + k] * x[k];
    }
#pragma unroll
    for (int i = 0; i < 16; i++) t.at[(b + i) * FLD + b + j] = x[i];
}

/* Sums of four neighbouring columns of a block's row over k: x[k] by row k of y. */
__device__ inline Vec<float, 4> four_sums(const float *x, const float *y, int ld, int K)
{
    Vec<float, 4> sum = {};
#pragma unroll 16
    for (int k = 0; k < K; k++) {
        Vec<float, 4> four = *(const Vec<float, 4> *)(y + k * ld);
#pragma unroll
        for (int c = 0; c < 4; c++) sum.v[c] += x[k] * four.v[c];
    }
    return sum;
}

/* Blocks `down` below the diagonal: t(i, j) = -t(i, i) sum over l of m(i, l) t(l, j), j <= l < i. 64 threads
 * have a block. */
__device__ inline void invert_below(FloatSquare &t, const FloatSquare &m, InverseBlocks &block, int down)
{
    int  b = threadIdx.x / 64, i = threadIdx.x % 64 / 4, j = threadIdx.x % 4 * 4, at = 16 * (b + down);
    bool mine = b + down < 4;
    if (mine)
        *(Vec<float, 4> *)&block[b][i][j] =
            four_sums(m.at + (at + i) * FLD + 16 * b, t.at + 16 * b * FLD + 16 * b + j, FLD, 16 * down);
    __syncthreads();
    if (mine) {
        Vec<float, 4> sum = four_sums(t.at + (at + i) * FLD + at, &block[b][0][j], BLD, 16);
#pragma unroll
        for (int c = 0; c < 4; c++) t.at[(at + i) * FLD + 16 * b + j + c] = -sum.v[c];
    }
    __syncthreads();
}

/* t = (1 + m)^-1, m strictly below the diagonal; blocks of t above the diagonal are left alone. */
__device__ inline void invert(FloatSquare &t, const FloatSquare &m, InverseBlocks &block)
{
    __syncthreads();
    invert_diagonal(t, m);
    __syncthreads();
    for (int down = 1; down < 4; down++) invert_below(t, m, block, down);
}

/* Element (i, j) of the inverse. */
__device__ inline float inverse_at(const FloatSquare &t, int i, int j)
{
    return j / 16 <= i / 16 ? t.at[i * FLD + j] : 0.0f;
}

/* M of a warp's 16 rows and 32 columns of k k'. */
__device__ inline void store_m(FloatSquare &m, const float (&kk)[4][4], const TileRows &r)
{
    int row = threadIdx.x / 32 % 4 * 16, col = threadIdx.x / 128 * 32;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = row + piece_row(e), j = col + piece_col(n, e);
            m.at[i * FLD + j] = j < i ? r.beta[i] * kk[n][e] * tile_decay(r, i, j) : 0.0f;
        }
}

/* scale x D of a warp's 16 rows and 32 columns. */
__device__ inline void store_decayed(SquareMatrix &to, const float (&x)[4][4], const TileRows &r, float scale)
{
    int row = threadIdx.x / 32 % 4 * 16, col = threadIdx.x / 128 * 32;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            int i = row + piece_row(e), j = col + piece_col(n, e);
            pair_store(to.at + i * SQ + j, scale * x[n][e] * tile_decay(r, i, j),
                       scale * x[n][e + 1] * tile_decay(r, i, j + 1));
        }
}

/* t beta and t beta in, by columns: what v and k are multiplied by. */
__device__ inline void store_factors(SquareMatrix &a, SquareMatrix &b, const FloatSquare &t,
                                     const TileRows &r)
{
    for (int e = threadIdx.x; e < TILE * TILE / 2; e += THREADS) {
        int   i = e / (TILE / 2), j = e % (TILE / 2) * 2;
        float x = inverse_at(t, i, j) * r.beta[j], y = inverse_at(t, i, j + 1) * r.beta[j + 1];
        pair_store(a.at + i * SQ + j, x, y);
        pair_store(b.at + i * SQ + j, x * r.in[j], y * r.in[j + 1]);
    }
}

__device__ inline void store_inverse(bf16 *to, const FloatSquare &t)
{
    for (int e = threadIdx.x; e < TILE * TILE / 2; e += THREADS) {
        int i = e / (TILE / 2), j = e % (TILE / 2) * 2;
        pair_store(to + i * TILE + j, inverse_at(t, i, j), inverse_at(t, i, j + 1));
    }
}

/* to = x y, x a square (turned: its transpose) and y rows; a warp 16 rows and 64 columns. */
template <bool TURNED>
__device__ inline void square_product(bf16 *to, int64_t ld, const SquareMatrix &x, const RowsMatrix &y)
{
    int   row = threadIdx.x / 32 % 4 * 16, col = threadIdx.x / 128 * 64;
    float c[8][4];
    pieces_clear(c);
    warp_product<8, TURNED, true>(c, x.at + (TURNED ? row : row * SQ), SQ, y.at + col, LD, TILE);
    pieces_store(to + row * ld + col, ld, c, 16);
}

/* A warp's 16 rows and 64 columns to rows of the stream. */
__device__ inline void stream_store(const DeltaView &to, const DeltaCall &a, const float (&c)[8][4], int tile,
                                    int head)
{
    int   row = threadIdx.x / 32 % 4 * 16, col = threadIdx.x / 128 * 64, t = tile * TILE + row;
    bf16 *at = (bf16 *)to.p + t * to.row + head * to.head + col;
    pieces_store(at, to.row, c, a.T - t);
}

/* One value head u of the tile; k and the products of the key head are there. */
template <bool BACKWARD>
__device__ inline void wy_head(WyShared &m, const DeltaFast &x, const float (&kk)[4][4],
                               const float (&qk)[4][4], Inside in, int tile, int u)
{
    int64_t ld = tile_ld(x.c);
    known_copy(m.r, x.c, tile, u);
    copies_commit();
    rows_copy(m.v, x.c.v, in, tile, u);
    if constexpr (BACKWARD) rows_copy(m.dout, x.c.dout, in, tile, u);
    copies_commit();
    copies_wait<1>();
    __syncthreads();
    store_m(m.m, kk, m.r);
    invert(m.t, m.m, m.block);
    store_factors(m.a, m.b, m.t, m.r);
    if constexpr (BACKWARD) store_inverse(square_at(x.m.inverse, x.c, tile, u), m.t);
    copies_wait<0>();
    __syncthreads();
    square_product<false>(tile_at(x.m.u, x.c, tile, u), ld, m.a, m.v);
    square_product<false>(tile_at(x.m.w, x.c, tile, u), ld, m.b, m.k);
    __syncthreads();
    if constexpr (BACKWARD) {
        store_decayed(m.a, qk, m.r, x.c.scale);
        __syncthreads();
        square_product<true>(tile_at(x.m.dn, x.c, tile, u), ld, m.a, m.dout);
        __syncthreads();
    }
}

/* A block: a tile of one key head, its value heads in turn. */
template <bool BACKWARD> static __global__ void __launch_bounds__(THREADS) wy_kernel(DeltaFast x)
{
    extern __shared__ __align__(16) char memory[];
    WyShared &m = *(WyShared *)memory;
    int   head = blockIdx.x % x.c.Hk, tile = blockIdx.x / x.c.Hk;
    int   row = threadIdx.x / 32 % 4 * 16, col = threadIdx.x / 128 * 32;
    float kk[4][4], qk[4][4];
    Inside in = inside_of(x.c);
    rows_copy(m.k, x.c.k, in, tile, head);
    if constexpr (BACKWARD) rows_copy(m.q, x.c.q, in, tile, head);
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    pieces_clear(kk), pieces_clear(qk);
    warp_product<4, false, false>(kk, m.k.at + row * LD, LD, m.k.at + col * LD, LD, HEAD);
    if constexpr (BACKWARD)
        warp_product<4, false, false>(qk, m.q.at + row * LD, LD, m.k.at + col * LD, LD, HEAD);
    for (int v = 0; v < x.c.group; v++) wy_head<BACKWARD>(m, x, kk, qk, in, tile, head * x.c.group + v);
}

}

#endif
