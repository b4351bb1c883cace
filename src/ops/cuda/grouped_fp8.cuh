/* ops/cuda/grouped_fp8.cuh -- the experts' products of e4m3, and dense ones as those
 * of one expert: tiles as in grouped.cuh, sums as in ops/quant.h. NT: c = a b' of rows; TN: weight gradients,
 * whose operands are transposed (ops/quantize_cols.c) and so are multiplied alike, with sums along the
 * columns of an expert.
 *
 * A stage is 128 along K, one group of scales: its operands take the bytes of a bf16 stage of 64. A consumer
 * warpgroup multiplies its 64 rows by one half of the tile's columns, 128 of them with one scale of b, and
 * then adds scale times the product to its sums in f32. While it does, the tensor cores multiply for the
 * other warpgroup. The products have registers of their own, so the first product of a tile runs while the
 * sums of the tile before are stored: an epilogue needs no registers to keep a tile in.
 *
 * Clusters of two blocks that share a by TMA multicast, and turns, in which one warpgroup starts a product
 * when the other has, were measured and took up to 5 % more time. */
#ifndef OPS_CUDA_GROUPED_FP8_CUH
#define OPS_CUDA_GROUPED_FP8_CUH

#include "ops/cuda/grouped.cuh"
#include "ops/cuda/hopper_fp8.cuh"
#include "ops/cuda/product_fp8.h"
#include "ops/quant.h"

/* Shared memory: stages, four pieces (see grouped.cuh) of each consumer warp, scales of a of 128 rows and of
 * b of two halves of the columns for each stage, barriers, the queue, the segments. TMA reads from 16 bytes
 * on, so the scales of a begin up to three rows before the tile. */
enum { K8 = 128, HALF = BN / 2, STAGES8 = 3, STRIP_BYTES = 4 * PIECE, OUT8 = STAGES8 * STAGE,
       SCALE_A = OUT8 + CONSUMERS * STRIP_BYTES, SCALE_ROWS = BM + 4, SCALE_STAGE = 640,
       SCALE_B = SCALE_A + STAGES8 * SCALE_STAGE, FULL8 = SCALE_B + STAGES8 * 8,
       EMPTY8 = FULL8 + STAGES8 * 8, QUEUE8 = EMPTY8 + STAGES8 * 8, OFFSETS8 = QUEUE8 + TILE_QUEUE_BYTES };

/* shift: columns of b from one half of a tile to the other. */
typedef struct Fp8Job {
    GroupedJob   g;
    const float *scale;                         /* of b, with the strides of experts, of blocks of N and K */
    int64_t      scale_expert, scale_n, scale_k;
    int          shift, blocks;                 /* blocks: of N */
} Fp8Job;

typedef struct Fp8Maps { CUtensorMap a, b, scale; } Fp8Maps;

/* Where the operands of a tile begin, and its stages: row of a, matrix of b, group of the sum. */
template <int MODE> struct Fp8Sum {
    int row, matrix, group, steps;

    __device__ Fp8Sum(const ExpertTile &t, const Fp8Job &j)
    {
        bool tn = MODE == GEMM_TN;
        row    = tn ? t.m : t.first + t.m;
        matrix = tn ? 0 : t.e;
        group  = tn ? (int)quant_column(t.first, t.e) / K8 : 0;
        steps  = tn ? (t.rows + K8 - 1) / K8 : j.g.steps;
    }
};

template <int MODE, class End>
using Fp8Walk = ExpertTileWalk<MODE, End::WIDE, false, MODE != GEMM_TN>;

/* Scales of b for 16 stages: lane l has that of half l / 16 and stage l % 16. */
template <int MODE>
__device__ inline float load_scales(const Fp8Job &j, const ExpertTile &t, const Fp8Sum<MODE> &sum, int step)
{
    int lane = threadIdx.x % 32, k = step + lane % 16, n = (t.n + lane / 16 * j.shift) / K8;
    bool some = k < sum.steps && n < j.blocks;
    return some ? j.scale[sum.matrix * j.scale_expert + n * j.scale_n + (sum.group + k) * j.scale_k] : 0.0f;
}

/* The producer warp. */
template <int MODE, class End>
__device__ void produce_fp8(const Fp8Maps &maps, const Fp8Job &j, const int *off, uint32_t base)
{
    Fp8Walk<MODE, End>  walk(off, j.g);
    ProducerTiles<MODE> tiles(j.g, base + QUEUE8);
    ExpertTile t;
    int   s = 0, phase = 0, lane = threadIdx.x % 32;
    float scales = 0.0f;
    while (walk.find(tiles.next(), t)) {
        Fp8Sum<MODE> sum(t, j);
        for (int step = 0; step < sum.steps; step++) {
            uint32_t full = base + FULL8 + s * 8, at = base + s * STAGE;
            int      k = sum.group + step;
            tiles.stage(step, sum.steps);
            if (step % 16 == 0) scales = load_scales(j, t, sum, step);
            float scale = __shfl_sync(~0u, scales, step % 16 + lane % 2 * 16);
            bar_wait(base + EMPTY8 + s * 8, phase ^ 1);
            if (lane < 2) smem_store(base + SCALE_B + s * 8 + lane * 4, __float_as_int(scale));
            __syncwarp();
            if (lane == 0) {
                bar_expect(full, STAGE + SCALE_ROWS * (int)sizeof(float));
                tma_load(at, &maps.a, full, k * K8, sum.row);
                for (int x = 0; x < 2; x++)
                    tma_load(at + A_BYTES + x * HALF * 128, &maps.b, full, k * K8, t.n + x * j.shift,
                             sum.matrix);
                tma_load(base + SCALE_A + s * SCALE_STAGE, &maps.scale, full, sum.row & ~3, k);
            }
            __syncwarp();
            if (++s == STAGES8) s = 0, phase ^= 1;
        }
    }
    tiles.close(walk.tiles());
}

/* d = the product of a stage's 64 rows of a and 128 of b. */
__device__ inline void multiply_fp8(float (&d)[HALF / 2], uint32_t a, uint32_t b)
{
    uint64_t da = wgmma_operand(a, 0, 1024), db = wgmma_operand(b, 0, 1024);
    wgmma_begin();
    #pragma unroll
    for (int k = 0; k < K8 / 32; k++) wgmma_e4m3(d, da + k * 2, db + k * 2, k > 0);
    wgmma_commit();
}

__device__ inline float smem_float(uint32_t at) { return __int_as_float(smem_word(at)); }

/* Pinned on both sides: without that the compiler keeps old and new sums at once, and spills. */
__device__ inline void clear_sums(float (&sum)[BN / 2])
{
    wgmma_pin(sum);
    #pragma unroll
    for (int i = 0; i < BN / 2; i++) sum[i] = 0.0f;
    wgmma_pin(sum);
}

/* One warp of the two consumer warpgroups. End stores a warp's 16 rows of sums: of a thread, those of the
 * first half of the columns, then of the second. A finished tile is stored during the first product of the
 * next, or before the next where that has none. */
template <int MODE, class End>
__device__ void multiply_tiles_fp8(const Fp8Job &j, const int *off, uint32_t base, const End &end)
{
    Fp8Walk<MODE, End> walk(off, j.g);
    TileReader tiles(base + QUEUE8);
    int        warp = uniform(threadIdx.x / 32), group = warp / 4, s = 0, phase = 0;
    uint32_t   own_scale = base + SCALE_A + (warp * 16 + threadIdx.x % 32 / 4) * 4;
    float      sum[BN / 2] = { }, d[HALF / 2];
    Strip      out = { };
    ExpertTile t;
    Releaser<false> release(base + EMPTY8);

    while (walk.find(tiles.next(), t)) {
        Fp8Sum<MODE> place(t, j);
        bool     active = has_rows<MODE>(t, group);
        uint32_t scales = own_scale + (place.row & 3) * 4;
        if (MODE == GEMM_TN && !place.steps) {
            end.store(sum, out, base + OUT8 + warp * STRIP_BYTES);
            clear_sums(sum);
        }
        for (int step = 0; step < place.steps; step++) {
            uint32_t a = base + s * STAGE + group * CHUNK, b = base + s * STAGE + A_BYTES;
            bar_wait(base + FULL8 + s * 8, phase);
            float upper = smem_float(scales + s * SCALE_STAGE);
            float lower = smem_float(scales + s * SCALE_STAGE + 32);
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                float scale = smem_float(base + SCALE_B + s * 8 + half * 4);
                if (active) multiply_fp8(d, a, b + half * HALF * 128);
                if (!half && !step) {
                    end.store(sum, out, base + OUT8 + warp * STRIP_BYTES);
                    clear_sums(sum);
                }
                wgmma_wait<0>();
                wgmma_pin(d);
                if (half) release(s);
                if (!active) continue;
                #pragma unroll
                for (int i = 0; i < HALF / 2; i++)
                    sum[half * HALF / 2 + i] += scale * (i & 2 ? lower : upper) * d[i];
            }
            if (++s == STAGES8) s = 0, phase ^= 1;
        }
        int m = warp * 16;
        if constexpr (MODE == GEMM_TN) out = end.finish(sum, t, warp);
        else                           out = Strip{ t.n, place.row + m, 0, t.rows - t.m - m };
    }
    end.store(sum, out, base + OUT8 + warp * STRIP_BYTES);
    if (threadIdx.x % 32 == 0) tma_read_done<0>();
}

template <int MODE> __device__ inline void barriers_fp8(uint32_t base)
{
    for (int i = 0; i < STAGES8; i++)
        bar_init(base + FULL8 + i * 8, 1), bar_init(base + EMPTY8 + i * 8, CONSUMERS);
    queue_init<MODE>(base + QUEUE8);
    bar_init_done();
}

namespace {

template <int MODE, class End>
__global__ void __launch_bounds__(THREADS, 1)
fp8_tiles(const __grid_constant__ Fp8Maps maps, const __grid_constant__ Fp8Job j,
          const __grid_constant__ End end)
{
    extern __shared__ __align__(1024) char smem[];
    uint32_t base = smem_at(smem);
    int     *off  = (int *)(smem + OFFSETS8);
    for (int i = threadIdx.x; i <= j.g.E; i += THREADS) off[i] = j.g.first.at<true>(i);
    if (threadIdx.x == 0) barriers_fp8<MODE>(base);
    __syncthreads();
    if (threadIdx.x < CONSUMERS * 32) {
        regs_more<MORE>();
        multiply_tiles_fp8<MODE>(j, off, base, end);
    } else {
        regs_less<LESS>();
        if (threadIdx.x / 32 == CONSUMERS) produce_fp8<MODE, End>(maps, j, off, base);
        else if (MODE == GEMM_TN && threadIdx.x == (CONSUMERS + 1) * 32) draw_tiles(j.g, base + QUEUE8);
    }
}

}

/* --- host --- */

/* most: tiles. */
template <int MODE, class End>
static void launch_fp8(Backend *be, const char *what, const Fp8Maps &maps, const Fp8Job &j, const End &end,
                       int64_t most)
{
    LAUNCH(be, what, (fp8_tiles<MODE, End>), min_i64(cuda_compute_sms(be), most), THREADS,
           OFFSETS8 + ((size_t)j.g.E + 1) * sizeof(int), maps, j, end);
}
static inline int64_t most_tiles_fp8(const Fp8Job &j, int64_t R, int64_t wide)
{
    return (ceil_div(R, BM) + j.g.E) * ceil_div(j.g.N, wide);
}

static inline Fp8Job fp8_job(Backend *be, Tensor offsets, Tensor a, Tensor b, Tensor sb)
{
    Fp8Job j = { };
    j.g.first = { (const int *)offsets.data, t_has(offsets) ? 1 : (int)a.n[0], 1 };
    j.g.E = (int)b.n[0], j.g.N = (int)b.n[1], j.g.steps = (int)ceil_div(a.n[1], K8);
    j.g.drawn = cuda_of(be)->tile_counter;
    j.scale = (const float *)sb.data, j.scale_expert = sb.s[0], j.scale_n = sb.s[1], j.scale_k = 1;
    j.shift = HALF, j.blocks = (int)sb.n[1];
    return j;
}

static inline Fp8Maps fp8_maps(Backend *be, Tensor a, Tensor sa, Tensor b)
{
    Fp8Maps m = { map_of(be, a, BM), map_of(be, b, HALF),
                  map_boxes(be, sa, SCALE_ROWS, 1, CU_TENSOR_MAP_SWIZZLE_NONE) };
    return m;
}

static inline bool fp8_packs(Tensor a, Tensor sa, Tensor b)
{
    return a.n[0] > 0 && a.n[1] > 0 && b.n[0] > 0 && b.n[0] <= EXPERTS_MOST && b.n[1] > 0 && packs(a) &&
           packs(b) && begins(sa);
}

#endif
