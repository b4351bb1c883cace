/* ops/cpu/delta_tile.c -- see delta_tile.h and the formulas of ops/delta_rule.c. Sums go in the order of rows
 * and columns. */
#include "ops/cpu/delta_tile.h"

#include <string.h>

/* ---- products: c (m, n), inner length k ---- */

static HOT void add_scaled(float *y, const float *x, float a, int n)
{
    #pragma omp simd
    for (int i = 0; i < n; i++) y[i] += a * x[i];
}

static HOT float dot(const float *a, const float *b, int n)
{
    float s = 0.0f;
    #pragma omp simd reduction(+:s)
    for (int i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}

/* c[i] += sum over rows j of a square's (i, j), or (j, i), times x[j]; zeros are skipped. */
static void add_square(float *c, const DeltaSquare a, const float *x, int n, int cols, bool transposed)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            float f = transposed ? a[j][i] : a[i][j];
            if (f != 0.0f) add_scaled(c + i * cols, x + j * cols, f, cols);
        }
}

/* c[i] += f[i] x[i] s: rows (n, k) times a state (k, cols). */
static void add_times_state(float *c, const float *x, const float *s, const float *f, int n, int k, int cols)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; f[i] != 0.0f && j < k; j++)
            add_scaled(c + i * cols, s + j * cols, f[i] * x[i * k + j], cols);
}

/* c[i] += f[i] x[i] s': rows (n, cols) times the transposed state. */
static void add_times_transposed(float *c, const float *x, const float *s, const float *f, int n, int k,
                                 int cols)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; f[i] != 0.0f && j < k; j++)
            c[i * k + j] += f[i] * dot(x + i * cols, s + j * cols, cols);
}

/* s += sum over i of f[i] a[i]' b[i]. */
static void add_outer(float *s, const float *a, const float *b, const float *f, int n, int k, int cols)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; f[i] != 0.0f && j < k; j++)
            add_scaled(s + j * cols, b + i * cols, f[i] * a[i * k + j], cols);
}

/* ---- rows ---- */

void delta_rows(DeltaRows *r, Segments seg, int64_t from, int64_t n, bool has_first)
{
    const int32_t *starts = seg.starts.data;
    r->n = (int)n;
    for (int i = 0; i < n; i++) r->segment[i] = segment_of(seg, from + i);
    int64_t first = r->segment[0], last = r->segment[n - 1];
    r->enters  = first >= 0 && (from ? starts[first] < from : has_first);
    r->through = r->enters && first == last;
    for (int i = 0; i < n; i++) {
        r->live[i] = r->enters && r->segment[i] == first;
        r->last[i] = last >= 0 && r->segment[i] == last;
    }
}

/* ---- forward ---- */

static bool meets(const DeltaRows *r, int i, int j)
{
    return r->segment[i] >= 0 && r->segment[i] == r->segment[j];
}

static void decays(DeltaTile *t)
{
    int n = t->rows.n;
    for (int i = 0; i < n; i++)
        t->sum[i] = (double)t->g[i] + (i && meets(&t->rows, i, i - 1) ? t->sum[i - 1] : 0.0);
    for (int i = 0; i < n; i++) {
        t->in[i]  = t->rows.live[i] ? expf((float)t->sum[i]) : 0.0f;
        t->out[i] = t->rows.last[i] ? expf((float)(t->sum[n - 1] - t->sum[i])) : 0.0f;
        for (int j = 0; j < n; j++)
            t->decay[i][j] = j <= i && meets(&t->rows, i, j) ? expf((float)(t->sum[i] - t->sum[j])) : 0.0f;
    }
    t->through = t->rows.through ? expf((float)t->sum[n - 1]) : 0.0f;
}

/* Solves (1 + M) x = x in place, row by row. */
static void solve(float *x, const DeltaSquare m, int n, int cols)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if (m[i][j] != 0.0f) add_scaled(x + i * cols, x + j * cols, -m[i][j], cols);
}

void delta_prepare(DeltaTile *t)
{
    int n = t->rows.n, dk = t->dk, dv = t->dv;
    decays(t);
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            bool on = j < i && t->decay[i][j] != 0.0f;
            t->keys[i][j] = on ? dot(t->k + i * dk, t->k + j * dk, dk) * t->decay[i][j] : 0.0f;
            t->m[i][j] = t->beta[i] * t->keys[i][j];
        }
        float step = t->rows.segment[i] >= 0 ? t->beta[i] : 0.0f;
        for (int c = 0; c < dv; c++) t->u[i * dv + c] = step * t->v[i * dv + c];
        for (int c = 0; c < dk; c++) t->w[i * dk + c] = step * t->in[i] * t->k[i * dk + c];
    }
    solve(t->u, t->m, n, dv);
    solve(t->w, t->m, n, dk);
}

void delta_scan(DeltaTile *t, const float *s, float *next)
{
    static const float ones[DELTA_TILE] = { [0 ... DELTA_TILE - 1] = -1.0f };
    int n = t->rows.n, dk = t->dk, dv = t->dv;
    memcpy(t->fresh, t->u, (size_t)(n * dv) * sizeof(float));
    if (t->rows.enters) add_times_state(t->fresh, t->w, s, ones, n, dk, dv);
    if (!next) return;
    for (int i = 0; i < dk * dv; i++) next[i] = t->through != 0.0f ? t->through * s[i] : 0.0f;
    add_outer(next, t->k, t->fresh, t->out, n, dk, dv);
}

void delta_output(DeltaTile *t, float *o, const float *s)
{
    int n = t->rows.n, dk = t->dk, dv = t->dv;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            t->p[i][j] = t->decay[i][j] != 0.0f
                             ? dot(t->q + i * dk, t->k + j * dk, dk) * t->decay[i][j] : 0.0f;
    memset(o, 0, (size_t)(n * dv) * sizeof(float));
    add_times_state(o, t->q, s, t->in, n, dk, dv);
    add_square(o, t->p, t->fresh, n, dv, false);
}

/* ---- backward ---- */

/* Solves (1 + M)' x = x in place, from the last row on. */
static void solve_transposed(float *x, const DeltaSquare m, int n, int cols)
{
    for (int i = n - 1; i >= 0; i--)
        for (int j = i + 1; j < n; j++)
            if (m[j][i] != 0.0f) add_scaled(x + i * cols, x + j * cols, -m[j][i], cols);
}

/* Gradients of the output and of the state after the tile flow to the new values. */
static void fresh_grad(const DeltaTile *t, DeltaGrads *g, const float *ds)
{
    int n = t->rows.n, dv = t->dv;
    memset(g->dfresh, 0, (size_t)(n * dv) * sizeof(float));
    add_square(g->dfresh, t->p, g->dout, n, dv, true);
    add_times_state(g->dfresh, t->k, ds, t->out, n, t->dk, dv);
}

/* dp masked, and its products with D: of q and k. */
static void score_grads(const DeltaTile *t, DeltaGrads *g, DeltaSquare by)
{
    int n = t->rows.n, dk = t->dk, dv = t->dv;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            bool on = t->decay[i][j] != 0.0f;
            g->dp[i][j] = on ? dot(g->dout + i * dv, t->fresh + j * dv, dv) : 0.0f;
            by[i][j] = g->dp[i][j] * t->decay[i][j];
        }
    add_square(g->dq, by, t->k, n, dk, false);
    add_square(g->dk, by, t->q, n, dk, true);
}

/* dm = -(x u' + y w') below the diagonal; x: dfresh solved, y: dW solved. */
static void triangle_grads(const DeltaTile *t, DeltaGrads *g, DeltaSquare by)
{
    int n = t->rows.n, dk = t->dk, dv = t->dv;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            bool on = j < i && t->decay[i][j] != 0.0f;
            g->dm[i][j] = on ? -dot(g->dfresh + i * dv, t->u + j * dv, dv) -
                               dot(g->y + i * dk, t->w + j * dk, dk) : 0.0f;
            by[i][j] = t->beta[i] * g->dm[i][j] * t->decay[i][j];
        }
    add_square(g->dk, by, t->k, n, dk, false);
    add_square(g->dk, by, t->k, n, dk, true);
}

/* What row i adds: of beta, and of `sum` through the two decays it stands in. */
static void gate_row(const DeltaTile *t, DeltaGrads *g, int i, double read, double *dsum)
{
    int   n = t->rows.n, dk = t->dk, dv = t->dv;
    float ky = t->in[i] * dot(g->y + i * dk, t->k + i * dk, dk);
    double triangle = 0, sum = read + (double)(t->beta[i] * ky);
    for (int j = 0; j < n; j++) {
        triangle += (double)g->dm[i][j] * t->keys[i][j];
        sum += (double)g->dp[i][j] * t->p[i][j] - (double)g->dp[j][i] * t->p[j][i];
        sum += (double)g->dm[i][j] * t->m[i][j] - (double)g->dm[j][i] * t->m[j][i];
    }
    g->dbeta[i] = (float)triangle + dot(g->dfresh + i * dv, t->v + i * dv, dv) + ky;
    dsum[i] = sum;
}

/* g reaches the sums of its own segment from its row on. */
static void sums_back(const DeltaTile *t, DeltaGrads *g, const double *dsum)
{
    double sum = 0;
    for (int i = t->rows.n - 1; i >= 0; i--) {
        bool more = i + 1 < t->rows.n && meets(&t->rows, i, i + 1);
        sum = dsum[i] + (more ? sum : 0);
        g->dg[i] = t->rows.segment[i] >= 0 ? (float)sum : 0.0f;
        if (t->rows.segment[i] < 0) g->dbeta[i] = 0.0f;
    }
}

static void gate_grads(const DeltaTile *t, DeltaGrads *g, const float *s, const float *ds, const float *read,
                       const float *left)
{
    double dsum[DELTA_TILE];
    int   n = t->rows.n, state = t->dk * t->dv;
    for (int i = 0; i < n; i++) gate_row(t, g, i, (double)read[i] - left[i], dsum);
    if (t->through != 0.0f) dsum[n - 1] += t->through * dot(s, ds, state);
    for (int i = 0; i < n; i++) dsum[n - 1] += left[i];
    sums_back(t, g, dsum);
}

static void input_grads(const DeltaTile *t, DeltaGrads *g)
{
    int n = t->rows.n, dk = t->dk, dv = t->dv;
    for (int i = 0; i < n; i++) {
        float step = t->rows.segment[i] >= 0 ? t->beta[i] : 0.0f;
        add_scaled(g->dk + i * dk, g->y + i * dk, step * t->in[i], dk);
        for (int c = 0; c < dv; c++) g->dv[i * dv + c] = step * g->dfresh[i * dv + c];
    }
}

/* The gradient of the state that enters; dfresh is not solved yet. */
static void state_grad(const DeltaTile *t, const DeltaGrads *g, float *ds)
{
    float minus[DELTA_TILE];
    int   n = t->rows.n, state = t->dk * t->dv;
    for (int i = 0; i < n; i++) minus[i] = t->rows.live[i] ? -1.0f : 0.0f;
    for (int i = 0; i < state; i++) ds[i] = t->through != 0.0f ? t->through * ds[i] : 0.0f;
    add_outer(ds, t->q, g->dout, t->in, n, t->dk, t->dv);
    add_outer(ds, t->w, g->dfresh, minus, n, t->dk, t->dv);
}

/* read[i]: <dout, e^sum q S>; left[i]: what the leaving state takes of row i. Adds both to dq and dk. */
static void state_products(const DeltaTile *t, DeltaGrads *g, const float *s, const float *ds, float *read,
                           float *left, float *buf)
{
    int n = t->rows.n, dk = t->dk, dv = t->dv;
    memset(buf, 0, (size_t)(2 * n * dk) * sizeof(float));
    float *a = buf, *b = buf + n * dk;
    if (t->rows.enters) add_times_transposed(a, g->dout, s, t->in, n, dk, dv);
    add_times_transposed(b, t->fresh, ds, t->out, n, dk, dv);
    for (int i = 0; i < n; i++) {
        read[i] = dot(t->q + i * dk, a + i * dk, dk);
        left[i] = dot(t->k + i * dk, b + i * dk, dk);
        add_scaled(g->dq + i * dk, a + i * dk, 1.0f, dk);
        add_scaled(g->dk + i * dk, b + i * dk, 1.0f, dk);
    }
}

void delta_tile_bwd(DeltaTile *t, DeltaGrads *g, const float *s, float *ds, float *buf)
{
    static const float minus[DELTA_TILE] = { [0 ... DELTA_TILE - 1] = -1.0f };
    float read[DELTA_TILE], left[DELTA_TILE];
    DeltaSquare *by = (DeltaSquare *)buf;
    int n = t->rows.n;
    buf += DELTA_TILE * DELTA_TILE;
    fresh_grad(t, g, ds);
    score_grads(t, g, *by);
    state_products(t, g, s, ds, read, left, buf);
    memset(g->y, 0, (size_t)(n * t->dk) * sizeof(float));
    if (t->rows.enters) add_times_transposed(g->y, g->dfresh, s, minus, n, t->dk, t->dv);
    float *ds_old = buf + 2 * n * t->dk;
    memcpy(ds_old, ds, (size_t)(t->dk * t->dv) * sizeof(float));
    state_grad(t, g, ds);
    solve_transposed(g->dfresh, t->m, n, t->dv);
    solve_transposed(g->y, t->m, n, t->dk);
    triangle_grads(t, g, *by);
    input_grads(t, g);
    gate_grads(t, g, s, ds_old, read, left);
}
