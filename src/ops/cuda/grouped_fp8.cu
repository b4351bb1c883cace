/* ops/cuda/grouped_fp8.cu -- the fast kernel of gemm_fp8 and grouped_gemm_fp8: e4m3 on the tensor cores, c in
 * bf16. */
#include "ops/cuda/grouped_fp8.cuh"

namespace {

/* Adds bias and residual (ADDS: where there are any), rounds the sums and stores them to c. */
template <bool ADDS> struct Rounded {
    static constexpr int WIDE = BN;
    CUtensorMap map;
    bf16       *c;
    const bf16 *bias, *res;
    int64_t     c_row, res_row;
    int         N;

    /* Word i of a piece is two columns of row lane / 4 + i % 2 * 8. */
    __device__ void add(float *sum, uint32_t (&v)[16], const Strip &o, int col) const
    {
        int lane = threadIdx.x % 32, x = o.x + col + lane % 4 * 2;
        #pragma unroll
        for (int i = 0; i < 16; i++) {
            int row = lane / 4 + i % 2 * 8, at = x + i / 2 * 8;
            v[i] = res && row < o.rows && at < N ? *(const uint32_t *)(res + (o.y + row) * res_row + at) : 0;
        }
        #pragma unroll
        for (int i = 0; i < 16; i++) {
            int      at = x + i / 2 * 8;
            uint32_t b = bias && at < N ? *(const uint32_t *)(bias + at) : 0;
            sum[2 * i]     = sum[2 * i] + low(b) + low(v[i]);
            sum[2 * i + 1] = sum[2 * i + 1] + high(b) + high(v[i]);
        }
    }
    __device__ void store(float (&sum)[BN / 2], const Strip &o, uint32_t at) const
    {
        if (o.rows <= 0) return;
        if (threadIdx.x % 32 == 0) tma_read_done<0>();
        __syncwarp();
        #pragma unroll
        for (int p = 0; p < PARTS; p++) {
            uint32_t v[16];
            if (ADDS) add(sum + p * 32, v, o, p * 64);
            #pragma unroll
            for (int i = 0; i < 16; i++) v[i] = pair_of(sum[p * 32 + 2 * i], sum[p * 32 + 2 * i + 1]);
            store_piece(bf16(), at + p * PIECE, v);
            if (o.x + p * 64 < N) send(at + p * PIECE, &map, c, c_row, o, p * 64, N);
        }
    }
};

template <bool ADDS> void launch_rounded(Backend *be, const char *what, const Fp8Call &x)
{
    Fp8Maps maps = fp8_maps(be, x.a, x.sa, x.b);
    Fp8Job  j = fp8_job(be, x.offsets, x.a, x.b, x.sb);
    Rounded<ADDS> end = { map_of(be, stack_of(x.c), 16), (bf16 *)x.c.data, (const bf16 *)x.bias.data,
                          (const bf16 *)x.res.data, x.c.s[0], x.res.s[0], j.g.N };
    if (!be->sticky)                            /* else there is no tensor map */
        launch_fp8<GEMM_NT>(be, what, maps, j, end, most_tiles_fp8(j, x.a.n[0], BN));
}

bool absent_or_bf16(Tensor t) { return !t_has(t) || (t.dtype == BF16 && packs(t)); }

}

bool hopper_gemm_fp8(Backend *be, const char *what, Fp8Call x)
{
    x.b = stack_of(x.b), x.sb = stack_of(x.sb);
    if (!fp8_packs(x.a, x.sa, x.b) || x.c.dtype != BF16 || !packs(x.c) || !absent_or_bf16(x.bias) ||
        !absent_or_bf16(x.res)) return false;
    if (t_has(x.bias) || t_has(x.res)) launch_rounded<true>(be, what, x);
    else                               launch_rounded<false>(be, what, x);
    return true;
}
