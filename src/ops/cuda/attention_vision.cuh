/* ops/cuda/attention_vision.cuh -- what forward and backward of attention_vision*.cu share: the shared-memory
 * layout of tiles, the order of tiles, their loads.
 *
 * A tile is R rows of one head. Its C columns are cut into chunks of 64, R lines of 128 bytes each, swizzled
 * by TMA; the second chunk of head dims 72 and 80 is zero beyond C, where the tensor map ends. So one tile
 * serves a product along the columns (K = 16 KSTEPS, the last step of 72 is half zeros) as well as one along
 * the rows (N = C: 64 columns of the first chunk, 8 or 16 of the second).
 *
 * A block is persistent and draws tiles (tile_queue.cuh), which are numbered segment by segment, head by
 * head, down the rows. */
#ifndef OPS_CUDA_ATTENTION_VISION_CUH
#define OPS_CUDA_ATTENTION_VISION_CUH

#include "ops/cuda/attention_cuda.h"
#include "ops/cuda/hopper_mma.cuh"
#include "ops/cuda/tile_queue.cuh"

#include <math.h>

static const float LOG2E = 1.44269504f;

enum { SEGMENTS_MOST = 1024, LINE = 128, STEP = 16 * LINE };

/* Tiles of R rows of heads C wide. */
template <int C, int R> struct Lay {
    enum { CHUNK = R * LINE, CHUNKS = (C + 63) / 64, BYTES = CHUNKS * CHUNK, KSTEPS = (C + 15) / 16 };
};

/* Rows from `row` on of a head, in a segment of `rows` rows that starts at row `first`. */
typedef struct HeadTile { int head, first, rows, row; } HeadTile;

/* Finds a tile of BM rows by its number, by ascending numbers. */
template <int BM> struct HeadTileWalk {
    const int *starts;
    int n, H, seg, begin, count, down;

    __device__ HeadTileWalk(const int *starts_, int n_, int H_)
        : starts(starts_), n(n_), H(H_), seg(-1), begin(0), count(0), down(1) { }

    __device__ bool find(int i, HeadTile &t)
    {
        while (i >= begin + count) {
            if (++seg >= n) return false;
            begin += count;
            down = (starts[seg + 1] - starts[seg] + BM - 1) / BM;
            count = down * H;
        }
        int at = i - begin;
        t.head = uniform(at / down), t.row = uniform(at % down * BM);
        t.first = uniform(starts[seg]), t.rows = uniform(starts[seg + 1] - starts[seg]);
        return true;
    }
    __device__ int tiles() const { return begin + count; }     /* of all segments, once find was false */
};

/* A position in a ring of stages: the stage, and the parity of its barriers. */
template <int STAGES> struct Ring {
    int s, phase;
    __device__ Ring() : s(0), phase(0) { }
    __device__ void step() { if (++s == STAGES) s = 0, phase ^= 1; }
};

/* Loads a tile from `row` on, by one thread. Bytes beyond the end of the map count as well. */
template <int C, int R>
__device__ inline void tile_load(uint32_t at, const CUtensorMap *map, uint32_t bar, int head, int row)
{
    #pragma unroll
    for (int c = 0; c < Lay<C, R>::CHUNKS; c++)
        tma_load(at + c * Lay<C, R>::CHUNK, map, bar, c * 64, head, row);
}

/* Zeroes the lines from `valid` on, by a warpgroup: they belong to another segment or are uninitialised.
 * Lines are whole, so the swizzle does not matter; all warpgroups write the same zeros. */
template <int C, int R> __device__ inline void tile_cut(uint32_t at, int valid)
{
    for (int i = threadIdx.x % 128; i < (R - valid) * 8; i += 128)
        for (int c = 0; c < Lay<C, R>::CHUNKS; c++)
            smem_zero(at + c * Lay<C, R>::CHUNK + valid * LINE + i * 16);
}
__device__ inline void tile_cut_done(int barrier)
{
    async_fence();
    named_sync(barrier, 128);
}

/* d (64, BN) = a b': 64 rows at `a` of a tile of AR rows, b a tile of BN rows. To be committed. */
template <int C, int AR, int BN> __device__ inline void scores(float (&d)[BN / 2], uint32_t a, uint32_t b)
{
    uint64_t da = wgmma_operand(a, 0, 1024), db = wgmma_operand(b, 0, 1024);
    #pragma unroll
    for (int k = 0; k < Lay<C, AR>::KSTEPS; k++)
        Wgmma<BN>::template mma<0, 0>(d, da + (k / 4 * Lay<C, AR>::CHUNK + k % 4 * 32) / 16,
                                      db + (k / 4 * Lay<C, BN>::CHUNK + k % 4 * 32) / 16, k > 0);
}

/* d (64, C) += p b, p (64, BN) packed in registers, b a tile of BN rows. To be committed. */
template <int C, int BN>
__device__ inline void gather(float (&d)[C / 2], const uint32_t (&p)[BN / 4], uint32_t b)
{
    uint64_t db = wgmma_operand(b, Lay<C, BN>::CHUNK, 1024);
    #pragma unroll
    for (int k = 0; k < BN / 16; k++) WgmmaA<C>::template mma<1>(d, p + 4 * k, db + k * (STEP / 16), 1);
}

__device__ inline uint32_t pack2(float x, float y)
{
    __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
    return *(uint32_t *)&two;
}
template <int N> __device__ inline void pack_all(uint32_t (&p)[N / 2], const float (&d)[N])
{
    #pragma unroll
    for (int i = 0; i < N / 2; i++) p[i] = pack2(d[2 * i], d[2 * i + 1]);
}

__device__ inline float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Masks the keys from `valid` on. */
template <int N> __device__ inline void hide(float (&s)[N], int valid)
{
    #pragma unroll
    for (int i = 0; i < N; i++)
        if (i / 4 * 8 + (int)threadIdx.x % 4 * 2 + i % 2 >= valid) s[i] = -INFINITY;
}

/* The thread's first row of its warpgroup's 64; its second is 8 below. */
__device__ inline int thread_row() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }

/* A (rows, heads, C) output. */
typedef struct HeadRows { bf16 *p; int64_t row, head; } HeadRows;

/* Stores the thread's two rows of d, times a factor each, to rows t and t + 8 as far as they are before
 * `end`. */
template <int C>
__device__ inline void rows_put(const HeadRows &y, int head, int t, int end, const float (&d)[C / 2],
                                float upper, float lower)
{
    bf16 *p = y.p + (int64_t)t * y.row + head * y.head + threadIdx.x % 4 * 2, *q = p + 8 * y.row;
    #pragma unroll
    for (int j = 0; j < C / 8; j++) {
        if (t < end)     *(uint32_t *)(p + 8 * j) = pack2(d[4 * j] * upper, d[4 * j + 1] * upper);
        if (t + 8 < end) *(uint32_t *)(q + 8 * j) = pack2(d[4 * j + 2] * lower, d[4 * j + 3] * lower);
    }
}

/* --- the host side --- */

static inline HeadRows rows_of(Tensor t) { return HeadRows{ (bf16 *)t.data, t.s[0], t.s[1] }; }

/* A tensor map of boxes of 64 columns by `rows` rows of a head of t (T, H, C); elements outside t read as
 * zero. */
static inline CUtensorMap heads_map(Backend *be, Tensor t, int rows)
{
    static const EncodeTiled encode = find_encode();
    CUtensorMap map = {};
    cuuint64_t  n[3] = { (cuuint64_t)t.n[2], (cuuint64_t)t.n[1], (cuuint64_t)t.n[0] };
    cuuint64_t  s[2] = { (cuuint64_t)t.s[1] * 2, (cuuint64_t)t.s[0] * 2 };
    cuuint32_t  box[3] = { 64, 1, (cuuint32_t)rows }, one[3] = { 1, 1, 1 };
    CUresult    r = !encode ? CUDA_ERROR_NOT_FOUND
        : encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, t.data, n, s, box, one,
                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS) cuda_stick(be, cudaErrorInvalidValue, "attention: tensor map");
    return map;
}

/* Blocks for tiles of BM rows; only the device knows the lengths of the segments. */
static inline int64_t vision_blocks(Backend *be, const Attn *x, int BM)
{
    return min_i64(cuda_compute_sms(be), (ceil_div(x->q.n[0], BM) + x->seg.n) * x->q.n[1]);
}

#endif
