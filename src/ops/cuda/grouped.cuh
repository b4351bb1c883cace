/* ops/cuda/grouped.cuh -- what the kernels of the experts' grouped products share: tiles of c and their
 * order, the loads of operands into shared memory, tensor maps. grouped_hopper.cu describes how they work
 * together; fused_hopper.cu has other epilogues. */
#ifndef OPS_CUDA_GROUPED_CUH
#define OPS_CUDA_GROUPED_CUH

#include "ops/cuda/tile_queue.cuh"
#include "ops/cuda/code_ring.cuh"

/* Shapes and addresses of a launch; M: rows of c per expert in TN. */
typedef struct GroupedJob {
    Firsts     first;
    void      *c;
    int64_t    c_expert, c_row;
    int        E, M, N;
    int        steps, main;     /* NT, NN: stages along K with and without the LoRA term */
    int        b_each, w_each;  /* 0: all experts share one b, or one w of the LoRA term */
    int        each;            /* TN: tiles of an expert, or pairs of them for clusters */
    int       *drawn;           /* NT, NN: the counter of tile_queue.cuh. TN: counters of tiles assigned
                                   beyond the first of each block: in all, from the front, from the back */
    const int *order;           /* TN: experts, those with the most rows first */
    float     *squares;         /* TN: sums of squares of c by strips, or NULL */
    CodeRing   ring;            /* b in codes */
} GroupedJob;

/* The shape of a tile, and the threads of a block. */
enum { BM = 128, BN = 256, BK = 64, STAGES = 4, CONSUMERS = 8, THREADS = 384, PARTS = 4,
       MORE = 232, LESS = 40,                   /* registers of a consumer thread, and of the others */
       CODED_MORE = 224, CODED_LESS = 56 };     /* where these decode */

/* Shared memory. A stage is CHUNKs of 64 x 64: two of a, four of b. Every consumer warp has two pieces of
 * 16 rows x 64 columns through which it stores c. Then the barriers of the stages and of the consumer warps
 * (for what an epilogue loads), the queue of tile numbers, and the segments. */
enum { CHUNK = 64 * BK * (int)sizeof(bf16), A_BYTES = BM / 64 * CHUNK, STAGE = A_BYTES + BN / 64 * CHUNK,
       PIECE = 16 * 64 * (int)sizeof(bf16), OUT = STAGES * STAGE, FULL = OUT + CONSUMERS * 2 * PIECE,
       EMPTY = FULL + STAGES * 8, OWN = EMPTY + STAGES * 8, QUEUE = OWN + CONSUMERS * 8,
       OFFSETS = QUEUE + TILE_QUEUE_BYTES };

static inline size_t smem_bytes(int64_t E) { return OFFSETS + ((size_t)E + 1) * sizeof(int); }

/* A tile: rows m .. and columns n .. of expert e, whose `rows` rows start at `first`. */
typedef struct ExpertTile {
    int e, first, rows, m, n;
} ExpertTile;

/* In TN all experts have the same number of tiles, and a tile number encodes the expert and the tile within
 * it; a negative number is no tile. */
enum { NUMBER_BITS = 20 };
__device__ inline int tile_number(int e, int i) { return e << NUMBER_BITS | i; }

/* Finds a tile by its number, in NT and NN by ascending numbers; WIDE: columns of a tile. CLUSTER: numbers
 * count pairs of tiles, one below the other, one for each block of the cluster. BANDS: in a wide matrix the
 * tiles of a band of rows come column by column, so that its a stays in L2 while b passes. */
template <int MODE, int WIDE = BN, bool CLUSTER = false, bool BANDS = false> struct ExpertTileWalk {
    enum { TALL = CLUSTER ? 2 * BM : BM };      /* rows of what a number counts */
    enum { BAND = 16, BAND_ACROSS = 8 };        /* rows of tiles of a band; more tiles a row are wide */
    const int *off;
    int E, across, e, begin, count;

    __device__ ExpertTileWalk(const int *offsets, const GroupedJob &g)
        : off(offsets), E(g.E), across((g.N + WIDE - 1) / WIDE), e(-1), begin(0), count(0) { }

    __device__ bool find(int i, ExpertTile &t)
    {
        if (MODE == GEMM_TN) {
            if (i < 0) return false;
            e = i >> NUMBER_BITS, i &= (1 << NUMBER_BITS) - 1;
        } else {
            while (i >= begin + count) {
                if (++e >= E) return false;
                begin += count;
                count = tall_rows(e) * across;
            }
            i -= begin;
        }
        if (CLUSTER) i = (i / across * 2 + cluster_rank()) * across + i % across;
        t.e = e, t.first = off[e], t.rows = uniform(off[e + 1] - off[e]);
        t.m = i / across * BM, t.n = i % across * WIDE;
        if (BANDS && across > BAND_ACROSS) place_in_band(i, t);
        return true;
    }
    __device__ void place_in_band(int i, ExpertTile &t) const
    {
        int first = i / (BAND * across) * BAND, rows = min((int)BAND, count / across - first);
        i -= first * across;
        t.m = (first + i % rows) * BM, t.n = i / rows * WIDE;
    }
    __device__ int tall_rows(int expert) const
    {
        return (off[expert + 1] - off[expert] + TALL - 1) / TALL;
    }
    __device__ int tiles() const { return begin + count; }     /* of all experts, once find was false */
};

template <int MODE> __device__ inline int steps_of(const ExpertTile &t, const GroupedJob &g)
{
    return MODE == GEMM_TN ? (t.rows + BK - 1) / BK : g.steps;
}

/* Whether a scheduler thread draws the tiles, and the producer warp reads their numbers as consumers do; else
 * the producer draws them. TN: tiles differ in length. Clusters: a number must reach the other block, and one
 * that is drawn less than a tile ahead comes too late: the tensor cores waited for it. */
template <int MODE, bool CLUSTER> constexpr bool is_scheduled = MODE == GEMM_TN || CLUSTER;

/* The numbers of the block's tiles for the producer warp. */
template <int MODE, bool CLUSTER = false, bool SCHEDULED = is_scheduled<MODE, CLUSTER>>
struct ProducerTiles : TileDrawer {
    __device__ ProducerTiles(const GroupedJob &g, uint32_t queue) : TileDrawer(g.drawn, queue) { }
};
template <int MODE, bool CLUSTER> struct ProducerTiles<MODE, CLUSTER, true> : TileReaderOf<CLUSTER> {
    __device__ ProducerTiles(const GroupedJob &, uint32_t queue) : TileReaderOf<CLUSTER>(queue) { }
    __device__ int next()
    {
        if (CLUSTER && cluster_rank()) this->expect();
        return TileReaderOf<CLUSTER>::next();
    }
    __device__ void stage(int, int) { }
    __device__ void close(int) { }
};

/* Barriers of the queue; warps that read it: consumers, and producers that do not draw. */
template <int MODE, bool CLUSTER = false> __device__ inline void queue_init(uint32_t queue)
{
    constexpr int readers = is_scheduled<MODE, CLUSTER> ? CONSUMERS + 1 : CONSUMERS;
    tile_queue_init(queue, CLUSTER ? 2 * readers : readers);
}

/* The scheduler thread of TN. Tiles of experts with many rows are compute-bound, of experts with few rows
 * write-bound: half the blocks (CLUSTER: clusters) take from the front of the order, half from the back, so
 * that both kinds run at the same time and the last tiles are short. A negative number ends the queue. */
template <bool CLUSTER = false> __device__ inline void draw_tiles(const GroupedJob &g, uint32_t queue)
{
    int drawers = gridDim.x / (CLUSTER ? 2 : 1), own = blockIdx.x / (CLUSTER ? 2 : 1);
    int back = own % 2, begun = (drawers + 1 - back) / 2, all = g.E * g.each;
    int i = own / 2, turn = 0;                                  /* from its end */
    for (;; turn++) {
        int at = back ? all - 1 - i : i;
        tile_write<CLUSTER>(queue, turn, tile_number(g.order[at / g.each], at % g.each));
        if (drawers + atomicAdd(g.drawn, 1) >= all) break;
        i = begun + atomicAdd(g.drawn + 1 + back, 1);           /* fewer than `all` in sum: they never meet */
    }
    tile_write<CLUSTER>(queue, turn + 1, -1);
}

/* The scheduler thread of NT and NN with clusters: as TileDrawer, of pairs of tiles. */
template <int MODE, int WIDE>
__device__ inline void draw_pairs(const GroupedJob &g, const int *off, uint32_t base)
{
    ExpertTileWalk<MODE, WIDE, true> walk(off, g);
    int all = 0, drawers = gridDim.x / 2, turn = 0, i;
    for (int e = 0; e < g.E; e++) all += walk.tall_rows(e) * walk.across;
    do tile_write<true>(base + QUEUE, turn++, i = atomicAdd(g.drawn, 1)); while (i < all);
    if (i == all + drawers - 1) *g.drawn = 0;
}

/* Zeroes the rows from `valid` on of a TN stage, in what a warpgroup multiplies: 64 columns of a, B of b.
 * Rows are whole lines of 128 bytes, so the swizzle does not matter; both warpgroups write the same zeros to
 * b. */
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

/* Tensor maps of the operands. Columns of low and w beyond the LoRA rank are outside the maps and read as
 * zeros. */
typedef struct Maps { CUtensorMap a, b, low, w; } Maps;

/* Loads a box, of a CLUSTER into both blocks. */
template <bool CLUSTER, class... AT>
__device__ inline void load_box(uint32_t to, const CUtensorMap *map, uint32_t full, AT... at)
{
    if (CLUSTER) tma_load_both(to, map, full, at...);
    else         tma_load(to, map, full, at...);
}

/* Loads b of a stage: in NT whole or in HALVES, else in boxes of 64 columns. Blocks of a cluster need the
 * same b, and each loads half of it into both. */
template <int MODE, int HALVES, bool CLUSTER>
__device__ inline void load_b(uint32_t at, const CUtensorMap *b, uint32_t full, const ExpertTile &t, int N,
                              int k, int e)
{
    enum { PARTS_B = CLUSTER ? 2 : HALVES, PART = BN / PARTS_B };
    int first = CLUSTER ? cluster_rank() : 0, end = CLUSTER ? first + 1 : (int)PARTS_B;
    for (int p = first; p < end; p++) {
        int n = HALVES == 2 ? p * N + t.n : t.n + p * PART;
        uint32_t to = at + p * PART * 128;
        if (MODE == GEMM_NT) load_box<CLUSTER>(to, b, full, k, n, e);
        for (int x = 0; x < PART && MODE != GEMM_NT; x += 64)
            if (MODE == GEMM_NN) load_box<CLUSTER>(to + x * 128, b, full, n + x, k, e);
            else                 load_box<CLUSTER>(to + x * 128, b, full, n + x, t.first + k);
    }
}

/* The producer warp: loads a and b, then low and w of the LoRA term, in boxes 64 wide along a row in memory
 * (K, or M or N). HALVES: b has N rows twice, and the two halves of a tile are the same columns of c from
 * each. DROP: low and w come first. CODED: b is the ring of code_ring.cuh. */
template <int MODE, int HALVES, bool DROP, bool CLUSTER, bool CODED>
__device__ void produce(const Maps &maps, const GroupedJob &g, const int *off, uint32_t base)
{
    ExpertTileWalk<MODE, BN / HALVES, CLUSTER> walk(off, g);
    ProducerTiles<MODE, CLUSTER> tiles(g, base + QUEUE);
    CodeReader<CODED>            ring(g.ring, off, g.E);
    ExpertTile t;
    int  s = 0, phase = 0;
    auto wait_until_all_are_read = [&]() {
        bar_wait(base + EMPTY + (s ? s - 1 : STAGES - 1) * 8, s ? phase : phase ^ 1);
    };
    while (walk.find(tiles.next(), t)) {
        if (!ring.begin_tile(t.e)) {            /* its slot may wait for the tile before */
            wait_until_all_are_read();
            ring.end_last_tile();
            ring.wait_decoded();
        }
        bool empty = MODE != GEMM_TN && t.m >= t.rows;          /* a second block at the end of an expert */
        for (int step = 0, steps = steps_of<MODE>(t, g); step < steps; step++) {
            tiles.stage(step, steps);
            int      lead = DROP ? g.steps - g.main : 0;
            bool     lora = DROP ? step < lead : MODE != GEMM_TN && step >= g.main;
            uint32_t full = base + FULL + s * 8, at = base + s * STAGE;
            int      k = (lora ? (DROP ? step : step - g.main) : step - lead) * BK;
            int      e = lora ? t.e * g.w_each : ring.matrix(t.e * g.b_each);
            const CUtensorMap *a = lora ? &maps.low : &maps.a, *b = lora ? &maps.w : &maps.b;
            bar_wait(base + EMPTY + s * 8, phase ^ 1);
            if (step == STAGES - 1) ring.end_last_tile();
            if (threadIdx.x % 32 == 0) {
                bar_expect(full, empty ? STAGE - A_BYTES : STAGE);
                if (MODE == GEMM_TN)
                    for (int x = 0; x < BM; x += 64) tma_load(at + x * 128, a, full, t.m + x, t.first + k);
                else if (!empty)
                    tma_load(at, a, full, k, t.first + t.m);
                load_b<MODE, HALVES, CLUSTER>(at + A_BYTES, b, full, t, g.N, k, e);
            }
            __syncwarp();
            if (++s == STAGES) s = 0, phase ^= 1;
        }
    }
    if (CODED) wait_until_all_are_read();
    ring.close();
    tiles.close(walk.tiles());
}

/* Releases a stage that all lanes of a consumer warp have read: to the producer, and to that of the other
 * block of a cluster, which fills it too. */
template <bool CLUSTER> struct Releaser {
    uint32_t own, other;                        /* barriers */

    __device__ Releaser(uint32_t empty)
        : own(empty), other(CLUSTER ? smem_of(empty, cluster_rank() ^ 1) : 0) { }

    __device__ void operator()(int s) const
    {
        int lane = threadIdx.x % 32;
        if (lane == 0)                 bar_arrive(own + s * 8);
        else if (CLUSTER && lane == 1) cluster_arrive(other + s * 8);
    }
};

/* Whether a warpgroup has rows of c in a tile: below 65 rows at the end of an expert the second has none. */
template <int MODE> __device__ inline bool has_rows(const ExpertTile &t, int group)
{
    return MODE == GEMM_TN || uniform(t.rows - t.m > group * 64);
}

/* The products of one stage of a warpgroup into d. A stage of the LoRA term is a whole one, zero beyond its
 * rank: skipping the zeros was measured and saved nothing. */
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

/* Applies dropout to a warp's sums of rows row .. + 15 and columns col .. + BN - 1 in wgmma's register
 * layout: one random block holds the 8 numbers of 8 sums of a thread. The first column is a multiple of
 * DROPOUT_COLS. */
__device__ inline void dropout_sums(float (&d)[BN / 2], const DropoutArgs &h, int row, int col)
{
    uint32_t at = h.row + row + threadIdx.x % 32 / 4, k = (h.col + col) / DROPOUT_COLS, q = threadIdx.x % 4;
    #pragma unroll
    for (int i = 0; i < BN / 16; i++) {
        Rng4 n = dropout_block(h.seed, h.stream, at + i % 2 * 8, k + i / 2, q);
        #pragma unroll
        for (int w = 0; w < 4; w++) {
            dropout_two(d + i / 2 * 16 + w * 4 + i % 2 * 2, n.v[w], h);
        }
    }
}

/* 16 rows of c that a warp has computed: their coordinates in c as a stack of matrices, and the expert's rows
 * from there on. */
typedef struct Strip { int x, y, z, rows; } Strip;

/* Stores 16 registers of a strip, in wgmma's layout, into the 16 swizzled rows of 128 bytes of a piece. */
__device__ inline void store_piece(bf16, uint32_t at, const uint32_t *v)
{
    int lane = threadIdx.x % 32, r = lane % 16;
    #pragma unroll
    for (int q = 0; q < 4; q++)
        stmatrix4(at + r * 128 + (((2 * q + lane / 16) ^ (r & 7)) << 4), v[4 * q], v[4 * q + 1], v[4 * q + 2],
                  v[4 * q + 3]);
}
__device__ inline void store_piece(float, uint32_t at, const uint32_t *v)
{
    int lane = threadIdx.x % 32, r = lane / 4;
    #pragma unroll
    for (int i = 0; i < 8; i++)
        smem_store(at + (r + i % 2 * 8) * 128 + (((i / 2 * 2 + lane % 4 / 2) ^ r) << 4) + lane % 2 * 8,
                   v[2 * i], v[2 * i + 1]);
}

/* Stores a piece to columns col .. of the strip's rows, by TMA or, at the ragged end of an expert, row by
 * row. */
template <class T>
__device__ inline void send(uint32_t at, const CUtensorMap *map, T *to, int64_t row_size, const Strip &o,
                            int col, int N)
{
    int lane = threadIdx.x % 32;
    if (o.rows >= 16) {
        async_fence();
        __syncwarp();
        if (!lane) tma_store(map, at, o.x + col, o.y, 0);
    } else {
        int x = o.x + col + lane % 8 * (16 / (int)sizeof(T));
        __syncwarp();
        #pragma unroll 1
        for (int i = 0; i < 4; i++) {
            int   row = i * 4 + lane / 8;
            uint4 v   = smem_load(at + row * 128 + (((lane % 8) ^ (row & 7)) << 4));
            if (row < o.rows && x < N) *(uint4 *)(to + (o.y + row) * row_size + x) = v;
        }
    }
    if (!lane) tma_commit();                    /* also when empty: groups alternate between the two pieces */
}

/* The sum of squares of the strip that a warp has computed, as it is stored; what lies outside c is zero. */
template <class C>
__device__ inline void put_squares(const GroupedJob &g, const ExpertTile &t, int warp,
                                   const float (&d)[BN / 2])
{
    static_assert(BM == 8 * SQUARES_ROWS && BN == SQUARES_COLS, "a warp's strip");
    int   down = (g.M + BM - 1) / BM * 8, across = (g.N + BN - 1) / BN;
    float sum[4] = { };
    #pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        float x = to_f32(from_f32<C>(d[i]));
        sum[i % 4] = fmaf(x, x, sum[i % 4]);
    }
    float all = warp_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    int64_t at = ((int64_t)t.e * down + t.m / SQUARES_ROWS + warp) * across + t.n / BN;
    if (threadIdx.x % 32 == 0) g.squares[at] = all;
}

/* The roles of a block's warps; `consume` is called by the consumer warps. */
template <int MODE, int HALVES, bool DROP, bool CLUSTER, bool CODED, class CONSUME>
__device__ inline void run_block(const Maps &maps, const GroupedJob &g, CONSUME consume)
{
    extern __shared__ __align__(1024) char smem[];
    uint32_t base = smem_at(smem);
    int     *off  = (int *)(smem + OFFSETS);
    for (int i = threadIdx.x; i <= g.E; i += THREADS) off[i] = g.first.at<DROP>(i);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            bar_init(base + FULL + i * 8, 1);
            bar_init(base + EMPTY + i * 8, CLUSTER ? 2 * CONSUMERS : CONSUMERS);
        }
        for (int i = 0; i < CONSUMERS; i++) bar_init(base + OWN + i * 8, 1);
        queue_init<MODE, CLUSTER>(base + QUEUE);
        bar_init_done();
    }
    if (CLUSTER) cluster_sync();
    else         __syncthreads();
    if (threadIdx.x < CONSUMERS * 32) {
        regs_more<CODED ? CODED_MORE : MORE>();
        consume(off, base);
    } else {
        regs_less<CODED ? CODED_LESS : LESS>();
        bool schedules = threadIdx.x == (CONSUMERS + 1) * 32 && !(CLUSTER && cluster_rank());
        if (threadIdx.x / 32 == CONSUMERS)
            produce<MODE, HALVES, DROP, CLUSTER, CODED>(maps, g, off, base);
        else if (CODED)
            decode_ahead<BM>(g.ring, off, g.E);
        else if (MODE == GEMM_TN && schedules)
            draw_tiles<CLUSTER>(g, base + QUEUE);
        else if (CLUSTER && schedules)
            draw_pairs<MODE, BN / HALVES>(g, off, base);
    }
    if (CLUSTER) cluster_sync();                /* the other block may still arrive at this one's barriers */
}

/* --- clusters, on the host --- */

/* Whether experts have rows enough on average for clusters. With 2,048 rows an expert a training step takes
 * less time with clusters; with 512 they took up to 5 % more. */
static inline bool long_enough_for_clusters(int64_t rows, int64_t E) { return rows >= 1024 * E; }

/* Clusters for at most `pairs` pairs of tiles, in blocks. */
static inline int64_t cluster_blocks(Backend *be, int64_t pairs)
{
    int64_t clusters = cuda_compute_sms(be) / 2;
    return 2 * min_i64(clusters > 1 ? clusters : 1, pairs);
}

/* The most tiles of NT and NN, or pairs of them, that the rows can have. */
static inline int64_t most_tiles(int64_t rows, int64_t E, int64_t across, bool cluster)
{
    return (ceil_div(rows, cluster ? 2 * BM : BM) + E) * across;
}

/* --- tensor maps --- */

/* A tensor map of boxes of `cols` by `rows` elements of a matrix or a stack of matrices; elements outside
 * read as zero. */
static inline CUtensorMap map_boxes(Backend *be, Tensor t, int cols, int rows, CUtensorMapSwizzle swizzle)
{
    static const EncodeTiled encode = find_encode();
    CUtensorMap map;
    cuuint64_t  n[3], s[2], size = dtype_size((DType)t.dtype);
    cuuint32_t  box[3] = { (cuuint32_t)cols, (cuuint32_t)rows, 1 }, one[3] = { 1, 1, 1 };
    CUtensorMapDataType type = t.dtype == F32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                             : t.dtype == BF16   ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                 : CU_TENSOR_MAP_DATA_TYPE_UINT8;
    for (int i = 0; i < t.rank; i++) n[i] = (cuuint64_t)t.n[t.rank - 1 - i];
    for (int i = 0; i + 1 < t.rank; i++) s[i] = (cuuint64_t)t.s[t.rank - 2 - i] * size;
    CUresult r = !encode ? CUDA_ERROR_NOT_FOUND
        : encode(&map, type, t.rank, t.data, n, s, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS) cuda_stick(be, cudaErrorInvalidValue, "grouped_gemm: tensor map");
    return map;
}
/* Boxes of 128 bytes by `rows` rows, as wgmma reads them. */
static inline CUtensorMap map_of(Backend *be, Tensor t, int rows)
{
    return map_boxes(be, t, 128 / (int)dtype_size((DType)t.dtype), rows, CU_TENSOR_MAP_SWIZZLE_128B);
}

/* The job without c. */
static inline GroupedJob job_of(Tensor offsets, int64_t E, int64_t every, int64_t N, Tensor a, Tensor b,
                                LoraTerm lora)
{
    GroupedJob     g = { };
    int64_t r = t_has(lora.low_rank) ? lora.low_rank.n[1] : 0;
    int64_t main = ceil_div(a.n[1], BK), more = ceil_div(r, BK);
    g.first  = { (const int *)offsets.data, (int)every, 1 };
    g.E      = (int)E, g.N = (int)N, g.main = (int)main, g.steps = (int)(main + more);
    g.b_each = b.n[0] != 1, g.w_each = lora.w.n[0] != 1;
    return g;
}
static inline Maps maps_of(Backend *be, Tensor a, Tensor b, LoraTerm lora, int a_rows, int b_rows)
{
    Maps m = { };
    if (a.n[1]) m.a = map_of(be, a, a_rows), m.b = map_of(be, b, b_rows);
    if (t_has(lora.low_rank)) m.low = map_of(be, lora.low_rank, a_rows), m.w = map_of(be, lora.w, b_rows);
    return m;
}

#endif
