/* tests/test_swiglu.c -- swiglu_fwd and swiglu_bwd. */
#include "rowlab.h"

typedef struct Case { Tensor h, gu, gate, dgu, dgate, dh; } Case;

static Case make(DType d, int64_t R, int64_t F, bool gated)
{
    Case c = { .h = num_poison(d, R, F), .gu = num_randn(d, R, 2 * F), .dgu = num_poison(d, R, 2 * F),
               .dh = num_randn(d, R, F) };
    if (gated) c.gate = num_randn(F32, R, 1), c.dgate = num_poison(F32, R, 1);
    return c;
}
static void forward(Case *c)  { op_swiglu_fwd(BE, c->h, c->gu, c->gate, (Tensor){ 0 }); }
static void backward(Case *c) { op_swiglu_bwd(BE, c->dgu, c->dgate, c->dh, c->gu, c->gate); }

static void known_values(void)
{
    float gu[] = { 0, 1, -100, 100, /* up */ 5, 2, 7, 3 }, gate[] = { 0.5f };
    float h[]  = { 0, 0.731058579f, 0, 150 };
    Case c = make(F32, 1, 4, true);
    c.gu = num_vals(F32, 1, 8, gu), c.gate = num_vals(F32, 1, 1, gate);
    forward(&c);
    for (int i = 0; i < 4; i++)
        EXPECT(fabsf(get(c.h, i) - h[i]) <= 1e-7f * h[i] + 1e-30f, "[%d] is %g", i, get(c.h, i));
    op_fill(BE, c.dh, 1.0f);
    backward(&c);
    EXPECT(get(c.dgu, 0) == 1.25f && get(c.dgu, 4) == 0, "at g = 0: %g %g", get(c.dgu, 0), get(c.dgu, 4));
    EXPECT(get(c.dgu, 3) == 1.5f && get(c.dgu, 7) == 50, "at g = 100: %g %g", get(c.dgu, 3), get(c.dgu, 7));
    EXPECT(fabsf(get(c.dgate, 0) - 301.462117f) < 1e-4f, "dgate %g", get(c.dgate, 0));
    num_clear();
}

static void naive(Case *c, Tensor h, Tensor dgu, Tensor dgate)
{
    int64_t F = c->h.n[1];
    for (int64_t r = 0; r < c->h.n[0]; r++) {
        double gate = t_has(c->gate) ? get(c->gate, r) : 1, sum = 0;
        for (int64_t i = 0; i < F; i++) {
            double g = get(c->gu, 2 * r * F + i), u = get(c->gu, (2 * r + 1) * F + i);
            double dh = get(c->dh, r * F + i), s = 1 / (1 + exp(-g));
            sum += dh * g * s * u;
            put(h, r * F + i, (float)(g * s * u * gate));
            put(dgu, 2 * r * F + i,       (float)(dh * gate * u * s * (1 + g * (1 - s))));
            put(dgu, (2 * r + 1) * F + i, (float)(dh * gate * g * s));
        }
        put(dgate, r, (float)sum);
    }
}

static void agrees_with_double(void)
{
    DType d;
    int64_t F;
    for EACH_WIDTH(F) for EACH_FLOAT(d) for (int gated = 0; gated < 2; gated++) {
        Case c = make(d, 6, F, gated);
        Tensor h = num_poison(F32, 6, F), dgu = num_poison(F32, 6, 2 * F), dgate = num_poison(F32, 6, 1);
        forward(&c), backward(&c);
        naive(&c, h, dgu, dgate);
        EXPECT_CLOSE(c.h, h, tolerance(d));
        EXPECT_CLOSE(c.dgu, dgu, tolerance(d));
        if (gated) EXPECT_CLOSE_AT(4, c.dgate, dgate, 2e-6);
        num_clear();
    }
}

static void views_and_in_place(void)
{
    DType d;
    int64_t F;
    for EACH_WIDTH(F) for EACH_FLOAT(d) {
        Case c = make(d, 5, F, true), g = c;
        forward(&c), backward(&c);
        g.h = loose(d, 5, F), g.gu = loose_copy(c.gu), g.gate = loose_copy(c.gate);
        g.dgate = loose(F32, 5, 1), g.dgu = g.gu, g.dh = loose_copy(c.dh);
        forward(&g), backward(&g);                                         /* dgu over gu */
        EXPECT(same_bits(g.h, c.h) && same_bits(g.dgu, c.dgu), "%s", t_fmt(c.gu));
        EXPECT(same_bits(g.dgate, c.dgate), "dgate, %s", t_fmt(c.gu));
        EXPECT(gaps_intact(g.h) && gaps_intact(g.dgu) && gaps_intact(g.dgate), "wrote between the rows");
        Tensor dgu = num_copy(c.dgu, d);
        c.dgate = none, backward(&c);
        EXPECT(same_bits(c.dgu, dgu), "dgate not wanted");
        num_clear();
    }
}

static void types_agree(void)
{
    Case b = make(BF16, 9, 65, true), f = make(F32, 9, 65, true);
    f.gu = num_copy(b.gu, F32), f.dh = num_copy(b.dh, F32), f.gate = b.gate;
    forward(&b), backward(&b), forward(&f), backward(&f);
    EXPECT(same_bits(b.h, num_copy(f.h, BF16)), "bf16 is f32, rounded once");
    EXPECT(same_bits(b.dgu, num_copy(f.dgu, BF16)), "so is dgu");
    EXPECT(same_bits(b.dgate, f.dgate), "dgate");
    num_clear();
}

static double loss(void *arg)
{
    Case *c = arg;
    forward(c);
    return num_dot(c->h, c->dh);
}

static void gradients(void)
{
    Case c = make(F32, 4, 13, true), p = make(F32, 4, 13, false);
    backward(&c), backward(&p);
    EXPECT_GRADIENT(loss, &c, c.gu, c.dgu, 1e-2f, 2e-3);
    EXPECT_GRADIENT(loss, &c, c.gate, c.dgate, 1e-2f, 2e-3);
    EXPECT_GRADIENT(loss, &p, p.gu, p.dgu, 1e-2f, 2e-3);
    num_clear();
}

static void both(Case *c) { forward(c), backward(c); }

static void threads_agree(void)
{
    DType d;
    for EACH_FLOAT(d) {
        Case c = make(d, 201, 111, true);
        Tensor out[3] = { c.h, c.dgu, c.dgate };
        EXPECT_THREADS_AGREE(both, &c, out, 3);
        num_clear();
    }
}

int main(void)
{
    rowlab_open();
    RUN(known_values);
    RUN(agrees_with_double);
    RUN(views_and_in_place);
    RUN(types_agree);
    RUN(gradients);
    RUN(threads_agree);
    return numlab_report();
}
