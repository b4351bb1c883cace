/* ops/cuda/grouped_gemm.cu -- grouped_gemm.c on a GPU: the choice of a kernel, and the plain one.
 *
 * Fast kernels are for bf16 operands with rows aligned to 16 bytes: those of the GPU's kernel set
 * (kernel_set.cuh). Where c is narrow, grouped_narrow.cu has narrower tiles. All other calls (f32, odd sizes)
 * take the plain kernel: exact f32, one tile a block. All kernels sum along K in one order that the shapes
 * fix, and no two blocks touch the same element. */
#include "ops/coded_panel.h"
#include "ops/cuda/kernel_set.cuh"

namespace {

GroupedCall call_of(Tensor c, Tensor a, Tensor b, Tensor offsets, LoraTerm lora, float scale, int flags)
{
    int64_t     E = offsets.n[0] - 1;
    bool        sum = (flags & GEMM_MODE) == GEMM_TN && c.n[0] == 1;
    GroupedCall q = { c, a, b, offsets, lora, scale, flags & GEMM_MODE, (flags & GEMM_ACC) != 0, sum ? 1 : E,
                      sum ? E : 1 };
    if (lora.dropout.p > 0) q.drops = true, q.dropout = dropout_args(lora.dropout, 1.0f);
    return q;
}

/* In NN dropout applies to the product: it is computed as a LoRA term without a main product. */
void leave_out(GroupedCall &q, Dropout drop)
{
    bool through = q.mode == GEMM_NN;
    if (!(drop.p > 0)) return;
    q.drops = true, q.dropout = dropout_args(drop, through ? q.scale : 1.0f);
    if (!through) return;
    q.lora.low_rank = q.a, q.lora.w = q.b, q.scale = 1.0f;
    q.a = t_cols(q.a, 0, 0);
}

/* --- the plain kernel --- */

enum { PT = 64, PK = 16 };

/* Strides of two operands along each dimension, for any mode, and the number of terms (TN: the rows). */
typedef struct Strides { int64_t am, ak, be, bk, bn; int K; } Strides;

/* c rows of an expert start at its first (NT, NN), or its K does (TN). */
typedef struct Ways {
    Strides main, lora;
    int64_t ce, cm;
    int     E, every, M, N;
    float   scale;
    bool    tn, add;
} Ways;

/* The block's expert and first row, or -1: the grid is sized for the worst case. */
template <bool DROP> __device__ inline int plain_find(const Firsts &off, const Ways &w, int down, int *m)
{
    for (int e = 0; e < w.E; e++) {
        int here = ((w.tn ? w.M : off.at<DROP>(e + 1) - off.at<DROP>(e)) + PT - 1) / PT;
        if (down < here) { *m = down * PT; return e; }
        down -= here;
    }
    return -1;
}

__device__ inline bool kept(const DropoutArgs &h, int64_t row, int64_t col)
{
    return dropout_keeps(h.seed, h.stream, h.row + (uint32_t)row, h.col + (uint32_t)col, h.least >> 16);
}

/* Dropout of a (NT) or of b (TN), whose first row is `first`. */
typedef struct Less { DropoutArgs h; int64_t first; bool tn; } Less;

/* acc += a b for the 4 x 4 elements of a thread. */
template <bool DROP, class T>
__device__ void add_terms(float (&acc)[4][4], const T *a, const T *b, const Strides &p, int K, int m0, int n0,
                          int M, int N, const Less &less)
{
    __shared__ float as[PK][PT + 1], bs[PK][PT + 1];
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    for (int k0 = 0; k0 < K; k0 += PK) {
        for (int i = threadIdx.x; i < PT * PK; i += 256) {    /* coalesced */
            int k = p.ak == 1 ? i % PK : i / PT, m = p.ak == 1 ? i / PK : i % PT;
            as[k][m] = k0 + k < K && m0 + m < M ? to_f32(a[(m0 + m) * p.am + (k0 + k) * p.ak]) : 0.0f;
            int j = p.bk == 1 ? i % PK : i / PT, n = p.bk == 1 ? i / PK : i % PT;
            bs[j][n] = k0 + j < K && n0 + n < N ? to_f32(b[(k0 + j) * p.bk + (n0 + n) * p.bn]) : 0.0f;
            if (DROP && !less.tn && !kept(less.h, less.first + m0 + m, k0 + k)) as[k][m] = 0.0f;
            if (DROP && less.tn  && !kept(less.h, less.first + k0 + j, n0 + n)) bs[j][n] = 0.0f;
        }
        __syncthreads();
        for (int k = 0; k < PK; k++)
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++)
                    acc[i][j] = fmaf(as[k][ty + 16 * i], bs[k][tx + 16 * j], acc[i][j]);
        __syncthreads();
    }
}

/* Applies dropout to the sums of the LoRA term. */
__device__ inline void dropout_acc(float (&acc)[4][4], const DropoutArgs &h, int64_t row, int64_t col)
{
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            acc[i][j] = kept(h, row + 16 * i, col + 16 * j) ? h.scale * acc[i][j] : 0.0f;
}

template <class T, class C, bool DROP>
__global__ void __launch_bounds__(256)
plain(C *c, const T *a, const T *b, const T *low, const T *lw, const int *offsets,
      const __grid_constant__ Ways w, const __grid_constant__ DropoutArgs h)
{
    Firsts off = { offsets, w.every, 1 };
    int across = (w.N + PT - 1) / PT, n0 = blockIdx.x % across * PT, m0 = 0;
    int e = plain_find<DROP>(off, w, blockIdx.x / across, &m0);
    if (e < 0) return;
    int64_t first = off.at<DROP>(e);
    int     rows = off.at<DROP>(e + 1) - (int)first, M = w.tn ? w.M : rows;
    float   acc[4][4] = { };
    int     ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    Less    less = { dropout_seeded<DROP>(h), first, w.tn };
    a += first * (w.tn ? w.main.ak : w.main.am), b += w.tn ? first * w.main.bk : e * w.main.be;
    low += first * w.lora.am, lw += e * w.lora.be;
    if (DROP && w.lora.K) {                     /* before the main product */
        add_terms<false>(acc, low, lw, w.lora, w.lora.K, m0, n0, M, w.N, less);
        dropout_acc(acc, less.h, first + m0 + ty, n0 + tx);
        add_terms<false>(acc, a, b, w.main, w.main.K, m0, n0, M, w.N, less);
    } else {
        add_terms<DROP>(acc, a, b, w.main, w.tn ? rows : w.main.K, m0, n0, M, w.N, less);
        if (w.lora.K) add_terms<false>(acc, low, lw, w.lora, w.lora.K, m0, n0, M, w.N, less);
    }
    c += w.tn ? e * w.ce : first * w.cm;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            int m = m0 + ty + 16 * i, n = n0 + tx + 16 * j;
            if (m >= M || n >= w.N) continue;
            C *p = c + m * w.cm + n;
            *p = from_f32<C>(w.scale * acc[i][j] + (w.add ? to_f32(*p) : 0.0f));
        }
}

/* Strides of rows of a and of matrices of b; a matrix shared by all experts has stride 0. */
Strides strides_of(Tensor a, Tensor b, int mode)
{
    bool nt = mode == GEMM_NT;
    Strides p = { a.s[0], 1, b.n[0] == 1 ? 0 : b.s[0], nt ? 1 : b.s[1], nt ? b.s[1] : 1, (int)a.n[1] };
    return p;
}

template <class T, class C, bool DROP>
void plain_launch(Backend *be, const GroupedCall &q, const Ways &w, int64_t blocks)
{
    LAUNCH(be, "grouped_gemm", (plain<T, C, DROP>), blocks, 256, 0, (C *)q.c.data, (const T *)q.a.data,
           (const T *)q.b.data, (const T *)q.lora.low_rank.data, (const T *)q.lora.w.data,
           (const int *)q.offsets.data, w, q.dropout);
}

void grouped_plain(Backend *be, const GroupedCall &q)
{
    bool    tn = q.mode == GEMM_TN;
    int64_t N = q.c.n[q.c.rank - 1], M = tn ? q.a.n[1] : 0;
    int64_t down = tn ? q.E * ceil_div(M, PT) : ceil_div(q.a.n[0], PT) + q.E;
    Strides    turned = { 1, q.a.s[0], 0, q.b.s[0], 1, 0 }, none = { };
    Ways    w = { tn ? turned : strides_of(q.a, q.b, q.mode),
                  t_has(q.lora.low_rank) ? strides_of(q.lora.low_rank, q.lora.w, q.mode) : none,
                  q.c.s[0], q.c.s[tn],
                  (int)q.E, (int)q.every, (int)M, (int)N, q.scale, tn, q.add };
    if (!N) return;
    BY_DTYPE(q.a.dtype, T, BY_DTYPE(q.c.dtype, C, {
        if (q.drops) plain_launch<T, C, true>(be, q, w, down * ceil_div(N, PT));
        else         plain_launch<T, C, false>(be, q, w, down * ceil_div(N, PT));
    }));
}

/* Whether the fast kernels can apply the dropout: they draw random numbers for 8 columns of an operand, or 32
 * of sums, at a time. The narrow kernel writes c element by element, so that dense adapters of any rank can
 * use it. */
bool lines_up(const GroupedCall &q)
{
    bool nn = q.mode == GEMM_NN;
    bool lora = !t_has(q.lora.low_rank) || (begins(q.lora.low_rank) && begins(q.lora.w));
    return begins(q.a) && begins(q.b) && lora && (!nn || packs(q.c)) &&
           q.dropout.col % (nn ? DROPOUT_COLS : 8) == 0;
}

bool fast(const GroupedCall &q)
{
    int64_t terms = q.a.n[1] + (q.drops && t_has(q.lora.low_rank) ? q.lora.low_rank.n[1] : 0);
    bool    some = q.a.n[0] > 0 && terms > 0 && q.c.n[q.c.rank - 1] > 0 && q.E <= EXPERTS_MOST;
    bool    lies = q.drops ? lines_up(q) : packs(q.a) && packs(q.b) && packs(q.c) && lora_packs(q.lora);
    return some && q.a.dtype == BF16 && lies;
}

/* Returns whether q.squares are those of c. */
bool product(Backend *be, const GroupedCall &q)
{
    if (q.E < 1) return true;
    if (!fast(q)) return grouped_plain(be, q), false;
    if (grouped_narrow(be, q)) return false;
    cuda_of(be)->kernels->grouped(be, q);
    return true;
}

/* A block for each strip of c (E, M, N). */
template <class C> __global__ void strip_squares(float *squares, const C *c, int M, int N)
{
    __shared__ float work[32];
    int     tile = 8 * SQUARES_ROWS, down = (M + tile - 1) / tile * 8;
    int     across = (N + SQUARES_COLS - 1) / SQUARES_COLS, strip = blockIdx.x / across;
    int     row = strip % down * SQUARES_ROWS, col = blockIdx.x % across * SQUARES_COLS + threadIdx.x;
    float   sum = 0.0f;
    for (int end = min(row + SQUARES_ROWS, M); row < end && col < N; row++) {
        float x = to_f32(c[((int64_t)(strip / down) * M + row) * N + col]);
        sum = fmaf(x, x, sum);
    }
    sum = block_sum(sum, work);
    if (!threadIdx.x) squares[blockIdx.x] = sum;
}

}

extern "C" void cuda_grouped_gemm(Backend *be, Tensor c, Tensor a, Tensor b, Tensor offsets, LoraTerm lora,
                                  int flags)
{
    product(be, call_of(c, a, b, offsets, lora, 1.0f, flags));
}

/* See grouped_coded.c. */
extern "C" void cuda_grouped_coded(Backend *be, Tensor c, Tensor a, WeightCodes w, Tensor panel,
                                   Tensor offsets, LoraTerm lora, int flags)
{
    GroupedCall q = call_of(c, a, panel, offsets, lora, 1.0f, flags);
    auto reads = cuda_of(be)->kernels->reads_codes;
    q.codes = w;
    if (reads && fast(q) && c.dtype == BF16 && reads(w, panel, a.n[1], c.n[1])) {
        cuda_of(be)->kernels->grouped(be, q);
        return;
    }
    for (CodedPanel p = { }; coded_panel_next(&p, w, panel, offsets, lora);) {
        cuda_decode_weight(be, p.w, w, coded_panel_at(&p));
        cuda_grouped_gemm(be, c, a, p.w, p.offsets, p.lora, flags);
    }
}

extern "C" void cuda_grouped_squares(Backend *be, Tensor c, Tensor squares, Tensor a, Tensor b,
                                     Tensor offsets)
{
    LoraTerm    none = { };
    GroupedCall q = call_of(c, a, b, offsets, none, 1.0f, GEMM_TN);
    q.squares = (float *)squares.data;
    if (!product(be, q))
        BY_DTYPE(c.dtype, C, LAUNCH(be, "grouped_squares", strip_squares<C>, squares.n[0], SQUARES_COLS, 0,
                                    q.squares, (const C *)c.data, (int)c.n[1], (int)c.n[2]));
}

extern "C" void cuda_grouped_scaled(Backend *be, Tensor c, Tensor a, Tensor b, Tensor offsets, float scale,
                                    Dropout drop, int flags)
{
    LoraTerm        none = { };
    GroupedCall q = call_of(c, a, b, offsets, none, scale, flags);
    leave_out(q, drop);
    product(be, q);
}

void gemm_dropped(Backend *be, Tensor c, Tensor a, Tensor b, float scale, Dropout drop, int flags)
{
    bool        tn = (flags & GEMM_MODE) == GEMM_TN;
    GroupedCall q = { tn ? stack_of(c) : c, a, tn ? b : stack_of(b), { }, { }, scale, flags & GEMM_MODE,
                      (flags & GEMM_ACC) != 0, 1, a.n[0] };
    leave_out(q, drop);
    product(be, q);
}
