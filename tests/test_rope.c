/* tests/test_rope.c -- rope_table, rope_fwd and rope_bwd. */
#include "rowlab.h"

static Tensor frequencies(double theta, int64_t pairs, double scale)       /* theta^(-scale j) */
{
    Tensor inv = t1(&num_.a, "lab", F32, pairs);
    for (int64_t j = 0; j < pairs; j++) ((float *)inv.data)[j] = (float)pow(theta, -scale * (double)j);
    return inv;
}

static Tensor heads(DType d, int64_t T, int64_t H, int64_t C, bool random)
{
    return t_as3(random ? num_randn(d, T * H, C) : num_poison(d, T * H, C), T, H, C);
}

/* A view of heads inside wider rows, as q lies in the output of one q-k-v product. */
static Tensor heads_apart(Tensor x)
{
    int64_t T = x.n[0], H = x.n[1], C = x.n[2];
    Tensor t = t_heads(num_poison((DType)x.dtype, T, (H + 2) * C + 1), C, H, C);
    for (int64_t i = 0; i < t_count(x); i++) put(t, i, get(x, i));
    return t;
}

static Tensor random_angles(int64_t T, int64_t C)
{
    Tensor cs = num_poison(F32, T, C);
    for (int64_t t = 0; t < T; t++)
        for (int64_t j = 0; j < C / 2; j++) {
            double a = 6.3 * rng_uniform(num_.seed, 77, (uint64_t)(t * C + j));
            put(cs, t * C + j, (float)cos(a)), put(cs, t * C + C / 2 + j, (float)sin(a));
        }
    return cs;
}

/* theta 5e6, head 128: the published frequencies, seen through sin at position 1; then the far end. */
static void table_text(void)
{
    int32_t p[] = { 0, 1, 1000, 262144 };
    Tensor inv = frequencies(5e6, 64, 2.0 / 128), axis = num_i32(64, NULL), cs = loose(F32, 4, 128);
    Tensor pos = t_as2(num_i32(4, p), 1, 4);
    memset(axis.data, 0, 256);
    const float *f = inv.data;
    EXPECT(f[0] == 1 && fabsf(f[1] - .78582998f) < 1e-7f && fabsf(f[2] - .617528758f) < 1e-7f &&
           fabsf(f[31] / 5.69097141e-4f - 1) < 1e-6f, "inv");
    op_rope_table(BE, cs, pos, inv, axis);
    EXPECT(fabsf(get(cs, 255) / 2.54507979e-7f - 1) < 1e-6f, "sin inv[63]: %g", get(cs, 255));
    for (int t = 0; t < 4; t++)
        for (int j = 0; j < 64; j++) {
            float a = (float)p[t] * f[j];
            double dc = get(cs, t * 128 + j) - cos(a), ds = get(cs, t * 128 + 64 + j) - sin(a);
            EXPECT(fabs(dc) < 1e-7 && fabs(ds) < 1e-7, "position %d pair %d", p[t], j);
        }
    EXPECT(gaps_intact(cs), "wrote between the rows");
    num_clear();
}

/* Vision, head 72: 18 frequencies; pairs 0..17 turn with the row, 18..35 with the column. */
static void table_vision(void)
{
    int32_t p[] = { 0, 1, 2, /* rows */ 5, 6, 7 /* columns */ }, ax[36];
    float f[36];
    const float *base = frequencies(10000, 18, 2.0 / 36).data;
    for (int j = 0; j < 36; j++) ax[j] = j / 18, f[j] = base[j % 18];
    EXPECT(fabsf(f[1] - .59948425f) < 1e-7f && fabsf(f[2] - .359381366f) < 1e-7f &&
           fabsf(f[17] - .00016681f) < 1e-8f, "inv %.9g %.9g %.9g", f[1], f[2], f[17]);
    int64_t n = 36;
    Tensor cs = num_poison(F32, 3, 72);
    op_rope_table(BE, cs, t_as2(num_i32(6, p), 2, 3), t_wrap(f, F32, 1, &n), num_i32(36, ax));
    for (int t = 0; t < 3; t++)
        for (int j = 0; j < 36; j++) {
            float a = (float)p[j < 18 ? t : 3 + t] * f[j];
            EXPECT(fabs(get(cs, t * 72 + j) - cos(a)) < 1e-7, "patch %d pair %d", t, j);
        }
    num_clear();
}

/* Sections 24, 20, 20 interleaved: a text token has three equal positions and sees ordinary RoPE. */
static void text_positions_ignore_axes(void)
{
    int32_t ax[64], p[3 * 5];
    for (int j = 0; j < 64; j++) ax[j] = j % 3 == 1 && j < 60 ? 1 : j % 3 == 2 && j < 60 ? 2 : 0;
    for (int i = 0; i < 15; i++) p[i] = 100 + 37 * (i % 5);
    Tensor inv = frequencies(5e6, 64, 2.0 / 128), zero = num_i32(64, NULL), pos = t_as2(num_i32(15, p), 3, 5);
    Tensor one = num_poison(F32, 5, 128), three = num_poison(F32, 5, 128);
    memset(zero.data, 0, 256);
    op_rope_table(BE, one, t_rows(pos, 0, 1), inv, zero);
    op_rope_table(BE, three, pos, inv, num_i32(64, ax));
    EXPECT(same_bits(one, three), "text tokens");
    for (int t = 0; t < 5; t++) ((int32_t *)pos.data)[5 + t] += 11;            /* now the rows differ */
    op_rope_table(BE, three, pos, inv, num_i32(64, ax));
    for (int j = 0; j < 64; j++)
        EXPECT((get(one, 64 + j) == get(three, 64 + j)) == (ax[j] != 1), "pair %d of axis %d", j, ax[j]);
    num_clear();
}

static void known_rotation(void)
{
    float x[] = { 1, 2, 3, 4 }, cs[] = { 0, -1, 1, 0 }, y[] = { -3, -2, 1, -4 };  /* a quarter turn, a half */
    Tensor v = t_as3(num_vals(F32, 1, 4, x), 1, 1, 4), out = heads(F32, 1, 1, 4, false);
    Tensor c = num_vals(F32, 1, 4, cs);
    op_rope_fwd(BE, out, none, v, none, c, 0);
    for (int i = 0; i < 4; i++) EXPECT(get(out, i) == y[i], "[%d] is %g, not %g", i, get(out, i), y[i]);
    op_rope_bwd(BE, out, none, out, none, none, none, c);
    for (int i = 0; i < 4; i++) EXPECT(get(out, i) == x[i], "back: [%d] is %g, not %g", i, get(out, i), x[i]);
    num_clear();
}

typedef struct Case { Tensor y, rstd, x, w, cs, dx, dw, dy; } Case;

static Case make(DType d, int64_t T, int64_t H, int64_t C, bool norm)
{
    Case c = { .y = heads(d, T, H, C, false), .x = heads(d, T, H, C, true), .cs = random_angles(T, C),
               .dx = heads(d, T, H, C, false), .dy = heads(d, T, H, C, true) };
    if (norm) c.w = num_randn(d, 1, C), c.rstd = num_poison(F32, T, H), c.dw = num_zeros(F32, 1, C);
    return c;
}
static void forward(Case *c)  { op_rope_fwd(BE, c->y, c->rstd, c->x, c->w, c->cs, 1e-6f); }
static void backward(Case *c)
{
    op_rope_bwd(BE, c->dx, c->dw, c->dy, t_has(c->w) ? c->x : none, c->w, c->rstd, c->cs);
}

enum { MAX_C = 258 };
static void naive_head(Case *c, int64_t t, int64_t h, Tensor y, Tensor dx, double *dw)
{
    int64_t H = c->x.n[1], C = c->x.n[2], k = (t * H + h) * C, half = C / 2;
    double s = 0, dot = 0;
    for (int64_t i = 0; i < C; i++) s += (double)get(c->x, k + i) * get(c->x, k + i);
    double r = t_has(c->w) ? 1 / sqrt(s / (double)C + 1e-6) : 1, n[MAX_C], dn[MAX_C];
    for (int64_t i = 0; i < C; i++) n[i] = get(c->x, k + i) * r * (t_has(c->w) ? get(c->w, i) : 1);
    for (int64_t j = 0; j < half; j++) {
        double co = get(c->cs, t * C + j), si = get(c->cs, t * C + half + j);
        double a = get(c->dy, k + j), b = get(c->dy, k + half + j);
        put(y, k + j,        (float)(n[j] * co - n[half + j] * si));
        put(y, k + half + j, (float)(n[half + j] * co + n[j] * si));
        dn[j] = a * co + b * si, dn[half + j] = b * co - a * si;
    }
    for (int64_t i = 0; i < C && t_has(c->w); i++) {
        dot   += dn[i] * get(c->w, i) * get(c->x, k + i);
        dw[i] += dn[i] * get(c->x, k + i) * r;
        dn[i] *= get(c->w, i) * r;
    }
    for (int64_t i = 0; i < C; i++)
        put(dx, k + i, (float)(dn[i] - get(c->x, k + i) * r * r * r / (double)C * dot));
}

static void agrees_with_double(void)
{
    int64_t C[] = { 2, 4, 6, 10, 64, 72, 100, 128, 258 };
    DType d;
    for (int i = 0; i < 9; i++) for EACH_FLOAT(d) for (int norm = 0; norm < 2; norm++) {
        Case c = make(d, 7, 3, C[i], norm);
        Tensor y = heads(F32, 7, 3, C[i], false), dx = heads(F32, 7, 3, C[i], false);
        Tensor g = num_zeros(F32, 1, C[i]);
        double dw[MAX_C] = { 0 };
        forward(&c), backward(&c);
        for (int64_t k = 0; k < 21; k++) naive_head(&c, k / 3, k % 3, y, dx, dw);
        for (int64_t j = 0; j < C[i]; j++) put(g, j, (float)dw[j]);
        EXPECT_CLOSE(c.y, y, tolerance(d));
        EXPECT_CLOSE_AT(norm ? 4 * largest(c.rstd) : 1, c.dx, dx, tolerance(d));
        if (norm) EXPECT_CLOSE_AT(4, c.dw, g, 2e-6);
        num_clear();
    }
}

static void views_and_in_place(void)
{
    DType d;
    for EACH_FLOAT(d) for (int norm = 0; norm < 2; norm++) {
        Case c = make(d, 5, 3, 20, norm), g = c;
        forward(&c), backward(&c);
        g.x = heads_apart(c.x), g.y = heads_apart(c.y), g.dx = heads_apart(c.dx), g.dy = heads_apart(c.dy);
        g.cs = loose_copy(c.cs);
        op_fill(BE, g.y, 0.0f), op_fill(BE, g.dx, 0.0f);
        if (norm) g.dw = num_zeros(F32, 1, 20), g.rstd = loose(F32, 5, 3);
        forward(&g), backward(&g);
        EXPECT(same_bits(g.y, c.y) && same_bits(g.dx, c.dx), "heads apart, norm %d", norm);
        if (norm) EXPECT(same_bits(g.dw, c.dw) && same_bits(g.rstd, c.rstd), "dw, rstd");
        if (norm) EXPECT(gaps_intact(g.rstd), "wrote between the rows");
        Case a = c;
        a.dw = none, a.dx = a.dy = num_copy(c.dy, d), backward(&a);
        EXPECT(same_bits(a.dx, c.dx), "dx over dy, norm %d", norm);
        a.y = a.x = num_copy(c.x, d), forward(&a);
        EXPECT(norm || same_bits(a.y, c.y), "y over x");
        num_clear();
    }
}

static double loss(void *arg)
{
    Case *c = arg;
    forward(c);
    return num_dot(c->y, c->dy);
}

static void gradients(void)
{
    for (int norm = 0; norm < 2; norm++) {
        Case c = make(F32, 4, 3, 14, norm);
        forward(&c), backward(&c);
        EXPECT_GRADIENT(loss, &c, c.x, c.dx, 1e-2f, 2e-3);
        if (norm) EXPECT_GRADIENT(loss, &c, c.w, c.dw, 1e-2f, 2e-3);
        num_clear();
    }
}

static void both(Case *c)
{
    op_fill(BE, c->dw, 0.0f);
    forward(c), backward(c);
}

static void threads_agree(void)
{
    DType d;
    for EACH_FLOAT(d) {
        Case c = make(d, 101, 8, 64, true);
        Tensor out[4] = { c.y, c.rstd, c.dx, c.dw };
        EXPECT_THREADS_AGREE(both, &c, out, 4);
        num_clear();
    }
}

int main(void)
{
    rowlab_open();
    RUN(table_text);
    RUN(table_vision);
    RUN(text_positions_ignore_axes);
    RUN(known_rotation);
    RUN(agrees_with_double);
    RUN(views_and_in_place);
    RUN(gradients);
    RUN(threads_agree);
    return numlab_report();
}
