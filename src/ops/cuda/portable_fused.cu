/* ops/cuda/portable_fused.cu -- grouped_fused.c on every GPU since compute capability 8.0: the tiles of
 * portable_grouped.cuh with the activation as their epilogue.
 *
 * forward   A warp has the gates and ups of the same 32 columns: both are rounded and stored, and h computed
 *           from the rounded values. The bits of h are those of the separate ops.
 * backward  dh is rounded; g and u are read, dg and du written, 8 bytes a lane. dgate is summed per tile. */
#include "ops/cuda/portable_grouped.cuh"
#include "ops/cuda/swiglu.cuh"

namespace {

enum { WIDE = 256 };                                /* columns of a tile; of dgate's sums */

/* wide: gu or dgu, (R, 2F). */
typedef struct FusedArgs {
    bf16        *wide, *slim;
    const bf16  *gu;
    const float *gate;
    float       *part;
    int64_t      wide_row, slim_row, gu_row, gate_row, R;
} FusedArgs;

__device__ inline float gate_of(const FusedArgs &a, int64_t row, bool valid)
{
    return a.gate && valid ? a.gate[row * a.gate_row] : 1.0f;
}

/* Columns of block j and the next in row half h, rounded, as four neighbouring ones. */
__device__ inline uint2 rounded(const float (*d)[4], int j, int h)
{
    return four_columns(pair_of(d[j][2 * h], d[j][2 * h + 1]), pair_of(d[j + 1][2 * h], d[j + 1][2 * h + 1]));
}

struct Forward {
    typedef FusedArgs Args;

    __device__ static uint32_t gated(uint32_t g, uint32_t u, float gate)
    {
        return pair_of(swiglu<bf16>(low(g), low(u), gate), swiglu<bf16>(high(g), high(u), gate));
    }
    __device__ static void put(const Args &a, const TileJob &g, const Tile &t, const Sums<WIDE> &s, float *)
    {
        int n = t.n + s.col() / 2 + lane_col();
        each_row(t.m + s.row(), [&](int row, int i, int h) {
            bool    valid = row < t.rows;
            int64_t at = t.first + row;
            float   gate = gate_of(a, at, valid);
            #pragma unroll
            for (int j = 0; j < 4; j += 2) {
                uint2 up = rounded(s.d[i], j + 4, h), by = rounded(s.d[i], j, h);
                int   col = n + j * 8;
                if (!valid || col >= g.N) continue;
                *(uint2 *)(a.wide + at * a.wide_row + col)       = by;
                *(uint2 *)(a.wide + at * a.wide_row + g.N + col) = up;
                *(uint2 *)(a.slim + at * a.slim_row + col) = make_uint2(gated(by.x, up.x, gate),
                                                                        gated(by.y, up.y, gate));
            }
        });
    }
};

struct Backward {
    typedef FusedArgs Args;

    /* dh becomes dg, u becomes du; returns what they add to dgate. */
    __device__ static float turn(uint32_t &dh, uint32_t g, uint32_t &u, float gate)
    {
        float dg[2], du[2];
        float sum = dswiglu<bf16>(&dg[0], &du[0], low(dh), low(g), low(u), gate);
        sum += dswiglu<bf16>(&dg[1], &du[1], high(dh), high(g), high(u), gate);
        dh = pair_of(dg[0], dg[1]), u = pair_of(du[0], du[1]);
        return sum;
    }
    __device__ static float put_row(const Args &a, int64_t at, int n, int N, const float (*d)[4], int h,
                                    float gate, bool valid)
    {
        float sum = 0.0f;
        #pragma unroll
        for (int j = 0; j < 8; j += 2) {
            uint2 dh = rounded(d, j, h);
            int   col = n + j * 8;
            if (!valid || col >= N) continue;
            uint2 g = *(const uint2 *)(a.gu + at * a.gu_row + col);
            uint2 u = *(const uint2 *)(a.gu + at * a.gu_row + N + col);
            sum += turn(dh.x, g.x, u.x, gate) + turn(dh.y, g.y, u.y, gate);
            *(uint2 *)(a.wide + at * a.wide_row + col)     = dh;
            *(uint2 *)(a.wide + at * a.wide_row + N + col) = u;
        }
        return sum;
    }
    __device__ static void put(const Args &a, const TileJob &g, const Tile &t, const Sums<WIDE> &s,
                                float *sums)
    {
        enum { WARPS = Sums<WIDE>::WARPS };         /* that share a row */
        each_row(t.m + s.row(), [&](int row, int i, int h) {
            bool    valid = row < t.rows;
            int64_t at = t.first + row;
            float   sum = put_row(a, at, t.n + s.col() + lane_col(), g.N, s.d[i], h,
                                  gate_of(a, at, valid), valid);
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            if (threadIdx.x % 4 == 0) sums[(row - t.m) * WARPS + s.col() / 64] = sum;
        });
        __syncthreads();
        int row = t.m + threadIdx.x;
        if (!a.part || threadIdx.x >= TILE_M || row >= t.rows) return;
        float sum = 0.0f;
        for (int i = 0; i < WARPS; i++) sum += sums[threadIdx.x * WARPS + i];
        a.part[(int64_t)(t.n / WIDE) * a.R + t.first + row] = sum;
    }
};

typedef Product<GEMM_NT, WIDE, Forward, false, false, PairedB<WIDE>> Swiglu;
template <bool DROP> using Dswiglu = Product<GEMM_NN, WIDE, Backward, false, DROP>;

TileJob job_of(Backend *be, const FusedCall &q)
{
    TileJob g = tile_job(be, q.offsets, q.offsets.n[0] - 1, 1, 0, q.F);
    g.main = term_of(q.a, q.w), g.lora = lora_of(q.lora), g.dropout = dropout_args(q.lora.dropout, 1.0f);
    return g;
}

FusedArgs args_of(const FusedCall &q)
{
    FusedArgs a = { (bf16 *)q.wide.data, (bf16 *)q.slim.data, (const bf16 *)q.gu.data,
                    (const float *)q.gate.data, q.part, q.wide.s[0], q.slim.s[0], q.gu.s[0], q.gate.s[0],
                    q.wide.n[0] };
    return a;
}

}

void portable_swiglu(Backend *be, const FusedCall &q)
{
    launch_tiles<Swiglu>(be, "grouped_swiglu", job_of(be, q), args_of(q), q.a.n[0]);
}

void portable_dswiglu(Backend *be, const FusedCall &q)
{
    TileJob g = job_of(be, q);
    if (q.lora.dropout.p > 0) launch_tiles<Dswiglu<true>>(be, "grouped_dswiglu", g, args_of(q), q.a.n[0]);
    else                      launch_tiles<Dswiglu<false>>(be, "grouped_dswiglu", g, args_of(q), q.a.n[0]);
}
