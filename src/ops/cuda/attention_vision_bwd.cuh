/* ops/cuda/attention_vision_bwd.cuh -- what the two backward passes of vision heads share: the arguments
 * of their kernels, the producer warp, delta.
 *
 * A kernel describes its shared memory by a type R: BM rows are held in two tiles of HELD bytes at 0, the
 * other side of the segment is streamed BN rows at a time through STAGES stages of two tiles of TILE bytes,
 * tile(s, i); HELD_EMPTY and EMPTY are barriers of what may be loaded again, QUEUE is the tile queue. */
#ifndef OPS_CUDA_ATTENTION_VISION_BWD_CUH
#define OPS_CUDA_ATTENTION_VISION_BWD_CUH

#include "ops/cuda/attention_vision.cuh"

namespace {

/* The outputs are dk and dv, or dq alone; dq_sum: see attention_vision_fused.cu. */
typedef struct Job {
    int         *tile_counter;
    const int   *starts;
    HeadRows     first, second;
    const float *lse, *delta;
    float       *dq_sum;
    int64_t      lse_row, delta_row;
    int          n, H;
    float        scale;
} Job;

typedef struct Maps { CUtensorMap held[2], flow[2]; } Maps;

/* The producer warp: loads rows by TMA, which ends phases of barrier `held_full` and of the stage's of those
 * from `full` on. */
template <int C, class R>
__device__ void produce(const Maps &m, const Job &g, const int *starts, uint32_t base, int held_full,
                        int full)
{
    enum { BM = R::BM, BN = R::BN };
    HeadTileWalk<BM>     walk(starts, g.n, g.H);
    TileDrawer      tiles(g.tile_counter, base + R::QUEUE);
    Ring<R::STAGES> ring;
    HeadTile t = { };
    int  lane = threadIdx.x % 32;
    for (int phase = 0; walk.find(tiles.next(), t); phase ^= 1) {
        bar_wait(base + R::HELD_EMPTY, phase ^ 1);
        if (!lane) {
            bar_expect(base + held_full, 2 * R::HELD);
            for (int i = 0; i < 2; i++)
                tile_load<C, BM>(base + i * R::HELD, &m.held[i], base + held_full, t.head, t.first + t.row);
        }
        for (int row = 0, steps = (t.rows + BN - 1) / BN; row < t.rows; row += BN, ring.step()) {
            tiles.stage(row / BN, steps);
            uint32_t bar = base + full + ring.s * 8;
            bar_wait(base + R::EMPTY + ring.s * 8, ring.phase ^ 1);
            if (!lane) {
                bar_expect(bar, 2 * R::TILE);
                for (int i = 0; i < 2; i++)
                    tile_load<C, BN>(base + R::tile(ring.s, i), &m.flow[i], bar, t.head, t.first + row);
            }
            __syncwarp();
        }
    }
    tiles.close(walk.tiles());
}

/* delta[h,t] = dout[t,h,:].o[t,h,:], one thread each: neighbouring threads read neighbouring heads. Also
 * zeroes `packs` packs of sums. */
template <int C>
__global__ void delta_kernel(float *delta, int64_t delta_row, HeadRows dout, HeadRows o, int64_t T, int H,
                             Pack<float> *sums, int64_t packs)
{
    int64_t at = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, t = at / H, h = at % H;
    float   sum = 0.0f;
    for (int64_t i = at; i < packs; i += (int64_t)gridDim.x * blockDim.x) sums[i] = Pack<float>{ };
    if (t >= T) return;
    #pragma unroll
    for (int c = 0; c < C; c += 8) {
        Pack<bf16> x = pack_load((const bf16 *)dout.p + t * dout.row + h * dout.head + c);
        Pack<bf16> y = pack_load((const bf16 *)o.p + t * o.row + h * o.head + c);
        #pragma unroll
        for (int i = 0; i < 8; i++) sum = fmaf(to_f32(x.v[i]), to_f32(y.v[i]), sum);
    }
    delta[h * delta_row + t] = sum;
}

/* --- the host side --- */

template <int C> void launch_delta(Backend *be, const Attn *x, float *sums, int64_t floats)
{
    int64_t T = x->q.n[0], H = x->q.n[1];
    LAUNCH(be, "attention_bwd", delta_kernel<C>, ceil_div(T * H, 256), 256, 0, (float *)x->delta.data,
           x->delta.s[0], rows_of(x->dout), rows_of(x->o), T, (int)H, (Pack<float> *)sums, floats / 4);
}

static inline Job job_of(Backend *be, const Attn *x, Tensor first, Tensor second, float *dq_sum)
{
    return Job{ cuda_of(be)->tile_counter, (const int *)x->seg.starts.data, rows_of(first), rows_of(second),
                (const float *)x->lse.data, (const float *)x->delta.data, dq_sum, x->lse.s[0],
                x->delta.s[0], (int)x->seg.n, (int)x->q.n[1], x->scale };
}

/* The held tensors in boxes of BM rows, the streamed ones in boxes of BN. */
template <int BM, int BN>
Maps maps_of(Backend *be, const Tensor &held0, const Tensor &held1, const Tensor &flow0, const Tensor &flow1)
{
    return Maps{ { heads_map(be, held0, BM), heads_map(be, held1, BM) },
                 { heads_map(be, flow0, BN), heads_map(be, flow1, BN) } };
}

}

#endif
