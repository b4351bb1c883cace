/* ops/cuda/grouped.cuh -- what the kernels of the experts' products share: how c is cut into tiles and shared out,
 * how operands come into shared memory, tensor maps.
 *
 * grouped_gemm.cu tells how the parts work together; grouped_fused.cu puts other ends to them. */
#ifndef OPS_CUDA_GROUPED_CUH
#define OPS_CUDA_GROUPED_CUH

#include "ops/dropout.h"
#include "ops/cuda/cuda.cuh"
#include "ops/cuda/hopper.cuh"

/* What chance leaves out (chance.h), as kernels take it: numbers in the upper half of a word no less than
 * `least` are kept, and grow by `scale`. */
typedef struct Chance { uint64_t seed, stream; uint32_t row, col, least; float scale; } Chance;

static inline Chance chance_of(Dropout d, float scale)
{
    Chance h = { d.seed, d.stream, (uint32_t)d.row, (uint32_t)d.col, dropout_threshold(d.p) << 16, scale };
    return h;
}

/* What was asked for (grouped_gemm.c). A c that is the sum over all experts (TN) is that of one which has all
 * their rows: experts begin at every `every`-th offset. Without offsets there is one expert, of `every` rows.
 * Where it `drops`, chance has a part in what the tail adds, or else in a (NT) or b (TN). */
typedef struct GroupedCall {
    Tensor  c, a, b, offsets;
    LoraTerm    tail;
    float   scale;
    int     mode;
    bool    add;
    int64_t E, every;
    bool    drops;
    Chance  chance;
} GroupedCall;

/* The first row of each expert, or of each part of one: they are cut in `parts` where they are few. */
struct Firsts {
    const int *offsets;
    int        every, parts;

    /* LONE: there may be one expert without offsets. */
    template <bool LONE> __device__ int at(int i) const
    {
        if (LONE && !offsets) return (int)((int64_t)every * i / parts);
        return begin(i);
    }
    __device__ int begin(int i) const
    {
        int e = i / parts, p = i % parts, at = offsets[e * every];
        return p ? at + (int)((int64_t)(offsets[(e + 1) * every] - at) * p / parts) : at;
    }
};

/* Where c and the segments are; M: rows of c per expert in TN. */
typedef struct Job {
    Firsts     first;
    void      *c;
    int64_t    c_expert, c_row;
    int        E, M, N;
    int        steps, main;     /* NT, NN: stages along K, and those of them that are not the tail's */
    int        b_each, w_each;  /* 0: one b, or one w of the tail, is that of all experts */
    int        each;            /* TN: tiles of an expert */
    int       *drawn;           /* TN: how many tiles were given away beyond the first of each block: all,
                                   from the front, from the back */
    const int *order;           /* TN: experts, those with the most rows first */
} Job;

/* A tile, and how it is shared out. */
enum { BM = 128, BN = 256, BK = 64, STAGES = 4, CONSUMERS = 8, THREADS = 384, SLOTS = 2, PARTS = 4,
       MORE = 232, LESS = 40 };                 /* registers of a thread that multiplies, and of the others */

/* Shared memory. A stage is CHUNKs of 64 x 64: two of a, four of b. Every consumer warp has two pieces of
 * 16 rows x 64 columns to turn c around in. Then the barriers of the stages and of the queue of tile
 * numbers, the queue, and the segments. */
enum { CHUNK = 64 * BK * (int)sizeof(bf16), A_BYTES = BM / 64 * CHUNK, STAGE = A_BYTES + BN / 64 * CHUNK,
       PIECE = 16 * 64 * (int)sizeof(bf16), OUT = STAGES * STAGE, FULL = OUT + CONSUMERS * 2 * PIECE,
       EMPTY = FULL + STAGES * 8, TOLD = EMPTY + STAGES * 8, HEARD = TOLD + SLOTS * 8,
       QUEUE = HEARD + SLOTS * 8, OFFSETS = QUEUE + SLOTS * 4, EXPERTS_MOST = 512 };

static inline size_t room_of(int64_t E) { return OFFSETS + ((size_t)E + 1) * sizeof(int); }

/* A tile: rows m .. and columns n .. of expert e, whose `rows` rows start at `first`. */
typedef struct Tile {
    int e, first, rows, m, n;
} Tile;

/* In TN all experts have as many tiles, and the number of one says which expert's and which of those it is;
 * below 0: no tile. */
enum { NUMBER_BITS = 20 };
__device__ inline int tile_number(int e, int i) { return e << NUMBER_BITS | i; }

/* Finds tiles, in NT and NN by ascending number; WIDE: columns of a tile. */
template <int MODE, int WIDE = BN> struct Walk {
    const int *off;
    int E, across, e, begin, count;

    __device__ Walk(const int *offsets, const Job &g)
        : off(offsets), E(g.E), across((g.N + WIDE - 1) / WIDE), e(-1), begin(0), count(0) { }

    __device__ bool find(int i, Tile &t)
    {
        if (MODE == GEMM_TN) {
            if (i < 0) return false;
            e = i >> NUMBER_BITS, i &= (1 << NUMBER_BITS) - 1;
        } else {
            while (i >= begin + count) {
                if (++e >= E) return false;
                begin += count;
                count = (off[e + 1] - off[e] + BM - 1) / BM * across;
            }
            i -= begin;
        }
        t.e = e, t.first = off[e], t.rows = uniform(off[e + 1] - off[e]);
        t.m = i / across * BM, t.n = i % across * WIDE;
        return true;
    }
};

template <int MODE> __device__ inline int steps_of(const Tile &t, const Job &g)
{
    return MODE == GEMM_TN ? (t.rows + BK - 1) / BK : g.steps;
}

/* The numbers of the block's tiles, as a warp that needs them hears them. Where tiles differ in length
 * (TN) they are drawn one by one, by whoever is free; otherwise block x takes x, x + blocks, ... */
template <int MODE> struct Numbers {
    uint32_t base;
    int      q, phase, i;

    __device__ Numbers(uint32_t room) : base(room), q(0), phase(0), i((int)blockIdx.x - (int)gridDim.x) { }

    __device__ int next()
    {
        if (MODE != GEMM_TN) return i += gridDim.x;
        bar_wait(base + TOLD + q * 8, phase);
        i = uniform(smem_word(base + QUEUE + q * 4));
        __syncwarp();
        if (threadIdx.x % 32 == 0) bar_arrive(base + HEARD + q * 8);
        if (++q == SLOTS) q = 0, phase ^= 1;
        return i;
    }
};

/* The thread that draws for TN. Tiles of experts with many rows are long, of those with few all writing: half
 * the blocks take from the front of the order, half from the back, so that both kinds run side by side, and
 * the last to be drawn are short. The end goes out as a number as well: it tells the others to stop. */
__device__ inline void draw(const Job &g, uint32_t base)
{
    int back = blockIdx.x % 2, begun = ((int)gridDim.x + 1 - back) / 2, all = g.E * g.each;
    int q = 0, phase = 0, i = (int)blockIdx.x / 2;              /* from its end */
    auto tell = [&](int number) {
        bar_wait(base + HEARD + q * 8, phase ^ 1);
        smem_store(base + QUEUE + q * 4, number);
        bar_arrive(base + TOLD + q * 8);
        if (++q == SLOTS) q = 0, phase ^= 1;
    };
    for (;;) {
        int at = back ? all - 1 - i : i;
        tell(tile_number(g.order[at / g.each], at % g.each));
        if ((int)gridDim.x + atomicAdd(g.drawn, 1) >= all) break;
        i = begun + atomicAdd(g.drawn + 1 + back, 1);           /* fewer than `all` in sum: they never meet */
    }
    tell(-1);
}

/* By one block: experts by falling number of rows, and nothing drawn. */
static __global__ void order_experts(int *order, int *drawn, Firsts first, int E)
{
    __shared__ int rows[EXPERTS_MOST];
    int e = threadIdx.x, before = 0;
    if (e < 3) drawn[e] = 0;
    if (e < E) rows[e] = first.at<true>(e + 1) - first.at<true>(e);
    __syncthreads();
    if (e >= E) return;
    for (int i = 0; i < E; i++) before += rows[i] > rows[e] || (rows[i] == rows[e] && i < e);
    order[before] = e;
}

/* Rows from `valid` on of a TN stage, in what a warpgroup multiplies: 64 columns of a, B of b. Rows are whole
 * lines of 128 bytes, so the swizzle does not matter; both warpgroups zero b, and may, since they write the
 * same. */
template <int B> __device__ inline void zero_tail(uint32_t a, uint32_t b, int valid, int barrier)
{
    for (int i = threadIdx.x % 128; i < (BK - valid) * 8; i += 128) {
        uint32_t line = valid * 128 + i * 16;
        smem_zero(a + line);
        for (int x = 0; x < B / 64; x++) smem_zero(b + x * CHUNK + line);
    }
    async_fence();
    named_sync(barrier, 128);
}

/* Factors. Columns of low and w beyond the tail's last are outside of them, and come as zeros. */
typedef struct Maps { CUtensorMap a, b, low, w; } Maps;

/* The warp that brings a and b, then low and w, in boxes 64 wide along what is a row in memory: K, or M or N.
 * In halves: b has N rows twice, and the two halves of a tile are the same columns of c out of each. DROP:
 * low and w come first. */
template <int MODE, int HALVES = 1, bool DROP = false>
__device__ void produce(const Maps &maps, const Job &g, const int *off, uint32_t base)
{
    Walk<MODE, BN / HALVES> walk(off, g);
    Numbers<MODE>           numbers(base);
    Tile t;
    int  s = 0, phase = 0;
    while (walk.find(numbers.next(), t)) {
        for (int step = 0, steps = steps_of<MODE>(t, g); step < steps; step++) {
            int      lead = DROP ? g.steps - g.main : 0;
            bool     tail = DROP ? step < lead : MODE != GEMM_TN && step >= g.main;
            uint32_t full = base + FULL + s * 8, at = base + s * STAGE;
            int      k = (tail ? (DROP ? step : step - g.main) : step - lead) * BK;
            int      e = t.e * (tail ? g.w_each : g.b_each);
            const CUtensorMap *a = tail ? &maps.low : &maps.a, *b = tail ? &maps.w : &maps.b;
            bar_wait(base + EMPTY + s * 8, phase ^ 1);
            if (threadIdx.x % 32 == 0) {
                bar_expect(full, STAGE);
                if (MODE == GEMM_TN)
                    for (int x = 0; x < BM; x += 64) tma_load(at + x * 128, a, full, t.m + x, t.first + k);
                else
                    tma_load(at, a, full, k, t.first + t.m);
                at += A_BYTES;
                if (MODE == GEMM_NT)
                    for (int x = 0; x < HALVES; x++)
                        tma_load(at + x * (BN / HALVES) * 128, b, full, k, x * g.N + t.n, e);
                else
                    for (int x = 0; x < BN; x += 64)
                        if (MODE == GEMM_NN) tma_load(at + x * 128, b, full, t.n + x, k, e);
                        else                 tma_load(at + x * 128, b, full, t.n + x, t.first + k);
            }
            __syncwarp();
            if (++s == STAGES) s = 0, phase ^= 1;
        }
    }
}

/* A stage of products of a warpgroup into d. That of a tail is a whole one, of zeros beyond the columns it
 * has: leaving those out was measured and saved nothing. */
template <int TA, int TB>
__device__ inline void multiply_stage(float (&d)[BN / 2], uint32_t a, uint32_t b, int step)
{
    enum { KA = TA ? 16 * 128 : 32, KB = TB ? 16 * 128 : 32 };
    uint64_t da = wgmma_operand(a, CHUNK, 1024), db = wgmma_operand(b, CHUNK, 1024);
    wgmma_begin();
    #pragma unroll
    for (int k = 0; k < BK / 16; k++)
        Wgmma<BN>::template mma<TA, TB>(d, da + k * KA / 16, db + k * KB / 16, step + k > 0);
    wgmma_commit();
}

/* What chance leaves of a warp's sums of rows row .. + 15 and columns col .. + BN - 1, as wgmma left them: 8
 * numbers of a block are those of 8 sums of a thread. The first column is on DROPOUT_COLS. */
__device__ inline void thin_sums(float (&d)[BN / 2], const Chance &h, int row, int col)
{
    uint32_t at = h.row + row + threadIdx.x % 32 / 4, k = (h.col + col) / DROPOUT_COLS, q = threadIdx.x % 4;
    #pragma unroll
    for (int i = 0; i < BN / 16; i++) {
        Rng4 n = dropout_block(h.seed, h.stream, at + i % 2 * 8, k + i / 2, q);
        #pragma unroll
        for (int w = 0; w < 4; w++) {
            float *x = d + i / 2 * 16 + w * 4 + i % 2 * 2;
            x[0] = (n.v[w] << 16) >= h.least ? h.scale * x[0] : 0.0f;
            x[1] = n.v[w] >= h.least ? h.scale * x[1] : 0.0f;
        }
    }
}

/* 16 rows of c that a warp has computed: where they start in c seen as a stack of matrices, and how many
 * rows are the expert's from there on. */
typedef struct Strip { int x, y, z, rows; } Strip;

/* 16 registers of a strip, as wgmma leaves them, into the 16 rows of 128 bytes of a piece, swizzled. */
__device__ inline void turn(bf16, uint32_t at, const uint32_t *v)
{
    int lane = threadIdx.x % 32, r = lane % 16;
    #pragma unroll
    for (int q = 0; q < 4; q++)
        stmatrix4(at + r * 128 + (((2 * q + lane / 16) ^ (r & 7)) << 4), v[4 * q], v[4 * q + 1], v[4 * q + 2],
                  v[4 * q + 3]);
}
__device__ inline void turn(float, uint32_t at, const uint32_t *v)
{
    int lane = threadIdx.x % 32, r = lane / 4;
    #pragma unroll
    for (int i = 0; i < 8; i++)
        smem_store(at + (r + i % 2 * 8) * 128 + (((i / 2 * 2 + lane % 4 / 2) ^ r) << 4) + lane % 2 * 8,
                   v[2 * i], v[2 * i + 1]);
}

/* --- tensor maps --- */

/* Boxes of 128 bytes by `rows` rows of a matrix or of a stack of them; outside it they are zeros. */
static inline CUtensorMap map_of(Backend *be, Tensor t, int rows)
{
    static const EncodeTiled encode = find_encode();
    CUtensorMap map;
    cuuint64_t  n[3], s[2], size = dtype_size((DType)t.dtype);
    cuuint32_t  box[3] = { (cuuint32_t)(128 / size), (cuuint32_t)rows, 1 }, one[3] = { 1, 1, 1 };
    for (int i = 0; i < t.rank; i++) n[i] = (cuuint64_t)t.n[t.rank - 1 - i];
    for (int i = 0; i + 1 < t.rank; i++) s[i] = (cuuint64_t)t.s[t.rank - 2 - i] * size;
    CUresult r = !encode ? CUDA_ERROR_NOT_FOUND
        : encode(&map, t.dtype == F32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                 t.rank, t.data, n, s, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS) cuda_stick(be, cudaErrorInvalidValue, "grouped_gemm: tensor map");
    return map;
}

/* What a job is about, but for c. */
static inline Job job_of(Tensor offsets, int64_t E, int64_t every, int64_t N, Tensor a, Tensor b, LoraTerm tail)
{
    Job     g = { };
    int64_t r = t_has(tail.low) ? tail.low.n[1] : 0, main = ceil_div(a.n[1], BK), more = ceil_div(r, BK);
    g.first  = { (const int *)offsets.data, (int)every, 1 };
    g.E      = (int)E, g.N = (int)N, g.main = (int)main, g.steps = (int)(main + more);
    g.b_each = b.n[0] != 1, g.w_each = tail.w.n[0] != 1;
    return g;
}
static inline Maps maps_of(Backend *be, Tensor a, Tensor b, LoraTerm tail, int a_rows, int b_rows)
{
    Maps m = { };
    if (a.n[1]) m.a = map_of(be, a, a_rows), m.b = map_of(be, b, b_rows);
    if (t_has(tail.low)) m.low = map_of(be, tail.low, a_rows), m.w = map_of(be, tail.w, b_rows);
    return m;
}

/* A tail that the fast kernels take, or none. */
static inline bool tail_packs(LoraTerm t) { return !t_has(t.low) || (packs(t.low) && packs(t.w)); }

/* A matrix as a stack of one. */
static inline Tensor stack_of(Tensor t)
{
    if (t.rank == 3) return t;
    t.n[2] = t.n[1], t.n[1] = t.n[0], t.n[0] = 1;
    t.s[2] = 1, t.s[1] = t.s[0], t.s[0] = t.n[1] * t.s[1];
    t.rank = 3;
    return t;
}

/* Few columns of c, or few rows in TN (grouped_narrow.cu); false: not of that kind. */
bool grouped_narrow(Backend *be, const GroupedCall &q);

#endif
