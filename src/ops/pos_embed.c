/* ops/pos_embed.c -- learned positions of image patches, bilinear between the cells of a square table.
 *
 *   y[p] = x[p] + round(sum over 4 taps of weight * table[tap])        round: to the type of y
 *
 * table (G*G, D) holds a G x G grid, row-major; cell (P, 4) i32 rows are [row, col, h, w]: the patch's place
 * in its own grid of h x w patches, scaled to the table with aligned corners: per axis, in f32,
 *
 *   s = i * (G - 1) / max(n - 1, 1)     lo = floor(s)     hi = min(lo + 1, G - 1)     l = s - lo
 *
 * the taps are lo with weight 1 - l and hi with weight l, and their four products for the two axes.
 *
 * x, y (P, D) and table are f32 or bf16 each; y may alias x. A cell with h = 0 is padding: x is copied.
 * Backward adds weight * dy[p] to dtable (G*G, D) f32, patches in order for any number of threads: threads
 * split the columns. */
#include "ops/cpu/cpu_rows.h"

enum { TAPS = 4 };
typedef struct Tap { int64_t row[TAPS]; float weight[TAPS]; } Tap;

static int64_t grid_side(Tensor table)
{
    int64_t g = 0;
    while ((g + 1) * (g + 1) <= table.n[0]) g++;
    return g;
}

static void check(const char *op, Tensor table, Tensor rows, Tensor cell)
{
    int64_t P = rows.n[0], D = rows.n[1], G = grid_side(table);
    REQUIRE(is_rows(rows, P, D) && is_rows(table, G * G, D) && G > 0 &&
            cell.rank == 2 && cell.n[0] == P && cell.n[1] == 4 && cell.dtype == I32,
            "%s: table %s (a square grid?) rows %s cell %s", op, t_fmt(table), t_fmt(rows), t_fmt(cell));
}

static void axis_taps(int64_t *lo, int64_t *hi, float *lambda, int32_t i, int32_t n, int64_t G)
{
    float s = (float)(i * (G - 1)) / (float)(n > 1 ? n - 1 : 1);
    *lo     = (int64_t)s;
    *hi     = *lo + 1 < G ? *lo + 1 : G - 1;
    *lambda = s - (float)*lo;
}

static Tap taps_of(const int32_t *cell, int64_t G)
{
    int64_t r0, r1, c0, c1;
    float a, b;
    REQUIRE(cell[0] >= 0 && cell[0] < cell[2] && cell[1] >= 0 && cell[1] < cell[3],
            "pos_embed: patch (%d, %d) of %d x %d", cell[0], cell[1], cell[2], cell[3]);
    axis_taps(&r0, &r1, &a, cell[0], cell[2], G);
    axis_taps(&c0, &c1, &b, cell[1], cell[3], G);
    return (Tap){ { r0 * G + c0,             r0 * G + c1,    r1 * G + c0,    r1 * G + c1 },
                  { (1.0f - a) * (1.0f - b), (1.0f - a) * b, a * (1.0f - b), a * b } };
}

Cost pos_embed_fwd_cost(Backend *be, Tensor y, Tensor x, Tensor table, Tensor cell)
{
    check("pos_embed_fwd", table, x, cell);
    REQUIRE(is_rows(y, x.n[0], x.n[1]), "pos_embed_fwd: y %s x %s", t_fmt(y), t_fmt(x));
    return (Cost){ .flops = 8.0 * (double)t_count(x),
                   .rd    = t_bytes(x) + t_bytes(table) + t_bytes(cell),
                   .wr    = t_bytes(y) };
}

static HOT void blend_f32(float *y, const void *const *row, const float *w, int64_t n)
{
    const float *a = row[0], *b = row[1], *c = row[2], *d = row[3];
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = w[0] * a[i] + w[1] * b[i] + w[2] * c[i] + w[3] * d[i];
}

static HOT void blend_bf16(float *y, const void *const *row, const float *w, int64_t n)
{
    const uint16_t *a = row[0], *b = row[1], *c = row[2], *d = row[3];
    #pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = w[0] * bf16_to_f32(a[i]) + w[1] * bf16_to_f32(b[i]) +
               w[2] * bf16_to_f32(c[i]) + w[3] * bf16_to_f32(d[i]);
}

/* Rounds to bf16 and back. */
static HOT void round_bf16(float *x, int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) x[i] = bf16_to_f32(bf16_from_f32(x[i]));
}

static void forward_row(Tensor y, Tensor x, Tensor table, Tensor cells, int64_t G, int64_t p, float *buf)
{
    int64_t D = x.n[1];
    const int32_t *cell = (const int32_t *)row_ptr(cells, p);
    const float *in = row_read(x, p, buf);
    float *out = row_edit(y, p, buf), *pos = buf + D;
    const void *row[TAPS];
    if (cell[2] == 0) {
        memmove(out, in, (size_t)D * 4);                    /* y may be x */
    } else {
        Tap k = taps_of(cell, G);
        for (int q = 0; q < TAPS; q++) row[q] = row_ptr(table, k.row[q]);
        if (table.dtype == F32) blend_f32(pos, row, k.weight, D);
        else                    blend_bf16(pos, row, k.weight, D);
        if (y.dtype == BF16) round_bf16(pos, D);
        rows_add(out, in, pos, D);
    }
    row_store(y, p, out);
}

void cpu_pos_embed_fwd(Backend *be, Tensor y, Tensor x, Tensor table, Tensor cell)
{
    int64_t P = x.n[0], D = x.n[1], G = grid_side(table);
    cpu_check_own("pos_embed_fwd", 2, D);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(x)))
    for (int64_t p = 0; p < P; p++)
        forward_row(y, x, table, cell, G, p, cpu_own(be));
}

Cost pos_embed_bwd_cost(Backend *be, Tensor dtable, Tensor dy, Tensor cell)
{
    check("pos_embed_bwd", dtable, dy, cell);
    REQUIRE(dtable.dtype == F32, "pos_embed_bwd: dtable %s", t_fmt(dtable));
    return (Cost){ .flops = 8.0 * (double)t_count(dy),
                   .rd    = t_bytes(dy) + t_bytes(dtable) + t_bytes(cell),
                   .wr    = t_bytes(dtable) };
}

static HOT void add_scaled(float *y, const float *x, float k, int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] += k * x[i];
}

static void add_slice(Tensor dtable, Tensor dy, Tensor cell, int64_t G, float *buf)
{
    for (int64_t p = 0; p < dy.n[0]; p++) {
        const int32_t *at = (const int32_t *)row_ptr(cell, p);
        if (at[2] == 0) continue;
        Tap k = taps_of(at, G);
        const float *g = row_read(dy, p, buf);
        for (int q = 0; q < TAPS; q++)
            if (k.weight[q] != 0.0f) add_scaled((float *)row_ptr(dtable, k.row[q]), g, k.weight[q], dy.n[1]);
    }
}

void cpu_pos_embed_bwd(Backend *be, Tensor dtable, Tensor dy, Tensor cell)
{
    int64_t D = dy.n[1], G = grid_side(dtable), step = slice_columns(D);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(dy)))
    for (int64_t from = 0; from < D; from += step) {
        int64_t cols = D - from < step ? D - from : step;
        add_slice(t_cols(dtable, from, cols), t_cols(dy, from, cols), cell, G, cpu_own(be));
    }
}
