/* ops/cuda/delta_rule_fast.cuh -- what the tensor-core kernels of delta_rule.c share: matrices of a tile in
 * shared memory, the memory between kernels, chains of tiles.
 *
 * Forward: per tile the inverse of 1 + M, U and W (delta_rule_fwd.cu: wy_kernel); along the tiles the states
 * and N = U - W S, which takes the place of U (scan_kernel); per tile the output (output_kernel). Backward
 * does the first two again, and P' dout in the first; along the tiles from the last to the first the
 * gradients of states and N (delta_rule_bwd.cu: back_kernel); per tile all other gradients (grads_kernel).
 * Products take bf16 and sum in f32; the inverse, decays and the running states are f32. */
#ifndef OPS_CUDA_DELTA_RULE_FAST_CUH
#define OPS_CUDA_DELTA_RULE_FAST_CUH

#include "ops/cuda/delta_rule.cuh"
#include "ops/cuda/warp_mma.cuh"

/* Device memory between the kernels: (tiles 64, Hv, 128) each, the inverses (tiles, Hv, 64, 64), states and
 * their gradients (tiles, Hv, 128, 128). */
struct DeltaMemory { bf16 *u, *w, *n, *dn, *inverse, *states, *dstates; };

struct DeltaFast { DeltaCall c; DeltaMemory m; };

namespace {

enum { HEAD = 128, HALF = 64, LD = HEAD + 8, SQ = TILE + 8, THREADS = 256 };

/* Matrices of a tile: rows of a head; square; a state; half of its columns. */
struct alignas(16) RowsMatrix   { bf16 at[TILE * LD]; };
struct alignas(16) SquareMatrix { bf16 at[TILE * SQ]; };
struct alignas(16) StateMatrix  { bf16 at[HEAD * LD]; };
struct alignas(16) StateHalf    { bf16 at[HEAD * SQ]; };

__device__ inline bf16 *tile_at(bf16 *p, const DeltaCall &a, int tile, int u)
{
    return p + ((int64_t)tile * TILE * a.Hv + u) * HEAD;
}
__device__ inline int64_t tile_ld(const DeltaCall &a) { return (int64_t)a.Hv * HEAD; }

__device__ inline bf16 *square_at(bf16 *p, const DeltaCall &a, int tile, int u)
{
    return p + ((int64_t)tile * a.Hv + u) * TILE * TILE;
}
__device__ inline bf16 *state_at(bf16 *p, const DeltaCall &a, int tile, int u)
{
    return p + ((int64_t)tile * a.Hv + u) * HEAD * HEAD;
}

/* A tile's rows of a head of the stream; rows outside all segments are zeros. To be committed. */
__device__ inline void rows_copy(RowsMatrix &to, const DeltaView &x, Inside s, int tile, int head)
{
#pragma unroll
    for (int k = 0; k < TILE * HEAD / 8 / THREADS; k++) {
        int  i = threadIdx.x + k * THREADS, r = i / (HEAD / 8), c = i % (HEAD / 8) * 8, t = tile * TILE + r;
        bool in = is_inside(s, t);
        copy_16(to.at + r * LD + c, (const bf16 *)x.p + (in ? t * x.row : 0) + head * x.head + c, in);
    }
}

/* What is known of a tile's rows. To be committed. */
__device__ inline void known_copy(TileRows &to, const DeltaCall &a, int tile, int u)
{
    const char *from = (const char *)(a.rows + (int64_t)tile * a.Hv + u);
    for (int i = threadIdx.x; i < (int)sizeof to / 16; i += THREADS)
        copy_16((char *)&to + i * 16, from + i * 16, true);
}

/* `rows` rows of `cols` columns with stride ld. To be committed. */
__device__ inline void block_copy(bf16 *to, int to_ld, const bf16 *from, int64_t ld, int rows, int cols)
{
    for (int i = threadIdx.x; i < rows * cols / 8; i += THREADS) {
        int r = i / (cols / 8), c = i % (cols / 8) * 8;
        copy_16(to + r * to_ld + c, from + r * ld + c, true);
    }
}

/* The running state, or its gradient: warp w has rows 16 w and on of the block's 64 columns. */
__device__ inline void state_read(float (&s)[8][4], const float *from, int u, int half)
{
    int row = threadIdx.x / 32 * 16;
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++)
            s[n][i] =
                !from ? 0.0f
                      : from[((int64_t)u * HEAD + row + piece_row(i)) * HEAD + half * HALF + piece_col(n, i)];
}

__device__ inline void state_write(float *to, const float (&s)[8][4], int u, int half)
{
    int row = threadIdx.x / 32 * 16;
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++)
            to[((int64_t)u * HEAD + row + piece_row(i)) * HEAD + half * HALF + piece_col(n, i)] = s[n][i];
}

/* The state as the products read it, and as later kernels do. */
__device__ inline void state_round(StateHalf &to, bf16 *global, const float (&s)[8][4], int half)
{
    int row = threadIdx.x / 32 * 16;
    pieces_store(to.at + row * SQ, SQ, s, 16);
    if (global) pieces_store(global + row * HEAD + half * HALF, HEAD, s, 16);
}

__device__ inline void state_decay(float (&s)[8][4], float by)
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] *= by;
}

/* Two neighbours in bf16. */
__device__ inline float2 pair_get(uint32_t x)
{
    __nv_bfloat162 two = *(__nv_bfloat162 *)&x;
    return make_float2(to_f32(two.x), to_f32(two.y));
}

/* The pairs of a warp's 16 rows and 32 columns of the block's half, read ahead of their use. */
struct HalfPieces { uint32_t at[4][2]; };

__device__ inline HalfPieces half_read(const bf16 *from, int64_t ld)
{
    int        warp = threadIdx.x / 32, row = warp % 4 * 16, col = warp / 4 * 32;
    HalfPieces p;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            p.at[n][k] = *(const uint32_t *)(from + (row + piece_row(2 * k)) * ld + col + piece_col(n, 0));
    return p;
}

/* Chains of tiles that run at the same time. No state passes a tile with a border; chain `part` begins with
 * the first such tile of its share of the tiles, or there is no chain, and ends with the tile that the next
 * one begins with. Both run that tile: forward the earlier chain wholly and the later one for the state that
 * leaves it alone; backward the later one wholly and the earlier one for the gradient of the state that
 * enters it alone. What the other writes of the tile meanwhile is equal to what it replaces, or meets a
 * factor 0. */
struct Chain { int from, to; bool any, starts, ends; };

__device__ inline Chain chain_of(const DeltaCall &a, int part)
{
    Chain c = { a.breaks[part], a.tiles - 1, false, !part, true };
    c.any = c.from >= 0;
    for (int p = part + 1; c.ends && p < PARTS; p++)
        if (a.breaks[p] >= 0) c.to = a.breaks[p], c.ends = false;
    return c;
}

}

/* wy_kernel and scan_kernel for backward (delta_rule_fwd.cu). */
void delta_fast_again(Backend *be, const DeltaFast &x);

#endif
