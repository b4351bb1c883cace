/* tests/test_family_ops.c -- ops that families beside Qwen3 need: gates, sinks, windows and narrow values of
 * attention, the sigmoid router. Known values, the definitions in double, finite differences. */
#include "rowlab.h"

static Tensor heads(Tensor t, int64_t H) { return t_as3(t, t.n[0], H, t.n[1] / H); }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* ---- gates ---- */

typedef struct Gate { Tensor y, x, g, res, dy, dx, dg; } Gate;

static void gate_forward(Gate *c)  { op_gate_fwd(BE, c->y, c->x, c->g, c->res); }
static double gate_loss(void *arg) { gate_forward(arg); return num_dot(((Gate *)arg)->y, ((Gate *)arg)->dy); }

static void gates(void)
{
    DType d;
    for EACH_FLOAT(d) for (int one = 0; one < 2; one++) {
        int64_t T = 5, H = 3, C = 17, W = one ? 1 : C;
        Gate c = { heads(num_poison(d, T, H * C), H), heads(num_randn(d, T, H * C), H),
                   heads(num_randn(d, T, H * W), H), heads(num_randn(d, T, H * C), H),
                   heads(num_randn(d, T, H * C), H), heads(num_poison(d, T, H * C), H),
                   heads(num_poison(d, T, H * W), H) };
        Tensor y = num_poison(F32, T, H * C);
        gate_forward(&c);
        for (int64_t i = 0; i < T * H * C; i++)
            put(y, i, (float)(get(c.res, i) + sigmoid(get(c.g, one ? i / C : i)) * get(c.x, i)));
        EXPECT_CLOSE(t_as2(c.y, T, H * C), y, tolerance(d));
        op_gate_bwd(BE, c.dx, c.dg, c.dy, c.x, c.g);
        if (d == F32) EXPECT_GRADIENT(gate_loss, &c, c.x, c.dx, 1e-2f, 2e-3);
        if (d == F32) EXPECT_GRADIENT(gate_loss, &c, c.g, c.dg, 1e-2f, 2e-3);
        Tensor dx = num_copy(t_as2(c.dx, T, H * C), d);
        op_gate_bwd(BE, c.dy, c.dg, c.dy, c.x, c.g);                            /* dx over dy */
        EXPECT(same_bits(t_as2(c.dy, T, H * C), dx), "in place");
        num_clear();
    }
}

/* ---- attention: windows, narrow values, sinks ---- */

typedef struct Attend { Tensor o, lse, q, k, v, sink, dout; Segments seg; } Attend;

static Attend attend_make(DType d, int64_t H, int64_t G, int64_t C, int64_t Cv, int64_t window)
{
    static const int32_t starts[] = { 0, 1, 40, 300 };
    int64_t T = 300;
    Attend a = { .q = heads(num_randn(d, T, H * C), H), .k = heads(num_randn(d, T, G * C), G),
                 .v = heads(num_randn(d, T, G * Cv), G), .o = heads(num_poison(d, T, H * Cv), H),
                 .lse = num_poison(F32, H, T), .sink = num_randn(F32, 1, H),
                 .dout = heads(num_randn(d, T, H * Cv), H) };
    a.seg = (Segments){ .starts = num_i32(4, starts), .n = 3, .longest = 260, .pairs = 34711, .causal = true,
                        .window = window };
    return a;
}

static void attend(Attend *a)
{
    op_attention_fwd(BE, a->o, a->lse, a->q, a->k, a->v, a->seg, 0.3f);
    if (t_has(a->sink)) op_sink_fwd(BE, a->o, a->lse, a->sink);
}

static double attend_loss(void *arg) { attend(arg); return num_dot(((Attend *)arg)->o, ((Attend *)arg)->dout);
                                       }

/* One row by the definition. */
static void attend_row(const Attend *a, int64_t t, int64_t h, int64_t from, double *o)
{
    int64_t H = a->q.n[1], G = a->k.n[1], C = a->q.n[2], Cv = a->v.n[2], g = h / (H / G);
    double  sum = t_has(a->sink) ? exp(get(a->sink, h)) : 0;
    for (int64_t c = 0; c < Cv; c++) o[c] = 0;
    for (int64_t j = from; j <= t; j++) {
        double s = 0;
        for (int64_t c = 0; c < C; c++) s += get(a->q, (t * H + h) * C + c) * get(a->k, (j * G + g) * C + c);
        s = exp(0.3f * s), sum += s;
        for (int64_t c = 0; c < Cv; c++) o[c] += s * get(a->v, (j * G + g) * Cv + c);
    }
    for (int64_t c = 0; c < Cv; c++) o[c] /= sum;
}

static void attention_by_definition(void)
{
    static const int64_t windows[] = { 0, 1, 7, 128, 250 };
    for (int i = 0; i < 5; i++) {
        DType  d = floats[i % 2];
        Attend a = attend_make(d, 4, 2, 12, i % 2 ? 12 : 7, windows[i]);
        Tensor want = num_poison(F32, 300, 4 * a.v.n[2]);
        const int32_t *at = a.seg.starts.data;
        attend(&a);
        for (int64_t t = 0; t < 300; t++)
            for (int64_t h = 0; h < 4; h++) {
                double  o[16];
                int64_t begin = t < 1 ? 0 : t < 40 ? at[1] : at[2], from = windows[i] ? t - windows[i] + 1
                    : begin;
                attend_row(&a, t, h, from > begin ? from : begin, o);
                for (int64_t c = 0; c < a.v.n[2]; c++) put(want, (t * 4 + h) * a.v.n[2] + c, (float)o[c]);
            }
        EXPECT_CLOSE(t_as2(a.o, 300, 4 * a.v.n[2]), want, d == F32 ? 1e-5 : 1e-2);
        num_clear();
    }
}

static void attention_gradients(void)
{
    for (int i = 0; i < 2; i++) {
        Attend a = attend_make(F32, 4, 2, 12, 7, i ? 9 : 0);
        Tensor dq = heads(num_poison(F32, 300, 48), 4), dk = heads(num_poison(F32, 300, 24), 2);
        Tensor dv = heads(num_poison(F32, 300, 14), 2), delta = num_poison(F32, 4, 300);
        Tensor dsink = num_zeros(F32, 1, 4);
        attend(&a);
        op_sink_bwd(BE, dsink, a.dout, a.o, a.lse, a.sink);
        op_attention_bwd(BE, dq, dk, dv, delta, a.dout, a.o, a.lse, a.q, a.k, a.v, a.seg, 0.3f);
        EXPECT_GRADIENT(attend_loss, &a, a.q, dq, 1e-2f, 5e-3);
        EXPECT_GRADIENT(attend_loss, &a, a.k, dk, 1e-2f, 5e-3);
        EXPECT_GRADIENT(attend_loss, &a, a.v, dv, 1e-2f, 5e-3);
        EXPECT_GRADIENT(attend_loss, &a, a.sink, dsink, 1e-2f, 5e-3);
        num_clear();
    }
}

/* ---- rotation ---- */

typedef struct Turn { Tensor y, x, cs, dy; bool pairs; } Turn;

static double turn_loss(void *arg)
{
    Turn *c = arg;
    op_turn_fwd(BE, c->y, c->x, c->cs, c->pairs);
    return num_dot(c->y, c->dy);
}

static void turns(void)
{
    for (int i = 0; i < 8; i++) {
        int64_t T = 3, H = 4, R = 6, Hx = i & 1 ? 1 : H;
        DType   d = i & 4 ? BF16 : F32;
        Turn    c = { heads(num_poison(d, T, H * R), H), heads(num_randn(d, T, Hx * R), Hx),
                      num_randn(F32, T, R),
                      heads(num_randn(d, T, H * R), H), i & 2 };
        Tensor  want = num_poison(F32, T, H * R), dx = heads(num_poison(F32, T, Hx * R), Hx);
        op_turn_fwd(BE, c.y, c.x, c.cs, c.pairs);
        for (int64_t k = 0; k < T * H * R / 2; k++) {
            int64_t r = k / (R / 2), j = k % (R / 2), t = r / H, p = c.pairs ? 2 * j : j;
            int64_t q = c.pairs ? 2 * j + 1 : R / 2 + j, from = (Hx == H ? r : t) * R;
            double  cos = get(c.cs, t * R + j), sin = get(c.cs, t * R + R / 2 + j);
            put(want, r * R + p, (float)(get(c.x, from + p) * cos - get(c.x, from + q) * sin));
            put(want, r * R + q, (float)(get(c.x, from + q) * cos + get(c.x, from + p) * sin));
        }
        EXPECT_CLOSE(t_as2(c.y, T, H * R), want, tolerance(d));
        op_turn_bwd(BE, dx, c.dy, c.cs, c.pairs);
        if (d == F32) EXPECT_GRADIENT(turn_loss, &c, c.x, dx, 1e-2f, 2e-3);
        num_clear();
    }
}

/* ---- experts of gpt-oss ---- */

typedef struct Glu { Tensor h, gu, gate, dh; } Glu;

static double glu_loss(void *arg)
{
    Glu *c = arg;
    op_clamped_glu_fwd(BE, c->h, c->gu, c->gate, none);
    return num_dot(c->h, c->dh);
}

static void clamped_glu(void)
{
    Glu    c = { num_poison(F32, 3, 5), num_randn(F32, 3, 10), num_randn(F32, 3, 1), num_randn(F32, 3, 5) };
    Tensor dgu = num_poison(F32, 3, 10), dgate = num_poison(F32, 3, 1);
    put(c.gu, 0, 9), put(c.gu, 3, -8), put(c.gu, 4, -20), put(c.gu, 5, 8);
    glu_loss(&c);
    double first = (get(c.gu, 1) + 1) * 7 * sigmoid(1.702 * 7) * get(c.gate, 0);
    EXPECT(fabs(get(c.h, 0) - first) < 1e-5, "gate of 9: %g, not %g", get(c.h, 0), first);
    op_clamped_glu_bwd(BE, dgu, dgate, c.dh, c.gu, c.gate);
    EXPECT(get(dgu, 0) == 0 && get(dgu, 3) == 0 && get(dgu, 5) == 0, "past the clamp");
    EXPECT_GRADIENT(glu_loss, &c, c.gu, dgu, 1e-2f, 2e-3);
    EXPECT_GRADIENT(glu_loss, &c, c.gate, dgate, 1e-2f, 2e-3);
    num_clear();
}

typedef struct Bias { Tensor y, x, b, offsets, gate, dy; } Bias;

static double bias_loss(void *arg)
{
    Bias *c = arg;
    op_copy(BE, c->y, c->x);
    op_group_bias_fwd(BE, c->y, c->b, c->offsets, c->gate);
    return num_dot(t_rows(c->y, 0, 6), t_rows(c->dy, 0, 6));
}

static void expert_biases(void)
{
    static const int32_t at[] = { 0, 2, 2, 6 };
    Bias   c = { num_poison(F32, 8, 5), num_randn(F32, 8, 5), num_randn(F32, 3, 5), num_i32(4, at),
                 num_randn(F32, 8, 1), num_randn(F32, 8, 5) };
    Tensor db = num_zeros(F32, 3, 5), dgate = num_zeros(F32, 8, 1);
    bias_loss(&c);
    EXPECT(get(c.y, 35) == get(c.x, 35), "padding is left alone");
    EXPECT(fabsf(get(c.y, 11) - get(c.x, 11) - get(c.gate, 2) * get(c.b, 11)) < 1e-6f,
           "row 2 is of expert 2");
    op_group_bias_bwd(BE, db, dgate, c.dy, c.b, c.offsets, c.gate);
    EXPECT_GRADIENT(bias_loss, &c, c.b, db, 1e-2f, 2e-3);
    EXPECT_GRADIENT(bias_loss, &c, c.gate, dgate, 1e-2f, 2e-3);
    num_clear();
}

/* ---- the sigmoid router ---- */

typedef struct Select {
    Tensor z, s, idx, weight, lse, bias, g, coef;
    RouterGroups groups;
    bool   renorm;
    float  scale;
} Select;

static void select_experts(Select *c)
{
    memcpy(c->s.data, c->z.data, (size_t)t_bytes(c->z));
    op_log_sigmoid(BE, c->s);
    op_router_fwd(BE, c->idx, c->weight, c->lse, c->s, true);
    op_select_fwd(BE, c->idx, c->weight, c->s, c->bias, c->groups, c->renorm, c->scale);
}

/* The weights' part, and sum of coef s / sum s. */
static double select_loss(void *arg)
{
    Select *c = arg;
    int64_t T = c->z.n[0], E = c->z.n[1];
    select_experts(c);
    double loss = num_dot(c->weight, c->g);
    for (int64_t i = 0; i < T * E; i++) loss += get(c->coef, i % E) * exp(get(c->s, i) - get(c->lse, i / E));
    return loss;
}

static Select select_make(int64_t T, int64_t E, int64_t K)
{
    return (Select){ num_randn(F32, T, E), num_poison(F32, T, E), num_poison(I32, T, K),
                     num_poison(F32, T, K),
                     num_poison(F32, T, 1), num_randn(F32, 1, E), num_randn(F32, T, K), num_randn(F32, 1, E),
                     { 0, 0 }, true, 2.5f };
}

static int32_t chosen(const Select *c, int64_t i) { return ((const int32_t *)c->idx.data)[i]; }

/* Groups {0 1} {2 3} {4 5}; biased scores make the second expert of the middle group best, but the last two
 * groups are kept by the sums of their two best. */
static void router_known_values(void)
{
    Select c = select_make(1, 6, 2);
    float  z[] = { 0, -20, 1, -1, 2, -2 }, b[] = { 0.4f, 0, 0, 0.5f, 0, 0 };
    c.z = num_vals(F32, 1, 6, z), c.bias = num_vals(F32, 1, 6, b), c.groups = (RouterGroups){ 3, 2 };
    select_experts(&c);                       /* s + b: .9 0 .731 .769 .881 .119; groups .9 1.5 1.0 */
    double s4 = sigmoid(2), s3 = sigmoid(-1);
    EXPECT(chosen(&c, 0) == 4 && chosen(&c, 1) == 3, "experts %d, %d", chosen(&c, 0), chosen(&c, 1));
    EXPECT(fabs(get(c.weight, 0) - 2.5 * s4 / (s4 + s3)) < 1e-6, "weight %g", get(c.weight, 0));
    c.renorm = false, c.groups = (RouterGroups){ 0, 0 };
    select_experts(&c);
    EXPECT(chosen(&c, 0) == 0 && fabs(get(c.weight, 0) - 1.25) < 1e-6, "expert %d", chosen(&c, 0));
    for (int e = 0; e < 6; e++) put(c.bias, e, b[e] + 3);
    c.bias = none;
    select_experts(&c);
    EXPECT(chosen(&c, 0) == 4 && chosen(&c, 1) == 2, "without a bias");
    num_clear();
}

/* Whether the experts stay the same when any logit moves by `step`. */
static bool choice_holds(Select *c, float step)
{
    int32_t before[64];
    size_t  bytes = (size_t)t_bytes(c->idx);
    bool    same = true;
    REQUIRE(bytes <= sizeof before, "%zu bytes of experts", bytes);
    select_experts(c);
    memcpy(before, c->idx.data, bytes);
    for (int64_t i = 0; i < 2 * t_count(c->z) && same; i++) {
        float z = (float)get(c->z, i / 2);
        put(c->z, i / 2, i % 2 ? z + step : z - step);
        select_experts(c);
        same = !memcmp(before, c->idx.data, bytes);
        put(c->z, i / 2, z);
    }
    return same;
}

/* Finite differences are wrong across a tie: such draws are drawn again. */
static Select select_without_ties(int64_t T, int64_t E, int64_t K, bool renorm, RouterGroups groups)
{
    for (;;) {
        Select c = select_make(T, E, K);
        c.renorm = renorm, c.groups = groups;
        if (choice_holds(&c, 5e-3f)) return c;
    }
}

static void router_gradients(void)
{
    for (int i = 0; i < 4; i++) {
        RouterGroups groups = i < 2 ? (RouterGroups){ 4, 2 } : (RouterGroups){ 0, 0 };
        Select c = select_without_ties(9, 12, 3, i % 2, groups);
        Tensor d = num_poison(F32, 9, 12), d16 = num_poison(BF16, 9, 12);
        select_experts(&c);
        op_select_bwd(BE, d, c.g, c.weight, c.idx, c.s, c.lse, c.coef, none, factor(0), c.renorm, c.scale);
        op_select_bwd(BE, d16, c.g, c.weight, c.idx, c.s, c.lse, c.coef, none, factor(0), c.renorm, c.scale);
        EXPECT_CLOSE(d16, d, 6e-3);
        EXPECT_GRADIENT(select_loss, &c, c.z, d, 1e-3f, 1e-2);
        num_clear();
    }
}

static void router_survives_nan(void)
{
    Select c = select_make(3, 8, 4);
    for (int e = 0; e < 8; e++) put(c.z, e, NAN);
    put(c.z, 8 + 3, NAN), c.groups = (RouterGroups){ 4, 2 };
    select_experts(&c);
    for (int t = 0; t < 3; t++) {
        int seen = 0;
        for (int k = 0; k < 4; k++) {
            int32_t e = chosen(&c, t * 4 + k);
            EXPECT(e >= 0 && e < 8 && !(seen >> e & 1), "token %d: expert %d", t, e);
            seen |= 1 << (e & 7);
            EXPECT(isnan(get(c.weight, t * 4 + k)) == (t < 2), "weight of token %d", t);
        }
    }
    num_clear();
}

int main(void)
{
    rowlab_open();
    RUN(gates);
    RUN(attention_by_definition);
    RUN(attention_gradients);
    RUN(turns);
    RUN(clamped_glu);
    RUN(expert_biases);
    RUN(router_known_values);
    RUN(router_gradients);
    RUN(router_survives_nan);
    return lab_report();
}
