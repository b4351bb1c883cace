/* ops/cuda/attention_vision_bwd.cu -- backward attention of vision heads: the cases of attention_vision.cu.
 *
 * One kernel is launched twice. A block holds 128 rows of a head and streams the other side of the segment:
 *
 *              holds      streams              first product   second      accumulates
 *   keys       k, v       q, dout, lse, delta  S' = k q'       v dout'     dk += dS' q,  dv += P' dout
 *   queries    q, dout    k, v                 S  = q k'       dout v'     dq += dS k
 *
 * so P and dS never leave the registers, no block adds to what another computes, and every element is summed
 * in one order: results are deterministic. The cost is seven products where attention_vision_fused.cu, which
 * runs unless Backend.repeat is set, needs five.
 *
 * Two consumer warpgroups hold 64 rows each. Of a third, one producer warp loads rows by TMA and, for keys,
 * another loads lse and delta. While a consumer computes exponentials its earlier accumulations and its
 * second product run. */
#include "ops/cuda/attention_vision_bwd.cuh"

namespace {

enum { GROUPS = 2, ROWS = 64 * GROUPS, THREADS = 128 * (GROUPS + 1), WARPS = 4 * GROUPS,
       MORE = 232, LESS = 40 };                 /* registers of a consumer thread, and of the others */

/* Rows per streamed stage, and the number of stages: the keys pass accumulates two outputs and has fewer
 * registers left for scores. */
template <bool KEYS> struct Flow { enum { BN = KEYS ? 80 : 128, STAGES = KEYS ? 3 : 2 }; };

/* Shared memory: the held tiles, the stages (two tiles, then for keys lse and delta), the barriers, the
 * queue of tiles, the segments. */
template <int C, bool KEYS> struct SmemLayout {
    enum { BM = ROWS, BN = Flow<KEYS>::BN, STAGES = Flow<KEYS>::STAGES, HELD = Lay<C, ROWS>::BYTES,
           TILE = Lay<C, BN>::BYTES, FLOW = 2 * HELD, STATS = FLOW + STAGES * 2 * TILE,
           STAT = KEYS ? BN * 4 : 0, BARS = STATS + STAGES * 2 * STAT,
           HELD_FULL = BARS, HELD_EMPTY = BARS + 8, FULL = BARS + 16, EMPTY = FULL + STAGES * 8,
           QUEUE = EMPTY + STAGES * 8, STARTS = QUEUE + TILE_QUEUE_BYTES };
    __device__ static int tile(int s, int second) { return FLOW + (2 * s + second) * TILE; }
    __device__ static int stat(int s, int second) { return STATS + (2 * s + second) * STAT; }
};

/* lse (times log2(e)) and delta of query `row` of a segment; rows beyond the segment get probability 0. */
__device__ inline float2 stat_at(const Job &g, const HeadTile &t, int row)
{
    if (row >= t.rows) return make_float2(INFINITY, 0.0f);
    return make_float2(g.lse[t.head * g.lse_row + t.first + row] * LOG2E,
                       g.delta[t.head * g.delta_row + t.first + row]);
}

/* The producer of lse and delta of the streamed queries: their starts are unaligned, which rules out TMA. */
template <int C> __device__ void produce_stats(const Job &g, const int *starts, char *smem)
{
    typedef SmemLayout<C, true> R;
    enum { BN = R::BN };
    uint32_t     base = smem_at(smem);
    HeadTileWalk<ROWS>     walk(starts, g.n, g.H);
    TileReader      tiles(base + R::QUEUE);
    Ring<R::STAGES> ring;
    HeadTile t = { };
    while (walk.find(tiles.next(), t))
        for (int row = 0; row < t.rows; row += BN, ring.step()) {
            float *to = (float *)(smem + R::stat(ring.s, 0));
            bar_wait(base + R::EMPTY + ring.s * 8, ring.phase ^ 1);
            for (int i = threadIdx.x % 32; i < BN; i += 32) {
                float2 x = stat_at(g, t, row + i);
                to[i] = x.x, to[BN + i] = x.y;
            }
            bar_arrive(base + R::FULL + ring.s * 8);
        }
}

/* Turns scores into probabilities: with the lse of a column, at `stat`, for keys, of a row for queries. */
template <bool KEYS, int N>
__device__ inline void weigh(float (&s)[N], const float2 *stat, const float (&lse)[2], float scale)
{
    #pragma unroll
    for (int j = 0; j < N / 4; j++) {
        float2 x = KEYS ? stat[4 * j] : make_float2(0, 0);
        #pragma unroll
        for (int i = 0; i < 4; i++)
            s[4 * j + i] = exp2_fast(fmaf(s[4 * j + i], scale, -(KEYS ? i % 2 ? x.y : x.x : lse[i / 2])));
    }
}

/* dS = P (dP - delta), packed. */
template <bool KEYS, int N>
__device__ inline void slope(uint32_t (&ds)[N / 2], const float (&p)[N], const float (&dp)[N],
                             const float2 *stat, const float (&delta)[2])
{
    #pragma unroll
    for (int j = 0; j < N / 4; j++) {
        float2 x = KEYS ? stat[4 * j] : make_float2(0, 0);
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            int i = 4 * j + 2 * r;
            ds[i / 2] = pack2(p[i] * (dp[i] - (KEYS ? x.x : delta[r])),
                              p[i + 1] * (dp[i + 1] - (KEYS ? x.y : delta[r])));
        }
    }
}

/* One consumer warpgroup. Without KEYS `second` is unused and takes no registers. */
template <int C, bool KEYS> __device__ void backward_warpgroup(const Job &g, const int *starts, char *smem)
{
    typedef SmemLayout<C, KEYS> R;
    enum { BN = R::BN };
    const float scale = g.scale * LOG2E;
    uint32_t base = smem_at(smem);
    int      group = uniform(threadIdx.x / 128), lane = threadIdx.x % 32;
    uint32_t held = base + group * 64 * LINE, p[BN / 4], ds[BN / 4];
    float    s[BN / 2], dp[BN / 2], first[C / 2], second[C / 2], lse[2], delta[2];
    HeadTileWalk<ROWS>     walk(starts, g.n, g.H);
    TileReader      tiles(base + R::QUEUE);
    Ring<R::STAGES> ring;
    HeadTile t = { };
    auto release = [&](int stage) { if (!lane) bar_arrive(base + R::EMPTY + stage * 8); };

    for (int phase = 0; walk.find(tiles.next(), t); phase ^= 1) {
        int row = t.row + group * 64 + thread_row(), last = 0;
        if (t.row + group * 64 >= t.rows) {     /* the segment ends before this warpgroup's rows */
            bar_wait(base + R::HELD_FULL, phase);
            if (!lane) bar_arrive(base + R::HELD_EMPTY);
            for (int at = 0; at < t.rows; at += BN, ring.step()) {
                bar_wait(base + R::FULL + ring.s * 8, ring.phase);
                release(ring.s);
            }
            continue;
        }
        #pragma unroll
        for (int i = 0; i < C / 2; i++) first[i] = second[i] = 0;
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            float2 x = KEYS ? make_float2(0, 0) : stat_at(g, t, row + 8 * r);
            lse[r] = x.x, delta[r] = x.y;
        }
        bar_wait(base + R::HELD_FULL, phase);
        for (int at = 0; at < t.rows; at += BN) {
            uint32_t flow[2] = { base + R::tile(ring.s, 0), base + R::tile(ring.s, 1) };
            const float2 *stat = (const float2 *)(smem + R::stat(ring.s, 0)) + lane % 4;
            bar_wait(base + R::FULL + ring.s * 8, ring.phase);
            if (t.rows - at < BN) {
                tile_cut<C, BN>(flow[0], t.rows - at), tile_cut<C, BN>(flow[1], t.rows - at);
                tile_cut_done(1 + group);
            }
            wgmma_begin();
            scores<C, ROWS, BN>(s, held, flow[0]);
            wgmma_commit();
            scores<C, ROWS, BN>(dp, held + R::HELD, flow[1]);
            wgmma_commit();
            wgmma_wait<1>();                    /* the scores, and every product that read the stage before */
            wgmma_pin(s);
            if (at) release(last);
            if (!KEYS && t.rows - at < BN) hide(s, t.rows - at);
            weigh<KEYS>(s, stat, lse, scale);
            if (KEYS) {
                pack_all(p, s);
                wgmma_begin();
                gather<C, BN>(second, p, flow[1]);
                wgmma_commit();
                wgmma_wait<1>();
            } else {
                wgmma_beside(s, base + R::FULL + ring.s * 8, ring.phase);
                wgmma_wait<0>();
            }
            wgmma_pin(dp);
            slope<KEYS>(ds, s, dp, stat + R::STAT / 8, delta);
            wgmma_begin();
            gather<C, BN>(first, ds, flow[0]);
            wgmma_commit();
            last = ring.s;
            ring.step();
        }
        if (!lane) bar_arrive(base + R::HELD_EMPTY);
        wgmma_wait<0>();
        wgmma_pin(first);
        release(last);
        rows_put<C>(g.first, t.head, t.first + row, t.first + t.rows, first, g.scale, g.scale);
        if (KEYS) {
            wgmma_pin(second);
            rows_put<C>(g.second, t.head, t.first + row, t.first + t.rows, second, 1.0f, 1.0f);
        }
    }
}

template <int C, bool KEYS>
__global__ void __launch_bounds__(THREADS, 1)
backward(const __grid_constant__ Maps m, const __grid_constant__ Job g)
{
    typedef SmemLayout<C, KEYS> R;
    extern __shared__ __align__(1024) char smem[];
    uint32_t base = smem_at(smem);
    int     *starts = (int *)(smem + R::STARTS);
    for (int i = threadIdx.x; i <= g.n; i += THREADS) starts[i] = g.starts[i];
    if (threadIdx.x == 0) {
        bar_init(base + R::HELD_FULL, 1), bar_init(base + R::HELD_EMPTY, WARPS);
        for (int i = 0; i < R::STAGES; i++) {
            bar_init(base + R::FULL + i * 8, KEYS ? 33 : 1);        /* the copy, and each lane's statistics */
            bar_init(base + R::EMPTY + i * 8, WARPS);
        }
        tile_queue_init(base + R::QUEUE, WARPS + KEYS);             /* and the warp of the statistics */
        bar_init_done();
    }
    __syncthreads();
    if (threadIdx.x < WARPS * 32) {
        regs_more<MORE>();
        backward_warpgroup<C, KEYS>(g, starts, smem);
    } else {
        regs_less<LESS>();
        int warp = threadIdx.x / 32 - WARPS;
        if (warp == 0) produce<C, R>(m, g, starts, base, R::HELD_FULL, R::FULL);
        else if (warp == 1 && KEYS) produce_stats<C>(g, starts, smem);
    }
}

template <int C, bool KEYS> void launch(Backend *be, const Attn *x)
{
    enum { BN = Flow<KEYS>::BN };
    Maps   m = KEYS ? maps_of<ROWS, BN>(be, x->k, x->v, x->q, x->dout)
                    : maps_of<ROWS, BN>(be, x->q, x->dout, x->k, x->v);
    Job    g = job_of(be, x, KEYS ? x->dk : x->dq, x->dv, NULL);
    size_t smem = SmemLayout<C, KEYS>::STARTS + ((size_t)g.n + 1) * sizeof(int);
    if (be->sticky) return;
    LAUNCH(be, "attention_bwd", (backward<C, KEYS>), vision_blocks(be, x, ROWS), THREADS, smem, m, g);
}

template <int C> void launch_all(Backend *be, const Attn *x)
{
    launch_delta<C>(be, x, NULL, 0);
    launch<C, true>(be, x);
    launch<C, false>(be, x);
}

}

bool vision_bwd(Backend *be, const Attn *x)
{
    if (!vision_takes(x)) return false;
    if (vision_bwd_fused(be, x)) return true;
    if (x->q.n[2] == 64)      launch_all<64>(be, x);
    else if (x->q.n[2] == 72) launch_all<72>(be, x);
    else                      launch_all<80>(be, x);
    return true;
}
