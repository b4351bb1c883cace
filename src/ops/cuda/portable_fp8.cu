/* ops/cuda/portable_fp8.cu -- the e4m3 products of gemm_fp8.c and grouped_dw_fp8.c on GPUs with FP8 units,
 * compute capability 8.9 and later: mma.sync on codes.
 *
 * A block of eight warps computes 128 x 128 elements of c, a warp 64 x 32. A stage is 128 along K, one group
 * of scales: the product of a group has registers of its own, and scale times it is added to the sums in f32.
 * Tiles are drawn as in portable_grouped.cuh. In TN, a weight gradient, K are the columns of an expert
 * (ops/quantize_cols.c). Requires rows of all operands on 16 bytes; NT c, bias and res in bf16. */
#include "ops/cuda/portable_grouped.cuh"
#include "ops/cuda/product_fp8.h"
#include "ops/quant.h"

#include <limits.h>

namespace {

enum { BN = 128, THREADS = 256, LINE = QUANT_GROUP, TILE = TILE_M * LINE, STAGE = 2 * TILE, STAGES = 3,
       EACH = TILE / 16 / THREADS, LINES = THREADS / 8, DOWN = 4, ACROSS = 4 };

/* sa by groups of K; sb by experts, by groups of N and of K. */
typedef struct Fp8Args {
    TileJob        g;                       /* first, E, M, N, drawn, order */
    const uint8_t *a, *b;
    const float   *sa, *sb;
    const bf16    *bias, *res;
    void          *c;
    int64_t        a_row, b_row, b_expert, sa_row, sb_n, sb_k, sb_expert, c_row, c_expert, res_row;
    int            K, steps;                /* steps: of NT */
    bool           c_f32, add;              /* of TN */
} Fp8Args;

/* d (16, 8) f32 += a (16, 32) b (32, 8) in e4m3; words as in mma_bf16, of bytes. */
__device__ inline void mma_e4m3(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#if __CUDA_ARCH__ >= 890
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    __trap();                               /* backend_require_precision has refused the run */
#endif
}

__device__ inline uint32_t chunk_at(int line, int chunk) { return line * LINE + ((chunk ^ line % 8) << 4); }

/* The copies of one operand: rows from p on, the last of `rows` in place of those beyond. */
struct CodeCopier {
    const uint8_t *p;
    int            off[EACH];

    __device__ void begin(const uint8_t *from, int64_t row, int rows)
    {
        p = from + threadIdx.x % 8 * 16;
        #pragma unroll
        for (int i = 0; i < EACH; i++) off[i] = min((int)threadIdx.x / 8 + i * LINES, rows - 1) * (int)row;
    }
    __device__ void copy(uint32_t tile, int k, int K) const
    {
        uint32_t to = tile + chunk_at(threadIdx.x / 8, threadIdx.x % 8);
        int      bytes = min(16, max(0, K - k - (int)threadIdx.x % 8 * 16));
        #pragma unroll
        for (int i = 0; i < EACH; i++) copy_async16(to + i * LINES * LINE, p + k + off[i], bytes);
    }
};

/* MODE: GEMM_NT or GEMM_TN. */
template <int MODE> struct Fp8Tile {
    enum { TN = MODE == GEMM_TN };
    const Fp8Args &x;
    Tile           t;
    uint32_t       base;
    CodeCopier     a, b;
    int            group, steps;            /* the first group of K, and how many there are */
    float          sum[DOWN][ACROSS][4];

    __device__ Fp8Tile(const Fp8Args &args, uint32_t smem) : x(args), base(smem) { }

    __device__ static int row() { return threadIdx.x / 128 * 64; }              /* of the warp */
    __device__ static int col() { return threadIdx.x / 32 % 4 * 32; }

    /* Rows of a, and so of c, from the begin of the tile's expert on. */
    __device__ int rows() const { return TN ? x.g.M : t.rows; }
    __device__ int first() const { return TN ? 0 : t.first; }

    __device__ void issue(int step)
    {
        uint32_t at = base + step % STAGES * STAGE;
        int      k = (group + step) * QUANT_GROUP;
        if (step < steps) a.copy(at, k, x.K), b.copy(at + TILE, k, x.K);
        copy_async_commit();
    }
    __device__ void start(const Tile &tile)
    {
        t = tile;
        group = TN ? (int)quant_column(t.first, t.e) / QUANT_GROUP : 0;
        steps = TN ? (t.rows + QUANT_GROUP - 1) / QUANT_GROUP : x.steps;
        a.begin(x.a + (int64_t)(first() + t.m) * x.a_row, x.a_row, rows() - t.m);
        b.begin(x.b + t.e * x.b_expert + t.n * x.b_row, x.b_row, x.g.N - t.n);
        for (int i = 0; i < STAGES - 1; i++) issue(i);
    }
    /* Adds the scaled product of a stage. */
    __device__ void add_group(int step)
    {
        uint32_t at = base + step % STAGES * STAGE;
        int      lane = threadIdx.x % 32, ra = row() + lane % 16, rb = col() + lane / 16 * 8 + lane % 8;
        uint32_t from_a = at + chunk_at(ra, lane / 16), from_b = at + TILE + chunk_at(rb, lane / 8 % 2);
        int      g = group + step;
        float    d[DOWN][ACROSS][4] = { }, sa[2 * DOWN];
        float    sb = x.sb[t.e * x.sb_expert + t.n / QUANT_GROUP * x.sb_n + g * x.sb_k];
        #pragma unroll
        for (int i = 0; i < 2 * DOWN; i++) {
            int r = min(t.m + row() + i * 8 + lane / 4, rows() - 1);
            sa[i] = x.sa[g * x.sa_row + first() + r];
        }
        #pragma unroll 1
        for (int k = 0; k < QUANT_GROUP / 32; k++) {
            uint32_t wa[DOWN][4], wb[ACROSS / 2][4];
            #pragma unroll
            for (int i = 0; i < DOWN; i++) ldmatrix4((from_a ^ k * 32) + i * 16 * LINE, wa[i]);
            #pragma unroll
            for (int j = 0; j < ACROSS / 2; j++) ldmatrix4((from_b ^ k * 32) + j * 16 * LINE, wb[j]);
            #pragma unroll
            for (int i = 0; i < DOWN * ACROSS; i++) {
                int j = i % ACROSS;
                mma_e4m3(d[i / ACROSS][j], wa[i / ACROSS], wb[j / 2][j % 2 * 2], wb[j / 2][j % 2 * 2 + 1]);
            }
        }
        #pragma unroll
        for (int i = 0; i < DOWN * ACROSS * 4; i++) {
            int m = i / (ACROSS * 4), j = i / 4 % ACROSS, e = i % 4;
            sum[m][j][e] = fmaf(sa[2 * m + e / 2] * sb, d[m][j][e], sum[m][j][e]);
        }
    }
    __device__ void run()
    {
        #pragma unroll
        for (int i = 0; i < DOWN * ACROSS * 4; i++) (&sum[0][0][0])[i] = 0.0f;
        #pragma unroll 1
        for (int step = 0; step < steps; step++) {
            copy_async_wait<STAGES - 2>();
            __syncthreads();
            issue(step + STAGES - 1);
            add_group(step);
        }
        copy_async_wait<0>();
    }
    __device__ uint2 row_of(const bf16 *p, int64_t at, int n, bool valid) const
    {
        return p && valid && n < x.g.N ? *(const uint2 *)(p + at + n) : make_uint2(0, 0);
    }
    /* Sums of four neighbouring columns, with bias and residual. */
    __device__ void put(const Tile &of) const
    {
        each_row(of.m + row(), [&](int r, int i, int h) {
            bool    valid = r < of.rows;
            int64_t at = of.first + r;
            #pragma unroll
            for (int j = 0; j < ACROSS; j += 2) {
                float v[4];
                four_sums(v, sum[i][j] + 2 * h, sum[i][j + 1] + 2 * h);
                int   n = of.n + col() + j * 8 + lane_col();
                uint2 add = row_of(x.bias, 0, n, valid), res = row_of(x.res, at * x.res_row, n, valid);
                if (!valid || n >= x.g.N) continue;
                *(uint2 *)((bf16 *)x.c + at * x.c_row + n) =
                    make_uint2(pair_of(v[0] + low(add.x) + low(res.x), v[1] + high(add.x) + high(res.x)),
                               pair_of(v[2] + low(add.y) + low(res.y), v[3] + high(add.y) + high(res.y)));
            }
        });
    }
    /* The same to a gradient, or added to it. */
    __device__ void put_gradient(const Tile &of) const
    {
        each_row(of.m + row(), [&](int r, int i, int h) {
            int64_t at = of.e * x.c_expert + r * x.c_row;
            #pragma unroll
            for (int j = 0; j < ACROSS; j += 2) {
                float v[4];
                four_sums(v, sum[i][j] + 2 * h, sum[i][j + 1] + 2 * h);
                int   n = of.n + col() + j * 8 + lane_col();
                if (r >= x.g.M || n >= x.g.N) continue;
                if (x.c_f32) add_four((float *)x.c + at + n, v);
                else         add_four((bf16 *)x.c + at + n, v);
            }
        });
    }
    __device__ void add_four(float *to, const float *v) const
    {
        float4 old = x.add ? *(float4 *)to : make_float4(0, 0, 0, 0);
        *(float4 *)to = make_float4(old.x + v[0], old.y + v[1], old.z + v[2], old.w + v[3]);
    }
    __device__ void add_four(bf16 *to, const float *v) const
    {
        uint2 old = x.add ? *(uint2 *)to : make_uint2(0, 0);
        *(uint2 *)to = make_uint2(pair_of(low(old.x) + v[0], high(old.x) + v[1]),
                                  pair_of(low(old.y) + v[2], high(old.y) + v[3]));
    }
    /* As four_columns, of sums. */
    __device__ static void four_sums(float (&v)[4], const float *left, const float *right)
    {
        bool odd = threadIdx.x & 1;
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            float other = __shfl_xor_sync(~0u, odd ? left[i] : right[i], 1);
            v[i] = odd ? other : left[i], v[2 + i] = odd ? right[i] : other;
        }
    }
};

template <int MODE> __global__ void __launch_bounds__(THREADS, 1) fp8_tiles(const __grid_constant__ Fp8Args x)
{
    extern __shared__ __align__(128) char smem[];
    __shared__ int  next;
    TileWalk<MODE, BN> walk(x.g);
    Fp8Tile<MODE>      product(x, smem_at(smem));
    Tile t;
    if (threadIdx.x == 0) next = atomicAdd(x.g.drawn, 1);
    __syncthreads();
    int  number = next;
    bool some = walk.find(x.g, number, t);
    if (some) product.start(t);
    while (some) {
        Tile done = t;
        __syncthreads();                        /* all have read `next` */
        if (threadIdx.x == 0) next = atomicAdd(x.g.drawn, 1);
        product.run();
        __syncthreads();
        number = next;
        some = walk.find(x.g, number, t);
        if (some) product.start(t);
        if (MODE == GEMM_TN) product.put_gradient(done);
        else                 product.put(done);
    }
    if (threadIdx.x == 0 && number == walk.tiles() + (int)gridDim.x - 1) *x.g.drawn = 0;
}

bool absent_or_bf16(Tensor t) { return !t_has(t) || (t.dtype == BF16 && packs(t)); }

bool fast(const Fp8Call &x)
{
    return x.a.n[0] > 0 && x.a.n[1] > 0 && x.b.n[0] > 0 && x.b.n[1] > 0 && packs(x.a) && packs(x.b) &&
           x.c.dtype == BF16 && packs(x.c) && absent_or_bf16(x.bias) && absent_or_bf16(x.res);
}

}

bool portable_gemm_fp8(Backend *be, const char *what, Fp8Call x)
{
    x.b = stack_of(x.b), x.sb = stack_of(x.sb);
    if (!fast(x)) return false;
    Fp8Args p = { };
    p.g = tile_job(be, x.offsets, x.b.n[0], t_has(x.offsets) ? 1 : x.a.n[0], 0, x.b.n[1]);
    p.a = (const uint8_t *)x.a.data, p.a_row = x.a.s[0];
    p.sa = (const float *)x.sa.data, p.sa_row = x.sa.s[0];
    p.b = (const uint8_t *)x.b.data, p.b_row = x.b.s[1], p.b_expert = x.b.s[0];
    p.sb = (const float *)x.sb.data, p.sb_n = x.sb.s[1], p.sb_k = 1, p.sb_expert = x.sb.s[0];
    p.bias = (const bf16 *)x.bias.data, p.res = (const bf16 *)x.res.data, p.res_row = x.res.s[0];
    p.c = x.c.data, p.c_row = x.c.s[0], p.K = (int)x.a.n[1], p.steps = (int)quant_groups(x.a.n[1]);
    int64_t most = most_tiles(p.g, GEMM_NT, x.a.n[0], BN);
    LAUNCH(be, what, fp8_tiles<GEMM_NT>, min_i64(cuda_compute_sms(be), most), THREADS, STAGES * STAGE, p);
    return true;
}

bool portable_dw_fp8(Backend *be, const DwFp8Call &x)
{
    int64_t E = x.c.n[0];
    if (!t_count(x.c) || E > EXPERTS_MOST || !packs(x.a.q) || !packs(x.b.q) || !packs(x.c) ||
        x.a.q.s[0] >= INT_MAX / TILE_M || x.b.q.s[0] >= INT_MAX / TILE_M) return false;
    int    *order = (int *)cuda_workspace(be, (size_t)(3 + E) * sizeof(int));
    Fp8Args p = { };
    p.g = tile_job(be, x.offsets, E, 1, x.c.n[1], x.c.n[2]), p.g.order = order + 3;
    p.a = (const uint8_t *)x.a.q.data, p.a_row = x.a.q.s[0];
    p.sa = (const float *)x.a.scale.data, p.sa_row = x.a.scale.s[0];
    p.b = (const uint8_t *)x.b.q.data, p.b_row = x.b.q.s[0];
    p.sb = (const float *)x.b.scale.data, p.sb_n = 1, p.sb_k = x.b.scale.s[0];
    p.c = x.c.data, p.c_row = x.c.s[1], p.c_expert = x.c.s[0], p.c_f32 = x.c.dtype == F32, p.add = x.add;
    p.K = (int)x.a.q.n[1];
    if (be->sticky) return true;                /* no workspace */
    LAUNCH(be, "grouped_dw_fp8", order_experts, 1, EXPERTS_MOST, 0, order + 3, order, p.g.first, (int)E);
    int64_t blocks = min_i64(cuda_compute_sms(be), most_tiles(p.g, GEMM_TN, 0, BN));
    LAUNCH(be, "grouped_dw_fp8", fp8_tiles<GEMM_TN>, blocks, THREADS, STAGES * STAGE, p);
    if (t_has(x.squares)) dw_fp8_squares(be, x.squares, x.c);
    return true;
}
