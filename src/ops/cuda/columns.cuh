/* ops/cuda/columns.cuh -- codes of rows of experts, transposed (ops/quantize_cols.c), by tiles of 128 rows by
 * 128 columns and blocks of eight warps.
 *
 * 16 lanes read a row of a tile of bf16; through shared memory each warp then takes 16 of its columns, and so
 * finds their scales by itself. Other tiles go element by element (store_columns_slowly). */
#ifndef OPS_CUDA_COLUMNS_CUH
#define OPS_CUDA_COLUMNS_CUH

#include "ops/cuda/quant_block.cuh"

/* A ColumnCodes; q.p: NULL where it is absent. scale_row: numbers of a group of columns. */
struct Columns {
    Matrices q;
    float   *scale;
    int64_t  scale_row;
    int      K;                                 /* rows of q */
    bool     blocks;                            /* a scale for a block, not for a row of q */
};

namespace {

enum { TILE_WARPS = 8, TILE_THREADS = 32 * TILE_WARPS, EIGHTS = 8, EIGHT = 8,
       SLICE = QUANT_GROUP / TILE_WARPS };      /* columns of a warp */

/* Eight columns of a row, as words: halves of a word would be put together as soon as they are loaded, and so
 * wait for the load. */
struct Eight {
    uint4 bits;

    __device__ uint32_t word(int i) const
    {
        return i == 0 ? bits.x : i == 1 ? bits.y : i == 2 ? bits.z : bits.w;
    }
    __device__ float get(int i) const
    {
        return __uint_as_float(i % 2 ? word(i / 2) & 0xffff0000u : word(i / 2) << 16);
    }
    __device__ void clear() { bits = make_uint4(0, 0, 0, 0); }
    __device__ void load(const bf16 *p) { bits = *(const uint4 *)p; }
};

/* Where a thread reads rows of a tile, and where a lane has those of its warp's columns. */
__device__ inline int read_row(int i) { return threadIdx.x / 16 + i * 16; }
__device__ inline int read_col()      { return threadIdx.x % 16 * EIGHT; }
__device__ inline int own_row(int i)  { return threadIdx.x % 32 / 2 + i * 16; }
__device__ inline int own_col()       { return threadIdx.x / 32 * SLICE + threadIdx.x % 2 * EIGHT; }

/* The largest magnitudes (quant_magnitude) of eight columns: bf16 are the upper halves of f32, and two are
 * compared at once. */
struct Amax {
    enum { WORDS = EIGHT / 2 };
    uint32_t word[WORDS];

    __device__ void add(const Eight &v)
    {
        #pragma unroll
        for (int i = 0; i < WORDS; i++) word[i] = __vmaxu2(word[i], v.word(i) & 0x7fff7fffu);
    }
    __device__ void add_lane(int other)
    {
        #pragma unroll
        for (int i = 0; i < WORDS; i++) word[i] = __vmaxu2(word[i], __shfl_xor_sync(~0u, word[i], other));
    }
    /* Of a column that differs from lane to lane. */
    __device__ uint32_t get(int c) const
    {
        uint32_t w = word[0];
        #pragma unroll
        for (int i = 1; i < WORDS; i++) w = c / 2 == i ? word[i] : w;
        return c % 2 ? w & 0xffff0000u : w << 16;
    }
    __device__ uint32_t all() const
    {
        uint32_t w = __vmaxu2(__vmaxu2(word[0], word[1]), __vmaxu2(word[2], word[3]));
        return max(w & 0xffff0000u, w << 16);
    }
};

/* Codes of eight elements times f[0 .. 7]. */
__device__ inline uint2 eight_codes(const Eight &v, const float *f)
{
    uint2 code;
    code.x = e4m3_four(v.get(0) * f[0], v.get(1) * f[1], v.get(2) * f[2], v.get(3) * f[3]);
    code.y = e4m3_four(v.get(4) * f[4], v.get(5) * f[5], v.get(6) * f[6], v.get(7) * f[7]);
    return code;
}

/* Codes of a warp's columns in shared memory: rows of 4 words, 4 words more after every 16 rows, so that
 * columns of 4 bytes are read without bank conflicts. */
enum { SLICE_WORDS = QUANT_GROUP * SLICE / 4 + 7 * 4 };
__device__ inline int slice_at(int row, int word) { return row * (SLICE / 4) + row / 16 * 4 + word; }

/* A tile in shared memory, by the columns of each warp: 128 rows of 32 bytes. Those of the next warp begin 32
 * bytes later than these would, on other banks. A warp that has read its columns may put codes there. */
struct Tile {
    uint4 unit[TILE_WARPS][QUANT_GROUP * 2 + 2];

    __device__ uint4 &at(int row, int col) { return unit[col / SLICE][row * 2 + col % SLICE / EIGHT]; }
    __device__ void read(Eight (&v)[EIGHTS])
    {
        #pragma unroll
        for (int i = 0; i < EIGHTS; i++) v[i].bits = at(own_row(i), own_col());
    }
    __device__ uint32_t *codes() { return (uint32_t *)unit[threadIdx.x / 32]; }
};
static_assert(SLICE_WORDS * sizeof(uint32_t) <= sizeof(Tile) / TILE_WARPS, "codes fit a warp's columns");

/* Stores the codes of a warp to columns column .. + 127 of z's rows from .. on: a lane 16 of four rows. */
__device__ inline void store_slice(const Columns &z, const uint32_t *code, int64_t column, int from)
{
    int lane = threadIdx.x % 32, n = lane % 8 * 16, k = lane / 8 * 4;
    uint32_t v[4][4];
    read_columns(v, code, n, [&](int row) { return slice_at(row, k / 4); });
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        uint8_t *to = at<uint8_t>(z.q, 0, from + k + j) + column + n;
        if (from + k + j < z.K) *(uint4 *)to = make_uint4(v[0][j], v[1][j], v[2][j], v[3][j]);
    }
}

/* The amax of a tile from those of its warps. `part` is not written again before another barrier. */
__device__ inline uint32_t tile_amax(uint32_t (&part)[TILE_WARPS], uint32_t amax)
{
    amax = max(amax, __shfl_xor_sync(~0u, amax, 1));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = amax;
    __syncthreads();
    return lanes_max<TILE_WARPS>(part[threadIdx.x % TILE_WARPS]);
}

/* The scale of the tile, or those of the warp's columns, one by each of lanes 0 .. 15, into z; f: reciprocals
 * for the lane's eight columns. */
__device__ inline void make_scales(float (&f)[EIGHT], uint32_t (&part)[TILE_WARPS], const Columns &z,
                                   const Amax &amax, int64_t j, int from, bool pow2)
{
    int        lane = threadIdx.x % 32, own = from + own_col() + lane / 2;
    float     *scale = z.scale + j * z.scale_row;
    QuantScale s = quant_scale(z.blocks ? tile_amax(part, amax.all()) : amax.get(lane / 2 % EIGHT), pow2);
    if (z.blocks && threadIdx.x == 0) scale[from / QUANT_GROUP] = s.scale;
    if (!z.blocks && lane < SLICE && own < z.K) scale[own] = s.scale;
    #pragma unroll
    for (int c = 0; c < EIGHT; c++) f[c] = __shfl_sync(~0u, s.inverse, lane % 2 + 2 * c);
}

/* Codes and scales of a tile, of which every warp holds its columns in v: group j of columns of z, rows
 * from .. + 127. code: SLICE_WORDS of shared memory of the warp. */
__device__ inline void store_columns(uint32_t *code, uint32_t (&part)[TILE_WARPS], const Columns &z,
                                     const Eight (&v)[EIGHTS], int64_t j, int from, bool pow2)
{
    Amax  amax = { };
    float f[EIGHT];
    #pragma unroll
    for (int i = 0; i < EIGHTS; i++) amax.add(v[i]);
    #pragma unroll
    for (int o = 2; o < 32; o *= 2) amax.add_lane(o);
    make_scales(f, part, z, amax, j, from, pow2);
    __syncwarp();
    #pragma unroll
    for (int i = 0; i < EIGHTS; i++)
        *(uint2 *)(code + slice_at(own_row(i), threadIdx.x % 2 * 2)) = eight_codes(v[i], f);
    __syncwarp();
    store_slice(z, code, j * QUANT_GROUP, from + threadIdx.x / 32 * SLICE);
    __syncwarp();
}

/* The same of a tile of any rows and widths, whose elements `value` computes by row and by column of x. */
template <class F>
__device__ inline void store_columns_slowly(const Columns &z, int64_t j, int from, int rows, bool pow2,
                                            F value)
{
    int      c = threadIdx.x;
    bool     some = c < QUANT_GROUP && from + c < z.K;
    uint32_t amax = 0;
    for (int r = 0; r < rows && some; r++) amax = max(amax, quant_magnitude(value(r, from + c)));
    if (z.blocks) amax = block_max(amax);
    QuantScale of = quant_scale(amax, pow2);
    if (z.blocks && c == 0)  z.scale[j * z.scale_row + from / QUANT_GROUP] = of.scale;
    if (!z.blocks && some)   z.scale[j * z.scale_row + from + c] = of.scale;
    for (int r = 0; r < QUANT_GROUP && some; r++)
        at<uint8_t>(z.q, 0, from + c)[j * QUANT_GROUP + r] =
            e4m3_from_f32((r < rows ? value(r, from + c) : 0.0f) * of.inverse);
}

Columns columns_of(ColumnCodes z)
{
    Columns c = { matrices(z.q), (float *)z.scale.data, z.scale.s[0], (int)z.q.n[0],
                  z.scale.n[1] != z.q.n[0] };
    return c;
}

}

#endif
