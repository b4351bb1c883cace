/* ops/delta_rule.c -- the gated delta rule within the segments of a flat stream: contract, cost, CPU.
 *
 * A value head has a state S (dk, dv), 0 before the first row of a segment; row t with decay g <= 0 and step
 * beta does
 *
 *   S = e^g S      S = S + k' beta (v - k S)      o = scale q S
 *
 * q, k (T, Hk, dk) and v, o (T, Hv, dv), Hv = M Hk, are f32 or bf16 views with any stride between rows and
 * between heads; value head u reads key head u / M. g, beta (T, Hv) f32. first, last (Hv, dk dv) f32: the
 * state before row 0, which then continues its segment, and the one after the last row; absent: 0, not
 * wanted. Rows outside all segments give 0 and get gradients of 0.
 *
 * It is computed by tiles of 64 rows of the stream (not of a segment, so that no size depends on the
 * segments). With c_i the sum of g over a row's segment in the tile up to row i, D_ij = e^(c_i - c_j) for
 * j <= i of one segment, else 0:
 *
 *   M = below(beta k k' D)     U = (1 + M)^-1 beta v       W = (1 + M)^-1 beta e^c k
 *   N = U - W S                P = q k' D                  O = e^c q S + P N
 *   S = e^c_n S + (e^(c_n - c) k)' N
 *
 * where only rows of the segment that entered the tile read S, and only rows of the segment that leaves it
 * write it. Backward takes the tiles from the last to the first; states (N, Hv dk dv), N = ceil(T / 64), of
 * the dtype of q, is its scratch: the state that enters each tile. It overwrites dq, dk (sums over the value
 * heads of a key head), dv, and dg, dbeta (T, Hv) f32; dfirst, dlast: the gradients of first and last.
 *
 * Storage is f32 or bf16, arithmetic f32, results are rounded once. On the CPU c and the gradients of g are
 * summed in double: c passes 100, and the terms of one gradient cancel. A key head with its value heads is
 * one task, summed in the order of heads, tiles, rows: equal bits on any number of threads. FLOPs are counted
 * as four (dk, dv) updates of a token, whatever the tiles cost. */
#include "ops/cpu/delta_tile.h"

#include <string.h>

static bool stat_fits(Tensor x, int64_t T, int64_t H) { return is_rows_f32(x, T, H); }
static bool state_fits(Tensor x, int64_t H, int64_t n) { return !t_has(x) || is_rows_f32(x, H, n); }

static bool shapes_fit(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor first, Segments seg)
{
    int64_t T = q.n[0], Hk = q.n[1], dk = q.n[2], Hv = v.n[1], dv = v.n[2];
    return is_heads(q, T, Hk, dk) && is_heads(k, T, Hk, dk) && is_heads(v, T, Hv, dv) && Hk > 0 &&
           Hv % Hk == 0 && dk >= 1 && dk <= DELTA_WIDTH && dv >= 1 && dv <= DELTA_WIDTH &&
           stat_fits(g, T, Hv) && stat_fits(beta, T, Hv) && state_fits(first, Hv, dk * dv) &&
           borders_fit(seg);
}

/* Four updates of a state a token; tiles do dk dv three times and what lies between their rows. */
static double rule_flops(Tensor q, Tensor v) { return 8.0 * (double)(t_count(v) * q.n[2]); }

static double tile_flops(Tensor q, Tensor v)
{
    double dk = (double)q.n[2], dv = (double)v.n[2];
    return (double)(v.n[0] * v.n[1]) * (6.0 * dk * dv + DELTA_TILE * (6.0 * dk + 4.0 * dv));
}

static double more(double executed, double counted) { return executed > counted ? executed - counted : 0; }

/* On a GPU: what is known of rows (1,296 bytes for a tile and a value head), and what passes between kernels.
 * bf16 heads of 128 have U, W and states in bf16, backward N, its gradient, inverses and gradients of states
 * too; others a few matrices of a tile in f32 for each key head (ops/cuda/delta_rule.cu). */
static int64_t workspace_of(Tensor q, Tensor v, bool backward)
{
    int64_t N = (q.n[0] + DELTA_TILE - 1) / DELTA_TILE, Hk = q.n[1], Hv = v.n[1], dk = q.n[2], dv = v.n[2];
    int64_t known = N * Hv * 1296 + 4 * N + 1024, rows = N * DELTA_TILE * Hv, states = Hv / Hk * dk * dv;
    int64_t few = 256 * (dk + dv) + 4 * DELTA_TILE * DELTA_TILE + states;
    if (q.dtype == BF16 && dk == 128 && dv == 128)
        return known + rows * (backward ? 4 * 256 + 128 : 2 * 256) + N * Hv * 2 * dk * dv;
    if (backward) few += 256 * dk + 128 * dv + DELTA_TILE * DELTA_TILE + states + 2 * DELTA_TILE;
    return known + 4 * Hk * few;
}

Cost delta_rule_fwd_cost(Backend *be, Tensor o, Tensor last, Tensor q, Tensor k, Tensor v, Tensor g,
                         Tensor beta, Tensor first, Segments seg, float scale)
{
    REQUIRE(shapes_fit(q, k, v, g, beta, first, seg) && is_heads(o, v.n[0], v.n[1], v.n[2]) &&
            state_fits(last, v.n[1], q.n[2] * v.n[2]),
            "delta_rule_fwd: o %s last %s q %s k %s v %s g %s beta %s first %s", t_fmt(o), t_fmt(last),
            t_fmt(q), t_fmt(k), t_fmt(v), t_fmt(g), t_fmt(beta), t_fmt(first));
    return (Cost){ .flops = rule_flops(q, v), .extra = more(tile_flops(q, v), rule_flops(q, v)),
                   .rd = t_bytes(q) + t_bytes(k) + t_bytes(v) + t_bytes(g) + t_bytes(beta) + opt_bytes(first),
                   .wr = t_bytes(o) + opt_bytes(last), .workspace = workspace_of(q, v, false) };
}

Cost delta_rule_bwd_cost(Backend *be, Tensor dq, Tensor dk, Tensor dv, Tensor dg, Tensor dbeta, Tensor dfirst,
                         Tensor states, Tensor dout, Tensor dlast, Tensor q, Tensor k, Tensor v, Tensor g,
                         Tensor beta, Tensor first, Segments seg, float scale)
{
    int64_t T = q.n[0], Hk = q.n[1], Hv = v.n[1], state = q.n[2] * v.n[2];
    REQUIRE(shapes_fit(q, k, v, g, beta, first, seg), "delta_rule_bwd: q %s k %s v %s g %s beta %s first %s",
            t_fmt(q), t_fmt(k), t_fmt(v), t_fmt(g), t_fmt(beta), t_fmt(first));
    REQUIRE(is_heads(dq, T, Hk, q.n[2]) && is_heads(dk, T, Hk, q.n[2]) && is_heads(dv, T, Hv, v.n[2]) &&
            stat_fits(dg, T, Hv) && stat_fits(dbeta, T, Hv) && is_heads(dout, T, Hv, v.n[2]) &&
            state_fits(dfirst, Hv, state) && state_fits(dlast, Hv, state) &&
            is_rows(states, (T + DELTA_TILE - 1) / DELTA_TILE, Hv * state) && states.dtype == q.dtype,
            "delta_rule_bwd: dq %s dk %s dv %s dg %s dbeta %s dfirst %s states %s dout %s dlast %s of q %s",
            t_fmt(dq), t_fmt(dk), t_fmt(dv), t_fmt(dg), t_fmt(dbeta), t_fmt(dfirst), t_fmt(states),
            t_fmt(dout), t_fmt(dlast), t_fmt(q));
    return (Cost){ .flops = 2.0 * rule_flops(q, v),
                   .extra = more(3.0 * tile_flops(q, v), 2.0 * rule_flops(q, v)),
                   .rd    = t_bytes(q) + t_bytes(k) + t_bytes(v) + 2 * t_bytes(g) + t_bytes(dout) +
                         t_bytes(states),
                   .wr = t_bytes(dq) + t_bytes(dk) + t_bytes(dv) + 2 * t_bytes(dg) + t_bytes(states),
                   .workspace = workspace_of(q, v, true) };
}

/* ---- one value head ---- */

typedef struct DeltaRule {
    Tensor   q, k, v, g, beta;
    Segments seg;
    float    scale;
    bool     has_first;
} DeltaRule;

static int64_t tiles_of(const DeltaRule *r) { return (r->q.n[0] + DELTA_TILE - 1) / DELTA_TILE; }

static void read_rows(float *to, Tensor x, int64_t head, int64_t from, int64_t n, float scale)
{
    int64_t C = x.n[2];
    for (int64_t i = 0; i < n; i++) {
        const float *row = row_read(x, (from + i) * x.n[1] + head, to + i * C);
        for (int64_t c = 0; c < C; c++) to[i * C + c] = scale * row[c];
    }
}

static void write_rows(Tensor x, int64_t head, int64_t from, int64_t n, const float *src, float scale)
{
    int64_t C = x.n[2];
    for (int64_t i = 0; i < n; i++) {
        float buf[DELTA_WIDTH], *to = row_edit(x, (from + i) * x.n[1] + head, buf);
        for (int64_t c = 0; c < C; c++) to[c] = scale * src[i * C + c];
        row_store(x, (from + i) * x.n[1] + head, to);
    }
}

static float *take(float **at, int64_t n)
{
    float *p = *at;
    *at += (n + 15) / 16 * 16;
    return p;
}

/* A tile in a thread's workspace, and its inputs. */
static DeltaTile *tile_open(float **at, const DeltaRule *r)
{
    DeltaTile *t = (DeltaTile *)take(at, (int64_t)(sizeof(DeltaTile) / sizeof(float)));
    t->dk = (int)r->q.n[2], t->dv = (int)r->v.n[2];
    t->q = take(at, DELTA_TILE * t->dk), t->k = take(at, DELTA_TILE * t->dk);
    t->w = take(at, DELTA_TILE * t->dk), t->v = take(at, DELTA_TILE * t->dv);
    t->u = take(at, DELTA_TILE * t->dv), t->fresh = take(at, DELTA_TILE * t->dv);
    return t;
}

static void tile_read(DeltaTile *t, const DeltaRule *r, int64_t u, int64_t tile)
{
    int64_t from = tile * DELTA_TILE, left = r->q.n[0] - from, n = left < DELTA_TILE ? left : DELTA_TILE;
    int64_t h = u / (r->v.n[1] / r->q.n[1]);
    delta_rows(&t->rows, r->seg, from, n, r->has_first);
    read_rows(t->q, r->q, h, from, n, r->scale);
    read_rows(t->k, r->k, h, from, n, 1.0f);
    read_rows(t->v, r->v, u, from, n, 1.0f);
    for (int64_t i = 0; i < n; i++) {
        t->g[i]    = ((const float *)row_ptr(r->g, from + i))[u];
        t->beta[i] = ((const float *)row_ptr(r->beta, from + i))[u];
    }
    delta_prepare(t);
}

static void state_read(float *s, Tensor from, int64_t u, int64_t n)
{
    if (t_has(from)) memcpy(s, row_ptr(from, u), (size_t)n * sizeof(float));
    else             memset(s, 0, (size_t)n * sizeof(float));
}

static void state_write(Tensor to, int64_t u, const float *s, int64_t n)
{
    if (t_has(to)) memcpy(row_ptr(to, u), s, (size_t)n * sizeof(float));
}

static void head_fwd(Backend *be, const DeltaRule *r, Tensor o, Tensor last, Tensor first, int64_t u)
{
    float     *at = cpu_own(be);
    DeltaTile *t = tile_open(&at, r);
    int64_t    n = t->dk * t->dv;
    float     *s = take(&at, n), *out = take(&at, DELTA_TILE * t->dv), *next = take(&at, n);
    state_read(s, first, u, n);
    for (int64_t i = 0; i < tiles_of(r); i++) {
        tile_read(t, r, u, i);
        delta_scan(t, s, next);
        delta_output(t, out, s);
        write_rows(o, u, i * DELTA_TILE, t->rows.n, out, 1.0f);
        memcpy(s, next, (size_t)n * sizeof(float));
    }
    state_write(last, u, s, n);
}

static void check_workspace(const char *op, Tensor q, Tensor v)
{
    size_t group = (size_t)(v.n[1] / q.n[1]), state = (size_t)(q.n[2] * v.n[2]),
           wide = DELTA_TILE * DELTA_WIDTH;
    REQUIRE(sizeof(DeltaTile) + sizeof(DeltaGrads) + (16 * wide + (group + 3) * state) * 4 <= CPU_OWN,
            "%s: states of %lld x %lld, %zu of a key head", op, (long long)q.n[2], (long long)v.n[2], group);
}

void cpu_delta_rule_fwd(Backend *be, Tensor o, Tensor last, Tensor q, Tensor k, Tensor v, Tensor g,
                        Tensor beta, Tensor first, Segments seg, float scale)
{
    DeltaRule r = { q, k, v, g, beta, seg, scale, t_has(first) };
    check_workspace("delta_rule_fwd", q, v);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(v)))
    for (int64_t u = 0; u < v.n[1]; u++) head_fwd(be, &r, o, last, first, u);
}

/* ---- backward: a key head with its value heads ---- */

typedef struct RuleGrads { Tensor dq, dk, dv, dg, dbeta, dfirst, states, dout, dlast, first; } RuleGrads;

/* Row `tile` of states: the state of value head u that enters it, rounded to its storage. */
static Tensor kept_state(Tensor states, int64_t tile, int64_t u, int64_t n)
{
    char *p = row_ptr(states, tile) + u * n * (int64_t)dtype_size((DType)states.dtype);
    return t_wrap(p, (DType)states.dtype, 1, &n);
}

static void keep_states(const DeltaRule *r, const RuleGrads *g, DeltaTile *t, float *s, int64_t u)
{
    int64_t n = t->dk * t->dv;
    state_read(s, g->first, u, n);
    for (int64_t i = 0; i < tiles_of(r); i++) {
        dtype_convert(kept_state(g->states, i, u, n).data, (DType)g->states.dtype, s, F32, n);
        tile_read(t, r, u, i);
        delta_scan(t, s, s);
    }
}

static DeltaGrads *grads_open(float **at, const DeltaTile *t)
{
    DeltaGrads *g = (DeltaGrads *)take(at, (int64_t)(sizeof(DeltaGrads) / sizeof(float)));
    g->dq = take(at, DELTA_TILE * t->dk), g->dk = take(at, DELTA_TILE * t->dk);
    g->y = take(at, DELTA_TILE * t->dk), g->dout = take(at, DELTA_TILE * t->dv);
    g->dv = take(at, DELTA_TILE * t->dv), g->dfresh = take(at, DELTA_TILE * t->dv);
    return g;
}

/* Tile i of value head u; at: further workspace. */
static void tile_bwd(const DeltaRule *r, const RuleGrads *to, DeltaTile *t, DeltaGrads *g, float *ds,
                     int64_t u, int64_t i, float *at)
{
    int64_t n = t->dk * t->dv, from = i * DELTA_TILE;
    float  *s = take(&at, n), *out = take(&at, DELTA_TILE * t->dv);
    Tensor  kept = kept_state(to->states, i, u, n);
    dtype_convert(s, F32, kept.data, (DType)kept.dtype, n);
    tile_read(t, r, u, i);
    delta_scan(t, s, NULL);
    delta_output(t, out, s);
    read_rows(g->dout, to->dout, u, from, t->rows.n, 1.0f);
    delta_tile_bwd(t, g, s, ds, at);
    write_rows(to->dv, u, from, t->rows.n, g->dv, 1.0f);
    for (int k = 0; k < t->rows.n; k++) {
        ((float *)row_ptr(to->dg, from + k))[u]    = g->dg[k];
        ((float *)row_ptr(to->dbeta, from + k))[u] = g->dbeta[k];
    }
}

static void group_bwd(Backend *be, const DeltaRule *r, const RuleGrads *to, int64_t h)
{
    float      *at = cpu_own(be);
    DeltaTile  *t = tile_open(&at, r);
    DeltaGrads *g = grads_open(&at, t);
    int64_t     n = t->dk * t->dv, M = r->v.n[1] / r->q.n[1];
    float      *ds = take(&at, M * n);
    for (int64_t u = h * M; u < (h + 1) * M; u++) keep_states(r, to, t, ds, u);
    for (int64_t u = 0; u < M; u++) state_read(ds + u * n, to->dlast, h * M + u, n);
    for (int64_t i = tiles_of(r) - 1; i >= 0; i--) {
        memset(g->dq, 0, (size_t)(DELTA_TILE * t->dk) * sizeof(float));
        memset(g->dk, 0, (size_t)(DELTA_TILE * t->dk) * sizeof(float));
        for (int64_t u = 0; u < M; u++) tile_bwd(r, to, t, g, ds + u * n, h * M + u, i, at);
        write_rows(to->dq, h, i * DELTA_TILE, t->rows.n, g->dq, r->scale);
        write_rows(to->dk, h, i * DELTA_TILE, t->rows.n, g->dk, 1.0f);
    }
    for (int64_t u = 0; u < M; u++) state_write(to->dfirst, h * M + u, ds + u * n, n);
}

void cpu_delta_rule_bwd(Backend *be, Tensor dq, Tensor dk, Tensor dv, Tensor dg, Tensor dbeta, Tensor dfirst,
                        Tensor states, Tensor dout, Tensor dlast, Tensor q, Tensor k, Tensor v, Tensor g,
                        Tensor beta, Tensor first, Segments seg, float scale)
{
    DeltaRule r = { q, k, v, g, beta, seg, scale, t_has(first) };
    RuleGrads to = { dq, dk, dv, dg, dbeta, dfirst, states, dout, dlast, first };
    check_workspace("delta_rule_bwd", q, v);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(v)))
    for (int64_t h = 0; h < q.n[1]; h++) group_bwd(be, &r, &to, h);
}
