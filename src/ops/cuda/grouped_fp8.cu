/* ops/cuda/grouped_fp8.cu -- the fast kernel of grouped_gemm_fp8: e4m3 on the tensor cores, c in bf16. */
#include "ops/cuda/grouped_fp8.cuh"

namespace {

/* Rounds the sums and stores them to c. */
struct Rounded {
    static constexpr int WIDE = BN;
    CUtensorMap map;
    bf16       *c;
    int64_t     c_row;
    int         N;

    __device__ void store(float (&sum)[BN / 2], const Strip &o, uint32_t at) const
    {
        if (o.rows <= 0) return;
        if (threadIdx.x % 32 == 0) tma_read_done<0>();
        __syncwarp();
        #pragma unroll
        for (int p = 0; p < PARTS; p++) {
            uint32_t v[16];
            #pragma unroll
            for (int i = 0; i < 16; i++) v[i] = pair_of(sum[p * 32 + 2 * i], sum[p * 32 + 2 * i + 1]);
            store_piece(bf16(), at + p * PIECE, v);
            if (o.x + p * 64 < N) send(at + p * PIECE, &map, c, c_row, o, p * 64, N);
        }
    }
};

}

bool grouped_fp8(Backend *be, Tensor c, Tensor a, Tensor sa, Tensor b, Tensor sb, Tensor offsets)
{
    if (!fp8_packs(a, sa, b) || c.dtype != BF16 || !packs(c)) return false;
    Fp8Maps maps = fp8_maps(be, a, sa, b);
    Fp8Job  j = fp8_job(be, offsets, a, b, sb);
    Rounded end = { map_of(be, stack_of(c), 16), (bf16 *)c.data, c.s[0], j.g.N };
    if (be->sticky) return true;                /* no tensor map */
    launch_fp8(be, maps, j, end, a.n[0]);
    return true;
}
