/* ops/cuda/grouped_fused_fp8.cu -- kernels of grouped_fused_fp8.c: the tiles of grouped_fp8.cuh with the
 * activation and the quantisation of its result as their epilogue.
 *
 * The halves of a tile are the same 128 columns of g and of u, so that a thread has both of an element, and a
 * warp whole groups of h: four lanes share a row. The epilogue stores seven pieces through the four of a
 * warp's strip: codes of h, h, g, u. Requires bf16, a width of h that is a multiple of 128, and rows on 16
 * bytes. */
#include "ops/cuda/grouped_fp8.cuh"
#include "ops/cuda/quant.cuh"
#include "ops/cuda/swiglu.cuh"

namespace {

/* A strip's words of 128 columns: word i is two columns of row lane / 4 + i % 2 * 8. */
enum { WORDS = HALF / 4 };

__device__ inline void round_half(uint32_t (&word)[WORDS], const float (&sum)[BN / 2], int half)
{
    #pragma unroll
    for (int i = 0; i < WORDS; i++)
        word[i] = pair_of(sum[half * (BN / 4) + 2 * i], sum[half * (BN / 4) + 2 * i + 1]);
}

/* Scales of a strip's 16 rows by the words of 128 columns: of the thread's upper and lower row. */
__device__ inline void scales_of(QuantScale (&s)[2], const uint32_t (&word)[WORDS])
{
    uint32_t amax[2] = { };
    #pragma unroll
    for (int i = 0; i < WORDS; i++)
        amax[i % 2] = max(amax[i % 2], max(quant_magnitude(low(word[i])), quant_magnitude(high(word[i]))));
    for (int i = 0; i < 2; i++) s[i] = quant_scale(lanes_max<4>(amax[i]), true);
}

/* Codes of the words into a piece: its rows of 128 bytes are 128 codes. */
__device__ inline void store_codes(uint32_t piece, const uint32_t (&word)[WORDS], const QuantScale (&s)[2])
{
    int lane = threadIdx.x % 32, r = lane / 4;
    #pragma unroll
    for (int i = 0; i < WORDS; i++) {
        int      j = i / 2;
        uint32_t at = piece + (r + i % 2 * 8) * 128 + ((j / 2 ^ r) << 4) + j % 2 * 8 + lane % 4 * 2;
        uint32_t two = e4m3_pair(low(word[i]) * s[i % 2].inverse, high(word[i]) * s[i % 2].inverse);
        asm volatile("st.shared.u16 [%0], %1;" :: "r"(at), "h"((uint16_t)two) : "memory");
    }
}

/* scale: (groups, R). */
__device__ inline void store_scales(float *scale, int64_t row_size, const Strip &o, const QuantScale (&s)[2])
{
    int lane = threadIdx.x % 32;
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = lane / 4 + i * 8;
        if (lane % 4 == 0 && row < o.rows) scale[o.x / QUANT_GROUP * row_size + o.y + row] = s[i].scale;
    }
}

/* The pieces of a strip, used in turn: one is free when at most the stores of the others may still read. */
struct Pieces {
    uint32_t strip;
    int      next;

    __device__ Pieces(uint32_t strip_) : strip(strip_), next(0)
    {
        if (threadIdx.x % 32 == 0) tma_read_done<0>();         /* of the tile before */
    }
    __device__ uint32_t take()
    {
        uint32_t at = strip + next++ % PARTS * PIECE;
        if (threadIdx.x % 32 == 0) tma_read_done<PARTS - 1>();
        __syncwarp();
        return at;
    }
};

struct SwigluOut {
    static constexpr int WIDE = HALF;
    CUtensorMap  wide[2], slim, codes;          /* halves of gu, h, hq */
    bf16        *gu, *h;
    uint8_t     *hq;
    float       *hs;
    const float *gate;
    int64_t      gu_row, h_row, hq_row, hs_row, gate_row;
    int          N;
    bool         stores_h;

    __device__ float gate_of(const Strip &o, int row) const
    {
        return gate && row < o.rows ? gate[(o.y + row) * gate_row] : 1.0f;
    }
    __device__ void store_words(const uint32_t *word, const CUtensorMap *map, bf16 *to, int64_t row_size,
                                const Strip &o, Pieces &pieces) const
    {
        #pragma unroll
        for (int p = 0; p < 2; p++) {
            uint32_t at = pieces.take();
            store_piece(bf16(), at, word + p * 16);
            send(at, map, to, row_size, o, p * 64, N);
        }
    }
    __device__ void activate(uint32_t (&h)[WORDS], const uint32_t (&g)[WORDS], const uint32_t (&u)[WORDS],
                             const Strip &o) const
    {
        int   row = threadIdx.x % 32 / 4;
        float factor[2] = { gate_of(o, row), gate_of(o, row + 8) };
        #pragma unroll
        for (int i = 0; i < WORDS; i++)
            h[i] = pair_of(swiglu<bf16>(low(g[i]), low(u[i]), factor[i % 2]),
                           swiglu<bf16>(high(g[i]), high(u[i]), factor[i % 2]));
    }
    __device__ void store(float (&sum)[BN / 2], const Strip &o, uint32_t strip) const
    {
        uint32_t   g[WORDS], u[WORDS], act[WORDS];
        QuantScale s[2];
        if (o.rows <= 0 || o.x >= N) return;
        Pieces pieces(strip);
        round_half(g, sum, 0);
        round_half(u, sum, 1);
        activate(act, g, u, o);
        scales_of(s, act);
        uint32_t at = pieces.take();
        store_codes(at, act, s);
        send(at, &codes, hq, hq_row, o, 0, N);
        store_scales(hs, hs_row, o, s);
        if (stores_h) store_words(act, &slim, h, h_row, o, pieces);
        store_words(g, &wide[0], gu, gu_row, o, pieces);
        store_words(u, &wide[1], gu + N, gu_row, o, pieces);
    }
};

bool fast(Tensor gu, Tensor h, Tensor hq, Tensor a, Tensor sa, Tensor w)
{
    return fp8_packs(a, sa, w) && gu.dtype == BF16 && h.dtype == BF16 && packs(gu) && packs(h) &&
           packs(hq) && h.n[1] % QUANT_GROUP == 0;
}

SwigluOut out_of(Backend *be, Tensor gu, Tensor h, Tensor hq, Tensor hs, Tensor gate, bool stores_h)
{
    SwigluOut e = { };
    for (int i = 0; i < 2; i++) e.wide[i] = map_of(be, stack_of(half_of(gu, i)), 16);
    e.slim = map_of(be, stack_of(h), 16), e.codes = map_of(be, stack_of(hq), 16);
    e.gu = (bf16 *)gu.data, e.h = (bf16 *)h.data, e.hq = (uint8_t *)hq.data, e.hs = (float *)hs.data;
    e.gu_row = gu.s[0], e.h_row = h.s[0], e.hq_row = hq.s[0], e.hs_row = hs.s[0];
    e.gate = (const float *)gate.data, e.gate_row = gate.s[0], e.N = (int)h.n[1], e.stores_h = stores_h;
    return e;
}

}

bool hopper_swiglu_fp8(Backend *be, const SwigluFp8Call &x)
{
    if (!fast(x.gu, x.h, x.hq, x.a, x.sa, x.w)) return false;
    Fp8Job    j = fp8_job(be, x.offsets, x.a, x.w, x.sw);
    SwigluOut end = out_of(be, x.gu, x.h, x.hq, x.hs, x.gate, x.stores_h);
    j.g.N = j.shift = (int)x.h.n[1];
    Fp8Maps maps = fp8_maps(be, x.a, x.sa, x.w);
    if (!be->sticky)                            /* else there is no tensor map */
        launch_fp8<GEMM_NT>(be, "grouped_swiglu_fp8", maps, j, end, most_tiles_fp8(j, x.a.n[0], HALF));
    return true;
}
