/* ops/cuda/fused_hopper.cu -- grouped_fused.c on Hopper GPUs: the tiles of grouped_hopper.cu, LoRA terms
 * included, with the activation as their epilogue.
 *
 * A finished tile is rounded to bf16, which halves its registers, and its epilogue runs in phases, one beside
 * each of the next tile's first products, so that the tensor cores do not wait. A phase is short enough to
 * end with its product. Rounds of phases repeat for other columns: the kept registers move up between rounds,
 * so that the code of a round exists once.
 *   forward   b is loaded as two boxes, so that g and u of a column are in the same thread: g and u are
 *             stored, and h computed from the rounded g and u. The bits of h are those of the separate ops.
 *   backward  A warp loads g and u of 16 rows x 64 columns by TMA into its staging pieces, reads them in the
 *             layout of its accumulators, overwrites them with dg and du and stores those from there. dgate
 *             is summed per tile.
 * CODED: w is in codes, see code_ring.cuh. */
#include "ops/cuda/grouped.cuh"
#include "ops/cuda/swiglu.cuh"

namespace {

/* Operands of the epilogues. wide: gu or dgu, (R, 2F); slim: h; part: sums of dgate, (tiles, R). */
typedef struct Ends {
    CUtensorMap  in[2], out[3];
    bf16        *wide, *slim;
    int64_t      wide_row, slim_row, gate_row, R;
    const float *gate;
    float       *part;
} Ends;

/* The address of a lane's 16 bytes of the first 16 columns of a piece, for stmatrix4 and ldmatrix4; those of
 * the q-th 16 columns are at this ^ q * 32. Lane 0's address is that of the piece. */
__device__ inline uint32_t spot_of(uint32_t piece)
{
    int lane = threadIdx.x % 32, r = lane % 16;
    return piece + r * 128 + ((lane / 16 ^ (r & 7)) << 4);
}

/* A rounded strip of a finished tile in wgmma's layout: word i is two columns of row lane/4 + i%2 * 8. */
struct Kept {
    uint32_t word[BN / 4];
    Strip    o;
    float    gate[2];

    __device__ void take(float (&d)[BN / 2], const Strip &strip, const Ends &e)
    {
        o = strip;
        #pragma unroll
        for (int i = 0; i < BN / 4; i++) word[i] = pair_of(d[2 * i], d[2 * i + 1]);
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = threadIdx.x % 32 / 4 + i * 8;
            gate[i] = e.gate && row < o.rows ? e.gate[(o.y + row) * e.gate_row] : 1.0f;
        }
    }
    /* Moves the next 64 columns to the front, in each of the parts of the tile that are processed in
     * parallel; a part has ROUNDS of them. */
    template <int ROUNDS> __device__ void move()
    {
        #pragma unroll
        for (int i = 0; i + 16 < BN / 4; i++)
            if (i % (ROUNDS * 16) + 16 < ROUNDS * 16) word[i] = word[i + 16];
    }
};

/* The forward epilogue. A round is 64 columns: g, u, and h in two phases. */
struct Forward {
    static constexpr int MODE = GEMM_NT, HALVES = 2, WIDE = BN / HALVES, ROUNDS = 2, PHASES = 4;
    const Ends &e;
    uint32_t    at;                             /* the piece to use next */
    int         N;
    Kept        k;

    __device__ Forward(const Ends &ends, uint32_t base, int warp, int columns)
        : e(ends), at(base + OUT + warp * 2 * PIECE), N(columns), k() { }

    __device__ void take(float (&d)[BN / 2], const Strip &o) { k.take(d, o, e); }

    __device__ void phase(int round, int p)
    {
        int col = round * 64;
        if (k.o.rows <= 0 || k.o.x + col >= N) return;
        if (p < 3) {
            if (threadIdx.x % 32 == 0) tma_read_done<1>();
            __syncwarp();
        }
        if (p < 2) {
            store_piece(bf16(), at, k.word + p * (BN / 8));
            send(at, &e.out[p], e.wide + p * N, e.wide_row, k.o, col, N);
        } else {
            gated(2 * (p - 2)), gated(2 * (p - 2) + 1);
            if (p == 3) send(at, &e.out[2], e.slim, e.slim_row, k.o, col, N);
        }
        if (p != 2) at ^= PIECE;
    }
    __device__ void next_round() { k.move<ROUNDS>(); }
    __device__ void last_round() { }

    __device__ void gated(int q)                /* 16 columns of h */
    {
        uint32_t v[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t g = k.word[q * 4 + i], u = k.word[BN / 8 + q * 4 + i];
            v[i] = pair_of(swiglu<bf16>(low(g), low(u), k.gate[i % 2]),
                           swiglu<bf16>(high(g), high(u), k.gate[i % 2]));
        }
        stmatrix4(spot_of(at) ^ q * 32, v[0], v[1], v[2], v[3]);
    }
};

/* The backward epilogue. A round is 64 columns: phase 0 issues the loads of g and u, two phases wait, the
 * four phases from WORK on turn them into dg and du. */
struct Backward {
    static constexpr int MODE = GEMM_NN, HALVES = 1, WIDE = BN, ROUNDS = 4, WORK = 3, PHASES = WORK + 4;
    const Ends &e;
    uint32_t    spot;                           /* of g; u is in the next piece */
    uint32_t    own;                            /* their barrier */
    int         N, parity;
    float       sum[2];
    Kept        k;

    __device__ Backward(const Ends &ends, uint32_t base, int warp, int columns)
        : e(ends), spot(spot_of(base + OUT + warp * 2 * PIECE)), own(base + OWN + warp * 8), N(columns),
          parity(0), sum(), k() { }

    __device__ void take(float (&d)[BN / 2], const Strip &o)
    {
        k.take(d, o, e);
        sum[0] = sum[1] = 0.0f;
    }

    __device__ void phase(int round, int p)
    {
        int col = round * 64;
        if (k.o.rows <= 0 || k.o.x + col >= N) return;
        if (p == 0) load(col);
        if (p == WORK) bar_wait(own, parity), parity ^= 1;
        if (p >= WORK) differentiate(p - WORK);
        if (p == PHASES - 1)
            for (int i = 0; i < 2; i++)
                send(uniform(spot) + i * PIECE, &e.out[i], e.wide + i * N, e.wide_row, k.o, col, N);
    }
    __device__ void next_round() { k.move<ROUNDS>(); }
    __device__ void last_round() { if (e.part) leave_sums(); }

    __device__ void load(int col)
    {
        async_fence();                          /* earlier reads of the pieces are done */
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            tma_read_done<0>();
            bar_expect(own, 2 * PIECE);
            for (int i = 0; i < 2; i++) tma_load(spot + i * PIECE, &e.in[i], own, k.o.x + col, k.o.y, 0);
        }
        __syncwarp();
    }

    __device__ void differentiate(int q)        /* 16 columns */
    {
        uint32_t g[4], u[4];
        ldmatrix4(spot ^ q * 32, g);
        ldmatrix4((spot ^ q * 32) + PIECE, u);
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t dh = k.word[q * 4 + i];
            float    dg[2], du[2], gate = k.gate[i % 2];
            sum[i % 2] += dswiglu<bf16>(&dg[0], &du[0], low(dh), low(g[i]), low(u[i]), gate);
            sum[i % 2] += dswiglu<bf16>(&dg[1], &du[1], high(dh), high(g[i]), high(u[i]), gate);
            g[i] = pair_of(dg[0], dg[1]), u[i] = pair_of(du[0], du[1]);
        }
        stmatrix4(spot ^ q * 32, g[0], g[1], g[2], g[3]);
        stmatrix4((spot ^ q * 32) + PIECE, u[0], u[1], u[2], u[3]);
    }

    __device__ void leave_sums()                /* four neighbouring lanes share a row */
    {
        int lane = threadIdx.x % 32;
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            int   row = lane / 4 + i * 8;
            float x   = sum[i] + __shfl_xor_sync(~0u, sum[i], 1);
            x += __shfl_xor_sync(~0u, x, 2);
            if (lane % 4 == 0 && row < k.o.rows) e.part[k.o.x / BN * e.R + k.o.y + row] = x;
        }
    }
};

/* One warp of the two consumer warpgroups, as in grouped_hopper.cu. */
template <class End, bool DROP, bool CLUSTER>
__device__ void fused_warpgroup(const GroupedJob &g, const int *off, uint32_t base, const Ends &ends,
                                const DropoutArgs &h)
{
    constexpr int MODE = End::MODE;
    int   warp = uniform(threadIdx.x / 32), group = warp / 4, lane = threadIdx.x % 32, s = 0, phase = 0;
    float d[BN / 2];
    ExpertTile  t = { };
    End   end(ends, base, warp, g.N);
    ExpertTileWalk<MODE, End::WIDE, CLUSTER> walk(off, g);
    TileReaderOf<CLUSTER> tiles(base + QUEUE);
    Releaser<CLUSTER>     release_stage(base + EMPTY);
    bool  active = false;

    auto multiply = [&](int step) {
        uint32_t a = base + s * STAGE + group * CHUNK, b = base + s * STAGE + A_BYTES;
        bar_wait(base + FULL + s * 8, phase);
        if (active) multiply_stage<0, MODE != GEMM_NT>(d, a, b, step);
        if (++s == STAGES) s = 0, phase ^= 1;
    };
    auto release = [&](int back) {              /* 1: the stage multiplied last, 2: the one before */
        release_stage(s - back < 0 ? s - back + STAGES : s - back);
    };

    int steps;
    do {                                        /* once more after the last tile, for its epilogue */
        steps = uniform(walk.find(tiles.next(), t) ? steps_of<MODE>(t, g) : 0);
        active = has_rows<MODE>(t, group);
        int step = 0, lead = DROP && steps ? g.steps - g.main : 0;
        if (DROP) {
            for (; step < lead; step++) {
                multiply(step);
                wgmma_wait<0>();
                release(1);
            }
            wgmma_pin(d);
            dropout_sums(d, h, t.first + t.m + warp * 16, t.n);
        }
        #pragma unroll 1
        for (int round = 0; round < End::ROUNDS; round++) {
            #pragma unroll
            for (int p = 0; p < End::PHASES; p++, step++) {
                if (step < steps) multiply(step);
                end.phase(round, p);
                wgmma_wait<1>();
                if (step != lead && step < steps) release(2);
            }
            end.next_round();
        }
        end.last_round();
        for (; step < steps; step++) {
            multiply(step);
            wgmma_wait<1>();
            release(2);
        }
        wgmma_wait<0>();
        wgmma_pin(d);
        if (steps) release(1);
        int m = t.m + warp * 16;
        end.take(d, Strip{ t.n, t.first + m, 0, t.rows - m });
    } while (steps);
    if (!lane) tma_read_done<0>();
}

template <class End, bool DROP, bool CLUSTER, bool CODED>
__device__ inline void fused_block(const Maps &maps, const Ends &ends, const GroupedJob &g,
                                   const DropoutArgs &h)
{
    run_block<End::MODE, End::HALVES, DROP, CLUSTER, CODED>(maps, g, [&](const int *off, uint32_t base) {
        fused_warpgroup<End, DROP, CLUSTER>(g, off, base, ends, dropout_seeded<DROP>(h));
    });
}

template <class End, bool DROP, bool CODED>
__global__ void __launch_bounds__(THREADS, 1)
fused(const __grid_constant__ Maps maps, const __grid_constant__ Ends ends,
      const __grid_constant__ GroupedJob g, const __grid_constant__ DropoutArgs h)
{
    fused_block<End, DROP, false, CODED>(maps, ends, g, h);
}

template <class End>
__global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(2)
cluster_fused(const __grid_constant__ Maps maps, const __grid_constant__ Ends ends,
              const __grid_constant__ GroupedJob g, const __grid_constant__ DropoutArgs h)
{
    fused_block<End, false, true, false>(maps, ends, g, h);
}

/* --- host --- */

template <class End, bool DROP>
void launch(Backend *be, const char *what, const FusedCall &q, const Ends &ends)
{
    int64_t E = q.offsets.n[0] - 1, rows = q.a.n[0], across = ceil_div(q.F, End::WIDE);
    bool    cluster = !DROP && !q.codes.format && long_enough_for_clusters(rows, E);
    int64_t most = most_tiles(rows, E, across, cluster);
    int64_t blocks = cluster ? cluster_blocks(be, most) : min_i64(cuda_compute_sms(be), most);
    GroupedJob  g = job_of(q.offsets, E, 1, q.F, q.a, q.w, q.lora);
    Maps        maps = maps_of(be, q.a, q.w, q.lora, BM, End::MODE == GEMM_NT ? End::WIDE : 64);
    DropoutArgs h = dropout_args(q.lora.dropout, 1.0f);
    g.drawn = cuda_of(be)->tile_counter;
    if (q.codes.format) g.ring = code_ring(be, q.codes, q.w, across);
    if (be->sticky) return;                     /* no tensor map */
    if (q.codes.format)
        LAUNCH(be, what, (fused<End, DROP, true>), blocks, THREADS, smem_bytes(E), maps, ends, g, h);
    else if (cluster)
        LAUNCH(be, what, cluster_fused<End>, blocks, THREADS, smem_bytes(E), maps, ends, g, h);
    else
        LAUNCH(be, what, (fused<End, DROP, false>), blocks, THREADS, smem_bytes(E), maps, ends, g, h);
}

}

void hopper_swiglu(Backend *be, const FusedCall &q)
{
    Ends e = { };
    for (int i = 0; i < 2; i++) e.out[i] = map_of(be, stack_of(half_of(q.wide, i)), 16);
    e.out[2] = map_of(be, stack_of(q.slim), 16);
    e.wide = (bf16 *)q.wide.data, e.slim = (bf16 *)q.slim.data, e.gate = (const float *)q.gate.data;
    e.wide_row = q.wide.s[0], e.slim_row = q.slim.s[0], e.gate_row = q.gate.s[0];
    launch<Forward, false>(be, "grouped_swiglu", q, e);
}

void hopper_dswiglu(Backend *be, const FusedCall &q)
{
    Ends e = { };
    for (int i = 0; i < 2; i++) {
        e.in[i]  = map_of(be, stack_of(half_of(q.gu, i)), 16);
        e.out[i] = map_of(be, stack_of(half_of(q.wide, i)), 16);
    }
    e.wide = (bf16 *)q.wide.data, e.wide_row = q.wide.s[0], e.R = q.wide.n[0], e.part = q.part;
    e.gate = (const float *)q.gate.data, e.gate_row = q.gate.s[0];
    if (q.lora.dropout.p > 0)
        launch<Backward, true>(be, "grouped_dswiglu", q, e);
    else
        launch<Backward, false>(be, "grouped_dswiglu", q, e);
}
