/* tests/test_delta.c -- the ops of gated delta nets: short convolution, gates, norms, the delta rule. Known
 * values, the definitions in double, finite differences, threads. */
#include "rowlab.h"

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* Heads with gaps between rows and between heads: columns of a wider matrix. */
static Tensor apart(Tensor wide, int64_t H, int64_t C) { return t_cols(t_heads(wide, 0, H, C + 2), 1, C); }
static Tensor apart_randn(DType d, int64_t T, int64_t H, int64_t C)
{
    return apart(num_randn(d, T, H * (C + 2)), H, C);
}
static Tensor apart_poison(DType d, int64_t T, int64_t H, int64_t C)
{
    return apart(num_poison(d, T, H * (C + 2)), H, C);
}

/* Documents of T rows: from row 2 on, one of one row, an empty one, the last `tail` rows outside. */
static Segments documents(int64_t T, int64_t tail)
{
    int32_t at[] = { 2, 3, 3, (int32_t)(T / 2), (int32_t)(T - tail) };
    return (Segments){ .starts = num_i32(5, at), .n = 4, .longest = T, .causal = true };
}
static int64_t begin_of(Segments s, int64_t t)                     /* -1: outside */
{
    const int32_t *at = s.starts.data;
    int64_t from = -1;
    for (int64_t i = 0; i < s.n; i++) if (t >= at[i] && t < at[i + 1]) from = at[i];
    return from;
}

/* ---- convolution ---- */

typedef struct Conv { Tensor y, x, w, before, dy; Segments seg; } Conv;

static void conv(void *arg)
{
    Conv *c = arg;
    op_short_conv_fwd(BE, c->y, c->x, c->w, c->before, c->seg);
}
static double conv_loss(void *arg) { conv(arg); return num_dot(((Conv *)arg)->y, ((Conv *)arg)->dy); }

static double conv_at(const Conv *c, int64_t t, int64_t ch)
{
    int64_t K = c->w.n[1], W = c->x.n[1] * c->x.n[2], from = begin_of(c->seg, t);
    bool    first = from >= 0 && t_has(c->before) && from == begin_of(c->seg, 0);
    double  p = 0;
    for (int64_t j = 0; from >= 0 && j < K; j++) {
        int64_t row = t - K + 1 + j;
        if (row >= from) p += get(c->w, ch * K + j) * get(c->x, row * W + ch);
        else if (first) p += get(c->w, ch * K + j) * get(c->before, (row + K - 1) * W + ch);
    }
    return p * sigmoid(p);
}

static Conv conv_make(DType d, bool before)
{
    int64_t T = 23, H = 3, C = 70, K = 4;
    Conv c = { apart_poison(d, T, H, C), apart_randn(d, T, H, C), num_randn(d, H * C, K), none,
               apart_randn(d, T, H, C), documents(T, 3) };
    if (before) c.before = apart_randn(d, K - 1, H, C), ((int32_t *)c.seg.starts.data)[0] = 0;
    return c;
}

static void convolution(void)
{
    for (int i = 0; i < 4; i++) {
        Conv   c = conv_make(floats[i / 2], i % 2);
        int64_t n = t_count(c.x), W = 210;
        Tensor want = num_poison(F32, 23, W);
        conv(&c);
        for (int64_t k = 0; k < n; k++) put(want, k, (float)conv_at(&c, k / W, k % W));
        EXPECT_CLOSE(c.y, t_as3(want, 23, 3, 70), tolerance(floats[i / 2]));
        EXPECT_THREADS_AGREE(conv, &c, &c.y, 1);
        num_clear();
    }
}

static void convolution_gradients(void)
{
    Conv   c = conv_make(F32, true);
    Tensor dx = apart_poison(F32, 23, 3, 70), dw = num_zeros(F32, 210, 4), db = apart_poison(F32, 3, 3, 70);
    op_short_conv_bwd(BE, dx, dw, db, c.dy, c.x, c.w, c.before, c.seg);
    EXPECT_GRADIENT(conv_loss, &c, c.x, dx, 1e-2f, 3e-3);
    EXPECT_GRADIENT(conv_loss, &c, c.w, dw, 1e-2f, 3e-3);
    EXPECT_GRADIENT(conv_loss, &c, c.before, db, 1e-2f, 3e-3);
    Tensor twice = num_copy(dw, F32);
    op_short_conv_bwd(BE, dx, twice, none, c.dy, c.x, c.w, c.before, c.seg);
    EXPECT(fabsf(get(twice, 5) - 2 * get(dw, 5)) < 1e-5f, "gradients of taps add");
    op_short_conv_bwd(BE, dx, none, none, c.dy, c.x, c.w, none, c.seg);
    c.before = none;
    EXPECT_GRADIENT(conv_loss, &c, c.x, dx, 1e-2f, 3e-3);
    num_clear();
}

/* ---- gates ---- */

typedef struct Gates { Tensor g, beta, a, b, decay, shift, dg, dbeta; } Gates;

static double gates_loss(void *arg)
{
    Gates *c = arg;
    op_delta_gates_fwd(BE, c->g, c->beta, c->a, c->b, c->decay, c->shift);
    return num_dot(c->g, c->dg) + num_dot(c->beta, c->dbeta);
}

static void gates(void)
{
    DType d;
    for EACH_FLOAT(d) {
        int64_t T = 9, G = 3, M = 2;
        Gates c = { num_poison(F32, T, 6), num_poison(F32, T, 6), apart_randn(d, T, G, M),
                    apart_randn(d, T, G, M), num_randn(d, 1, 6), num_randn(d, 1, 6), num_randn(F32, T, 6),
                    num_randn(F32, T, 6) };
        gates_loss(&c);
        for (int64_t i = 0; i < T * 6; i++) {
            double g = -exp(get(c.decay, i % 6)) * log1p(exp(get(c.a, i) + get(c.shift, i % 6)));
            EXPECT(fabs(get(c.g, i) - g) <= 1e-5 * (1 + fabs(g)), "decay %g, not %g", get(c.g, i), g);
            EXPECT(fabs(get(c.beta, i) - sigmoid(get(c.b, i))) <= tolerance(d), "step %g", get(c.beta, i));
        }
        Tensor da = apart_poison(d, T, G, M), db = apart_poison(d, T, G, M);
        Tensor ddecay = num_zeros(F32, 1, 6), dshift = num_zeros(F32, 1, 6);
        op_delta_gates_bwd(BE, da, db, ddecay, dshift, c.dg, c.dbeta, c.g, c.beta, c.a, c.decay, c.shift);
        if (d == F32) {
            EXPECT_GRADIENT(gates_loss, &c, c.a, da, 1e-2f, 2e-3);
            EXPECT_GRADIENT(gates_loss, &c, c.b, db, 1e-2f, 2e-3);
            EXPECT_GRADIENT(gates_loss, &c, c.decay, ddecay, 1e-2f, 2e-3);
            EXPECT_GRADIENT(gates_loss, &c, c.shift, dshift, 1e-2f, 2e-3);
        }
        num_clear();
    }
}

/* ---- norms ---- */

typedef struct Norm { Tensor y, rstd, x, dy; } Norm;

static double norm_loss(void *arg)
{
    Norm *c = arg;
    op_l2norm_fwd(BE, c->y, c->rstd, c->x, 1e-6f);
    return num_dot(c->y, c->dy);
}

static void l2norm(void)
{
    DType d;
    for EACH_FLOAT(d) {
        Norm c = { apart_poison(d, 5, 3, 17), num_poison(F32, 5, 3), apart_randn(d, 5, 3, 17),
                   apart_randn(d, 5, 3, 17) };
        norm_loss(&c);
        for (int64_t r = 0; r < 15; r++) {
            double s = 1e-6;
            for (int64_t i = 0; i < 17; i++) s += pow(get(c.x, r * 17 + i), 2);
            EXPECT(fabs(get(c.y, r * 17 + 4) - get(c.x, r * 17 + 4) / sqrt(s)) <= tolerance(d), "row %d",
                   (int)r);
        }
        Tensor dx = apart_poison(d, 5, 3, 17);
        op_l2norm_bwd(BE, dx, c.dy, c.y, c.rstd);
        if (d == F32) EXPECT_GRADIENT(norm_loss, &c, c.x, dx, 1e-2f, 2e-3);
        norm_loss(&c);
        op_l2norm_bwd(BE, c.dy, c.dy, c.y, c.rstd);
        EXPECT(same_bits(c.dy, dx), "dx over dy");
        op_l2norm_fwd(BE, c.x, c.rstd, c.x, 1e-6f);
        EXPECT(same_bits(c.x, c.y), "y over x");
        num_clear();
    }
}

typedef struct Gated { Tensor y, rstd, o, z, w, dy; } Gated;

static double gated_loss(void *arg)
{
    Gated *c = arg;
    op_gated_norm_fwd(BE, c->y, c->rstd, c->o, c->z, c->w, 1e-6f);
    return num_dot(c->y, c->dy);
}

/* Six heads; the gates of two lie side by side. */
static void gated_norm(void)
{
    DType d;
    for EACH_FLOAT(d) {
        int64_t T = 7, H = 6, C = 9;
        Gated c = { apart_poison(d, T, H, C), num_poison(F32, T, H), apart_randn(d, T, H, C),
                    apart_randn(d, T, 3, 2 * C), num_randn(d, 1, C), apart_randn(d, T, H, C) };
        gated_loss(&c);
        for (int64_t r = 0; r < T * H; r++) {
            double s = 0, z = get(c.z, r * C + 2);
            for (int64_t i = 0; i < C; i++) s += pow(get(c.o, r * C + i), 2) / (double)C;
            double y = get(c.w, 2) * get(c.o, r * C + 2) / sqrt(s + 1e-6) * z * sigmoid(z);
            EXPECT(fabs(get(c.y, r * C + 2) - y) <= 2 * tolerance(d) * (1 + fabs(y)), "%g, not %g",
                   get(c.y, r * C + 2), y);
        }
        Tensor dx = apart_poison(d, T, H, C), dz = apart_poison(d, T, 3, 2 * C), dw = num_zeros(F32, 1, C);
        op_gated_norm_bwd(BE, dx, dz, dw, c.dy, c.o, c.z, c.w, c.rstd);
        if (d == F32) {
            EXPECT_GRADIENT(gated_loss, &c, c.o, dx, 1e-2f, 3e-3);
            EXPECT_GRADIENT(gated_loss, &c, c.z, dz, 1e-2f, 3e-3);
            EXPECT_GRADIENT(gated_loss, &c, c.w, dw, 1e-2f, 3e-3);
        }
        gated_loss(&c);
        op_gated_norm_bwd(BE, c.dy, dz, none, c.dy, c.o, c.z, c.w, c.rstd);
        EXPECT(same_bits(c.dy, dx), "dx over dy");
        num_clear();
    }
}

/* ---- the rule ---- */

typedef struct Rule {
    Tensor o, last, q, k, v, g, beta, first, dout, dlast;
    Tensor dq, dk, dv, dg, dbeta, dfirst, states;
    Segments seg;
} Rule;

enum { HK = 2, HV = 4, DK = 5, DV = 7 };

static Tensor decays(int64_t T)
{
    Tensor g = num_randn(F32, T, HV);
    for (int64_t i = 0; i < T * HV; i++) put(g, i, -0.1f * (float)pow(get(g, i), 2));
    return g;
}
static Tensor steps(int64_t T)
{
    Tensor b = num_randn(F32, T, HV);
    for (int64_t i = 0; i < T * HV; i++) put(b, i, (float)sigmoid(get(b, i)));
    return b;
}

/* Queries and keys of length 1, as the rule gets them. */
static Tensor unit(DType d, int64_t T)
{
    Tensor x = apart_randn(d, T, HK, DK), rstd = num_poison(F32, T, HK);
    op_l2norm_fwd(BE, x, rstd, x, 1e-6f);
    return x;
}

static Rule rule_make(DType d, int64_t T, bool states)
{
    Rule r = { .o = apart_poison(d, T, HV, DV), .q = unit(d, T), .k = unit(d, T),
               .v = apart_randn(d, T, HV, DV), .g = decays(T), .beta = steps(T),
               .dout = apart_randn(d, T, HV, DV), .seg = documents(T, T > 9 ? 5 : 0) };
    r.dq = apart_poison(d, T, HK, DK), r.dk = apart_poison(d, T, HK, DK), r.dv = apart_poison(d, T, HV, DV);
    r.dg = num_poison(F32, T, HV), r.dbeta = num_poison(F32, T, HV);
    r.states = num_poison(d, (T + 63) / 64, HV * DK * DV);
    if (!states) return r;
    int32_t at[] = { 0, 4, (int32_t)T };
    r.first = num_randn(F32, HV, DK * DV), r.last = num_poison(F32, HV, DK * DV);
    r.dlast = num_randn(F32, HV, DK * DV), r.dfirst = num_poison(F32, HV, DK * DV);
    r.seg = (Segments){ .starts = num_i32(3, at), .n = 2, .longest = T, .causal = true };
    return r;
}

static void rule_fwd(void *arg)
{
    Rule *r = arg;
    op_delta_rule_fwd(BE, r->o, r->last, r->q, r->k, r->v, r->g, r->beta, r->first, r->seg, 0.4f);
}
static void rule_bwd(void *arg)
{
    Rule *r = arg;
    op_delta_rule_bwd(BE, r->dq, r->dk, r->dv, r->dg, r->dbeta, r->dfirst, r->states, r->dout, r->dlast, r->q,
                      r->k, r->v, r->g, r->beta, r->first, r->seg, 0.4f);
}
static double rule_loss(void *arg)
{
    Rule *r = arg;
    rule_fwd(arg);
    return num_dot(r->o, r->dout) + (t_has(r->last) ? num_dot(r->last, r->dlast) : 0);
}

/* One token of value head u, whose decay is g: the recurrence. */
static void recur(const Rule *r, double s[DK][DV], double g, int64_t t, int64_t u, double *o)
{
    int64_t h = u / (HV / HK);
    double  fade = exp(g), step = get(r->beta, t * HV + u);
    for (int c = 0; c < DV; c++) {
        double read = 0;
        for (int i = 0; i < DK; i++) s[i][c] *= fade, read += get(r->k, (t * HK + h) * DK + i) * s[i][c];
        double delta = step * (get(r->v, (t * HV + u) * DV + c) - read);
        o[c] = 0;
        for (int i = 0; i < DK; i++) {
            s[i][c] += get(r->k, (t * HK + h) * DK + i) * delta;
            o[c] += 0.4 * get(r->q, (t * HK + h) * DK + i) * s[i][c];
        }
    }
}

/* The whole rule by its recurrence; want (T, HV DV). */
static void by_recurrence(const Rule *r, Tensor want)
{
    for (int64_t u = 0; u < HV; u++) {
        double s[DK][DV], o[DV];
        for (int i = 0; i < DK * DV; i++)
            s[i / DV][i % DV] = t_has(r->first) ? get(r->first, u * DK * DV + i) : 0;
        for (int64_t t = 0; t < r->q.n[0]; t++) {
            int64_t from = begin_of(r->seg, t);
            if (from == t && (t || !t_has(r->first))) memset(s, 0, sizeof s);
            if (from >= 0) recur(r, s, get(r->g, t * HV + u), t, u, o);
            for (int c = 0; c < DV; c++) put(want, (t * HV + u) * DV + c, from < 0 ? 0 : (float)o[c]);
        }
        for (int i = 0; t_has(r->last) && i < DK * DV; i++)
            EXPECT(fabs(get(r->last, u * DK * DV + i) - s[i / DV][i % DV]) < 1e-4, "last state");
    }
}

static void rule_by_recurrence(void)
{
    static const int64_t rows[] = { 8, 63, 64, 65, 200, 257 };
    for (int i = 0; i < 12; i++) {
        DType  d = floats[i / 6 && i % 2];
        Rule   r = rule_make(d, rows[i % 6], i / 6);
        Tensor want = num_poison(F32, r.q.n[0], HV * DV);
        rule_fwd(&r);
        by_recurrence(&r, want);
        EXPECT_CLOSE(r.o, t_as3(want, r.q.n[0], HV, DV), d == F32 ? 1e-5 : 6e-3);
        num_clear();
    }
}

/* The loss of value head u in double, with g of row `at` raised by h. */
static double head_loss(const Rule *r, int64_t u, int64_t at, double h)
{
    double s[DK][DV], o[DV], loss = 0;
    for (int64_t t = 0; t < r->q.n[0]; t++) {
        int64_t from = begin_of(r->seg, t);
        if (from < 0) continue;
        if (from == t) memset(s, 0, sizeof s);
        recur(r, s, get(r->g, t * HV + u) + (t == at ? h : 0), t, u, o);
        for (int c = 0; c < DV; c++) loss += o[c] * get(r->dout, (t * HV + u) * DV + c);
    }
    return loss;
}

/* Sums over a tile of decays like these are past 100, and their gradients are differences of far larger ones:
 * both would lose digits in f32. */
static void strong_decays_keep_their_digits(void)
{
    Rule   r = rule_make(F32, 128, false);
    double worst = 0, big = 0;
    for (int64_t i = 0; i < 128 * HV; i++) put(r.g, i, 8 * get(r.g, i) - 1.5f);
    rule_fwd(&r), rule_bwd(&r);
    for (int64_t i = 0; i < 128 * HV; i++) {
        double h = 1e-4;
        double want = (head_loss(&r, i % HV, i / HV, h) - head_loss(&r, i % HV, i / HV, -h)) / (2 * h);
        worst = fmax(worst, fabs(get(r.dg, i) - want)), big = fmax(big, fabs(want));
    }
    EXPECT(worst <= 5e-7 * big, "gradients of decays off by %.2g of %.2g", worst, big);
    num_clear();
}

static void rule_gradients(void)
{
    for (int i = 0; i < 4; i++) {
        Rule r = rule_make(F32, i < 2 ? 150 : 40, i % 2);
        rule_fwd(&r), rule_bwd(&r);
        EXPECT_GRADIENT(rule_loss, &r, r.q, r.dq, 1e-2f, 4e-3);
        EXPECT_GRADIENT(rule_loss, &r, r.k, r.dk, 1e-2f, 4e-3);
        EXPECT_GRADIENT(rule_loss, &r, r.v, r.dv, 1e-2f, 4e-3);
        EXPECT_GRADIENT(rule_loss, &r, r.g, r.dg, 1e-2f, 4e-3);
        EXPECT_GRADIENT(rule_loss, &r, r.beta, r.dbeta, 1e-2f, 4e-3);
        if (i % 2) EXPECT_GRADIENT(rule_loss, &r, r.first, r.dfirst, 1e-2f, 4e-3);
        EXPECT(i % 2 || (get(r.dk, 0) == 0 && get(r.dg, 0) == 0 && get(r.dbeta, 3) == 0), "outside");
        Tensor out[] = { r.dq, r.dk, r.dv, r.dg, r.dbeta };
        EXPECT_THREADS_AGREE(rule_bwd, &r, out, 5);
        num_clear();
    }
}

/* bf16 rows: the gradients of f32 rows with the same values, rounded, and states rounded in between. */
static void rule_in_bf16(void)
{
    Rule r = rule_make(BF16, 150, false), f = r;
    Tensor *narrow[] = { &r.q, &r.k, &r.v, &r.dout }, *wide[] = { &f.q, &f.k, &f.v, &f.dout };
    for (int i = 0; i < 4; i++) *wide[i] = num_copy(*narrow[i], F32);
    f.dq = apart_poison(F32, 150, HK, DK), f.dk = apart_poison(F32, 150, HK, DK);
    f.dv = apart_poison(F32, 150, HV, DV), f.dg = num_poison(F32, 150, HV),
    f.dbeta  = num_poison(F32, 150, HV);
    f.states = num_poison(F32, 3, HV * DK * DV);
    rule_bwd(&r), rule_bwd(&f);
    EXPECT_CLOSE(r.dq, f.dq, 1e-2);
    EXPECT_CLOSE(r.dk, f.dk, 1e-2);
    EXPECT_CLOSE(r.dv, f.dv, 1e-2);
    EXPECT_CLOSE(r.dg, f.dg, 1e-2);
    EXPECT_CLOSE(r.dbeta, f.dbeta, 1e-2);
    num_clear();
}

/* Orthonormal keys, steps of 1, no decay: an exact memory. And a step of 0 writes nothing. */
static void memory(void)
{
    int64_t T = 2 * DK;
    Rule r = rule_make(F32, T, false);
    int32_t at[] = { 0, (int32_t)T };
    r.seg = (Segments){ .starts = num_i32(2, at), .n = 1, .longest = T, .causal = true };
    for (int64_t i = 0; i < T * HK * DK; i++) put(r.k, i, i / (HK * DK) % DK == i % DK ? 1 : 0);
    for (int64_t i = 0; i < T * HK * DK; i++) put(r.q, i, (i / (HK * DK) + 1) % DK == i % DK ? 1 : 0);
    for (int64_t i = 0; i < T * HV; i++) put(r.g, i, 0), put(r.beta, i, i / HV < DK ? 1 : 0);
    rule_fwd(&r);
    for (int64_t t = DK; t < T; t++)
        for (int64_t c = 0; c < HV * DV; c++) {
            float want = 0.4f * get(r.v, (t + 1) % DK * HV * DV + c);
            EXPECT(fabsf(get(r.o, t * HV * DV + c) - want) < 1e-5f, "row %d", (int)t);
        }
    num_clear();
}

/* A diagonal map by hand, then random ones in double, forward and back; without a state b alone. */
static void states_pass(void)
{
    enum { H = 3, K = 5, V = 7 };
    Tensor a = num_zeros(F32, 1, 4), x = num_vals(F32, 1, 2, (float[]){ 3, 5 });
    Tensor b = num_vals(F32, 1, 2, (float[]){ 1, -1 }), y = num_poison(F32, 1, 2);
    put(a, 0, 2), put(a, 1, 1);
    op_state_pass(BE, y, a, x, b, false);
    EXPECT(get(y, 0) == 12 && get(y, 1) == -1, "(%g, %g)", get(y, 0), get(y, 1));
    op_state_pass(BE, y, a, x, b, true);
    EXPECT(get(y, 0) == 7 && get(y, 1) == 2, "back (%g, %g)", get(y, 0), get(y, 1));
    for (int back = 0; back < 2; back++) {
        Tensor m = num_randn(F32, H, K * K), s = num_randn(F32, H, K * V), p = num_randn(F32, H, K * V);
        Tensor got = num_poison(F32, H, K * V), want = num_poison(F32, H, K * V);
        for (int64_t i = 0; i < H * K * V; i++) {
            int64_t h = i / (K * V), r = i / V % K, c = i % V;
            double  sum = get(p, i);
            for (int64_t j = 0; j < K; j++)
                sum += (double)get(m, h * K * K + (back ? j * K + r : r * K + j)) *
                       (double)get(s, h * K * V + j * V + c);
            put(want, i, (float)sum);
        }
        op_state_pass(BE, got, m, s, p, back);
        EXPECT_CLOSE(got, want, 1e-6);
        op_state_pass(BE, got, m, none, p, back);
        EXPECT_CLOSE(got, p, 0);
    }
    num_clear();
}

/* What cp relies on: the identity that passes rows with values of 0 becomes their map A. */
static void rule_is_affine_in_its_state(void)
{
    for (int two = 0; two < 2; two++) {
        int64_t T = 70;
        Rule r = rule_make(F32, T, true);
        int32_t at[] = { 0, two ? 31 : (int32_t)T, (int32_t)T };
        r.seg = (Segments){ .starts = num_i32(2 + two, at), .n = 1 + two, .longest = T, .causal = true };
        Tensor a = num_poison(F32, HV, DK * DK), b = num_poison(F32, HV, DK * DV);
        Tensor one = num_zeros(F32, HV, DK * DK), zero = num_zeros(F32, T, HV * DK), want = b;
        for (int64_t i = 0; i < HV * DK; i++) put(one, i / DK * DK * DK + i % DK * (DK + 1), 1);
        Tensor v = t_heads(zero, 0, HV, DK), o = t_heads(num_poison(F32, T, HV * DK), 0, HV, DK);
        op_delta_rule_fwd(BE, o, a, r.q, r.k, v, r.g, r.beta, one, r.seg, 0.4f);
        op_delta_rule_fwd(BE, r.o, b, r.q, r.k, r.v, r.g, r.beta, none, r.seg, 0.4f);
        rule_fwd(&r);
        op_state_pass(BE, want = num_poison(F32, HV, DK * DV), a, r.first, b, false);
        EXPECT_CLOSE(r.last, want, 1e-5);
        for (int64_t i = 0; two && i < HV * DK * DK; i++) EXPECT(get(a, i) == 0, "a border stops states");
        num_clear();
    }
}

int main(void)
{
    rowlab_open();
    RUN(convolution);
    RUN(convolution_gradients);
    RUN(gates);
    RUN(l2norm);
    RUN(gated_norm);
    RUN(rule_by_recurrence);
    RUN(strong_decays_keep_their_digits);
    RUN(rule_gradients);
    RUN(rule_in_bf16);
    RUN(memory);
    RUN(states_pass);
    RUN(rule_is_affine_in_its_state);
    return numlab_report();
}
