/* ops/cuda/attention_vision.cu -- forward attention of vision heads: no causal mask, as many key heads as
 * query heads, bf16 head dims of 64, 72 or 80.
 *
 * A block computes 192 rows of a head with four warpgroups. Three consumer warpgroups have 64 rows each and
 * issue their products in turn, so that one's exponentials overlap with the others' products. One warp of the
 * fourth is the producer: it loads queries, and keys and values 128 or 96 rows at a time, by TMA into a ring
 * of stages. A consumer issues the next scores before it multiplies the last probabilities by the values,
 * which run while the softmax is computed. Probabilities stay in registers; they are rounded to bf16 for the
 * second product, their sum is not.
 *
 * Each element is summed in one order, which the segments fix. */
#include "ops/cuda/attention_vision.cuh"

namespace {

/* Keys a stage: fewer for wide heads, whose outputs take more registers. */
template <int C> struct Keys { enum { BN = C <= 72 ? 128 : 96 }; };

enum { GROUPS = 3, BM = 64 * GROUPS, STAGES = 2, THREADS = 128 * (GROUPS + 1), WARPS = 4 * GROUPS,
       MORE = 160, LESS = 32 };                 /* registers of a consumer thread, and of the others */

/* Shared memory: queries, the stages (keys, then values), the barriers, the queue of tiles, the segments. */
template <int C> struct SmemLayout {
    enum { BN = Keys<C>::BN, Q = 0, KV = Lay<C, BM>::BYTES, TILE = Lay<C, BN>::BYTES,
           BARS = KV + STAGES * 2 * TILE, Q_FULL = BARS, Q_EMPTY = BARS + 8, FULL = BARS + 16,
           EMPTY = FULL + STAGES * 16, QUEUE = EMPTY + STAGES * 16, STARTS = QUEUE + TILE_QUEUE_BYTES };
    /* Barriers and tile of the keys (0) or values (1) of a stage. */
    __device__ static int full(int s, int v)  { return FULL + (2 * s + v) * 8; }
    __device__ static int empty(int s, int v) { return EMPTY + (2 * s + v) * 8; }
    __device__ static int tile(int s, int v)  { return KV + (2 * s + v) * TILE; }
};

typedef struct Job {
    int       *tile_counter;
    const int *starts;
    HeadRows       o;
    float     *lse;
    int64_t    lse_row;
    int        n, H;
    float      scale;
} Job;

/* The producer warp: loads queries, keys and values. */
template <int C>
__device__ void produce(const CUtensorMap *q, const CUtensorMap *k, const CUtensorMap *v, const Job &g,
                        const int *starts, uint32_t base)
{
    typedef SmemLayout<C> R;
    enum { BN = R::BN };
    HeadTileWalk<BM>     walk(starts, g.n, g.H);
    TileDrawer   tiles(g.tile_counter, base + R::QUEUE);
    Ring<STAGES> ring;
    HeadTile t = { };
    bool leads = threadIdx.x % 32 == 0;
    auto load = [&](const CUtensorMap *map, int which, int row) {
        bar_wait(base + R::empty(ring.s, which), ring.phase ^ 1);
        if (!leads) return;
        bar_expect(base + R::full(ring.s, which), R::TILE);
        tile_load<C, BN>(base + R::tile(ring.s, which), map, base + R::full(ring.s, which), t.head, row);
    };
    for (int phase = 0; walk.find(tiles.next(), t); phase ^= 1) {
        bar_wait(base + R::Q_EMPTY, phase ^ 1);
        if (leads) {
            bar_expect(base + R::Q_FULL, Lay<C, BM>::BYTES);
            tile_load<C, BM>(base + R::Q, q, base + R::Q_FULL, t.head, t.first + t.row);
        }
        for (int row = 0, steps = (t.rows + BN - 1) / BN; row < t.rows; row += BN) {
            tiles.stage(row / BN, steps);
            load(k, 0, t.first + row);
            load(v, 1, t.first + row);
            __syncwarp();
            ring.step();
        }
    }
    tiles.close(walk.tiles());
}

/* The running softmax of a thread's two rows: maxima of the scores, and its columns' share of the sums. */
typedef struct Soft { float max[2], sum[2]; } Soft;

/* Turns scores into 2^(scale (s - max)); fade is the factor for earlier sums. `scale` includes log2(e). */
template <int N> __device__ inline void soften(float (&s)[N], Soft &x, float (&fade)[2], float scale)
{
    float top[2] = { x.max[0], x.max[1] }, less[2], sum[2] = { 0, 0 };
    #pragma unroll
    for (int i = 0; i < N; i++) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
        fade[r] = exp2_fast((x.max[r] - top[r]) * scale);
        x.max[r] = top[r], less[r] = top[r] * scale;
    }
    #pragma unroll
    for (int i = 0; i < N; i++) {
        s[i] = exp2_fast(fmaf(s[i], scale, -less[i / 2 % 2]));
        sum[i / 2 % 2] += s[i];
    }
    x.sum[0] = fmaf(x.sum[0], fade[0], sum[0]), x.sum[1] = fmaf(x.sum[1], fade[1], sum[1]);
}

template <int C>
__device__ inline void finish(const Job &g, const HeadTile &t, int group, const float (&o)[C / 2], Soft &x)
{
    int row = t.first + t.row + group * 64 + thread_row(), end = t.first + t.rows;
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        x.sum[r] += __shfl_xor_sync(~0u, x.sum[r], 1);
        x.sum[r] += __shfl_xor_sync(~0u, x.sum[r], 2);
        if (threadIdx.x % 4 == 0 && row + 8 * r < end)
            g.lse[t.head * g.lse_row + row + 8 * r] = x.max[r] * g.scale + logf(x.sum[r]);
    }
    rows_put<C>(g.o, t.head, row, end, o, 1.0f / x.sum[0], 1.0f / x.sum[1]);
}

/* The right to issue products goes round the consumer warpgroups, once per stage of keys but the first. A
 * warpgroup's barrier opens when it has arrived itself and the warpgroup before it has called turn_pass. */
enum { CUT_BARRIER = 1, TURN_BARRIER = CUT_BARRIER + GROUPS };

__device__ inline void turn_take(int group) { named_sync(TURN_BARRIER + group, 256); }
__device__ inline void turn_pass(int group) { named_arrive(TURN_BARRIER + (group + 1) % GROUPS, 256); }

/* One consumer warpgroup. issue_* start a product, release_* return its stage to the producer afterwards. */
template <int C> __device__ void forward_warpgroup(const Job &g, const int *starts, uint32_t base)
{
    typedef SmemLayout<C> R;
    enum { BN = R::BN };
    const float scale = g.scale * LOG2E;
    int      group = uniform(threadIdx.x / 128), lane = threadIdx.x % 32;
    uint32_t q = base + R::Q + group * 64 * LINE, p[BN / 4];
    float    s[BN / 2], o[C / 2], fade[2];
    HeadTileWalk<BM>     walk(starts, g.n, g.H);
    TileReader   tiles(base + R::QUEUE);
    Ring<STAGES> keys, values;
    HeadTile t = { };
    auto issue_scores = [&]() {                          /* scores of the next stage of keys */
        bar_wait(base + R::full(keys.s, 0), keys.phase);
        wgmma_begin();
        scores<C, BM, BN>(s, q, base + R::tile(keys.s, 0));
        wgmma_commit();
    };
    auto release_keys = [&]() {
        wgmma_pin(s);
        if (!lane) bar_arrive(base + R::empty(keys.s, 0));
        keys.step();
    };
    auto issue_values = [&](int valid) {        /* of the last scores; the first `valid` rows exist */
        uint32_t v = base + R::tile(values.s, 1);
        bar_wait(base + R::full(values.s, 1), values.phase);
        if (valid < BN) {
            tile_cut<C, BN>(v, valid);
            tile_cut_done(CUT_BARRIER + group);
        }
        wgmma_begin();
        gather<C, BN>(o, p, v);
        wgmma_commit();
    };
    auto release_values = [&]() {
        wgmma_pin(o);
        if (!lane) bar_arrive(base + R::empty(values.s, 1));
        values.step();
    };
    auto skip_tile = [&](const Ring<STAGES> &ring, int which) {     /* it has no row of this warpgroup */
        bar_wait(base + R::full(ring.s, which), ring.phase);
        if (!lane) bar_arrive(base + R::empty(ring.s, which));
    };
    if (group == GROUPS - 1) turn_pass(group);
    for (int phase = 0; walk.find(tiles.next(), t); phase ^= 1) {
        if (t.row + group * 64 >= t.rows) {     /* the segment ends before this warpgroup's rows */
            bar_wait(base + R::Q_FULL, phase);
            if (!lane) bar_arrive(base + R::Q_EMPTY);
            for (int row = 0; row < t.rows; row += BN, keys.step(), values.step()) {
                if (row) turn_take(group), turn_pass(group);
                skip_tile(keys, 0), skip_tile(values, 1);
            }
            continue;
        }
        Soft x = { { -INFINITY, -INFINITY }, { 0, 0 } };
        #pragma unroll
        for (int i = 0; i < C / 2; i++) o[i] = 0;
        bar_wait(base + R::Q_FULL, phase);
        issue_scores();
        wgmma_wait<0>();
        release_keys();
        if (t.rows < BN) hide(s, t.rows);
        soften(s, x, fade, scale);
        pack_all(p, s);
        for (int row = BN; row < t.rows; row += BN) {
            turn_take(group);
            issue_scores();
            issue_values(BN);
            turn_pass(group);
            wgmma_wait<1>();
            release_keys();
            if (t.rows - row < BN) hide(s, t.rows - row);
            soften(s, x, fade, scale);
            wgmma_beside(s, base + R::full(values.s, 1), values.phase);
            wgmma_wait<0>();
            release_values();
            #pragma unroll
            for (int i = 0; i < C / 2; i++) o[i] *= fade[i / 2 % 2];
            pack_all(p, s);
        }
        if (!lane) bar_arrive(base + R::Q_EMPTY);
        issue_values(t.rows - (t.rows - 1) / BN * BN);
        wgmma_wait<0>();
        release_values();
        finish<C>(g, t, group, o, x);
    }
}

template <int C>
__global__ void __launch_bounds__(THREADS, 1)
forward(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
        const __grid_constant__ CUtensorMap v, const __grid_constant__ Job g)
{
    typedef SmemLayout<C> R;
    extern __shared__ __align__(1024) char smem[];
    uint32_t base = smem_at(smem);
    int     *starts = (int *)(smem + R::STARTS);
    for (int i = threadIdx.x; i <= g.n; i += THREADS) starts[i] = g.starts[i];
    if (threadIdx.x == 0) {
        bar_init(base + R::Q_FULL, 1), bar_init(base + R::Q_EMPTY, WARPS);
        for (int i = 0; i < 2 * STAGES; i++)
            bar_init(base + R::FULL + i * 8, 1), bar_init(base + R::EMPTY + i * 8, WARPS);
        tile_queue_init(base + R::QUEUE, WARPS);
        bar_init_done();
    }
    __syncthreads();
    if (threadIdx.x < WARPS * 32) {
        regs_more<MORE>();
        forward_warpgroup<C>(g, starts, base);
    } else {
        regs_less<LESS>();
        if (threadIdx.x / 32 == WARPS) produce<C>(&q, &k, &v, g, starts, base);
    }
}

template <int C> void launch(Backend *be, const Attn *x)
{
    Job g = { cuda_of(be)->tile_counter, (const int *)x->seg.starts.data, rows_of(x->o),
              (float *)x->lse.data, x->lse.s[0], (int)x->seg.n, (int)x->q.n[1], x->scale };
    CUtensorMap q = heads_map(be, x->q, BM), k = heads_map(be, x->k, Keys<C>::BN);
    CUtensorMap v = heads_map(be, x->v, Keys<C>::BN);
    size_t smem = SmemLayout<C>::STARTS + ((size_t)g.n + 1) * sizeof(int);
    if (be->sticky) return;
    LAUNCH(be, "attention_fwd", forward<C>, vision_blocks(be, x, BM), THREADS, smem, q, k, v, g);
}

}

bool vision_takes(const Attn *x)
{
    const Tensor all[] = { x->q, x->k, x->v, x->o, x->dout, x->dq, x->dk, x->dv };
    int64_t C = x->q.n[2];
    if (x->seg.causal || t_has(x->seg.kv_starts) || x->seg.n > SEGMENTS_MOST || x->q.n[1] != x->k.n[1] ||
        x->v.n[2] != C || (C != 64 && C != 72 && C != 80) || !(x->scale > 0))
        return false;
    for (const Tensor &t : all)
        if (t_has(t) && (t.dtype != BF16 || !packs(t))) return false;
    return true;
}

bool vision_fwd(Backend *be, const Attn *x)
{
    if (!vision_takes(x)) return false;
    if (x->q.n[2] == 64)      launch<64>(be, x);
    else if (x->q.n[2] == 72) launch<72>(be, x);
    else                      launch<80>(be, x);
    return true;
}
