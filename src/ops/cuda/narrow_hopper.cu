/* ops/cuda/narrow_hopper.cu -- kernels of grouped_narrow.cu on Hopper GPUs (wgmma, TMA).
 *
 * These products are bound by reading one wide matrix once, so their tiles are 128 x 64 with twice the stages
 * of grouped_hopper.cu in flight, whose shared-memory layout and tile order they share. A tile's output is
 * small and is written from the registers.
 *
 * Dropout of the wide operand zeroes elements in shared memory, by the warps that are about to multiply them:
 * it takes less time than the load. */
#include "ops/cuda/grouped.cuh"
#include "ops/cuda/hopper_mma.cuh"

namespace {

enum { DEPTH = 8, LOAD = A_BYTES + CHUNK, READY = OUT, FREE = READY + DEPTH * 8,
       NTHREADS = (CONSUMERS + 2) * 32 };
static_assert(DEPTH * LOAD <= OUT && FREE + DEPTH * 8 <= QUEUE, "stages, their barriers, then the queue");

/* Strides of c for element (i, j) of a tile: i along a, j along b. */
typedef struct Put { int64_t i, j; float scale; } Put;

template <int MODE>
__device__ void load(const Maps &maps, const GroupedJob &g, const int *off, uint32_t base)
{
    ExpertTileWalk<MODE, NARROW> walk(off, g);
    ProducerTiles<MODE>          tiles(g, base + QUEUE);
    ExpertTile t;
    int  s = 0, phase = 0;
    while (walk.find(tiles.next(), t)) {
        for (int step = 0, steps = steps_of<MODE>(t, g); step < steps; step++) {
            tiles.stage(step, steps);
            uint32_t full = base + READY + s * 8, at = base + s * LOAD, b = at + A_BYTES;
            int      k = step * BK, e = t.e * g.b_each;
            bar_wait(base + FREE + s * 8, phase ^ 1);
            if (threadIdx.x % 32 == 0) {
                bar_expect(full, LOAD);
                if (MODE == GEMM_TN)
                    for (int x = 0; x < BM; x += 64)
                        tma_load(at + x * 128, &maps.a, full, t.m + x, t.first + k);
                else
                    tma_load(at, &maps.a, full, k, t.first + t.m);
                if (MODE == GEMM_NT)      tma_load(b, &maps.b, full, k, t.n, e);
                else if (MODE == GEMM_NN) tma_load(b, &maps.b, full, t.n, k, e);
                else                      tma_load(b, &maps.b, full, t.n, t.first + k);
            }
            __syncwarp();
            if (++s == DEPTH) s = 0, phase ^= 1;
        }
    }
    tiles.close(walk.tiles());
}

/* Applies dropout to 64 rows and 64 columns in shared memory, by a warpgroup: 32 columns a thread. The first
 * column is a multiple of 8; where it is not one of 32, a thread draws the numbers of 64 columns. */
__device__ inline void dropout_chunk(uint32_t chunk, const DropoutArgs &h, int row, int col, int barrier)
{
    int      r = threadIdx.x % 128 / 2, half = threadIdx.x % 2, shift = h.col % DROPOUT_COLS / 8;
    uint32_t k = (h.col + col) / DROPOUT_COLS + half;
    #pragma unroll 1
    for (int more = 0; more <= (shift > 0); more++) {
        Rng4 n[DROPOUT_BLOCKS];
        #pragma unroll
        for (int q = 0; q < DROPOUT_BLOCKS; q++)
            n[q] = dropout_block(h.seed, h.stream, h.row + row + r, k + more, q);
        #pragma unroll
        for (int w = 0; w < 4; w++) {
            int i = w - shift + more * 4;       /* which of the thread's four groups of 8 columns */
            if (i < 0 || i > 3) continue;
            uint32_t at = chunk + r * 128 + (((half * 4 + i) ^ (r & 7)) << 4);
            uint4    x = smem_load(at);
            x.x = dropout_pair(x.x, n[0].v[w], h.least), x.y = dropout_pair(x.y, n[1].v[w], h.least);
            x.z = dropout_pair(x.z, n[2].v[w], h.least), x.w = dropout_pair(x.w, n[3].v[w], h.least);
            smem_store(at, x);
        }
    }
    async_fence();
    named_sync(barrier, 128);
}

/* A thread's elements of a finished tile: rows `i` and i + 8, columns by wgmma's order. */
template <class C>
__device__ inline void put_tile(const float (&d)[NARROW / 2], const GroupedJob &g, const ExpertTile &t,
                                const Put &p, int i, int rows, C *c, bool add)
{
    int j = threadIdx.x % 4 * 2;
    #pragma unroll
    for (int x = 0; x < NARROW / 2; x++) {
        int row = i + x / 2 % 2 * 8, col = t.n + j + x / 4 * 8 + x % 2;
        if (row < rows && col < g.N) put_one(c + row * p.i + col * p.j, p.scale * d[x], add);
    }
}

template <int MODE, class C, bool DROP>
__device__ void multiply(const GroupedJob &g, const int *off, uint32_t base, const Put &p, bool add,
                         const DropoutArgs &h)
{
    enum { TA = MODE == GEMM_TN, TB = MODE != GEMM_NT, KA = TA ? 16 * 128 : 32, KB = TB ? 16 * 128 : 32 };
    int   warp = uniform(threadIdx.x / 32), group = warp / 4, lane = threadIdx.x % 32, s = 0, phase = 0;
    float d[NARROW / 2];
    ExpertTile  t = { };
    ExpertTileWalk<MODE, NARROW> walk(off, g);
    TileReader tiles(base + QUEUE);
    while (walk.find(tiles.next(), t)) {
        int steps = uniform(steps_of<MODE>(t, g)), before = 0;
        if (MODE == GEMM_TN && !steps) {
            #pragma unroll
            for (int x = 0; x < NARROW / 2; x++) d[x] = 0;
        }
        for (int step = 0; step < steps; step++) {
            uint32_t a = base + s * LOAD + group * CHUNK, b = base + s * LOAD + A_BYTES;
            bar_wait(base + READY + s * 8, phase);
            if (MODE == GEMM_TN && t.rows - step * BK < BK)
                zero_tail<NARROW>(a, b, t.rows - step * BK, 1 + group);
            if (DROP && MODE == GEMM_TN)
                dropout_chunk(a, h, t.first + step * BK, t.m + group * 64, 1 + group);
            else if (DROP)
                dropout_chunk(a, h, t.first + t.m + group * 64, step * BK, 1 + group);
            uint64_t da = wgmma_operand(a, CHUNK, 1024), db = wgmma_operand(b, CHUNK, 1024);
            wgmma_begin();
            #pragma unroll
            for (int k = 0; k < BK / 16; k++)
                Wgmma<NARROW>::template mma<TA, TB>(d, da + k * KA / 16, db + k * KB / 16, step + k > 0);
            wgmma_commit();
            wgmma_wait<1>();
            if (step && !lane) bar_arrive(base + FREE + before * 8);
            before = s;
            if (++s == DEPTH) s = 0, phase ^= 1;
        }
        wgmma_wait<0>();
        wgmma_pin(d);
        if (steps && !lane) bar_arrive(base + FREE + before * 8);
        C  *c = (C *)g.c + (MODE == GEMM_TN ? t.e * g.c_expert : t.first * p.i);
        int rows = MODE == GEMM_TN ? g.M : t.rows;
        put_tile(d, g, t, p, t.m + warp * 16 + lane / 4, rows, c, add);
    }
}

template <int MODE, class C, bool DROP>
__global__ void __launch_bounds__(NTHREADS, 1)
narrow(const __grid_constant__ Maps maps, const __grid_constant__ GroupedJob g, const __grid_constant__ Put p,
       bool add, const __grid_constant__ DropoutArgs h)
{
    extern __shared__ __align__(1024) char smem[];
    uint32_t base = smem_at(smem);
    int     *off  = (int *)(smem + OFFSETS);
    for (int i = threadIdx.x; i <= g.E; i += NTHREADS) off[i] = g.first.at<DROP>(i);
    if (threadIdx.x == 0) {
        for (int i = 0; i < DEPTH; i++)
            bar_init(base + READY + i * 8, 1), bar_init(base + FREE + i * 8, CONSUMERS);
        queue_init<MODE>(base + QUEUE);
        bar_init_done();
    }
    __syncthreads();
    int warp = threadIdx.x / 32;
    if (warp < CONSUMERS)       multiply<MODE, C, DROP>(g, off, base, p, add, dropout_seeded<DROP>(h));
    else if (warp == CONSUMERS) load<MODE>(maps, g, off, base);
    else if (threadIdx.x == (CONSUMERS + 1) * 32 && MODE == GEMM_TN) draw_tiles(g, base + QUEUE);
}

/* --- host --- */

template <int MODE, class C>
void launch(Backend *be, const NarrowCall &q, const Maps &maps, const GroupedJob &g, const Put &p,
            int64_t tiles)
{
    int64_t blocks = min_i64(cuda_compute_sms(be), tiles);
    if (MODE != GEMM_NN && q.drops)             /* in NN dropout applies to c: grouped_gemm.cu */
        LAUNCH(be, "grouped_gemm", (narrow<MODE, C, MODE != GEMM_NN>), blocks, NTHREADS, smem_bytes(g.E),
               maps, g, p, q.add, q.dropout);
    else
        LAUNCH(be, "grouped_gemm", (narrow<MODE, C, false>), blocks, NTHREADS, smem_bytes(g.E), maps, g, p,
               q.add, q.dropout);
}

}

void hopper_narrow(Backend *be, const NarrowCall &q)
{
    LoraTerm   none = { };
    bool       tn = q.mode == GEMM_TN;
    int64_t    N = tn ? q.b.n[1] : q.b.n[q.mode == GEMM_NT ? 1 : 2], M = tn ? q.a.n[1] : 0;
    int64_t    each = ceil_div(M, BM) * ceil_div(N, NARROW);
    int64_t    tiles = tn ? q.E * each : (ceil_div(q.a.n[0], BM) + q.E) * ceil_div(N, NARROW);
    GroupedJob g = job_of(q.offsets, q.E, q.every, N, q.a, q.b, none);
    Maps       maps = maps_of(be, q.a, q.b, none, tn ? 64 : BM, NARROW);
    Put        p = { q.i, q.j, q.scale };
    g.first.parts = (int)q.parts, g.M = (int)M, g.each = (int)each;
    g.drawn = tn ? q.counters : cuda_of(be)->tile_counter, g.order = q.counters + 3;
    g.c = q.c, g.c_expert = q.expert;
    if (be->sticky) return;                     /* no tensor map */
    BY_DTYPE(q.dtype, C, {
        if (tn)                     launch<GEMM_TN, C>(be, q, maps, g, p, tiles);
        else if (q.mode == GEMM_NT) launch<GEMM_NT, C>(be, q, maps, g, p, tiles);
        else                        launch<GEMM_NN, C>(be, q, maps, g, p, tiles);
    });
}
