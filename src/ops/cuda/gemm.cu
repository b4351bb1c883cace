/* ops/cuda/gemm.cu -- kernels of gemm.c: products by cuBLASLt (cublaslt.cuh), two fallbacks, and column sums.
 *
 * Three ways to compute a product:
 *   direct   One call of the library, bias and c in its epilogue. The library needs the bias in c's dtype: a
 *            bf16 bias of an f32 c is widened first.
 *   staged   For a bf16 c of f32 operands or with an f32 bias, which the library does not support, and for a
 *            bias with rows not aligned to 16 bytes, where the library rounds before it adds the bias: strips
 *            of rows of the bare product in f32 in the workspace, then a kernel of ours adds bias and c and
 *            rounds once.
 *   plain    Tiles of our own on the CUDA cores for what the library has no algorithm for, such as odd
 *            leading dimensions, and for an empty K. Correct, not fast.
 * The shape alone chooses the way; the order of the sums is fixed in each.
 *
 * Column sums: a block takes 32 packs of columns and a chunk of rows, a warp every 8th row of it, a lane its
 * pack of columns in registers; the warps' sums are added in order into a partial row. A second kernel adds
 * the partial rows: 32 interleaved groups of chunks, then a butterfly. Chunks depend on the shape only. */
#include "ops/cuda/cublaslt.cuh"

/* --- products ------------------------------------------------------------------------------------------- */

#define STAGE_FLOATS ((int64_t)16 << 20)

namespace {

/* c = scale op(a) op(b) [+ bias] [+ c] */
typedef struct Call { Tensor c, a, b, bias; int mode; bool add; float scale; } Call;

typedef struct Bias { const void *data; bool f32; } Bias;

static Bias    bias_of(Tensor t)              { Bias b = { t.data, t.dtype == F32 }; return b; }
static int64_t inner(const Call &q)           { return q.a.n[q.mode != GEMM_TN]; }

__device__ inline float bias_at(Bias bias, int64_t n)
{
    if (!bias.data) return 0.0f;
    return bias.f32 ? ((const float *)bias.data)[n] : to_f32(((const bf16 *)bias.data)[n]);
}

/* An operand of the plain kernel: element (i, k), i along c's rows or columns, is at i * si + k * sk. */
template <class T> struct Operand { const T *data; int64_t si, sk, n; };

enum { TILE = 64, DEEP = 16, PLAIN_THREADS = 256 };

/* A TILE x DEEP piece into shared memory, neighbouring threads along the stride of 1; 0 beyond its end. */
template <class T>
__device__ inline void load_piece(float (*piece)[TILE + 1], Operand<T> x, int64_t i0, int64_t k0, int64_t K)
{
    bool along_k = x.sk == 1;
    for (int e = threadIdx.x; e < TILE * DEEP; e += PLAIN_THREADS) {
        int i = along_k ? e / DEEP : e % TILE, k = along_k ? e % DEEP : e / TILE;
        bool in = i0 + i < x.n && k0 + k < K;
        piece[k][i] = in ? to_f32(x.data[(i0 + i) * x.si + (k0 + k) * x.sk]) : 0.0f;
    }
}

/* A block makes one TILE x TILE tile of c, a thread the 4 x 4 elements at (its row, its column) mod 16. */
template <class T, class O>
static __global__ void __launch_bounds__(PLAIN_THREADS)
plain_tile(O *c, int64_t cs, Operand<T> a, Operand<T> b, int64_t K, int64_t across, float scale, Bias bias,
           bool add)
{
    __shared__ float as[DEEP][TILE + 1], bs[DEEP][TILE + 1];
    int64_t m0 = blockIdx.x / across * TILE, n0 = blockIdx.x % across * TILE;
    int     row = threadIdx.x / 16, col = threadIdx.x % 16;
    float   sum[4][4] = {};
    for (int64_t k0 = 0; k0 < K; k0 += DEEP) {
        load_piece(as, a, m0, k0, K);
        load_piece(bs, b, n0, k0, K);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEEP; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] += as[k][row + 16 * i] * bs[k][col + 16 * j];
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int64_t m = m0 + row + 16 * i, n = n0 + col + 16 * j;
            if (m >= a.n || n >= b.n) continue;
            O *at = &c[m * cs + n];
            *at = from_f32<O>(scale * sum[i][j] + bias_at(bias, n) + (add ? to_f32(*at) : 0.0f));
        }
}

static void plain(Backend *be, const Call &q)
{
    int64_t M = q.c.n[0], N = q.c.n[1], K = inner(q), across = ceil_div(N, TILE);
    bool    ta = q.mode == GEMM_TN, tb = q.mode == GEMM_NT;
    BY_DTYPE(q.a.dtype, T, BY_DTYPE(q.c.dtype, O, {
        Operand<T> x = { (const T *)q.a.data, ta ? 1 : q.a.s[0], ta ? q.a.s[0] : 1, M };
        Operand<T> y = { (const T *)q.b.data, tb ? q.b.s[0] : 1, tb ? 1 : q.b.s[0], N };
        LAUNCH(be, "gemm", (plain_tile<T, O>), across * ceil_div(M, TILE), PLAIN_THREADS, 0, (O *)q.c.data,
               q.c.s[0], x, y, K, across, q.scale, bias_of(q.bias), q.add);
    }));
}

static __global__ void widen(float *y, const bf16 *x, int64_t n)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n) y[i] = to_f32(x[i]);
}

/* The op's workspace behind the library's part; while preparing, any address of the same alignment. */
static float *behind_lt(Backend *be, int64_t floats)
{
    uintptr_t base = (uintptr_t)cuda_workspace(be, LT_WORKSPACE + (size_t)floats * sizeof(float));
    return (float *)(base + LT_WORKSPACE);
}

/* The bias in c's dtype, widened into the workspace where necessary. */
static void *bias_for(Backend *be, Tensor c, Tensor bias)
{
    if (!t_has(bias) || bias.dtype == c.dtype) return bias.data;
    int64_t N = c.n[1];
    float  *wide = behind_lt(be, N);
    if (!be->sticky)
        LAUNCH(be, "gemm", widen, ceil_div(N, 256), 256, 0, wide, (const bf16 *)bias.data, N);
    return wide;
}

static LtCall bare(const Call &q, Tensor d)
{
    LtCall l = {};
    l.mode = q.mode, l.scale = q.scale, l.d = d, l.a = q.a, l.b = q.b, l.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return l;
}

static bool direct(Backend *be, const Call &q)
{
    bool rounds = t_has(q.bias) && (q.bias.dtype == F32 || !lt_aligned(q.c, q.a, q.b));
    if (q.c.dtype == BF16 && (q.a.dtype == F32 || rounds)) return false;
    LtCall l = bare(q, q.c);
    if (q.add) l.c = q.c;
    l.bias = bias_for(be, q.c, q.bias);
    if (l.bias) l.epilogue = CUBLASLT_EPILOGUE_BIAS;
    return be->sticky || lt_matmul(be, &l);
}

template <class O>
static __global__ void finish(O *c, int64_t cs, const float *x, int64_t count, int64_t N, Bias bias, bool add)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (; i < count; i += step) {
        int64_t n = i % N;
        O *at = &c[i / N * cs + n];
        *at = from_f32<O>(x[i] + bias_at(bias, n) + (add ? to_f32(*at) : 0.0f));
    }
}

/* One strip of rows; false: the library has no algorithm for the bare product either. */
static bool staged_rows(Backend *be, const Call &q, float *stage)
{
    int64_t n[2] = { q.c.n[0], q.c.n[1] }, count = n[0] * n[1];
    LtCall  l = bare(q, t_wrap(stage, F32, 2, n));
    if (!lt_matmul(be, &l)) return false;
    if (be->sticky) return true;
    BY_DTYPE(q.c.dtype, O, LAUNCH(be, "gemm", finish<O>, cuda_blocks(be, count, 256 * 4, 16), 256, 0,
                                  (O *)q.c.data, q.c.s[0], stage, count, n[1], bias_of(q.bias), q.add));
    return true;
}

static void staged(Backend *be, const Call &q)
{
    int64_t M = q.c.n[0], N = q.c.n[1], strip = STAGE_FLOATS / N;
    strip = strip >= 64 ? strip / 64 * 64 : strip > 0 ? strip : 1;      /* strips begin aligned in TN too */
    strip = min_i64(strip, M);
    float *stage = behind_lt(be, strip * N);
    for (int64_t m = 0; m < M && !be->sticky; m += strip) {
        int64_t rows = min_i64(strip, M - m);
        Call    part = q;
        part.c = t_rows(q.c, m, rows);
        part.a = q.mode == GEMM_TN ? t_cols(q.a, m, rows) : t_rows(q.a, m, rows);
        if (!staged_rows(be, part, stage)) plain(be, part);
    }
}

static void product(Backend *be, const Call &q)
{
    if (!q.c.n[0] || !q.c.n[1]) return;
    if (!inner(q))            plain(be, q);
    else if (!direct(be, q))  staged(be, q);
}

}

extern "C" void cuda_gemm(Backend *be, Tensor c, Tensor a, Tensor b, Tensor bias, int flags)
{
    Call q = { c, a, b, bias, flags & GEMM_MODE, (flags & GEMM_ACC) != 0, 1.0f };
    product(be, q);
}

extern "C" void cuda_gemm_scaled(Backend *be, Tensor c, Tensor a, Tensor b, float scale, Dropout drop,
                                 int flags)
{
    Tensor none = {};
    Call   q = { c, a, b, none, flags & GEMM_MODE, (flags & GEMM_ACC) != 0, scale };
    if (drop.p > 0) gemm_dropped(be, c, a, b, scale, drop, flags);
    else            product(be, q);
}

namespace {

/* --- column sums ---------------------------------------------------------------------------------------- */

enum { SUM_WARPS = 8, SUM_BLOCKS = 1320, SUM_LEAST = 32 };    /* twice 5 blocks on 132 multiprocessors */

/* W columns of a row: one load of 16 bytes, or one element. */
template <class T, int W> __device__ inline void add_columns(float *sum, Vec<T, W> x)
{
#pragma unroll
    for (int j = 0; j < W; j++) sum[j] += to_f32(x.v[j]);
}

/* The sums of a lane's columns over rows from, from + SUM_WARPS, ... */
template <class T, int W>
__device__ inline void sum_rows(float *sum, const T *x, int64_t xs, int64_t from, int64_t to)
{
    constexpr int FLIGHT = 8;                                 /* rows in flight */
    int64_t r = from;
    for (; r + (FLIGHT - 1) * SUM_WARPS < to; r += FLIGHT * SUM_WARPS) {
        Vec<T, W> got[FLIGHT];
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) got[i] = *(const Vec<T, W> *)(x + (r + i * SUM_WARPS) * xs);
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) add_columns(sum, got[i]);
    }
    for (; r < to; r += SUM_WARPS) add_columns(sum, *(const Vec<T, W> *)(x + r * xs));
}

template <class T, int W>
static __global__ void __launch_bounds__(32 * SUM_WARPS, 5)
colsum_part(float *part, const T *x, int64_t xs, int64_t rows, int64_t N, int64_t tiles, int64_t chunk)
{
    __shared__ float sums[SUM_WARPS][32 * W];
    int     lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int64_t at = blockIdx.x / tiles, n0 = blockIdx.x % tiles * (32 * W), n = n0 + lane * W;
    int64_t from = at * chunk, to = from + chunk < rows ? from + chunk : rows;
    float   sum[W] = {};
    if (n < N) sum_rows<T, W>(sum, x + n, xs, from + warp, to);
#pragma unroll
    for (int j = 0; j < W; j++) sums[warp][j * 32 + lane] = sum[j];         /* column lane * W + j */
    __syncthreads();
    for (int t = threadIdx.x; t < 32 * W && n0 + t < N; t += 32 * SUM_WARPS) {
        float total = 0.0f;
#pragma unroll
        for (int w = 0; w < SUM_WARPS; w++) total += sums[w][t % W * 32 + t / W];
        part[at * N + n0 + t] = total;
    }
}

static __global__ void __launch_bounds__(1024)
colsum_add(float *y, const float *part, int64_t N, int64_t chunks)
{
    __shared__ float sums[32][33];
    int     lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int64_t n0 = (int64_t)blockIdx.x * 32, n = n0 + lane;
    float   sum = 0.0f;
    if (n < N)
#pragma unroll 8
        for (int64_t c = warp; c < chunks; c += 32) sum += part[c * N + n];
    sums[warp][lane] = sum;
    __syncthreads();
    float total = warp_sum(sums[lane][warp]);                 /* warp w: column w */
    if (!lane && n0 + warp < N) y[n0 + warp] += total;
}

template <class T, int W> static void colsum(Backend *be, Tensor y, Tensor x)
{
    int64_t rows = x.n[0], N = x.n[1], tiles = ceil_div(N, 32 * W);
    int64_t most = SUM_BLOCKS / tiles > 0 ? SUM_BLOCKS / tiles : 1;
    int64_t chunk = ceil_div(rows, min_i64(most, ceil_div(rows, SUM_LEAST))), chunks = ceil_div(rows, chunk);
    float  *part = (float *)cuda_workspace(be, (size_t)(chunks * N) * sizeof(float));
    if (be->sticky) return;
    LAUNCH(be, "colsum", (colsum_part<T, W>), tiles * chunks, 32 * SUM_WARPS, 0, part, (const T *)x.data,
           x.s[0], rows, N, tiles, chunk);
    LAUNCH(be, "colsum", colsum_add, ceil_div(N, 32), 1024, 0, (float *)y.data, part, N, chunks);
}

}

extern "C" void cuda_colsum(Backend *be, Tensor y, Tensor x)
{
    if (!x.n[0] || !x.n[1]) return;
    BY_DTYPE(x.dtype, T, {
        if (packs(x)) colsum<T, Pack<T>::N>(be, y, x);
        else          colsum<T, 1>(be, y, x);
    });
}
