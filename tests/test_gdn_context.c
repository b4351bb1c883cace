/* Gated delta nets whose sequence is cut over context-parallel ranks, threads of this process, against the
 * ops over the whole sequence: states and rows of the convolution that pass between chunks, any pack of
 * documents, gradients, bits, FLOPs and arena peaks. */
#include "contextlab.h"
#include "nn/gdn_context.h"

enum { TAPS = 3 };                       /* of the convolution */

typedef struct Case {
    int     cp;
    const char *kind;                    /* of attention: the delta net does not depend on it */
    Pack    pack;
    int64_t Hk, Hv, dk, dv;
    DType   dtype;
    Tensor  x, w;                        /* input of the convolution (T, N), its taps (N, TAPS) */
    Tensor  q, k, v, g, beta, dout;      /* inputs of the rule */
    Tensor  y, dx, dw[16];               /* of the convolution; dw of each rank */
    Tensor  o, dq, dkey, dv_, dg, dbeta;
    bool    backward;
    double  flops[16];
    size_t  peak[16];
} Case;

static Case *case_;

static Tensor heads(Tensor t, int64_t H) { return t_heads(t, 0, H, t.n[1] / H); }

/* ---- one rank of several ---- */

static Tensor my_rows(Arena *a, const Case *x, int rank, Tensor whole)
{
    Tensor t = t2(a, "test", (DType)whole.dtype, whole.n[0] / x->cp, whole.n[1]);
    share_rows(t, whole, x->cp, rank, false);
    return t;
}

/* Tensors of this rank's rows. */
typedef struct Mine { Tensor x, q, k, v, g, beta, dout, y, dx, o, dq, dk, dv, dg, dbeta; } Mine;

static Mine mine_of(Arena *a, const Case *x, int rank)
{
    return (Mine){ my_rows(a, x, rank, x->x), my_rows(a, x, rank, x->q), my_rows(a, x, rank, x->k),
                   my_rows(a, x, rank, x->v), my_rows(a, x, rank, x->g), my_rows(a, x, rank, x->beta),
                   my_rows(a, x, rank, x->dout), my_rows(a, x, rank, x->y), my_rows(a, x, rank, x->dx),
                   my_rows(a, x, rank, x->o), my_rows(a, x, rank, x->dq), my_rows(a, x, rank, x->dkey),
                   my_rows(a, x, rank, x->dv_), my_rows(a, x, rank, x->dg), my_rows(a, x, rank, x->dbeta) };
}

static void run_rule(const Pass *c, const Case *x, Arena *a, const Mine *m)
{
    GdnRule   rule = { heads(m->q, x->Hk), heads(m->k, x->Hk), heads(m->v, x->Hv), m->g, m->beta, 0.4f };
    GdnStates kept = { t2(a, "test", F32, 2, x->Hv * x->dk * x->dv),
                       t2(a, "test", F32, 2, x->Hv * x->dk * x->dk) };
    GdnRuleGrads to = { heads(m->dq, x->Hk), heads(m->dk, x->Hk), heads(m->dv, x->Hv), m->dg, m->dbeta };
    gdn_context_rule_fwd(c, heads(m->o, x->Hv), kept, &rule);
    if (x->backward) gdn_context_rule_bwd(c, &to, heads(m->dout, x->Hv), kept, &rule);
}

/* All columns are one section; the gradient of its output is x itself. */
static void run_conv(const Pass *c, const Case *x, Arena *a, const Mine *m, Tensor dw)
{
    DType   d = x->dtype;
    int64_t N = x->x.n[1], h = 2 * (TAPS - 1);
    Tensor  in = heads(m->x, 1), y = heads(m->y, 1), dx = heads(m->dx, 1), tail = t2(a, "test", d, h, N);
    Tensor  before = t2(a, "test", d, h, N), dbefore = t2(a, "test", d, h, N);
    gdn_context_tails_put(c, tail, 0, in);
    gdn_context_tails_send(c, before, tail);
    op_fill(c->be, dbefore, 0.0f);
    for (int i = 0; i < 2; i++) {
        Tensor rows = gdn_context_chunk(in, i), ahead = gdn_context_before(c, before, i, 0, in);
        Segments seg = c->batch->context.chunk[i];
        op_short_conv_fwd(c->be, gdn_context_chunk(y, i), rows, x->w, ahead, seg);
        if (x->backward)
            op_short_conv_bwd(c->be, gdn_context_chunk(dx, i), dw, gdn_context_before(c, dbefore, i, 0, in),
                              rows, rows, x->w, ahead, seg);
    }
    gdn_context_tails_return(c, tail, dbefore);
    if (x->backward) gdn_context_tails_add(c, dx, tail, 0);
}

static void one_rank(Peer *p)
{
    Case       *x = case_;
    ContextRank r;
    omp_set_num_threads(1);
    rank_open(&r, &p->be, p->world, &(MeshLayout){ .cp = x->cp, .cp_inner = 1 }, context_kind(x->kind),
              stream_of(&x->pack), x->dtype);
    int  i = p->rank;
    Mine m = mine_of(&r.kept, x, i);
    run_rule(&r.pass, x, &r.kept, &m);
    x->peak[i]  = r.scratch.peak;
    x->flops[i] = p->be.ledger.op[OP_delta_rule_fwd].flops + p->be.ledger.op[OP_delta_rule_bwd].flops;
    run_conv(&r.pass, x, &r.kept, &m, x->dw[i]);
    EXPECT(!backend_sync(&p->be) && !r.scratch.used, "rank %d: %s", i, status_text());
    Tensor from[] = { m.y, m.dx, m.o, m.dq, m.dk, m.dv, m.dg, m.dbeta };
    Tensor to[] = { x->y, x->dx, x->o, x->dq, x->dkey, x->dv_, x->dg, x->dbeta };
    for (int k = 0; k < 8; k++) share_rows(from[k], to[k], x->cp, i, true);
    rank_close(&r);
}

/* ---- cases ---- */

static void poison(Case *x, DType d)
{
    int64_t T = x->pack.T, K = x->Hk * x->dk, V = x->Hv * x->dv;
    x->y  = num_poison(d, T, x->x.n[1]), x->dx = num_poison(d, T, x->x.n[1]), x->o = num_poison(d, T, V);
    x->dq = num_poison(d, T, K), x->dkey = num_poison(d, T, K), x->dv_ = num_poison(d, T, V);
    x->dg = num_poison(F32, T, x->Hv), x->dbeta = num_poison(F32, T, x->Hv);
    for (int i = 0; i < x->cp; i++) x->dw[i] = num_zeros(F32, x->x.n[1], TAPS);
}

/* Decays g <= 0 and steps in (0, 1). */
static void draw_gates(Case *x)
{
    x->g = num_randn(F32, x->pack.T, x->Hv), x->beta = num_randn(F32, x->pack.T, x->Hv);
    for (int64_t i = 0; i < t_count(x->g); i++) {
        float *g = (float *)x->g.data + i, *b = (float *)x->beta.data + i;
        *g = -0.1f * fabsf(*g), *b = 1.0f / (1.0f + expf(-*b));
    }
}

static Case make_case(int cp, Pack pack, DType d)
{
    int64_t T = pack.T, Hk = 1 + num_below(2), Hv = Hk * (1 + num_below(2)), dk = 2 + num_below(6);
    int64_t dv = 2 + num_below(6);
    Case x = { .cp = cp, .kind = num_below(2) ? "p2p" : "a2a", .pack = pack, .Hk = Hk, .Hv = Hv, .dk = dk,
               .dv = dv, .dtype = d, .backward = true, .x = num_randn(d, T, 7), .w = num_randn(d, 7, TAPS),
               .q = num_randn(d, T, Hk * dk), .k = num_randn(d, T, Hk * dk), .v = num_randn(d, T, Hv * dv),
               .dout = num_randn(d, T, Hv * dv) };
    Tensor rstd = num_poison(F32, T, Hk), k = heads(x.k, Hk);
    op_l2norm_fwd(BE, k, rstd, k, 1e-6f);
    draw_gates(&x);
    poison(&x, d);
    return x;
}

static void on_all(Case *x)
{
    case_ = x;
    on_ranks(x->cp, 0, one_rank);
}

/* The same over the whole sequence, in f32. */
static Case alone(const Case *x)
{
    Case     y = *x;
    Segments seg = segments_of(&x->pack);
    Tensor   none = { 0 }, in = heads(num_copy(x->x, F32), 1), w = num_copy(x->w, F32);
    Tensor   q = heads(num_copy(x->q, F32), x->Hk), k = heads(num_copy(x->k, F32), x->Hk);
    Tensor   v = heads(num_copy(x->v, F32), x->Hv), dout = heads(num_copy(x->dout, F32), x->Hv);
    Tensor   states = num_poison(F32, (x->pack.T + GDN_TILE - 1) / GDN_TILE, x->Hv * x->dk * x->dv);
    poison(&y, F32);
    ledger_clear(&BE->ledger);
    op_delta_rule_fwd(BE, heads(y.o, x->Hv), none, q, k, v, x->g, x->beta, none, seg, 0.4f);
    op_delta_rule_bwd(BE, heads(y.dq, x->Hk), heads(y.dkey, x->Hk), heads(y.dv_, x->Hv), y.dg, y.dbeta, none,
                      states, dout, none, q, k, v, x->g, x->beta, none, seg, 0.4f);
    y.flops[0] = BE->ledger.op[OP_delta_rule_fwd].flops + BE->ledger.op[OP_delta_rule_bwd].flops;
    op_short_conv_fwd(BE, heads(y.y, 1), in, w, none, seg);
    op_short_conv_bwd(BE, heads(y.dx, 1), y.dw[0], none, in, in, w, none, seg);
    return y;
}

static Tensor all_dw(const Case *x)
{
    Tensor sum = num_zeros(F32, x->x.n[1], TAPS);
    for (int i = 0; i < x->cp; i++) op_add(BE, sum, sum, x->dw[i]);
    return sum;
}

static void check_case(const Case *x, const char *what)
{
    static const char *const names[] = { "y", "dx", "dw", "o", "dq", "dk", "dv", "dg", "dbeta" };
    Case   y = alone(x);
    double most = x->dtype == F32 ? 2e-5 : 6e-2, flops = 0;
    Tensor got[] = { x->y, x->dx, all_dw(x), x->o, x->dq, x->dkey, x->dv_, x->dg, x->dbeta };
    Tensor want[] = { y.y, y.dx, y.dw[0], y.o, y.dq, y.dkey, y.dv_, y.dg, y.dbeta };
    for (int i = 0; i < 9; i++) {
        double e = num_error(got[i], want[i]);
        EXPECT(e <= most, "cp %d, %s, %lld tokens in %lld documents: %s %.2g", x->cp, what,
               (long long)x->pack.T, (long long)x->pack.docs, names[i], e);
    }
    for (int i = 0; i < x->cp; i++) flops += x->flops[i];
    EXPECT(flops == y.flops[0], "cp %d, %s: FLOPs %g of %g", x->cp, what, flops, y.flops[0]);
}

static void any_case(int cp, int form, int64_t chunk, DType d)
{
    char what[32];
    Case x = make_case(cp, pack_of(form, 2 * cp * chunk, chunk), d);
    snprintf(what, sizeof what, "pack %d, chunk %d", form, (int)chunk);
    on_all(&x);
    check_case(&x, what);
    num_clear();
}

static void equals_one_rank(void)
{
    for (int cp = 2; cp <= 8; cp += cp < 4 ? 1 : 4)
        for (int form = 0; form < PACKS; form++) any_case(cp, form, TAPS - 1 + num_below(30), F32);
}

/* Chunks as short as the rows that the convolution sees; chunks of several tiles of the rule. */
static void small_and_large_chunks(void)
{
    for (int form = 0; form < PACKS; form++) any_case(2 + form % 3, form, TAPS - 1, F32);
    any_case(2, LONG, 150, F32), any_case(3, MIXED, 131, F32);
}

static void bf16_is_near(void)
{
    for (int form = 0; form < PACKS; form++) any_case(2 + form % 3, form, 5 + num_below(30), BF16);
}

static double rule_loss(void *arg)
{
    Case *x = arg;
    on_all(x);
    return num_dot(x->o, x->dout);
}

/* A gradient by finite differences, through the states that pass between ranks. */
static void gradients(void)
{
    for (int cp = 2; cp <= 4; cp += 2) {
        Case x = make_case(cp, pack_of(cp == 2 ? LONG : TAIL, 2 * cp * 4, 4), F32);
        on_all(&x);
        x.backward = false;
        Tensor of[] = { x.q, x.k, x.v, x.g, x.beta }, found[] = { x.dq, x.dkey, x.dv_, x.dg, x.dbeta };
        for (int i = 0; i < 5; i++) {
            double e = num_gradient_error(rule_loss, &x, of[i], found[i], 1e-2f, 4);
            EXPECT(e <= 5e-3, "cp %d, gradient %d: error %.2g", cp, i, e);
        }
        num_clear();
    }
}

static void same_bits_again(void)
{
    for (int cp = 2; cp <= 4; cp++) {
        Case x = make_case(cp, pack_of(MIXED, 2 * cp * 40, 40), cp % 2 ? BF16 : F32), y = x;
        poison(&y, x.dtype);
        on_all(&x), on_all(&y);
        EXPECT(same_bits(x.o, y.o.data) && same_bits(x.dq, y.dq.data) && same_bits(x.dkey, y.dkey.data) &&
               same_bits(x.dv_, y.dv_.data) && same_bits(x.dg, y.dg.data) && same_bits(x.dx, y.dx.data),
               "cp %d", cp);
        num_clear();
    }
}

static size_t planned_peak(const Case *x, int rank)
{
    PlannedRank  p;
    ContextRank *r = planned_open(&p, rank, &(MeshLayout){ .cp = x->cp, .cp_inner = 1 },
                                  context_kind(x->kind), x->pack.T, x->dtype);
    Arena *a = &r->kept;
    int64_t T = x->pack.T / x->cp;
    Mine m = { .q = t2(a, "test", x->dtype, T, x->Hk * x->dk), .v = t2(a, "test", x->dtype, T, x->Hv * x->dv),
               .g = t2(a, "test", F32, T, x->Hv) };
    m.k = m.dq = m.dk = m.q, m.o = m.dout = m.dv = m.v, m.beta = m.dg = m.dbeta = m.g;
    run_rule(&r->pass, x, a, &m);
    return planned_close(&p);
}

/* The scratch of a plan is that of any run, whatever its documents are. */
static void plan_is_the_run(void)
{
    for (int form = 0; form < PACKS; form++) {
        int  cp = 2 + form % 3;
        Case x = make_case(cp, pack_of(form, 2 * cp * 24, 24), form % 2 ? BF16 : F32);
        on_all(&x);
        for (int rank = 0; rank < cp; rank++)
            EXPECT(planned_peak(&x, rank) == x.peak[rank], "cp %d rank %d: was %zu", cp, rank, x.peak[rank]);
        num_clear();
    }
}

int main(void)
{
    omp_set_num_threads(1);
    numlab_open();
    RUN(equals_one_rank);
    RUN(small_and_large_chunks);
    RUN(bf16_is_near);
    RUN(gradients);
    RUN(same_bits_again);
    RUN(plan_is_the_run);
    return numlab_report();
}
