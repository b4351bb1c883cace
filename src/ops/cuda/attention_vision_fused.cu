/* ops/cuda/attention_vision_fused.cu -- backward attention of vision heads 72 wide with five products: the
 * cases of attention_vision.cu. THE LAST BITS OF dq DIFFER FROM RUN TO RUN; attention_vision_bwd.cu computes
 * the same with seven products and equal bits.
 *
 * A block holds 128 keys of a head and streams the queries of the segment, 64 at a time:
 *
 *   two warpgroups, 64 keys each   S' = k q',  dP' = v dout',  dv += P' dout,  dk += dS' q
 *   a third                        dq_sum += dS k
 *
 * The first two leave dS' in shared memory for the third, which multiplies it by all 128 keys and adds the
 * product to f32 sums in the workspace without waiting for them: the blocks of a segment add in the order in
 * which they arrive. A last kernel rounds the sums to dq.
 *
 * One warp of a fourth warpgroup loads rows by TMA, another completes the tiles. The first two products run
 * over 80 columns, of which TMA leaves 8 zero; the second warp writes -lse / scale and -delta of a query
 * there, each as a sum of three bf16, and ones for a key. So the products are S - lse / scale and dP - delta,
 * and no consumer reads a statistic. Rows beyond the segment it zeroes in all four tiles, which makes their
 * dS, and what is added for them, zero.
 *
 * dq_sum has a tile of 64 rows for each head and each 64 rows of a segment; those of segment s begin with
 * number starts[s] / 64 + s. A tile has the order of the product's registers: (C/8, 128 threads, 4). */
#include "ops/cuda/attention_vision_bwd.cuh"

namespace {

enum { C = 72, GROUPS = 2, WARPS = 4 * GROUPS, THREADS = 128 * (GROUPS + 2),
       MORE = 208, DQ = 64, LESS = 32 };        /* registers of a thread of the first two, third, fourth */

/* Shared memory: keys and values, the stages (queries, dout), slots of dS', the barriers, the queue of tiles,
 * the segments. LOADED: by TMA; FULL: completed. */
struct R {
    enum { BM = 64 * GROUPS, BN = 64, STAGES = 3, SLOTS = 2, HELD = Lay<C, BM>::BYTES,
           TILE = Lay<C, BN>::BYTES, FLOW = 2 * HELD, SLOPES = FLOW + STAGES * 2 * TILE, SLOPE = BM * LINE,
           HELD_LOADED = SLOPES + SLOTS * SLOPE, HELD_FULL = HELD_LOADED + 8, HELD_EMPTY = HELD_FULL + 8,
           LOADED = HELD_EMPTY + 8, FULL = LOADED + STAGES * 8, EMPTY = FULL + STAGES * 8,
           SLOPE_FULL = EMPTY + STAGES * 8, SLOPE_EMPTY = SLOPE_FULL + SLOTS * 8,
           QUEUE = SLOPE_EMPTY + SLOTS * 8, STARTS = QUEUE + TILE_QUEUE_BYTES };
    __device__ static int tile(int s, int second) { return FLOW + (2 * s + second) * TILE; }
};

/* --- the warp that completes tiles --- */

/* Columns 72 .. 79 of a row. */
template <int ROWS> __device__ inline void pad_store(uint32_t tile, int row, uint4 x)
{
    smem_store(tile + Lay<C, ROWS>::CHUNK + row * LINE + (1 ^ row % 8) * 16, x);
}

/* x as a sum of three bf16. */
__device__ inline uint4 pad_of(float x)
{
    float high = to_f32(from_f32<bf16>(x)), middle = to_f32(from_f32<bf16>(x - high));
    return make_uint4(pack2(high, middle), pack2(x - high - middle, 0.0f), 0, 0);
}

/* Zeroes the rows of a tile from `valid` on, by a warp. */
template <int ROWS> __device__ inline void rows_zero(uint32_t tile, int valid)
{
    for (int i = threadIdx.x % 32; i < (ROWS - valid) * 8; i += 32)
        for (int c = 0; c < Lay<C, ROWS>::CHUNKS; c++)
            smem_zero(tile + c * Lay<C, ROWS>::CHUNK + valid * LINE + i * 16);
}

/* Makes what the warp wrote visible to products, and ends the phase of a barrier. */
__device__ inline void warp_pass(uint32_t bar)
{
    async_fence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) bar_arrive(bar);
}

__device__ inline void complete_keys(uint32_t base, int valid, int phase)
{
    const uint4 ones = make_uint4(0x3f803f80, 0x00003f80, 0, 0);
    bar_wait(base + R::HELD_LOADED, phase);
    for (int i = 0; i < 2; i++) {
        uint32_t tile = base + i * R::HELD;
        for (int row = threadIdx.x % 32; row < R::BM; row += 32) pad_store<R::BM>(tile, row, ones);
        __syncwarp();
        if (valid < R::BM) rows_zero<R::BM>(tile, valid);
    }
    warp_pass(base + R::HELD_FULL);
}

/* Queries from `row` of a segment on, in the ring's stage. */
__device__ inline void complete_queries(const Job &g, const HeadTile &t, int row, uint32_t base,
                                        const Ring<R::STAGES> &ring)
{
    enum { EACH = R::BN / 32 };
    uint32_t q = base + R::tile(ring.s, 0), dout = base + R::tile(ring.s, 1);
    int      lane = threadIdx.x % 32, valid = t.rows - row;
    float    lse[EACH], delta[EACH];
    #pragma unroll
    for (int i = 0; i < EACH; i++) {
        int64_t at = t.first + min(row + lane + 32 * i, t.rows - 1);
        lse[i] = g.lse[t.head * g.lse_row + at], delta[i] = g.delta[t.head * g.delta_row + at];
    }
    bar_wait(base + R::LOADED + ring.s * 8, ring.phase);
    #pragma unroll
    for (int i = 0; i < EACH; i++) {
        pad_store<R::BN>(q, lane + 32 * i, pad_of(lse[i] * (-1.0f / g.scale)));
        pad_store<R::BN>(dout, lane + 32 * i, pad_of(-delta[i]));
    }
    __syncwarp();
    if (valid < R::BN) rows_zero<R::BN>(q, valid), rows_zero<R::BN>(dout, valid);
    warp_pass(base + R::FULL + ring.s * 8);
}

__device__ void complete_tiles(const Job &g, const int *starts, uint32_t base)
{
    HeadTileWalk<R::BM> walk(starts, g.n, g.H);
    TileReader      tiles(base + R::QUEUE);
    Ring<R::STAGES> ring;
    HeadTile t = { };
    for (int phase = 0; walk.find(tiles.next(), t); phase ^= 1) {
        complete_keys(base, t.rows - t.row, phase);
        for (int row = 0; row < t.rows; row += R::BN, ring.step()) complete_queries(g, t, row, base, ring);
    }
}

/* --- the first two warpgroups --- */

/* Turns S - lse / scale into probabilities. */
template <int N> __device__ inline void exponentiate(float (&s)[N], float scale)
{
    #pragma unroll
    for (int i = 0; i < N; i++) s[i] = exp2_fast(s[i] * scale);
}

/* dS = P (dP - delta), packed. */
template <int N>
__device__ inline void slope(uint32_t (&ds)[N / 2], const float (&p)[N], const float (&dp)[N])
{
    #pragma unroll
    for (int i = 0; i < N / 2; i++) ds[i] = pack2(p[2 * i] * dp[2 * i], p[2 * i + 1] * dp[2 * i + 1]);
}

/* Stores dS' of 64 keys by 64 queries to lines of 128 bytes, swizzled as TMA does. */
__device__ inline void slope_store(uint32_t at, const uint32_t (&ds)[16])
{
    int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
    #pragma unroll
    for (int j = 0; j < 8; j += 2)
        stmatrix4(at + row * LINE + ((j + lane / 16) ^ row % 8) * 16, ds[2 * j], ds[2 * j + 1],
                  ds[2 * j + 2], ds[2 * j + 3]);
}

/* One of the two. The fence behind a store of dS' waits for the store, so it comes after the next products
 * have been issued. */
__device__ void backward_warpgroup(const Job &g, const int *starts, uint32_t base)
{
    enum { BM = R::BM, BN = R::BN };
    const float scale = g.scale * LOG2E;
    int      group = uniform(threadIdx.x / 128), lane = threadIdx.x % 32;
    uint32_t held = base + group * 64 * LINE, p[BN / 4], ds[BN / 4];
    float    s[BN / 2], dp[BN / 2], dk[C / 2], dv[C / 2];
    HeadTileWalk<BM> walk(starts, g.n, g.H);
    TileReader      tiles(base + R::QUEUE);
    Ring<R::STAGES> ring;
    Ring<R::SLOTS>  slot;
    HeadTile t = { };
    auto release = [&](int stage) { if (!lane) bar_arrive(base + R::EMPTY + stage * 8); };
    auto pass_slot = [&]() {
        warp_pass(base + R::SLOPE_FULL + slot.s * 8);
        slot.step();
    };
    auto wait_slot = [&]() { bar_wait(base + R::SLOPE_EMPTY + slot.s * 8, slot.phase ^ 1); };

    for (int phase = 0; walk.find(tiles.next(), t); phase ^= 1) {
        int rows = t.rows - t.row - group * 64, last = 0;
        bar_wait(base + R::HELD_FULL, phase);
        if (rows <= 0) {                        /* the segment ends before this warpgroup's rows */
            if (!lane) bar_arrive(base + R::HELD_EMPTY);
            for (int at = 0; at < t.rows; at += BN, ring.step()) {
                bar_wait(base + R::FULL + ring.s * 8, ring.phase);
                release(ring.s);
                wait_slot(), pass_slot();
            }
            continue;
        }
        #pragma unroll
        for (int i = 0; i < C / 2; i++) dk[i] = dv[i] = 0;
        for (int at = 0; at < t.rows; at += BN) {
            uint32_t q = base + R::tile(ring.s, 0), dout = base + R::tile(ring.s, 1);
            bar_wait(base + R::FULL + ring.s * 8, ring.phase);
            wgmma_begin();
            scores<C, BM, BN>(s, held, q);
            wgmma_commit();
            scores<C, BM, BN>(dp, held + R::HELD, dout);
            wgmma_commit();
            if (at) pass_slot();
            wgmma_wait<1>();                    /* S, and every product that read the stage before */
            wgmma_pin(s);
            if (at) release(last);
            exponentiate(s, scale);
            pack_all(p, s);
            wgmma_begin();
            gather<C, BN>(dv, p, dout);
            wgmma_commit();
            wgmma_wait<1>();
            wgmma_pin(dp);
            slope(ds, s, dp);
            wait_slot();
            slope_store(base + R::SLOPES + slot.s * R::SLOPE + group * 64 * LINE, ds);
            wgmma_begin();
            gather<C, BN>(dk, ds, q);
            wgmma_commit();
            last = ring.s;
            ring.step();
        }
        if (!lane) bar_arrive(base + R::HELD_EMPTY);
        pass_slot();
        wgmma_wait<0>();
        wgmma_pin(dk), wgmma_pin(dv);
        release(last);
        int row = t.first + t.row + group * 64 + thread_row(), end = t.first + t.rows;
        rows_put<C>(g.first, t.head, row, end, dk, g.scale, g.scale);
        rows_put<C>(g.second, t.head, row, end, dv, 1.0f, 1.0f);
    }
}

/* --- the third warpgroup --- */

/* d (64, C) = dS k: 16 STEPS lines of a slot, and as many rows of the keys. */
template <int STEPS> __device__ inline void dq_product(float (&d)[C / 2], uint32_t ds, uint32_t k)
{
    uint64_t da = wgmma_operand(ds, 0, 1024), db = wgmma_operand(k, Lay<C, R::BM>::CHUNK, 1024);
    wgmma_begin();
    #pragma unroll
    for (int i = 0; i < STEPS; i++)
        Wgmma<C>::template mma<1, 1>(d, da + i * (STEP / 16), db + i * (STEP / 16), i > 0);
    wgmma_commit();
}

/* Adds a product to its tile of dq_sum. */
__device__ inline void dq_add(float *sum, const float (&d)[C / 2])
{
    #pragma unroll
    for (int i = 0; i < C / 8; i++)
        add_to(sum + (i * 128 + threadIdx.x % 128) * 4,
               make_uint4(word_of(d[4 * i]), word_of(d[4 * i + 1]), word_of(d[4 * i + 2]),
                          word_of(d[4 * i + 3])));
}

__device__ void dq_warpgroup(const Job &g, const int *starts, uint32_t base)
{
    float d[C / 2];
    int   lane = threadIdx.x % 32;
    HeadTileWalk<R::BM> walk(starts, g.n, g.H);
    TileReader     tiles(base + R::QUEUE);
    Ring<R::SLOTS> slot;
    HeadTile t = { };
    for (int phase = 0; walk.find(tiles.next(), t); phase ^= 1) {
        int64_t tile = t.first / 64 + walk.seg, steps = (t.rows + 63) / 64;
        bar_wait(base + R::HELD_FULL, phase);
        for (int i = 0; i < steps; i++, slot.step()) {
            uint32_t ds = base + R::SLOPES + slot.s * R::SLOPE;
            bar_wait(base + R::SLOPE_FULL + slot.s * 8, slot.phase);
            if (t.rows - t.row > 64) dq_product<8>(d, ds, base);
            else                     dq_product<4>(d, ds, base);
            wgmma_wait<0>();
            wgmma_pin(d);
            if (!lane) bar_arrive(base + R::SLOPE_EMPTY + slot.s * 8);
            dq_add(g.dq_sum + ((tile + i) * g.H + t.head) * (64 * C), d);
        }
        if (!lane) bar_arrive(base + R::HELD_EMPTY);
    }
}

/* --- kernels --- */

__device__ inline void barriers_init(uint32_t base)
{
    bar_init(base + R::HELD_LOADED, 1), bar_init(base + R::HELD_FULL, 1);
    bar_init(base + R::HELD_EMPTY, WARPS + 4);
    for (int i = 0; i < R::STAGES; i++) {
        bar_init(base + R::LOADED + i * 8, 1), bar_init(base + R::FULL + i * 8, 1);
        bar_init(base + R::EMPTY + i * 8, WARPS);
    }
    for (int i = 0; i < R::SLOTS; i++)
        bar_init(base + R::SLOPE_FULL + i * 8, WARPS), bar_init(base + R::SLOPE_EMPTY + i * 8, 4);
    tile_queue_init(base + R::QUEUE, WARPS + 4 + 1);    /* all warps that draw no tiles */
    bar_init_done();
}

__global__ void __launch_bounds__(THREADS, 1)
backward(const __grid_constant__ Maps m, const __grid_constant__ Job g)
{
    extern __shared__ __align__(1024) char smem[];
    uint32_t base = smem_at(smem);
    int     *starts = (int *)(smem + R::STARTS), warp = uniform(threadIdx.x / 32);
    for (int i = threadIdx.x; i <= g.n; i += THREADS) starts[i] = g.starts[i];
    if (threadIdx.x == 0) barriers_init(base);
    __syncthreads();
    if (warp < WARPS) {
        regs_more<MORE>();
        backward_warpgroup(g, starts, base);
    } else if (warp < WARPS + 4) {
        regs_less<DQ>();
        dq_warpgroup(g, starts, base);
    } else {
        regs_less<LESS>();
        if (warp == WARPS + 4)      produce<C, R>(m, g, starts, base, R::HELD_LOADED, R::LOADED);
        else if (warp == WARPS + 5) complete_tiles(g, starts, base);
    }
}

/* The segment of a tile of dq_sum: the last whose first tile is not after it. */
__device__ inline int segment_of(const int *starts, int n, int tile)
{
    int lo = 0, hi = n;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (starts[mid] / 64 + mid <= tile) lo = mid;
        else                                hi = mid;
    }
    return lo;
}

/* Eight columns of two rows of a tile, `item` of its 32 C/8: 64 bytes, of four threads' registers. */
__device__ inline void round_item(const HeadRows &dq, int head, int row, int end, const float *sum, int item,
                                  float scale)
{
    int at = item / (C / 8), col = item % (C / 8), up = row + at / 8 * 16 + at % 8;
    Pack<bf16> upper, lower;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        Pack<float> x = pack_load(sum + col * 512 + at * 16 + i * 4);
        upper.v[2 * i] = from_f32<bf16>(x.v[0] * scale), upper.v[2 * i + 1] = from_f32<bf16>(x.v[1] * scale);
        lower.v[2 * i] = from_f32<bf16>(x.v[2] * scale), lower.v[2 * i + 1] = from_f32<bf16>(x.v[3] * scale);
    }
    bf16 *to = dq.p + (int64_t)up * dq.row + head * dq.head + col * 8;
    if (up < end)     pack_store(to, upper);
    if (up + 8 < end) pack_store(to + 8 * dq.row, lower);
}

/* dq = scale dq_sum; a block has one head of a tile. */
__global__ void round_kernel(HeadRows dq, const float *dq_sum, const int *starts, int n, int H, float scale)
{
    int tile = blockIdx.x / H, head = blockIdx.x % H, seg = segment_of(starts, n, tile);
    int down = tile - starts[seg] / 64 - seg, row = starts[seg] + down * 64, end = starts[seg + 1];
    if (down >= 0 && row < end)
        round_item(dq, head, row, end, dq_sum + (int64_t)blockIdx.x * (64 * C), threadIdx.x, scale);
}

}

bool vision_bwd_fused(Backend *be, const Attn *x)
{
    if (be->repeat || x->q.n[2] != C) return false;
    int64_t n = be->preparing && x->seg.n < ATTENTION_DOCS ? ATTENTION_DOCS : x->seg.n;
    int64_t tiles = (x->q.n[0] / 64 + n) * x->q.n[1], floats = tiles * 64 * C;
    float  *dq_sum = (float *)cuda_workspace(be, (size_t)floats * sizeof(float));
    Maps    m = maps_of<R::BM, R::BN>(be, x->k, x->v, x->q, x->dout);
    Job     g = job_of(be, x, x->dk, x->dv, dq_sum);
    size_t  smem = R::STARTS + ((size_t)g.n + 1) * sizeof(int);
    if (be->sticky) return true;                /* no workspace or no tensor map */
    launch_delta<C>(be, x, dq_sum, floats);
    LAUNCH(be, "attention_bwd", backward, vision_blocks(be, x, R::BM), THREADS, smem, m, g);
    LAUNCH(be, "attention_bwd", round_kernel, tiles, 32 * (C / 8), 0, rows_of(x->dq), dq_sum, g.starts, g.n,
           g.H, x->scale);
    return true;
}
