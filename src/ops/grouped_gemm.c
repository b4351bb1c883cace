/* ops/grouped_gemm.c -- one matrix product per expert over rows sorted by expert: contract, cost, CPU.
 *
 *   GEMM_NT  c[r,:] = a[r,:] b[e]'        a (R, K), b (E, N, K), c (R, N)
 *   GEMM_NN  c[r,:] = a[r,:] b[e]         a (R, K), b (E, K, N), c (R, N)
 *   GEMM_TN  c[e] = a[e's rows]' b[e's rows]    a (R, M), b (R, N), c (E, M, N)
 *
 *   grouped_gemm     with a LoRA term (NT, NN): + low_rank[r,:] w[e]', + low_rank[r,:] w[e]
 *   grouped_squares  GEMM_TN without GEMM_ACC into a dense c (E, M, N), and the sums of squares of its
 *                    strips of SQUARES_ROWS x SQUARES_COLS, row by row of them, so that its norm needs no
 *                    second reading: squares (grouped_squares_parts) f32
 *   grouped_scaled   scale times the product, with dropout (ops.h) of a in NT, of b in TN, of the product in
 *                    NN
 *
 * offsets (E + 1) i32 ascends: rows offsets[e] .. offsets[e+1] - 1 are those of expert e. Buffers have
 * worst-case size: rows past offsets[E] are padding, neither read nor written; the cost is that of
 * Ledger.expert_rows rows, or of all R. GEMM_ACC adds to c; without it an expert without rows gets zeros in
 * TN. Dtypes as in gemm.c; a LoRA term has the dtype of a and b; rows may be strided. A matrix shared by all
 * experts is a stack of one: b or the LoRA term's w, and in TN c, the sum over all experts. The same bits on
 * any number of threads. */
#include "ops/dropout.h"
#include "ops/cpu/cpu_rows.h"
#include "ops/cpu/few_rows.h"
#include "ops/cpu/gemm_bf16.h"

#include <limits.h>

/* A stack of E matrices, or of one for all experts. */
static bool stacked(Tensor t, int64_t E) { return t.rank == 3 && (t.n[0] == E || t.n[0] == 1); }

static bool lora_fits(LoraTerm lora, Tensor c, Tensor a, int64_t E, int mode)
{
    Tensor low = lora.low_rank, w = lora.w;
    int    k = mode == GEMM_NT ? 2 : 1;
    return mode != GEMM_TN && low.rank == 2 && low.n[0] == a.n[0] && stacked(w, E) && w.n[k] == low.n[1] &&
           w.n[3 - k] == c.n[1] && low.dtype == a.dtype && w.dtype == a.dtype &&
           (mode == GEMM_NN || !(lora.dropout.p > 0));
}

static Cost product_cost(const Backend *be, Tensor c, Tensor a, Tensor b, Tensor offsets, int flags)
{
    int     mode = flags & GEMM_MODE;
    int64_t E = offsets.n[0] - 1, R = a.n[0], W = a.n[1];
    int     k = mode == GEMM_NT ? 2 : 1;                /* the dim of b that is summed */
    bool    shapes = mode == GEMM_TN
        ? b.rank == 2 && stacked(c, E) && b.n[0] == R && c.n[1] == W && c.n[2] == b.n[1]
        : stacked(b, E) && c.rank == 2 && c.n[0] == R && b.n[k] == W && b.n[3 - k] == c.n[1];
    REQUIRE(mode <= GEMM_TN && shapes && a.rank == 2 && E >= 0 && R < INT_MAX && offsets.dtype == I32 &&
            a.dtype == b.dtype && is_float(a) && is_float(c), "grouped_gemm %s: c%s a%s b%s offsets%s",
            gemm_mode(flags), t_fmt(c), t_fmt(a), t_fmt(b), t_fmt(offsets));
    int64_t n = expert_rows(be, R), wr = mode == GEMM_TN ? t_bytes(c) : expert_bytes(be, c);
    return (Cost){ .flops = 2.0 * (double)n * (double)W * (double)(mode == GEMM_TN ? b.n[1] : c.n[1]),
                   .rd    = expert_bytes(be, a) + (mode == GEMM_TN ? expert_bytes(be, b) : t_bytes(b)) +
                            (flags & GEMM_ACC ? wr : 0),
                   .wr    = wr, .each = E ? (double)n / (double)E : 0 };
}

Cost grouped_gemm_cost(Backend *be, Tensor c, Tensor a, Tensor b, Tensor offsets, LoraTerm lora, int flags)
{
    Cost p = product_cost(be, c, a, b, offsets, flags);
    if (!t_has(lora.low_rank)) return p;
    REQUIRE(lora_fits(lora, c, a, offsets.n[0] - 1, flags & GEMM_MODE),
            "grouped_gemm %s: c%s a%s low_rank%s w%s", gemm_mode(flags), t_fmt(c), t_fmt(a),
            t_fmt(lora.low_rank), t_fmt(lora.w));
    dropout_check(lora.dropout, "grouped_gemm");
    int64_t n = expert_rows(be, a.n[0]);
    p.flops += 2.0 * (double)(n * lora.low_rank.n[1]) * (double)c.n[1];
    p.rd    += expert_bytes(be, lora.low_rank) + t_bytes(lora.w);
    return p;
}

bool squares_fit(Tensor squares, Tensor c)
{
    return c.rank == 3 && t_dense(c) && squares.rank == 1 && squares.dtype == F32 && t_dense(squares) &&
           squares.n[0] == grouped_squares_parts(c.n);
}

Cost grouped_squares_cost(Backend *be, Tensor c, Tensor squares, Tensor a, Tensor b, Tensor offsets)
{
    REQUIRE(squares_fit(squares, c) && c.n[0] == offsets.n[0] - 1, "grouped_squares: c %s squares %s",
            t_fmt(c), t_fmt(squares));
    Cost p = product_cost(be, c, a, b, offsets, GEMM_TN);
    p.wr += t_bytes(squares);
    return p;
}

Cost grouped_scaled_cost(Backend *be, Tensor c, Tensor a, Tensor b, Tensor offsets, float scale, Dropout drop,
                         int flags)
{
    dropout_check(drop, "grouped_scaled");
    return product_cost(be, c, a, b, offsets, flags);
}

/* The i-th tile of c, counted over experts: the expert, and the position in its part of c. */
typedef struct Where { int64_t e, m, n; } Where;

static int64_t tiles_down(const int32_t *off, int64_t e, Tensor c, Tiling t)
{
    int64_t rows = c.rank == 3 ? c.n[1] : off[e + 1] - off[e];
    return (rows + t.m - 1) / t.m;
}

static Where find_tile(const int32_t *off, Tensor c, Tiling t, int64_t across, int64_t i)
{
    Where   w = { 0, 0, i % across * t.n };
    int64_t down;
    for (i /= across; i >= (down = tiles_down(off, w.e, c, t)); w.e++) i -= down;
    w.m = i * t.m;
    return w;
}

/* Decoding: so few rows in all that every expert has a few at most. The shape of the call decides, not the
 * routing, so that a row's bits in training do not depend on its neighbours. */
static bool scarce(Tensor a, int flags) { return (flags & GEMM_MODE) == GEMM_NT && a.n[0] <= TILE_MIN; }

static Tensor of_expert(Tensor stack, int64_t e) { return t_at(stack, stack.n[0] == 1 ? 0 : e); }

static void run_tile(float *ws, Tensor c, Terms x, const int32_t *off, Tiling t, Where w)
{
    int64_t first = off[w.e], count = off[w.e + 1] - first, mode = x.flags & GEMM_MODE;
    bool    few = scarce(x.a, x.flags) && count <= FEW_ROWS && !(x.drop.p > 0);
    x.a = t_rows(x.a, first, count);
    x.b = mode == GEMM_TN ? t_rows(x.b, first, count) : of_expert(x.b, w.e);
    c   = mode == GEMM_TN ? t_at(c, w.e) : t_rows(c, first, count);
    x.drop = dropout_at(x.drop, first, 0);
    if (t_has(x.lora.low_rank))
        x.lora = (LoraTerm){ t_rows(x.lora.low_rank, first, count), of_expert(x.lora.w, w.e),
                         dropout_at(x.lora.dropout, first, 0) };
    int64_t rows = c.n[0] - w.m < t.m ? c.n[0] - w.m : t.m, cols = c.n[1] - w.n < t.n ? c.n[1] - w.n : t.n;
    c = t_cols(t_rows(c, w.m, rows), w.n, cols);
    x = terms_of_tile(x, w.m, rows, w.n, cols);
    if (few) few_rows_tile(ws, c, x);
    else     gemm_tile(BF16_AUTO, ws, c, x);
}

/* Tiles of c are the tasks, so that all threads share an expert with most of the rows, and the weight
 * gradient of a single expert. */
static void product(Backend *be, Tensor c, Terms x, Tensor offsets)
{
    const int32_t *off = offsets.data;
    int64_t E = offsets.n[0] - 1, N = c.n[c.rank - 1], tiles = 0;
    REQUIRE(off[0] >= 0 && off[E] <= x.a.n[0], "grouped_gemm: rows %d .. %d of a%s", off[0], off[E],
            t_fmt(x.a));
    int32_t whole[2] = { off[0], off[E] };
    if (c.rank == 3 && c.n[0] == 1) off = whole, E = 1;
    Tiling  t = c.rank == 3 ? gemm_tiling(c.n[1], N, E) : gemm_tiling(c.n[0], N, 1);
    int64_t across = (N + t.n - 1) / t.n;
    double  small = scarce(x.a, x.flags) ? FEW_SMALL : GEMM_SMALL;
    bool    large = (double)(off[E] - off[0]) * (double)x.a.n[1] * (double)N > small;
    for (int64_t e = 0; e < E; e++) tiles += across * tiles_down(off, e, c, t);
    #pragma omp parallel for schedule(dynamic) if (large)
    for (int64_t i = 0; i < tiles; i++) {
        activity_mark();
        run_tile(cpu_own(be), c, x, off, t, find_tile(off, c, t, across, i));
    }
}

void cpu_grouped_gemm(Backend *be, Tensor c, Tensor a, Tensor b, Tensor offsets, LoraTerm lora, int flags)
{
    product(be, c, (Terms){ .a = a, .b = b, .lora = lora, .scale = 1.0f, .flags = flags }, offsets);
}

static HOT double square_sum(const float *x, int64_t n)
{
    double s = 0.0;
    for (int64_t i = 0; i < n; i++) s += (double)x[i] * x[i];
    return s;
}

static HOT double narrow_square_sum(const uint16_t *x, int64_t n)
{
    double s = 0.0;
    for (int64_t i = 0; i < n; i++) s += (double)bf16_to_f32(x[i]) * bf16_to_f32(x[i]);
    return s;
}

/* Of n elements of a matrix from one on. */
static double run_squares(Tensor t, int64_t from, int64_t n)
{
    return t.dtype == F32 ? square_sum((const float *)t.data + from, n)
                          : narrow_square_sum((const uint16_t *)t.data + from, n);
}

int64_t grouped_squares_parts(const int64_t n[3])
{
    int64_t tile = 8 * SQUARES_ROWS, cols = SQUARES_COLS;
    return n[0] * ((n[1] + tile - 1) / tile * 8) * ((n[2] + cols - 1) / cols);
}

/* A strip outside c has no elements: strips of an expert fill whole tiles. */
static double strip_squares(Tensor c, int64_t strip)
{
    int64_t across = (c.n[2] + SQUARES_COLS - 1) / SQUARES_COLS;
    int64_t down = grouped_squares_parts(c.n) / c.n[0] / across;
    int64_t row = strip / across % down * SQUARES_ROWS, end = row + SQUARES_ROWS;
    int64_t col = strip % across * SQUARES_COLS, cols = c.n[2] - col;
    double  sum = 0.0;
    if (cols > SQUARES_COLS) cols = SQUARES_COLS;
    for (; row < end && row < c.n[1]; row++)
        sum += run_squares(t_at(c, strip / across / down), row * c.n[2] + col, cols);
    return sum;
}

void cpu_strip_squares(Tensor squares, Tensor c)
{
    #pragma omp parallel for schedule(static) if(worth_threads(t_count(c)))
    for (int64_t i = 0; i < squares.n[0]; i++) ((float *)squares.data)[i] = (float)strip_squares(c, i);
}

void cpu_grouped_squares(Backend *be, Tensor c, Tensor squares, Tensor a, Tensor b, Tensor offsets)
{
    product(be, c, (Terms){ .a = a, .b = b, .scale = 1.0f, .flags = GEMM_TN }, offsets);
    cpu_strip_squares(squares, c);
}

void cpu_grouped_scaled(Backend *be, Tensor c, Tensor a, Tensor b, Tensor offsets, float scale, Dropout drop,
                        int flags)
{
    product(be, c, (Terms){ .a = a, .b = b, .scale = scale, .drop = drop, .flags = flags }, offsets);
}
