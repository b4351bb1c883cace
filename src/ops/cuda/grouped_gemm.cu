/* ops/cuda/grouped_gemm.cu -- kernels of grouped_gemm.c: tiles of c over all experts, counted on the device.
 *
 * The fast kernel is for bf16 operands with rows aligned to 16 bytes. One persistent block per multiprocessor
 * draws tiles of 128 x 256, expert by expert, columns fastest, so that concurrent tiles share an expert's
 * weights in the L2 cache. Three warpgroups: one warp of the last is the producer and loads operands by TMA
 * into a ring of stages of 64 along K; the other two are consumers: they multiply (wgmma, 64 rows of the tile
 * each) and store c. Segments are ragged:
 *   NT, NN  the last tile of an expert reads rows of the next one, whose products are not stored
 *   TN      the last stage of an expert holds rows of the next one, which are zeroed before the product
 *
 * In TN with long experts, blocks form clusters of two, whose tiles are one below the other and need the
 * same b: each block loads half of it, and TMA multicast writes it to both. The L2 cache then sends 32 of the
 * 48 KiB that a block receives per stage. The products run at the power limit, so what this saves raises the
 * clock. A stage is free when the consumers of both blocks have released it, and the first block draws the
 * tiles. NT and NN were slower with clusters.
 *
 * A LoRA term is one more stage, or a few, from two other matrices; with dropout it comes first, and dropout
 * is applied to its sums before the other stages. Where c is narrow, grouped_narrow.cu has narrower tiles.
 * All other calls (f32, odd sizes) take the plain kernel: exact f32, one tile a block. All kernels sum along
 * K in one order that the shapes fix, and no two blocks touch the same element. */
#include "ops/cuda/grouped.cuh"

namespace {

GroupedCall call_of(Tensor c, Tensor a, Tensor b, Tensor offsets, LoraTerm lora, float scale, int flags)
{
    int64_t     E = offsets.n[0] - 1;
    bool        sum = (flags & GEMM_MODE) == GEMM_TN && c.n[0] == 1;
    GroupedCall q = { c, a, b, offsets, lora, scale, flags & GEMM_MODE, (flags & GEMM_ACC) != 0, sum ? 1 : E,
                      sum ? E : 1 };
    if (lora.dropout.p > 0) q.drops = true, q.dropout = dropout_args(lora.dropout, 1.0f);
    return q;
}

/* In NN dropout applies to the product: it is computed as a LoRA term without a main product. */
void leave_out(GroupedCall &q, Dropout drop)
{
    bool through = q.mode == GEMM_NN;
    if (!(drop.p > 0)) return;
    q.drops = true, q.dropout = dropout_args(drop, through ? q.scale : 1.0f);
    if (!through) return;
    q.lora.low_rank = q.a, q.lora.w = q.b, q.scale = 1.0f;
    q.a = t_cols(q.a, 0, 0);
}

template <class C> __device__ inline C *place(const GroupedJob &g, const Strip &o, int row, int col)
{
    return (C *)g.c + o.z * g.c_expert + (int64_t)(o.y + row) * g.c_row + o.x + col;
}

/* put: stores a piece to c from column `col` on, by TMA or, at the ragged end of an expert, row by row. f32
 * with ACC is added in memory: each element once, so the order does not matter. `at` is the piece to use
 * next. */
template <int MODE, class C, bool ACC>
__device__ inline void put(const GroupedJob &g, const Strip &o, const uint32_t *v, int col, uint32_t &at,
                           const CUtensorMap *map)
{
    enum { ADD = ACC && sizeof(C) == sizeof(float), W = 16 / sizeof(C) };
    int lane = threadIdx.x % 32;
    if (o.rows <= 0 || o.x + col >= g.N) return;
    if (!lane) tma_read_done<1>();
    __syncwarp();
    store_piece(C(), at, v);
    if (MODE == GEMM_TN || o.rows >= 16) {
        async_fence();
        __syncwarp();
        if (!lane && ADD)  tma_add(map, at, o.x + col, o.y, o.z);
        if (!lane && !ADD) tma_store(map, at, o.x + col, o.y, o.z);
    } else {
        __syncwarp();
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            int   row = i * 4 + lane / 8, to = col + lane % 8 * W;
            uint4 x   = smem_load(at + row * 128 + (((lane % 8) ^ (row & 7)) << 4));
            if (row >= o.rows || o.x + to >= g.N) continue;
            if (ADD) add_to(place<float>(g, o, row, to), x);
            else     *(uint4 *)place<C>(g, o, row, to) = x;
        }
    }
    if (!lane) tma_commit();                    /* also when empty: groups alternate between the two pieces */
    at ^= PIECE;
}

/* keep: moves a finished strip out of the accumulators, so that the next tile can start; columns that do not
 * fit are stored at once. All columns of bf16 fit into half the registers, of f32 the right half. */
template <int MODE, bool ACC>
__device__ inline void keep(bf16, uint32_t (&kept)[BN / 4], float (&d)[BN / 2], const GroupedJob &g,
                            const Strip &o, uint32_t &, const CUtensorMap *)
{
    #pragma unroll
    for (int i = 0; i < BN / 4; i++) {
        int    row = threadIdx.x % 32 / 4 + (i & 1) * 8, col = i / 2 * 8 + threadIdx.x % 4 * 2;
        float2 x   = { d[2 * i], d[2 * i + 1] };
        if (ACC && row < o.rows && o.x + col < g.N) {
            float2 old = __bfloat1622float2(*(__nv_bfloat162 *)place<bf16>(g, o, row, col));
            x.x += old.x, x.y += old.y;
        }
        __nv_bfloat162 two = __floats2bfloat162_rn(x.x, x.y);
        kept[i] = *(uint32_t *)&two;
    }
}
template <int MODE, bool ACC>
__device__ inline void keep(float, uint32_t (&kept)[BN / 4], float (&d)[BN / 2], const GroupedJob &g,
                            const Strip &o, uint32_t &at, const CUtensorMap *map)
{
    #pragma unroll
    for (int p = 0; p < PARTS; p++) {
        uint32_t v[16];
        #pragma unroll
        for (int i = 0; i < 16; i++) v[i] = word_of(d[p * 16 + i]);
        put<MODE, float, ACC>(g, o, v, p * 32, at, map);
    }
    #pragma unroll
    for (int i = 0; i < BN / 4; i++) kept[i] = word_of(d[BN / 4 + i]);
}

/* The column where kept part p starts. */
__device__ inline int part_at(bf16, int p)  { return p * 64; }
__device__ inline int part_at(float, int p) { return BN / 2 + p * 32; }

/* The sum of squares of the strip that a warp has computed; what lies outside c is zero. */
__device__ inline void put_squares(const GroupedJob &g, const ExpertTile &t, int warp,
                                   const float (&d)[BN / 2])
{
    static_assert(BM == 8 * SQUARES_ROWS && BN == SQUARES_COLS, "a warp's strip");
    int   down = (g.M + BM - 1) / BM * 8, across = (g.N + BN - 1) / BN;
    float sum[4] = { };
    #pragma unroll
    for (int i = 0; i < BN / 2; i++) sum[i % 4] = fmaf(d[i], d[i], sum[i % 4]);
    float all = warp_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    int64_t at = ((int64_t)t.e * down + t.m / SQUARES_ROWS + warp) * across + t.n / BN;
    if (threadIdx.x % 32 == 0) g.squares[at] = all;
}

/* One warp of the two consumer warpgroups. The strip of one tile is stored during the first products of the
 * next: otherwise the tensor cores would idle a tenth of the time. DROP: the LoRA term is multiplied first,
 * and dropout applied while the sums hold nothing else. */
template <int MODE, class C, bool ACC, bool DROP, bool CLUSTER>
__device__ void multiply_tiles(const GroupedJob &g, const int *off, uint32_t base, const CUtensorMap *mc,
                               const DropoutArgs &h)
{
    int      warp = uniform(threadIdx.x / 32), group = warp / 4, lane = threadIdx.x % 32, s = 0, phase = 0;
    uint32_t at = base + OUT + warp * 2 * PIECE, kept[BN / 4];
    float    d[BN / 2];
    Strip    out = { };
    ExpertTile t = { };
    ExpertTileWalk<MODE, BN, CLUSTER> walk(off, g);
    TileReaderOf<CLUSTER> tiles(base + QUEUE);
    Releaser<CLUSTER>     release_stage(base + EMPTY);
    bool     active = false;

    auto multiply = [&](int step) {
        uint32_t a = base + s * STAGE + group * CHUNK, b = base + s * STAGE + A_BYTES;
        bar_wait(base + FULL + s * 8, phase);
        if (MODE == GEMM_TN && t.rows - step * BK < BK) zero_tail<BN>(a, b, t.rows - step * BK, 1 + group);
        if (active) multiply_stage<MODE == GEMM_TN, MODE != GEMM_NT>(d, a, b, step);
        if (++s == STAGES) s = 0, phase ^= 1;
    };
    auto release = [&](int back) {              /* 1: the stage multiplied last, 2: the one before */
        release_stage(s - back < 0 ? s - back + STAGES : s - back);
    };
    auto put_part = [&](int p) { put<MODE, C, ACC>(g, out, kept + p * 16, part_at(C(), p), at, mc); };

    while (walk.find(tiles.next(), t)) {
        active = has_rows<MODE>(t, group);
        int lead = DROP ? g.steps - g.main : 0, steps = steps_of<MODE>(t, g) - lead;
        if (MODE == GEMM_TN && !steps) {
            #pragma unroll
            for (int i = 0; i < BN / 2; i++) d[i] = 0;
        }
        if (DROP) {
            for (int step = 0; step < lead; step++) {
                multiply(step);
                wgmma_wait<0>();
                release(1);
            }
            wgmma_pin(d);
            dropout_sums(d, h, t.first + t.m + warp * 16, t.n);
        }
        #pragma unroll
        for (int p = 0; p < PARTS; p++) {
            if (p < steps) multiply(lead + p);
            put_part(p);
            wgmma_wait<1>();
            if (p && p < steps) release(2);
        }
        for (int step = PARTS; step < steps; step++) {
            multiply(lead + step);
            wgmma_wait<1>();
            release(2);
        }
        wgmma_wait<0>();
        wgmma_pin(d);
        if (steps) release(1);
        int m = t.m + warp * 16, rows = (MODE == GEMM_TN ? g.M : t.rows) - m;
        if (ACC && !DROP && !steps) rows = 0;
        out = MODE == GEMM_TN ? Strip{ t.n, m, t.e, rows } : Strip{ t.n, t.first + m, 0, rows };
        if (MODE == GEMM_TN && !ACC && sizeof(C) == sizeof(float) && g.squares) put_squares(g, t, warp, d);
        keep<MODE, ACC>(C(), kept, d, g, out, at, mc);
    }
    #pragma unroll
    for (int p = 0; p < PARTS; p++) put_part(p);
    if (!lane) tma_read_done<0>();
}

template <int MODE, class C, bool ACC, bool DROP, bool CLUSTER>
__device__ inline void run_block(const Maps &maps, const CUtensorMap &mc, const GroupedJob &g,
                                 const DropoutArgs &h)
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
        queue_init<MODE, CLUSTER>(base);
        bar_init_done();
    }
    if (CLUSTER) cluster_sync();
    else         __syncthreads();
    if (threadIdx.x < CONSUMERS * 32) {
        regs_more<MORE>();
        multiply_tiles<MODE, C, ACC, DROP, CLUSTER>(g, off, base, &mc, dropout_seeded<DROP>(h));
    } else {
        regs_less<LESS>();
        int warp = threadIdx.x / 32 - CONSUMERS;
        if (warp == 0) produce<MODE, 1, DROP, CLUSTER>(maps, g, off, base);
        else if (MODE == GEMM_TN && threadIdx.x == (CONSUMERS + 1) * 32 && !(CLUSTER && cluster_rank()))
            draw_tiles<CLUSTER>(g, base);
    }
    if (CLUSTER) cluster_sync();                /* the other block may still arrive at this one's barriers */
}

template <int MODE, class C, bool ACC, bool DROP>
__global__ void __launch_bounds__(THREADS, 1)
tiles(const __grid_constant__ Maps maps, const __grid_constant__ CUtensorMap mc,
      const __grid_constant__ GroupedJob g, const __grid_constant__ DropoutArgs h)
{
    run_block<MODE, C, ACC, DROP, false>(maps, mc, g, h);
}

template <class C, bool ACC>
__global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(2)
cluster_tiles(const __grid_constant__ Maps maps, const __grid_constant__ CUtensorMap mc,
              const __grid_constant__ GroupedJob g, const __grid_constant__ DropoutArgs h)
{
    run_block<GEMM_TN, C, ACC, false, true>(maps, mc, g, h);
}

/* --- the plain kernel --- */

enum { PT = 64, PK = 16 };

/* Strides of two operands along each dimension, for any mode, and the number of terms (TN: the rows). */
typedef struct Strides { int64_t am, ak, be, bk, bn; int K; } Strides;

/* c rows of an expert start at its first (NT, NN), or its K does (TN). */
typedef struct Ways {
    Strides main, lora;
    int64_t ce, cm;
    int     E, every, M, N;
    float   scale;
    bool    tn, add;
} Ways;

/* The block's expert and first row, or -1: the grid is sized for the worst case. */
template <bool DROP> __device__ inline int plain_find(const Firsts &off, const Ways &w, int down, int *m)
{
    for (int e = 0; e < w.E; e++) {
        int here = ((w.tn ? w.M : off.at<DROP>(e + 1) - off.at<DROP>(e)) + PT - 1) / PT;
        if (down < here) { *m = down * PT; return e; }
        down -= here;
    }
    return -1;
}

__device__ inline bool kept(const DropoutArgs &h, int64_t row, int64_t col)
{
    return dropout_keeps(h.seed, h.stream, h.row + (uint32_t)row, h.col + (uint32_t)col, h.least >> 16);
}

/* Dropout of a (NT) or of b (TN), whose first row is `first`. */
typedef struct Less { DropoutArgs h; int64_t first; bool tn; } Less;

/* acc += a b for the 4 x 4 elements of a thread. */
template <bool DROP, class T>
__device__ void add_terms(float (&acc)[4][4], const T *a, const T *b, const Strides &p, int K, int m0, int n0,
                          int M, int N, const Less &less)
{
    __shared__ float as[PK][PT + 1], bs[PK][PT + 1];
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    for (int k0 = 0; k0 < K; k0 += PK) {
        for (int i = threadIdx.x; i < PT * PK; i += 256) {    /* coalesced */
            int k = p.ak == 1 ? i % PK : i / PT, m = p.ak == 1 ? i / PK : i % PT;
            as[k][m] = k0 + k < K && m0 + m < M ? to_f32(a[(m0 + m) * p.am + (k0 + k) * p.ak]) : 0.0f;
            int j = p.bk == 1 ? i % PK : i / PT, n = p.bk == 1 ? i / PK : i % PT;
            bs[j][n] = k0 + j < K && n0 + n < N ? to_f32(b[(k0 + j) * p.bk + (n0 + n) * p.bn]) : 0.0f;
            if (DROP && !less.tn && !kept(less.h, less.first + m0 + m, k0 + k)) as[k][m] = 0.0f;
            if (DROP && less.tn  && !kept(less.h, less.first + k0 + j, n0 + n)) bs[j][n] = 0.0f;
        }
        __syncthreads();
        for (int k = 0; k < PK; k++)
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++)
                    acc[i][j] = fmaf(as[k][ty + 16 * i], bs[k][tx + 16 * j], acc[i][j]);
        __syncthreads();
    }
}

/* Applies dropout to the sums of the LoRA term. */
__device__ inline void dropout_acc(float (&acc)[4][4], const DropoutArgs &h, int64_t row, int64_t col)
{
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            acc[i][j] = kept(h, row + 16 * i, col + 16 * j) ? h.scale * acc[i][j] : 0.0f;
}

template <class T, class C, bool DROP>
__global__ void __launch_bounds__(256)
plain(C *c, const T *a, const T *b, const T *low, const T *lw, const int *offsets,
      const __grid_constant__ Ways w, const __grid_constant__ DropoutArgs h)
{
    Firsts off = { offsets, w.every, 1 };
    int across = (w.N + PT - 1) / PT, n0 = blockIdx.x % across * PT, m0 = 0;
    int e = plain_find<DROP>(off, w, blockIdx.x / across, &m0);
    if (e < 0) return;
    int64_t first = off.at<DROP>(e);
    int     rows = off.at<DROP>(e + 1) - (int)first, M = w.tn ? w.M : rows;
    float   acc[4][4] = { };
    int     ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    Less    less = { dropout_seeded<DROP>(h), first, w.tn };
    a += first * (w.tn ? w.main.ak : w.main.am), b += w.tn ? first * w.main.bk : e * w.main.be;
    low += first * w.lora.am, lw += e * w.lora.be;
    if (DROP && w.lora.K) {                     /* before the main product */
        add_terms<false>(acc, low, lw, w.lora, w.lora.K, m0, n0, M, w.N, less);
        dropout_acc(acc, less.h, first + m0 + ty, n0 + tx);
        add_terms<false>(acc, a, b, w.main, w.main.K, m0, n0, M, w.N, less);
    } else {
        add_terms<DROP>(acc, a, b, w.main, w.tn ? rows : w.main.K, m0, n0, M, w.N, less);
        if (w.lora.K) add_terms<false>(acc, low, lw, w.lora, w.lora.K, m0, n0, M, w.N, less);
    }
    c += w.tn ? e * w.ce : first * w.cm;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            int m = m0 + ty + 16 * i, n = n0 + tx + 16 * j;
            if (m >= M || n >= w.N) continue;
            C *p = c + m * w.cm + n;
            *p = from_f32<C>(w.scale * acc[i][j] + (w.add ? to_f32(*p) : 0.0f));
        }
}

/* Strides of rows of a and of matrices of b; a matrix shared by all experts has stride 0. */
Strides strides_of(Tensor a, Tensor b, int mode)
{
    bool nt = mode == GEMM_NT;
    Strides p = { a.s[0], 1, b.n[0] == 1 ? 0 : b.s[0], nt ? 1 : b.s[1], nt ? b.s[1] : 1, (int)a.n[1] };
    return p;
}

template <class T, class C, bool DROP>
void plain_launch(Backend *be, const GroupedCall &q, const Ways &w, int64_t blocks)
{
    LAUNCH(be, "grouped_gemm", (plain<T, C, DROP>), blocks, 256, 0, (C *)q.c.data, (const T *)q.a.data,
           (const T *)q.b.data, (const T *)q.lora.low_rank.data, (const T *)q.lora.w.data,
           (const int *)q.offsets.data, w, q.dropout);
}

void grouped_plain(Backend *be, const GroupedCall &q)
{
    bool    tn = q.mode == GEMM_TN;
    int64_t N = q.c.n[q.c.rank - 1], M = tn ? q.a.n[1] : 0;
    int64_t down = tn ? q.E * ceil_div(M, PT) : ceil_div(q.a.n[0], PT) + q.E;
    Strides    turned = { 1, q.a.s[0], 0, q.b.s[0], 1, 0 }, none = { };
    Ways    w = { tn ? turned : strides_of(q.a, q.b, q.mode),
                  t_has(q.lora.low_rank) ? strides_of(q.lora.low_rank, q.lora.w, q.mode) : none,
                  q.c.s[0], q.c.s[tn],
                  (int)q.E, (int)q.every, (int)M, (int)N, q.scale, tn, q.add };
    if (!N) return;
    BY_DTYPE(q.a.dtype, T, BY_DTYPE(q.c.dtype, C, {
        if (q.drops) plain_launch<T, C, true>(be, q, w, down * ceil_div(N, PT));
        else         plain_launch<T, C, false>(be, q, w, down * ceil_div(N, PT));
    }));
}

/* --- the host side of the fast kernel --- */

/* Whether TN takes clusters: c has tiles for both blocks, and experts have rows enough on average. With 2,048
 * rows an expert clusters take 2 - 5 % less time, with 512 up to 5 % more. */
bool takes_clusters(const GroupedCall &q)
{
    enum { ROWS = 1024 };
    return q.mode == GEMM_TN && ceil_div(q.a.n[1], BM) % 2 == 0 && q.a.n[0] >= ROWS * q.E;
}

/* Clusters for at most `pairs` pairs of tiles, in blocks. */
int64_t cluster_blocks(Backend *be, int64_t pairs)
{
    int64_t clusters = cuda_compute_sms(be) / 2;
    return 2 * min_i64(clusters > 1 ? clusters : 1, pairs);
}

template <int MODE, class C, bool ACC, bool DROP> void launch(Backend *be, const GroupedCall &q)
{
    bool    tn = MODE == GEMM_TN, cluster = takes_clusters(q);
    int64_t E = q.E, N = q.c.n[q.c.rank - 1], M = tn ? q.a.n[1] : 0;
    int    *drawn = tn ? (int *)cuda_workspace(be, (size_t)(3 + E) * sizeof(int)) : cuda_of(be)->tile_counter;
    GroupedJob     g = job_of(q.offsets, E, q.every, N, q.a, q.b, q.lora);
    g.c = q.c.data, g.c_expert = q.c.s[0], g.c_row = q.c.s[tn], g.M = (int)M;
    g.each = (int)(ceil_div(M, cluster ? 2 * BM : BM) * ceil_div(N, BN));
    g.drawn = drawn, g.order = drawn + 3, g.squares = q.squares;
    Maps        maps = maps_of(be, q.a, q.b, q.lora, tn ? 64 : BM, MODE == GEMM_NT ? BN : 64);
    CUtensorMap mc = map_of(be, stack_of(q.c), 16);
    int64_t most = tn ? E * g.each : (ceil_div(q.a.n[0], BM) + E) * ceil_div(N, BN);
    if (be->sticky) return;                     /* no workspace or no tensor map */
    if (tn) LAUNCH(be, "grouped_gemm", order_experts, 1, EXPERTS_MOST, 0, drawn + 3, drawn, g.first, (int)E);
    if (tn && cluster)
        LAUNCH(be, "grouped_gemm", (cluster_tiles<C, ACC>), cluster_blocks(be, most), THREADS, smem_bytes(E),
               maps, mc, g, q.dropout);
    else
        LAUNCH(be, "grouped_gemm", (tiles<MODE, C, ACC, DROP>), min_i64(cuda_compute_sms(be), most), THREADS,
               smem_bytes(E), maps, mc, g, q.dropout);
}

template <class C, bool ACC> void choose(Backend *be, const GroupedCall &q)
{
    if (q.drops)                launch<GEMM_NN, C, ACC, true>(be, q);  /* other modes are narrow */
    else if (q.mode == GEMM_NT) launch<GEMM_NT, C, ACC, false>(be, q);
    else if (q.mode == GEMM_NN) launch<GEMM_NN, C, ACC, false>(be, q);
    else                        launch<GEMM_TN, C, ACC, false>(be, q);
}

/* Whether the fast kernels can apply the dropout: they draw random numbers for 8 columns of an operand, or 32
 * of sums, at a time. The narrow kernel writes c element by element, so that dense adapters of any rank can
 * use it. */
bool lines_up(const GroupedCall &q)
{
    bool nn = q.mode == GEMM_NN;
    bool lora = !t_has(q.lora.low_rank) || (begins(q.lora.low_rank) && begins(q.lora.w));
    return begins(q.a) && begins(q.b) && lora && (!nn || packs(q.c)) &&
           q.dropout.col % (nn ? DROPOUT_COLS : 8) == 0;
}

bool fast(const GroupedCall &q)
{
    int64_t terms = q.a.n[1] + (q.drops && t_has(q.lora.low_rank) ? q.lora.low_rank.n[1] : 0);
    bool    some = q.a.n[0] > 0 && terms > 0 && q.c.n[q.c.rank - 1] > 0 && q.E <= EXPERTS_MOST;
    bool    lies = q.drops ? lines_up(q) : packs(q.a) && packs(q.b) && packs(q.c) && lora_packs(q.lora);
    return some && q.a.dtype == BF16 && lies;
}

/* Returns whether q.squares are those of c. */
bool product(Backend *be, const GroupedCall &q)
{
    if (q.E < 1) return true;
    if (!fast(q)) return grouped_plain(be, q), false;
    if (grouped_narrow(be, q)) return false;
    BY_DTYPE(q.c.dtype, C,
        if (q.add) choose<C, true>(be, q);
        else       choose<C, false>(be, q));
    return true;
}

/* A block for each strip of c (E, M, N). */
__global__ void strip_squares(float *squares, const float *c, int M, int N)
{
    __shared__ float work[32];
    int     down = (M + BM - 1) / BM * 8, across = (N + BN - 1) / BN, strip = blockIdx.x / across;
    int     row = strip % down * SQUARES_ROWS, col = blockIdx.x % across * BN + threadIdx.x;
    float   sum = 0.0f;
    for (int end = min(row + SQUARES_ROWS, M); row < end && col < N; row++) {
        float x = c[((int64_t)(strip / down) * M + row) * N + col];
        sum = fmaf(x, x, sum);
    }
    sum = block_sum(sum, work);
    if (!threadIdx.x) squares[blockIdx.x] = sum;
}

}

extern "C" void cuda_grouped_gemm(Backend *be, Tensor c, Tensor a, Tensor b, Tensor offsets, LoraTerm lora,
                                  int flags)
{
    product(be, call_of(c, a, b, offsets, lora, 1.0f, flags));
}

extern "C" void cuda_grouped_squares(Backend *be, Tensor c, Tensor squares, Tensor a, Tensor b,
                                     Tensor offsets)
{
    LoraTerm    none = { };
    GroupedCall q = call_of(c, a, b, offsets, none, 1.0f, GEMM_TN);
    q.squares = (float *)squares.data;
    if (!product(be, q))
        LAUNCH(be, "grouped_squares", strip_squares, squares.n[0], SQUARES_COLS, 0, q.squares,
               (const float *)c.data, (int)c.n[1], (int)c.n[2]);
}

extern "C" void cuda_grouped_scaled(Backend *be, Tensor c, Tensor a, Tensor b, Tensor offsets, float scale,
                                    Dropout drop, int flags)
{
    LoraTerm        none = { };
    GroupedCall q = call_of(c, a, b, offsets, none, scale, flags);
    leave_out(q, drop);
    product(be, q);
}

void gemm_dropped(Backend *be, Tensor c, Tensor a, Tensor b, float scale, Dropout drop, int flags)
{
    bool        tn = (flags & GEMM_MODE) == GEMM_TN;
    GroupedCall q = { tn ? stack_of(c) : c, a, tn ? b : stack_of(b), { }, { }, scale, flags & GEMM_MODE,
                      (flags & GEMM_ACC) != 0, 1, a.n[0] };
    leave_out(q, drop);
    product(be, q);
}
