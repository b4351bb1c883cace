/* ops/cuda/dw_fp8_hopper.cu -- the fast kernel of grouped_dw_fp8: the tiles of grouped_fp8.cuh, with sums
 * along the rows of an expert. Experts have as many stages as their rows take, so a thread schedules tiles
 * (draw_tiles). */
#include "ops/cuda/grouped_fp8.cuh"

namespace {

/* Stores the sums of a tile to c, or adds them in memory: each element once, so the order does not matter. */
template <class C, bool ADD> struct Gradient {
    static constexpr int WIDE = BN;
    enum { COLS = 128 / sizeof(C), STORED = WIDE / COLS };      /* columns of a piece; pieces of a strip */
    CUtensorMap map;
    GroupedJob  g;

    __device__ Strip finish(const float (&sum)[BN / 2], const ExpertTile &t, int warp) const
    {
        if (!ADD && g.squares) put_squares<C>(g, t, warp, sum);
        int m = t.m + warp * 16;
        return Strip{ t.n, m, t.e, ADD && !t.rows ? 0 : g.M - m };
    }
    __device__ static void words(bf16, uint32_t (&v)[16], const float *sum)
    {
        #pragma unroll
        for (int i = 0; i < 16; i++) v[i] = pair_of(sum[2 * i], sum[2 * i + 1]);
    }
    __device__ static void words(float, uint32_t (&v)[16], const float *sum)
    {
        #pragma unroll
        for (int i = 0; i < 16; i++) v[i] = __float_as_uint(sum[i]);
    }
    __device__ void store(float (&sum)[BN / 2], const Strip &o, uint32_t at) const
    {
        bool leads = threadIdx.x % 32 == 0;
        if (o.rows <= 0) return;
        if (leads) tma_read_done<0>();          /* of the tile before */
        #pragma unroll
        for (int p = 0; p < STORED; p++) {
            uint32_t v[16], piece = at + p % PARTS * PIECE;
            if (o.x + p * COLS >= g.N) break;
            if (leads && p >= PARTS) tma_read_done<PARTS - 1>();
            __syncwarp();
            words(C(), v, sum + p * (BN / 2 / STORED));
            store_piece(C(), piece, v);
            async_fence();
            __syncwarp();
            if (leads && ADD)  tma_add(&map, piece, o.x + p * COLS, o.y, o.z);
            if (leads && !ADD) tma_store(&map, piece, o.x + p * COLS, o.y, o.z);
            if (leads) tma_commit();
        }
    }
};

template <class C, bool ADD> void launch(Backend *be, const DwFp8Call &x)
{
    int64_t E = x.c.n[0], M = x.c.n[1], N = x.c.n[2];
    int    *drawn = (int *)cuda_workspace(be, (size_t)(3 + E) * sizeof(int));
    Fp8Job  j = { };
    j.g.first = { (const int *)x.offsets.data, 1, 1 };
    j.g.E = (int)E, j.g.M = (int)M, j.g.N = (int)N;
    j.g.each = (int)(ceil_div(M, BM) * ceil_div(N, BN));
    j.g.drawn = drawn, j.g.order = drawn + 3, j.g.squares = (float *)x.squares.data;
    j.scale = (const float *)x.b.scale.data, j.scale_n = 1, j.scale_k = x.b.scale.s[0];
    j.shift = HALF, j.blocks = (int)x.b.scale.n[1];
    Fp8Maps          maps = fp8_maps(be, x.a.q, x.a.scale, stack_of(x.b.q));
    Gradient<C, ADD> end = { map_of(be, x.c, 16), j.g };
    if (be->sticky) return;                     /* no workspace or no tensor map */
    LAUNCH(be, "grouped_dw_fp8", order_experts, 1, EXPERTS_MOST, 0, drawn + 3, drawn, j.g.first, (int)E);
    launch_fp8<GEMM_TN>(be, "grouped_dw_fp8", maps, j, end, E * j.g.each);
}

}

bool hopper_dw_fp8(Backend *be, const DwFp8Call &x)
{
    if (!t_count(x.c) || x.c.n[0] > EXPERTS_MOST || !packs(x.a.q) || !packs(x.b.q) || !packs(x.c) ||
        !begins(x.a.scale)) return false;
    BY_DTYPE(x.c.dtype, C,
        if (x.add) launch<C, true>(be, x);
        else       launch<C, false>(be, x));
    return true;
}
