/* ops/cuda/grouped_hopper.cu -- grouped_gemm.c on Hopper GPUs (wgmma, TMA, clusters).
 *
 * One persistent block per multiprocessor draws tiles of 128 x 256, expert by expert, columns fastest, so
 * that concurrent tiles share an expert's weights in the L2 cache. Three warpgroups: one warp of the last is
 * the producer and loads operands by TMA into a ring of stages of 64 along K; the other two are consumers:
 * they multiply (wgmma, 64 rows of the tile each) and store c. Segments are ragged:
 *   NT, NN  the last tile of an expert reads rows of the next one, whose products are not stored
 *   TN      the last stage of an expert holds rows of the next one, which are zeroed before the product
 *
 * With long experts, blocks form clusters of two, whose tiles are one below the other and need the same b:
 * each block loads half of it, and TMA multicast writes it to both. The L2 cache then sends 32 of the 48 KiB
 * that a block receives per stage. The products run at the power limit, so what this saves raises the clock.
 * A stage is free when the consumers of both blocks have released it, and a thread of the first block draws
 * the tiles.
 *
 * A LoRA term is one more stage, or a few, from two other matrices; with dropout it comes first, and dropout
 * is applied to its sums before the other stages. Where c is narrow, narrow_hopper.cu has narrower tiles.
 * CODED: b is in codes, see code_ring.cuh. */
#include "ops/cuda/grouped.cuh"

namespace {

template <class C> __device__ inline C *place(const GroupedJob &g, const Strip &o, int row, int col)
{
    return (C *)g.c + o.z * g.c_expert + (int64_t)(o.y + row) * g.c_row + o.x + col;
}

/* Whether c is added to in memory: each element once, so the order does not matter. A bf16 product is rounded
 * before it is added. */
template <int MODE, class C, bool ACC> __device__ constexpr bool adds_in_memory()
{
    return ACC && (MODE == GEMM_TN || sizeof(C) == sizeof(float));
}

/* put: stores a piece to c from column `col` on, by TMA or, at the ragged end of an expert, row by row. `at`
 * is the piece to use next. */
template <int MODE, class C, bool ACC>
__device__ inline void put(const GroupedJob &g, const Strip &o, const uint32_t *v, int col, uint32_t &at,
                           const CUtensorMap *map)
{
    enum { ADD = adds_in_memory<MODE, C, ACC>(), W = 16 / sizeof(C) };
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
        if (ACC && !adds_in_memory<MODE, bf16, ACC>() && row < o.rows && o.x + col < g.N) {
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
        if (MODE == GEMM_TN && !ACC && g.squares) put_squares<C>(g, t, warp, d);
        keep<MODE, ACC>(C(), kept, d, g, out, at, mc);
    }
    #pragma unroll
    for (int p = 0; p < PARTS; p++) put_part(p);
    if (!lane) tma_read_done<0>();
}

template <int MODE, class C, bool ACC, bool DROP, bool CLUSTER, bool CODED>
__device__ inline void multiply_block(const Maps &maps, const CUtensorMap &mc, const GroupedJob &g,
                                      const DropoutArgs &h)
{
    run_block<MODE, 1, DROP, CLUSTER, CODED>(maps, g, [&](const int *off, uint32_t base) {
        multiply_tiles<MODE, C, ACC, DROP, CLUSTER>(g, off, base, &mc, dropout_seeded<DROP>(h));
    });
}

template <int MODE, class C, bool ACC, bool DROP>
__global__ void __launch_bounds__(THREADS, 1)
tiles(const __grid_constant__ Maps maps, const __grid_constant__ CUtensorMap mc,
      const __grid_constant__ GroupedJob g, const __grid_constant__ DropoutArgs h)
{
    multiply_block<MODE, C, ACC, DROP, false, false>(maps, mc, g, h);
}

template <int MODE, bool DROP>
__global__ void __launch_bounds__(THREADS, 1)
coded_tiles(const __grid_constant__ Maps maps, const __grid_constant__ CUtensorMap mc,
            const __grid_constant__ GroupedJob g, const __grid_constant__ DropoutArgs h)
{
    multiply_block<MODE, bf16, false, DROP, false, true>(maps, mc, g, h);
}

template <int MODE, class C, bool ACC>
__global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(2)
cluster_tiles(const __grid_constant__ Maps maps, const __grid_constant__ CUtensorMap mc,
              const __grid_constant__ GroupedJob g, const __grid_constant__ DropoutArgs h)
{
    multiply_block<MODE, C, ACC, false, true, false>(maps, mc, g, h);
}

/* --- host --- */

/* Whether clusters are taken: experts are long enough, and in TN c has tiles for both blocks. */
bool takes_clusters(const GroupedCall &q)
{
    bool pairs = q.mode != GEMM_TN || ceil_div(q.a.n[1], BM) % 2 == 0;
    return pairs && !q.drops && long_enough_for_clusters(q.a.n[0], q.E);
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
    int         b_rows = MODE != GEMM_NT ? 64 : cluster ? BN / 2 : BN;
    Maps        maps = maps_of(be, q.a, q.b, q.lora, tn ? 64 : BM, b_rows);
    CUtensorMap mc = map_of(be, stack_of(q.c), 16);
    int64_t most = tn ? E * g.each : most_tiles(q.a.n[0], E, ceil_div(N, BN), cluster);
    if (be->sticky) return;                     /* no workspace or no tensor map */
    if (tn) LAUNCH(be, "grouped_gemm", order_experts, 1, EXPERTS_MOST, 0, drawn + 3, drawn, g.first, (int)E);
    if (cluster)
        LAUNCH(be, "grouped_gemm", (cluster_tiles<MODE, C, ACC>), cluster_blocks(be, most), THREADS,
               smem_bytes(E), maps, mc, g, q.dropout);
    else
        LAUNCH(be, "grouped_gemm", (tiles<MODE, C, ACC, DROP>), min_i64(cuda_compute_sms(be), most), THREADS,
               smem_bytes(E), maps, mc, g, q.dropout);
}

template <int MODE, bool DROP> void launch_coded(Backend *be, const GroupedCall &q)
{
    int64_t     N = q.c.n[1], across = ceil_div(N, BN), most = most_tiles(q.a.n[0], q.E, across, false);
    GroupedJob  g = job_of(q.offsets, q.E, q.every, N, q.a, q.b, q.lora);
    Maps        maps = maps_of(be, q.a, q.b, q.lora, BM, MODE == GEMM_NT ? BN : 64);
    CUtensorMap mc = map_of(be, stack_of(q.c), 16);
    g.c = q.c.data, g.c_row = q.c.s[0], g.drawn = cuda_of(be)->tile_counter;
    g.ring = code_ring(be, q.codes, q.b, across);
    if (be->sticky) return;                     /* no tensor map */
    LAUNCH(be, "grouped_coded", (coded_tiles<MODE, DROP>), min_i64(cuda_compute_sms(be), most), THREADS,
           smem_bytes(q.E), maps, mc, g, q.dropout);
}

void choose_coded(Backend *be, const GroupedCall &q)
{
    if (q.mode == GEMM_NT) launch_coded<GEMM_NT, false>(be, q);
    else if (q.drops)      launch_coded<GEMM_NN, true>(be, q);
    else                   launch_coded<GEMM_NN, false>(be, q);
}

template <class C, bool ACC> void choose(Backend *be, const GroupedCall &q)
{
    if (q.drops)                launch<GEMM_NN, C, ACC, true>(be, q);  /* other modes are narrow */
    else if (q.mode == GEMM_NT) launch<GEMM_NT, C, ACC, false>(be, q);
    else if (q.mode == GEMM_NN) launch<GEMM_NN, C, ACC, false>(be, q);
    else                        launch<GEMM_TN, C, ACC, false>(be, q);
}

}

/* Tiles have as many stages as the ring of shared memory at least, and rows are whole lines. */
bool hopper_reads_codes(const WeightCodes &z, Tensor panel, int64_t terms, int64_t columns)
{
    int64_t N = z.q.n[1], K = z.q.n[2], slots = panel.n[0];
    bool    fits = slots >= RING_LEAST || slots == z.q.n[0], lies = packs(panel) && begins(z.q);
    return z.format != CODE_NF4 && fits && lies && terms > (STAGES - 1) * BK && columns > NARROW &&
           K % LINE == 0 && N * K < INT_MAX;
}

void hopper_grouped(Backend *be, const GroupedCall &q)
{
    if (q.codes.format) return choose_coded(be, q);
    BY_DTYPE(q.c.dtype, C,
        if (q.add) choose<C, true>(be, q);
        else       choose<C, false>(be, q));
}
