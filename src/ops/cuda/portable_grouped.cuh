/* ops/cuda/portable_grouped.cuh -- tiles of the experts' grouped products for every GPU since compute
 * capability 8.0: cp.async into a ring of stages, ldmatrix, mma.sync.
 *
 * A block computes 128 x BN elements of c, a warp 64 x 64 of them (of a narrow tile 64 x 32). A stage is 64
 * along K of both operands, whole lines of 128 bytes (with 32 the loads were the bottleneck). Stages beyond
 * the next are in flight while a stage is multiplied, and the words of the next 16 along K are read while the
 * current ones are multiplied. A thread copies the same lines and the same chunk of every stage. Rows outside
 * an expert or a matrix are read from the last row inside: what they give is not stored.
 *
 * Blocks are persistent and draw tiles from a counter in device memory (tile_queue.cuh says why): NT and NN
 * expert by expert, columns fastest; TN by falling number of rows.
 *
 * What multiplies is described by Product:
 *   MODE, BN    GEMM_NT, GEMM_NN, GEMM_TN; columns of a tile
 *   End         the epilogue: End::Args travels with the launch, End::put(args, job, tile, sums, shared
 *               memory) stores a tile
 *   DROP_A      dropout of a's elements (NT, TN)
 *   DROP_LORA   dropout of the sums of the LoRA term, which comes first
 *   LoadB       how b comes into shared memory (BfB): the place to decode a compressed b */
#ifndef OPS_CUDA_PORTABLE_GROUPED_CUH
#define OPS_CUDA_PORTABLE_GROUPED_CUH

#include "ops/cuda/grouped_call.cuh"
#include "ops/cuda/ptx.cuh"

enum { TILE_M = 128, TILE_K = 64, STAGES_MOST = 4 };

/* A term of the product: a (rows, K) or in TN (rows, M); b a stack of matrices, in TN (rows, N). */
typedef struct Term {
    const bf16 *a, *b;
    int64_t     a_row, b_row, b_expert;     /* b_expert 0: all experts share b */
    int         K, steps;                   /* TN: of an expert, its rows */
} Term;

typedef struct TileJob {
    Firsts      first;
    Term        main, lora;
    int         E, M, N;                    /* M: rows of c per expert in TN */
    int         stages;
    int        *drawn;                      /* counter of tiles */
    const int  *order;                      /* TN: experts, those with the most rows first */
    DropoutArgs dropout;
} TileJob;

/* A tile: rows m .. and columns n .. of expert e, whose `rows` rows start at `first`. */
typedef struct Tile { int e, first, rows, m, n; } Tile;

/* The part of a matrix that a tile reads: `rows` by `cols` elements from p on, rows `row` apart. */
typedef struct Operand { const bf16 *p; int64_t row; int rows, cols; } Operand;

/* --- tiles of an operand in shared memory --- */

/* SIZE along M or N by TILE_K. ALONG_K: SIZE lines of 128 bytes, else TILE_K lines of 2 SIZE bytes; the
 * 16-byte chunks of a line are swizzled so that neither the copies nor ldmatrix have bank conflicts. */
template <int SIZE, bool ALONG_K> struct OperandTile {
    enum { BYTES = SIZE * TILE_K * (int)sizeof(bf16), LINE = 2 * (ALONG_K ? TILE_K : SIZE),
           CHUNKS = LINE / 16 };

    __device__ static uint32_t at(int line, int chunk)
    {
        return line * LINE + ((chunk ^ line % 8) << 4);
    }
};

/* The chunks of a tile that this thread copies: EACH of them, LINES lines apart. Four neighbouring lanes have
 * four neighbouring chunks. */
template <int SIZE, bool ALONG_K, int THREADS> struct OwnChunks {
    typedef OperandTile<SIZE, ALONG_K> T;
    enum { EACH = T::BYTES / 16 / THREADS, LINES = THREADS / T::CHUNKS };

    __device__ static int line(int i) { return threadIdx.x / T::CHUNKS + i * LINES; }
    __device__ static int chunk()     { return threadIdx.x % T::CHUNKS; }
    __device__ static uint32_t at(int i) { return T::at(line(0), chunk()) + i * LINES * T::LINE; }
};

__device__ inline int chunk_bytes(int elements) { return min(16, max(0, 2 * elements)); }

/* Copies of an operand into its tiles. Beyond K all is zero, and where lines are along M or N beyond its
 * columns. */
template <int SIZE, bool ALONG_K, int THREADS> struct Copier {
    typedef OwnChunks<SIZE, ALONG_K, THREADS> Own;
    const bf16 *p;
    int64_t     row;
    int         rows, bytes;

    __device__ void begin(const Operand &x)
    {
        int col = Own::chunk() * 8;
        row = x.row, rows = x.rows;
        bytes = ALONG_K ? 16 : chunk_bytes(x.cols - col);
        p = x.p + (bytes ? col : 0) + (ALONG_K ? 0 : Own::line(0) * x.row);
    }
    /* The step that begins with k of K; source(line): the row that a line along K is. */
    template <class F> __device__ void copy(uint32_t tile, int k, int K, F source) const
    {
        const bf16 *from = ALONG_K ? p + k : p + k * row;
        int         some = ALONG_K ? chunk_bytes(K - k - Own::chunk() * 8) : bytes;
        #pragma unroll
        for (int i = 0; i < Own::EACH; i++) {
            if (ALONG_K) copy_async16(tile + Own::at(i), from + source(Own::line(i)) * row, some);
            else         copy_async16(tile + Own::at(i), from + i * Own::LINES * row,
                                      k + Own::line(i) < K ? some : 0);
        }
    }
    __device__ void copy(uint32_t tile, int k, int K) const
    {
        copy(tile, k, K, [&](int line) { return min(line, rows - 1); });
    }
};

/* Where a lane's ldmatrix reads the first 16 of SIZE from `from` on; b: blocks in b's order. Those of 16 j
 * further, and of the k-th 16 along K, are found from it. */
template <int SIZE, bool ALONG_K> struct Words {
    typedef OperandTile<SIZE, ALONG_K> T;
    uint32_t base;

    __device__ Words(int from, bool b)
    {
        int lane = threadIdx.x % 32, block = lane / 8, r = lane % 8;
        int across = b ? block / 2 : block % 2, down = b ? block % 2 : block / 2;   /* M or N; K */
        base = ALONG_K ? T::at(from + across * 8 + r, down) : T::at(down * 8 + r, from / 8 + across);
    }
    __device__ void load(uint32_t (&v)[4], uint32_t tile, int j, int k) const
    {
        if (ALONG_K) ldmatrix4(tile + (base ^ k * 32) + j * 16 * T::LINE, v);
        else         ldmatrix4_transposed(tile + (base ^ j * 32) + k * 16 * T::LINE, v);
    }
};

/* Zeroes the elements of a that dropout drops, in the chunks that this thread has copied. (row, col): of the
 * tile's first element in the mask. Four neighbouring lanes have the 32 columns of four random blocks, so
 * each computes one of them, and they exchange words; where the columns do not begin with a multiple of 32 a
 * lane computes all four. */
template <int SIZE, bool ALONG_K, int THREADS> struct DropChunks {
    typedef OwnChunks<SIZE, ALONG_K, THREADS> Own;

    __device__ static void four(uint32_t (&n)[4], const DropoutArgs &h, uint32_t row, uint32_t col)
    {
        uint32_t lane = threadIdx.x % 4, word = col % DROPOUT_COLS / 8;
        if (h.col % DROPOUT_COLS == 0) {
            Rng4 own = dropout_block(h.seed, h.stream, row, col / DROPOUT_COLS, lane);
            #pragma unroll
            for (int i = 0; i < 4; i++) {       /* to lane ^ i its word, from there this lane's word */
                uint32_t to = lane ^ i;
                uint32_t v = to & 2 ? (to & 1 ? own.v[3] : own.v[2]) : (to & 1 ? own.v[1] : own.v[0]);
                v = __shfl_xor_sync(~0u, v, i);
                if (to == 0) n[0] = v;
                if (to == 1) n[1] = v;
                if (to == 2) n[2] = v;
                if (to == 3) n[3] = v;
            }
        } else {
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                Rng4 one = dropout_block(h.seed, h.stream, row, col / DROPOUT_COLS, i);
                n[i] = word & 2 ? (word & 1 ? one.v[3] : one.v[2]) : (word & 1 ? one.v[1] : one.v[0]);
            }
        }
    }
    __device__ static void apply(uint32_t tile, const DropoutArgs &h, int row, int col)
    {
        #pragma unroll 1
        for (int i = 0; i < Own::EACH; i++) {
            uint32_t at = tile + Own::at(i), n[4];
            four(n, h, h.row + row + Own::line(i), h.col + col + Own::chunk() * 8);
            uint4 x = smem_load(at);
            x.x = dropout_pair(x.x, n[0], h.least), x.y = dropout_pair(x.y, n[1], h.least);
            x.z = dropout_pair(x.z, n[2], h.least), x.w = dropout_pair(x.w, n[3], h.least);
            smem_store(at, x);
        }
    }
};

/* --- tiles of c --- */

/* Finds tiles by ascending numbers. */
template <int MODE, int WIDE> struct TileWalk {
    int across, each, e, begin, count;

    __device__ TileWalk(const TileJob &g)
        : across((g.N + WIDE - 1) / WIDE), each((g.M + TILE_M - 1) / TILE_M * across), e(-1), begin(0),
          count(0) { }

    __device__ bool find(const TileJob &g, int i, Tile &t)
    {
        if (MODE == GEMM_TN) {
            begin = g.E * each;
            if (i < begin) place(g, g.order[i / each], i % each, t);
            return i < begin;
        } else {
            while (i >= begin + count) {
                if (++e >= g.E) return false;
                begin += count;
                count = (g.first.at<true>(e + 1) - g.first.at<true>(e) + TILE_M - 1) / TILE_M * across;
            }
            place(g, e, i - begin, t);
            return true;
        }
    }
    __device__ void place(const TileJob &g, int expert, int i, Tile &t) const
    {
        t.e = expert, t.first = g.first.at<true>(expert), t.rows = g.first.at<true>(expert + 1) - t.first;
        t.m = i / across * TILE_M, t.n = i % across * WIDE;
    }
    __device__ int tiles() const { return begin + count; }     /* once find was false */
};

/* A warp's part of a tile: the sums of 16 rows by 8 columns in the layout of mma_bf16. */
template <int BN> struct Sums {
    enum { COLS = BN < 128 ? BN / 2 : 64, WARPS = BN / COLS,   /* of a warp; across the tile */
           DOWN = 4, ACROSS = COLS / 8 };
    float d[DOWN][ACROSS][4];

    __device__ void clear()
    {
        #pragma unroll
        for (int i = 0; i < DOWN * ACROSS * 4; i++) (&d[0][0][0])[i] = 0.0f;
    }
    /* First row and column of this warp in the tile. */
    __device__ static int row() { return threadIdx.x / 32 / WARPS * 64; }
    __device__ static int col() { return threadIdx.x / 32 % WARPS * COLS; }
};

/* Dropout of the sums: the four words of a random block are the numbers of a lane's columns of 32. */
template <int BN> __device__ inline void drop_sums(Sums<BN> &s, const DropoutArgs &h, int row, int col)
{
    uint32_t at = h.row + row + s.row() + threadIdx.x % 32 / 4, k = (h.col + col + s.col()) / DROPOUT_COLS;
    #pragma unroll
    for (int i = 0; i < s.DOWN * 2; i++)
        #pragma unroll
        for (int x = 0; x < s.ACROSS / 4; x++) {
            Rng4 n = dropout_block(h.seed, h.stream, at + i * 8, k + x, threadIdx.x % 4);
            #pragma unroll
            for (int w = 0; w < 4; w++) dropout_two(&s.d[i / 2][x * 4 + w][i % 2 * 2], n.v[w], h);
        }
}

/* --- loaders of b --- */

/* The part of b that a tile reads. */
template <int MODE> __device__ inline Operand operand_b(const Term &x, const TileJob &g, const Tile &t)
{
    const bf16 *b = x.b + t.e * x.b_expert;
    if (MODE == GEMM_TN) return Operand{ x.b + t.first * x.b_row + t.n, x.b_row, t.rows, g.N - t.n };
    if (MODE == GEMM_NT) return Operand{ b + t.n * x.b_row, x.b_row, g.N - t.n, x.K };
    return Operand{ b + t.n, x.b_row, x.K, g.N - t.n };
}

/* b in bf16. A loader has these members.
 *
 * WIDE    columns of c of a tile.
 * RAW     bytes that a stage has for codes; 0: the copies go into the tile itself, and each stage has one.
 *         With codes there are two tiles, which alternate from step to step.
 * begin   for a tile, and again where its steps go over to the other term, the LoRA one or the main one.
 * fetch   issues the copies of the step that begins with k of K, to `tile` or, where RAW, to `raw`.
 * ready   runs when the copies of this thread have arrived, before the barrier behind which all threads read
 *         the tile: it may read what this thread itself has copied. */
template <int MODE, int BN> struct BfB {
    enum { WIDE = BN, RAW = 0, THREADS = BN < 128 ? 128 : BN };
    Copier<BN, MODE == GEMM_NT, THREADS> c;

    __device__ void begin(const TileJob &g, const Tile &t, bool lora)
    {
        c.begin(operand_b<MODE>(lora ? g.lora : g.main, g, t));
    }
    __device__ void fetch(uint32_t tile, uint32_t, int k, int K) const { c.copy(tile, k, K); }
    __device__ void ready(uint32_t, uint32_t, const TileJob &, const Tile &, bool, int) const { }
};

/* b of SwiGLU's forward product, gates above ups: each warp's columns are half gates, half ups, of the same
 * columns of h. */
template <int BN> struct PairedB {
    enum { WIDE = BN / 2, RAW = 0, THREADS = BN, SHARE = 32 };
    Copier<BN, true, THREADS> c;
    int                       ups;              /* rows from a gate to its up */

    __device__ void begin(const TileJob &g, const Tile &t, bool lora)
    {
        c.begin(operand_b<GEMM_NT>(lora ? g.lora : g.main, g, t));
        ups = g.N;
    }
    __device__ void fetch(uint32_t tile, uint32_t, int k, int K) const
    {
        c.copy(tile, k, K, [&](int line) {
            return min(line / (2 * SHARE) * SHARE + line % SHARE, c.rows - 1) + (line / SHARE % 2 ? ups : 0);
        });
    }
    __device__ void ready(uint32_t, uint32_t, const TileJob &, const Tile &, bool, int) const { }
};

/* --- the products of a tile --- */

template <int MODE_, int BN_, class End_, bool DROP_A_ = false, bool DROP_LORA_ = false,
          class LoadB_ = BfB<MODE_, BN_>>
struct Product {
    enum { MODE = MODE_, BN = BN_, WIDE = LoadB_::WIDE, THREADS = BN < 128 ? 128 : BN,
           BLOCKS = BN == 64 ? 3 : BN == 128 ? 2 : 1 };         /* a SM */
    static constexpr bool DROP_A = DROP_A_, DROP_LORA = DROP_LORA_;
    typedef End_   End;
    typedef LoadB_ LoadB;
};

template <class P> struct TileProduct {
    typedef typename P::LoadB LoadB;
    enum { MODE = P::MODE, BN = P::BN, RAW = LoadB::RAW, ACROSS = Sums<BN>::ACROSS };
    static constexpr bool A_ALONG = MODE != GEMM_TN, B_ALONG = MODE == GEMM_NT;
    typedef OperandTile<TILE_M, A_ALONG> TileA;
    typedef OperandTile<BN, B_ALONG>     TileB;
    static constexpr int STAGE = TileA::BYTES + (RAW ? (int)RAW : (int)TileB::BYTES),
                         SHARED = RAW ? 2 * (int)TileB::BYTES : 0;

    static __host__ __device__ int ring_bytes(int stages) { return stages * STAGE + SHARED; }

    const TileJob     &g;
    const DropoutArgs &h;
    Tile               t;
    uint32_t           base;
    int                steps, lead, K;          /* lead: steps of the first term; K of the current one */
    Copier<TILE_M, A_ALONG, P::THREADS> a;
    LoadB                               b;

    __device__ TileProduct(const TileJob &job, const DropoutArgs &drop, uint32_t smem)
        : g(job), h(drop), base(smem) { }

    /* Issues the first copies of a tile; shared memory must be free. */
    __device__ void start(const Tile &tile)
    {
        t = tile;
        lead = MODE == GEMM_TN ? (t.rows + TILE_K - 1) / TILE_K : P::DROP_LORA ? g.lora.steps : g.main.steps;
        steps = MODE == GEMM_TN ? lead : g.main.steps + g.lora.steps;
        if (steps) begin(P::DROP_LORA);
        for (int i = 0; i < g.stages - 1; i++) issue(i, i);
    }
    /* The LoRA term, or the main one, from here on. */
    __device__ void begin(bool lora)
    {
        const Term &x = lora ? g.lora : g.main;
        K = MODE == GEMM_TN ? t.rows : x.K;
        if (MODE == GEMM_TN) a.begin(Operand{ x.a + t.first * x.a_row + t.m, x.a_row, t.rows, g.M - t.m });
        else a.begin(Operand{ x.a + (int64_t)(t.first + t.m) * x.a_row, x.a_row, t.rows - t.m, x.K });
        b.begin(g, t, lora);
    }
    __device__ bool     is_lora(int step) const { return MODE != GEMM_TN && (step < lead) == P::DROP_LORA; }
    __device__ int      k_of(int step) const    { return (step < lead ? step : step - lead) * TILE_K; }
    __device__ uint32_t stage(int slot) const   { return base + slot * STAGE; }
    __device__ uint32_t tile_b(int step, int slot) const
    {
        return RAW ? base + g.stages * STAGE + step % 2 * TileB::BYTES : stage(slot) + TileA::BYTES;
    }
    /* Issues the copies of a step into a slot of the ring, as one group; an empty one past the last step. */
    __device__ void issue(int step, int slot)
    {
        if (step < steps) {
            if (MODE != GEMM_TN && step == lead) begin(!P::DROP_LORA);
            a.copy(stage(slot), k_of(step), K);
            b.fetch(tile_b(step, slot), stage(slot) + TileA::BYTES, k_of(step), K);
        }
        copy_async_commit();
    }
    /* The copies of a step have arrived, in all threads. */
    __device__ void arrive(int step, int slot) const
    {
        if (g.stages == 4)      copy_async_wait<2>();
        else if (g.stages == 3) copy_async_wait<1>();
        else                    copy_async_wait<0>();
        if (P::DROP_A && step < steps) {
            int k = k_of(step);
            DropChunks<TILE_M, A_ALONG, P::THREADS>::apply(stage(slot), h, t.first + (A_ALONG ? t.m : k),
                                                           A_ALONG ? k : t.m);
        }
        if (RAW && step < steps)
            b.ready(tile_b(step, slot), stage(slot) + TileA::BYTES, g, t, is_lora(step), k_of(step));
        __syncthreads();
    }

    struct Fragment { uint32_t a[4][4], b[ACROSS / 2][4]; };

    __device__ void load(Fragment &f, const Words<TILE_M, A_ALONG> &wa, const Words<BN, B_ALONG> &wb,
                         int step, int slot, int k) const
    {
        #pragma unroll
        for (int j = 0; j < ACROSS / 2; j++) wb.load(f.b[j], tile_b(step, slot), j, k);
        #pragma unroll
        for (int i = 0; i < 4; i++) wa.load(f.a[i], stage(slot), i, k);
    }
    __device__ static void multiply(Sums<BN> &s, const Fragment &f)
    {
        #pragma unroll
        for (int i = 0; i < 4; i++)
            #pragma unroll
            for (int j = 0; j < ACROSS; j++)
                mma_bf16(s.d[i][j], f.a[i], f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]);
    }
    /* All products of the tile; behind a barrier shared memory is free. */
    __device__ void run(Sums<BN> &s)
    {
        Words<TILE_M, A_ALONG> wa(s.row(), false);
        Words<BN, B_ALONG>     wb(s.col(), true);
        Fragment f[2];
        s.clear();
        if (!steps) return;
        arrive(0, 0);
        load(f[0], wa, wb, 0, 0, 0);
        int slot = 0, last = g.stages - 1;              /* of this step, and of the one before */
        #pragma unroll 1
        for (int step = 0; step < steps; step++) {
            int next = slot + 1 == g.stages ? 0 : slot + 1;
            #pragma unroll
            for (int k = 0; k < TILE_K / 16; k++) {
                bool over = k + 1 == TILE_K / 16;       /* to the next stage */
                if (over) arrive(step + 1, next);
                if (!over)                  load(f[(k + 1) % 2], wa, wb, step, slot, k + 1);
                else if (step + 1 < steps)  load(f[(k + 1) % 2], wa, wb, step + 1, next, 0);
                if (!k) issue(step + g.stages - 1, last);
                multiply(s, f[k % 2]);
            }
            if (P::DROP_LORA && step == lead - 1) drop_sums(s, h, t.first + t.m, t.n);
            last = slot, slot = next;
        }
        copy_async_wait<0>();
    }
};

template <class P> struct TileArgs { TileJob g; typename P::End::Args end; };

/* Blocks that a multiprocessor must have registers for. With three blocks of 64 columns the compiler spills
 * for 12.x, whose shared memory holds two. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
template <class P> constexpr int resident_blocks = P::BLOCKS < 2 ? P::BLOCKS : 2;
#else
template <class P> constexpr int resident_blocks = P::BLOCKS;
#endif

/* Draws the next tile while it multiplies one, and issues its first copies before it stores the sums. */
template <class P>
__global__ void __launch_bounds__(P::THREADS, resident_blocks<P>)
portable_tiles(const __grid_constant__ TileArgs<P> x)
{
    extern __shared__ __align__(128) char smem[];
    __shared__ int    next;
    const DropoutArgs h = dropout_seeded<P::DROP_A || P::DROP_LORA>(x.g.dropout);
    float            *work = (float *)(smem + TileProduct<P>::ring_bytes(x.g.stages));
    TileWalk<P::MODE, P::WIDE> walk(x.g);
    TileProduct<P>             product(x.g, h, smem_at(smem));
    Tile t;
    if (threadIdx.x == 0) next = atomicAdd(x.g.drawn, 1);
    __syncthreads();
    int  number = next;
    bool some = walk.find(x.g, number, t);
    if (some) product.start(t);
    while (some) {
        Sums<P::BN> s;
        Tile        done = t;
        __syncthreads();                        /* all have read `next` */
        if (threadIdx.x == 0) next = atomicAdd(x.g.drawn, 1);
        product.run(s);
        __syncthreads();
        number = next;
        some = walk.find(x.g, number, t);
        if (some) product.start(t);
        P::End::put(x.end, x.g, done, s, work);
    }
    if (threadIdx.x == 0 && number == walk.tiles() + (int)gridDim.x - 1) *x.g.drawn = 0;
}

/* --- epilogues --- */

/* Two words of a lane, columns 2 (lane%4) .. of 8 and of the next 8, become four neighbouring columns: those
 * from lane_col on. */
__device__ inline uint2 four_columns(uint32_t left, uint32_t right)
{
    bool     odd = threadIdx.x & 1;
    uint32_t other = __shfl_xor_sync(~0u, odd ? left : right, 1);
    return odd ? make_uint2(other, right) : make_uint2(left, other);
}
__device__ inline int lane_col() { return (threadIdx.x & 1) * 8 + (threadIdx.x & 2) * 2; }

/* Calls f(row in the tile, i, half) for the rows of a lane: half 0 or 1 of block i. */
template <class F> __device__ inline void each_row(int row, F f)
{
    #pragma unroll
    for (int i = 0; i < 8; i++) f(row + i * 8 + threadIdx.x % 32 / 4, i / 2, i % 2);
}

/* --- host --- */

/* What epilogues get of shared memory: a number for each row and each of four warps across. It also pushes
 * the dynamic memory beyond the 48 KiB that a launch gets unasked, on top of which static memory comes. */
enum { WORK_BYTES = TILE_M * 4 * (int)sizeof(float) };

/* As many stages as let `blocks` blocks share an SM, or fewer blocks: of `bytes` each, and `shared` once. */
static inline int tile_stages(Backend *be, size_t bytes, size_t shared, int blocks)
{
    size_t more = shared + WORK_BYTES + 1024 + 128;             /* the last two: CUDA's own, static memory */
    for (; blocks > 0; blocks--)
        for (int stages = STAGES_MOST; stages > 1; stages--)
            if (blocks * (stages * bytes + more) <= cuda_of(be)->smem_sm) return stages;
    return 2;
}

static inline TileJob tile_job(Backend *be, Tensor offsets, int64_t E, int64_t every, int64_t M, int64_t N)
{
    TileJob g = { };
    g.first = { (const int *)offsets.data, (int)every, 1 };
    g.E = (int)E, g.M = (int)M, g.N = (int)N, g.drawn = cuda_of(be)->tile_counter;
    return g;
}

/* a b' or a b of NT and NN; b a stack. */
static inline Term term_of(Tensor a, Tensor b)
{
    Term x = { (const bf16 *)a.data, (const bf16 *)b.data, a.s[0], b.s[1], b.n[0] == 1 ? 0 : b.s[0],
               (int)a.n[1], (int)ceil_div(a.n[1], TILE_K) };
    return x;
}
static inline Term gradient_term(Tensor a, Tensor b)           /* TN */
{
    Term x = { (const bf16 *)a.data, (const bf16 *)b.data, a.s[0], b.s[0], 0, 0, 0 };
    return x;
}
static inline Term lora_of(LoraTerm lora)
{
    Term none = { };
    return t_has(lora.low_rank) ? term_of(lora.low_rank, lora.w) : none;
}

/* The most tiles that the rows can have. */
static inline int64_t most_tiles(const TileJob &g, int mode, int64_t rows, int wide)
{
    int64_t down = mode == GEMM_TN ? g.E * ceil_div(g.M, TILE_M) : ceil_div(rows, TILE_M) + g.E;
    return down * ceil_div(g.N, wide);
}

template <class P>
static void launch_tiles(Backend *be, const char *what, TileJob g, const typename P::End::Args &end,
                         int64_t rows)
{
    typedef TileProduct<P> T;
    int64_t most = most_tiles(g, P::MODE, rows, P::WIDE);
    g.stages = tile_stages(be, T::STAGE, T::SHARED, P::BLOCKS);
    TileArgs<P> x = { g, end };
    LAUNCH(be, what, portable_tiles<P>, min_i64(cuda_compute_sms(be) * P::BLOCKS, most), P::THREADS,
           (size_t)T::ring_bytes(g.stages) + WORK_BYTES, x);
}

#endif
