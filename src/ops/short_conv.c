/* ops/short_conv.c -- a short causal convolution of each column by itself, then SiLU: contract, cost, CPU.
 *
 *   short_conv_fwd   p[t,c] = sum over j of w[c,j] x[t - (K-1) + j, c]         y = p sigmoid(p)
 *   short_conv_bwd   dp = dy s (1 + p (1 - s)),  s = sigmoid(p)                 dw[c,j] += sum over t
 *                    dx[t,c] = sum over j of w[c,j] dp[t + (K-1) - j, c]
 *
 * Only rows of one segment meet: what lies before the first row of a segment counts as 0. x, y, dx, dy
 * (T, H, C) are f32 or bf16 each, with any stride between rows and between heads: their H C columns are the
 * rows of w (H C, K), either type; dw (H C, K) f32 or absent. before, dbefore (K - 1, H, C): rows before row
 * 0 that belong to its segment, or absent; dbefore overwrites. Rows outside all segments give 0 and get 0.
 * p is recomputed in backward. Arithmetic in f32, rounded once; dw sums over rows from the last to the first,
 * in double, with one owner a column: equal bits on any number of threads. */
#include "ops/cpu/segment.h"

enum { MAX_K = 16, COLS = 64 };                           /* columns of a task */

static bool fits(Tensor x, Tensor w, Tensor before, Segments seg)
{
    int64_t K = w.n[1];
    return is_heads_like(x, x) && is_rows(w, x.n[1] * x.n[2], K) && K >= 1 && K <= MAX_K &&
           heads_or_absent(before, K - 1, x.n[1], x.n[2]) && borders_fit(seg);
}

Cost short_conv_fwd_cost(Backend *be, Tensor y, Tensor x, Tensor w, Tensor before, Segments seg)
{
    REQUIRE(fits(x, w, before, seg) && is_heads_like(y, x),
            "short_conv_fwd: y %s x %s w %s before %s starts %s", t_fmt(y), t_fmt(x), t_fmt(w), t_fmt(before),
            t_fmt(seg.starts));
    return (Cost){ .flops = (double)(2 * w.n[1] + 4) * (double)t_count(x), .rd = t_bytes(x) + t_bytes(w),
                   .wr = t_bytes(y) };
}

Cost short_conv_bwd_cost(Backend *be, Tensor dx, Tensor dw, Tensor dbefore, Tensor dy, Tensor x, Tensor w,
                         Tensor before, Segments seg)
{
    int64_t T = x.n[0], H = x.n[1], C = x.n[2];
    REQUIRE(fits(x, w, before, seg) && is_heads(dx, T, H, C) && is_heads(dy, T, H, C) &&
            heads_or_absent(dbefore, w.n[1] - 1, H, C) && (!t_has(dw) || is_rows_f32(dw, H * C, w.n[1])),
            "short_conv_bwd: dx %s dw %s dbefore %s dy %s x %s w %s before %s", t_fmt(dx), t_fmt(dw),
            t_fmt(dbefore), t_fmt(dy), t_fmt(x), t_fmt(w), t_fmt(before));
    return (Cost){ .flops = (double)(6 * w.n[1] + 8) * (double)t_count(x),
                   .rd = t_bytes(x) + t_bytes(dy) + t_bytes(w) + opt_bytes(dw),
                   .wr = t_bytes(dx) + opt_bytes(dw) };
}

/* n columns from `col` on of head h. */
typedef struct Columns { int64_t h, col; int n; } Columns;

static char *columns_at(Tensor x, Columns c, int64_t row)
{
    return (char *)x.data + (row * x.s[0] + c.h * x.s[1] + c.col) * (int64_t)dtype_size((DType)x.dtype);
}

static void columns_get(float *v, Tensor x, Columns c, int64_t row)
{
    const char *p = columns_at(x, c, row);
    for (int i = 0; i < c.n; i++) v[i] = x.dtype == F32 ? ((const float *)p)[i]
                                                        : bf16_to_f32(((const uint16_t *)p)[i]);
}

static void columns_put(Tensor x, Columns c, int64_t row, const float *v)
{
    char *p = columns_at(x, c, row);
    for (int i = 0; i < c.n; i++)
        if (x.dtype == F32) ((float *)p)[i] = v[i];
        else                ((uint16_t *)p)[i] = bf16_from_f32(v[i]);
}

/* w of these columns, by tap. */
static void taps_get(float w[MAX_K][COLS], Tensor t, Columns c, int64_t C)
{
    for (int i = 0; i < c.n; i++) {
        float row[MAX_K];
        const float *from = row_read(t, c.h * C + c.col + i, row);
        for (int64_t k = 0; k < t.n[1]; k++) w[k][i] = from[k];
    }
}

typedef struct Conv { Tensor x, before; Segments seg; int64_t K; } Conv;

/* The first row that row t sees; K - 1 rows lie before row 0. t is in a segment. */
static int64_t first_seen(const Conv *v, int64_t t)
{
    const int32_t *starts = v->seg.starts.data;
    int64_t s = segment_of(v->seg, t), from = starts[s];
    if (t_has(v->before) && segment_of(v->seg, 0) == s) from = 1 - v->K;
    return from > t - v->K + 1 ? from : t - v->K + 1;
}

static void input_get(float *to, const Conv *v, Columns c, int64_t row)
{
    columns_get(to, row < 0 ? v->before : v->x, c, row < 0 ? row + v->K - 1 : row);
}

static void sum_taps(float *p, const Conv *v, Columns c, float w[MAX_K][COLS], int64_t t)
{
    float in[COLS];
    for (int i = 0; i < c.n; i++) p[i] = 0.0f;
    for (int64_t row = first_seen(v, t); row <= t; row++) {
        input_get(in, v, c, row);
        const float *tap = w[row - t + v->K - 1];
        for (int i = 0; i < c.n; i++) p[i] += tap[i] * in[i];
    }
}

/* Task i of those that cover all columns. */
static int64_t tasks_of(Tensor x) { return x.n[1] * ((x.n[2] + COLS - 1) / COLS); }
static Columns task_columns(Tensor x, int64_t i)
{
    int64_t per = (x.n[2] + COLS - 1) / COLS, col = i % per * COLS, left = x.n[2] - col;
    return (Columns){ i / per, col, (int)(left < COLS ? left : COLS) };
}

static void conv_columns(Tensor y, const Conv *v, Columns c, float w[MAX_K][COLS])
{
    float p[COLS];
    for (int64_t t = 0; t < y.n[0]; t++) {
        bool in = segment_of(v->seg, t) >= 0;
        if (in) sum_taps(p, v, c, w, t);
        for (int i = 0; i < c.n; i++) p[i] = in ? p[i] * sigmoid(p[i]) : 0.0f;
        columns_put(y, c, t, p);
    }
}

void cpu_short_conv_fwd(Backend *be, Tensor y, Tensor x, Tensor w, Tensor before, Segments seg)
{
    Conv v = { x, before, seg, w.n[1] };
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(x)))
    for (int64_t i = 0; i < tasks_of(x); i++) {
        float   taps[MAX_K][COLS];
        Columns c = task_columns(x, i);
        taps_get(taps, w, c, x.n[2]);
        conv_columns(y, &v, c, taps);
    }
}

/* dp of row t, which is in a segment. */
static void row_slope(float *dp, const Conv *v, Columns c, float w[MAX_K][COLS], Tensor dy, int64_t t)
{
    float d[COLS];
    sum_taps(dp, v, c, w, t);
    columns_get(d, dy, c, t);
    for (int i = 0; i < c.n; i++) {
        float p = dp[i], s = sigmoid(p);
        dp[i] = d[i] * s * (1.0f + p * (1.0f - s));
    }
}

static void add_products(double dw[MAX_K][COLS], const Conv *v, Columns c, const float *dp, int64_t t)
{
    float in[COLS];
    for (int64_t row = first_seen(v, t); row <= t; row++) {
        input_get(in, v, c, row);
        double *to = dw[row - t + v->K - 1];
        for (int i = 0; i < c.n; i++) to[i] += (double)dp[i] * (double)in[i];
    }
}

/* The gradient of row t sums over the rows t .. t + K - 1 that read it. dp holds row r in dp[(r + K) % K]. */
static void input_grad(float *dx, const Conv *v, Columns c, float w[MAX_K][COLS], float dp[MAX_K][COLS],
                       int64_t t)
{
    int64_t K = v->K, T = v->x.n[0];
    for (int i = 0; i < c.n; i++) dx[i] = 0.0f;
    for (int64_t row = t < 0 ? 0 : t; row < t + K && row < T; row++) {
        if (segment_of(v->seg, row) < 0 || first_seen(v, row) > t) continue;
        const float *tap = w[t - row + K - 1], *d = dp[row % K];
        for (int i = 0; i < c.n; i++) dx[i] += tap[i] * d[i];
    }
}

typedef struct ConvGrads { Tensor dx, dbefore, dy; } ConvGrads;

static void columns_bwd(const Conv *v, const ConvGrads *g, Columns c, float w[MAX_K][COLS],
                        double dw[MAX_K][COLS])
{
    float dp[MAX_K][COLS], dx[COLS];
    for (int64_t t = v->x.n[0] - 1; t > -v->K; t--) {
        bool before = t < 0;
        if (before && !t_has(g->dbefore)) return;
        if (!before && segment_of(v->seg, t) >= 0) {
            row_slope(dp[t % v->K], v, c, w, g->dy, t);
            add_products(dw, v, c, dp[t % v->K], t);
        }
        input_grad(dx, v, c, w, dp, t);
        columns_put(before ? g->dbefore : g->dx, c, before ? t + v->K - 1 : t, dx);
    }
}

static void taps_add(Tensor dw, Columns c, int64_t C, double sum[MAX_K][COLS])
{
    for (int i = 0; t_has(dw) && i < c.n; i++) {
        float *to = (float *)row_ptr(dw, c.h * C + c.col + i);
        for (int64_t k = 0; k < dw.n[1]; k++) to[k] += (float)sum[k][i];
    }
}

void cpu_short_conv_bwd(Backend *be, Tensor dx, Tensor dw, Tensor dbefore, Tensor dy, Tensor x, Tensor w,
                        Tensor before, Segments seg)
{
    Conv v = { x, before, seg, w.n[1] };
    ConvGrads g = { dx, dbefore, dy };
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(x)))
    for (int64_t i = 0; i < tasks_of(x); i++) {
        float   taps[MAX_K][COLS];
        double  sum[MAX_K][COLS] = { { 0 } };
        Columns c = task_columns(x, i);
        taps_get(taps, w, c, x.n[2]);
        columns_bwd(&v, &g, c, taps, sum);
        taps_add(dw, c, x.n[2], sum);
    }
}
