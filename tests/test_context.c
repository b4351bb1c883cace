/* Context-parallel attention on ranks that are threads, against one rank that has it all: every kind of
 * exchange, any pack of documents, values narrower than keys, windows, sinks, gradients, bits, FLOPs and
 * arena peaks. */
#include "contextlab.h"
#include "nn/context.h"

typedef struct Way { const char *kind; int cp, inner, tp; } Way;     /* tp ranks do the same */

/* The whole micro-batch, as one rank has it and as the ranks put it together. */
typedef struct Case {
    Way     way;
    Pack    pack;
    int64_t H, G, C, Cv, window;
    DType   dtype;
    Tensor  q, k, v, o, lse, dout, dq, dk, dv, delta;
    Tensor  sinks, dsinks[32];           /* sinks absent: none; gradients of each rank */
    bool    backward;
    float   scale;
    double  fwd_flops[32], bwd_flops[32], extra[32];
    size_t  peak[32];
} Case;

static Case *case_;                                         /* what peers are to work on */

/* ---- one rank of several ---- */

static Tensor buffer(Arena *a, const Case *x, int64_t heads, int64_t C)
{
    Tensor t = t3(a, "test", x->dtype, x->pack.T / x->way.cp, heads, C);
    memset(t.data, 0xff, (size_t)t_bytes(t));
    return t;
}

static Tensor my_rows(Arena *a, const Case *x, int rank, Tensor whole)
{
    Tensor t = buffer(a, x, whole.n[1], whole.n[2]);
    share_rows(t, whole, x->way.cp, rank, false);
    return t;
}

/* keep: the results of this rank are compared. */
static void attend(const Pass *c, Case *x, int rank, Arena *a, bool keep)
{
    int64_t T = x->pack.T / x->way.cp;
    Tensor q = my_rows(a, x, rank, x->q), k = my_rows(a, x, rank, x->k), v = my_rows(a, x, rank, x->v);
    Tensor o = buffer(a, x, x->H, x->Cv), lse = t2(a, "test", F32, x->H, T);
    Tensor delta = t2(a, "test", F32, x->H, T);
    Tensor dq = buffer(a, x, x->H, x->C), dk = buffer(a, x, x->G, x->C), dv = buffer(a, x, x->G, x->Cv);
    AttentionTerms terms = { x->scale, x->window, x->sinks, keep ? x->dsinks[rank] : (Tensor){ 0 } };
    context_attention_fwd(c, o, lse, q, k, v, terms);
    if (x->backward)
        context_attention_bwd(c, dq, dk, dv, delta, my_rows(a, x, rank, x->dout), o, lse, q, k, v, terms);
    if (!keep) return;
    share_rows(o, x->o, x->way.cp, rank, true);
    x->fwd_flops[rank] = c->be->ledger.op[OP_attention_fwd].flops;
    x->bwd_flops[rank] = c->be->ledger.op[OP_attention_bwd].flops;
    x->extra[rank]     = c->be->ledger.op[OP_attention_bwd].extra;
    x->peak[rank]      = c->scratch->peak;
    if (!x->backward) return;
    share_rows(dq, x->dq, x->way.cp, rank, true);
    share_rows(dk, x->dk, x->way.cp, rank, true);
    share_rows(dv, x->dv, x->way.cp, rank, true);
}

static void one_rank(Peer *p)
{
    Case       *x = case_;
    ContextRank r;
    MeshLayout  layout = { .tp = x->way.tp, .cp = x->way.cp, .cp_inner = x->way.inner };
    omp_set_num_threads(1);
    rank_open(&r, &p->be, p->world, &layout, context_kind(x->way.kind), stream_of(&x->pack), x->dtype);
    attend(&r.pass, x, mesh_at(&r.mesh, AX_CP), &r.kept, mesh_at(&r.mesh, AX_TP) == 0);
    EXPECT(!backend_sync(&p->be) && !r.scratch.used, "rank %d: %s", p->rank, status_text());
    rank_close(&r);
}

/* ---- cases ---- */

static Tensor three(Tensor t, int64_t heads, int64_t C) { return t_as3(t, t.n[0], heads, C); }

/* Fresh outputs in place of those of x. */
static void poison(Case *x, DType d)
{
    int64_t T = x->pack.T, H = x->H, G = x->G, C = x->C, Cv = x->Cv;
    x->o   = three(num_poison(d, T, H * Cv), H, Cv), x->dq = three(num_poison(d, T, H * C), H, C);
    x->dk  = three(num_poison(d, T, G * C), G, C), x->dv = three(num_poison(d, T, G * Cv), G, Cv);
    x->lse = num_poison(F32, H, T), x->delta = num_poison(F32, H, T);
    for (int i = 0; t_has(x->sinks) && i < x->way.cp; i++) x->dsinks[i] = num_zeros(F32, 1, H);
}

/* What families differ in: latent attention has values that are narrower than keys, others windows and
 * sinks. */
typedef struct Terms { int64_t narrower, window; bool sinks; } Terms;

static Case make_form(Way way, Pack pack, int64_t H, int64_t G, int64_t C, DType d, Terms f)
{
    int64_t T = pack.T, Cv = C - f.narrower;
    Case x = { .way = way, .pack = pack, .H = H, .G = G, .C = C, .Cv = Cv, .dtype = d, .backward = true,
               .q = three(num_randn(d, T, H * C), H, C), .k = three(num_randn(d, T, G * C), G, C),
               .v = three(num_randn(d, T, G * Cv), G, Cv), .dout = three(num_randn(d, T, H * Cv), H, Cv),
               .scale = 1.0f / sqrtf((float)C), .window = f.window };
    if (f.sinks) x.sinks = num_randn(F32, 1, H);
    poison(&x, d);
    return x;
}

static Case make_case(Way way, Pack pack, int64_t H, int64_t G, int64_t C, DType d)
{
    return make_form(way, pack, H, G, C, d, (Terms){ 0 });
}

static void on_all(Case *x)
{
    case_ = x;
    on_ranks(x->way.cp * x->way.tp, 0, one_rank);
}

/* The same on one rank, in f32. Its backward takes o from the ranks, whose forward is compared by itself: in
 * bf16 what delta = dout.o gets from the rounding of o may exceed all of dq and dk where a row sees a key or
 * two. */
static Case alone(const Case *x)
{
    Case     y = *x;
    Tensor   o = num_copy(x->o, F32);
    Segments seg = segments_in_window(segments_of(&x->pack), x->window, x->pack.T);
    y.q = num_copy(x->q, F32), y.k = num_copy(x->k, F32), y.v = num_copy(x->v, F32);
    y.dout = num_copy(x->dout, F32);
    poison(&y, F32);
    ledger_clear(&BE->ledger);
    op_attention_fwd(BE, y.o, y.lse, y.q, y.k, y.v, seg, x->scale);
    if (t_has(x->sinks)) op_sink_fwd(BE, y.o, y.lse, x->sinks);
    if (t_has(x->sinks)) op_sink_bwd(BE, y.dsinks[0], y.dout, o, y.lse, x->sinks);
    op_attention_bwd(BE, y.dq, y.dk, y.dv, y.delta, y.dout, o, y.lse, y.q, y.k, y.v, seg, x->scale);
    y.fwd_flops[0] = BE->ledger.op[OP_attention_fwd].flops;
    y.bwd_flops[0] = BE->ledger.op[OP_attention_bwd].flops;
    y.extra[0]     = BE->ledger.op[OP_attention_bwd].extra;
    return y;
}

static double sum(const double *x, int n)
{
    double all = 0;
    for (int i = 0; i < n; i++) all += x[i];
    return all;
}

static double biggest(Tensor t)
{
    double big = 0;
    for (int64_t i = 0; i < t_count(t); i++) big = fmax(big, fabs(((float *)t.data)[i]));
    return big;
}

/* Gradients of queries and keys are differences that all but cancel where a row sees a key or two: they are
 * compared with a tenth of dv's size where they are smaller. */
static double score_error(Tensor got, Tensor want, Tensor dv)
{
    double own = biggest(want), least = 0.1 * biggest(dv);
    return num_error(got, want) * (own < least ? own / least : 1);
}

/* The sum over ranks of the gradients of sinks. */
static Tensor all_dsinks(const Case *x)
{
    Tensor sum = num_zeros(F32, 1, x->H);
    for (int i = 0; i < x->way.cp; i++) op_add(BE, sum, sum, x->dsinks[i]);
    return sum;
}

/* Gradients of sinks sum terms of both signs over all rows, exp(sink - lse) delta: errors are compared with
 * the largest sum of their magnitudes. A pack without documents has no terms: its gradients are exactly 0. */
static double sinks_error(Tensor got, const Case *one)
{
    const float *sinks = one->sinks.data, *lse = one->lse.data, *delta = one->delta.data;
    double       worst = 0, big = 0;
    for (int64_t h = 0; h < one->H; h++) {
        double terms = 0;
        for (int64_t i = 0; i < one->pack.start[one->pack.docs]; i++) {
            int64_t at = h * one->pack.T + i;
            terms += fabs(exp((double)sinks[h] - lse[at]) * delta[at]);
        }
        double error = fabs((double)((float *)got.data)[h] - ((float *)one->dsinks[0].data)[h]);
        if (!(error <= worst)) worst = error;    /* NaN too */
        big = fmax(big, terms);
    }
    return big > 0 ? worst / big : worst;
}

/* Scores and lse are rounded to 2^-24 of their size, and their exp() by as much as they are: outputs in f32,
 * of one rank too, are as near as the largest lse allows. */
static void check_case(const Case *x, const char *what)
{
    Case   y = alone(x);
    int    n = x->way.cp;
    double out = x->dtype == F32 ? 3e-7 * fmax(1, biggest(y.lse)) : 1e-2;
    double grad = x->dtype == F32 ? 1e-5 : 3e-2;
    double o = num_error(x->o, y.o), dv = num_error(x->dv, y.dv);
    double dq = score_error(x->dq, y.dq, y.dv), dk = score_error(x->dk, y.dk, y.dv);
    EXPECT(o <= out && dq <= grad && dk <= grad && dv <= grad,
           "%s cp %d inner %d, %s, %lld tokens in %lld documents: o %.2g dq %.2g dk %.2g dv %.2g",
           x->way.kind, n, x->way.inner, what, (long long)x->pack.T, (long long)x->pack.docs, o, dq, dk, dv);
    double ds = t_has(x->sinks) ? sinks_error(all_dsinks(x), &y) : 0;
    EXPECT(ds <= 1e-5, "%s cp %d inner %d, %s: sinks %.2g", x->way.kind, n, x->way.inner, what, ds);
    if (x->window) return;                       /* FLOPs of windows are bounds */
    EXPECT(sum(x->fwd_flops, n) == y.fwd_flops[0] && sum(x->bwd_flops, n) == y.bwd_flops[0] &&
           sum(x->extra, n) == y.extra[0], "%s cp %d, %s: FLOPs %g of %g", x->way.kind, n, what,
           sum(x->fwd_flops, n), y.fwd_flops[0]);
}

static const Way ways[] = {
    { "p2p", 2, 1, 1 },        { "p2p", 3, 1, 2 },        { "p2p", 4, 1, 1 },        { "p2p", 8, 1, 1 },
    { "all_gather", 2, 1, 1 }, { "all_gather", 3, 1, 1 }, { "all_gather", 4, 1, 1 },
    { "all_gather", 8, 1, 1 },
    { "a2a", 2, 1, 1 },        { "a2a", 3, 1, 1 },        { "a2a", 4, 1, 1 },        { "a2a", 8, 1, 1 },
    { "a2a+p2p", 4, 2, 2 },    { "a2a+p2p", 6, 3, 1 },    { "a2a+p2p", 6, 2, 1 },    { "a2a+p2p", 8, 2, 1 },
    { "a2a+p2p", 8, 4, 1 },    { "a2a+p2p", 4, 4, 1 },
};
enum { WAYS = sizeof ways / sizeof *ways };

/* Key heads that the way can share out. */
static int64_t key_heads(Way w, int64_t most)
{
    int64_t n = !strcmp(w.kind, "a2a") ? w.cp : w.inner;
    return n * (1 + num_below(most));
}

static void any_case(Way w, int form, int64_t chunk, DType d)
{
    char    what[32];
    int64_t G = key_heads(w, 2), C = 4 + 2 * num_below(7);
    Case    x = make_case(w, pack_of(form, 2 * w.cp * chunk, chunk), G * (1 + num_below(3)), G, C, d);
    snprintf(what, sizeof what, "pack %d", form);
    on_all(&x);
    check_case(&x, what);
    num_clear();
}

/* Windows of one key, within a chunk, of a chunk and one more, of two chunks, and longer than documents. */
static void forms_equal_one_rank(void)
{
    for (int i = 0; i < WAYS; i++)
        for (int64_t form = i % 2; form < PACKS; form += 2) {
            int64_t G = key_heads(ways[i], 1), chunk = 3 + num_below(20), H = 2 * G, C = 6;
            int64_t windows[] = { 0, 1, 2 + num_below(chunk - 1), chunk + 1, 2 * chunk, 9 * chunk };
            Terms f = { num_below(2) * (1 + num_below(4)), windows[num_below(6)], num_below(2) };
            Case    x = make_form(ways[i], pack_of((int)form, 2 * ways[i].cp * chunk, chunk), H, G, C,
                                  num_below(4) ? F32 : BF16, f);
            char    what[80];
            snprintf(what, sizeof what, "pack %d, window %d of chunk %d, values %d%s", (int)form,
                     (int)f.window, (int)chunk, (int)x.Cv, f.sinks ? ", sinks" : "");
            on_all(&x);
            check_case(&x, what);
            num_clear();
        }
}

static void equals_one_rank(void)
{
    for (int i = 0; i < WAYS; i++)
        for (int form = 0; form < PACKS; form++)
            if (ways[i].cp < 6 || (i + form) % 2) any_case(ways[i], form, 1 + num_below(40), F32);
}

/* Chunks of one token, and chunks that take several tiles of keys and queries. */
static void small_and_large_chunks(void)
{
    for (int i = 0; i < WAYS; i++)
        any_case(ways[i], i % 2 ? MIXED : TAIL, 1, F32);
    for (int i = 0; i < WAYS; i += 4) any_case(ways[i], LONG, 230, F32), any_case(ways[i], MIXED, 230, F32);
}

static void bf16_is_near(void)
{
    for (int i = 0; i < WAYS; i++)
        for (int form = i % 4; form < PACKS; form += 4) any_case(ways[i], form, 1 + num_below(40), BF16);
}

static double loss(void *arg)
{
    Case *x = arg;
    on_all(x);
    return num_dot(x->o, x->dout);
}

static void gradients(void)
{
    for (int i = 0; i < WAYS; i++) {
        if (ways[i].cp > 4) continue;
        int64_t G = key_heads(ways[i], 1), chunk = 5;
        Pack    pack = pack_of(i % 2 ? LONG : TAIL, 2 * ways[i].cp * chunk, chunk);
        Terms f = { i % 3, i % 4 ? 2 + num_below(2 * chunk) : 0, true };
        Case    x = make_form(ways[i], pack, 2 * G, G, 4, F32, f);
        on_all(&x);
        x.backward = false;
        Tensor of[] = { x.q, x.k, x.v, x.sinks }, found[] = { x.dq, x.dk, x.dv, all_dsinks(&x) };
        for (int j = 0; j < 4; j++) {
            double e = num_gradient_error(loss, &x, of[j], found[j], 3e-2f, 4);
            EXPECT(e <= 5e-3, "%s cp %d, d%c: error %.2g", ways[i].kind, ways[i].cp, "qkvs"[j], e);
        }
        num_clear();
    }
}

static void same_bits_again(void)
{
    for (int i = 0; i < WAYS; i++) {
        int64_t G = key_heads(ways[i], 1), chunk = 33, T = 2 * ways[i].cp * chunk;
        DType   d = i % 2 ? BF16 : F32;
        Case    x = make_case(ways[i], pack_of(TAIL, T, chunk), 2 * G, G, 8, d), y = x;
        poison(&y, d);
        on_all(&x), on_all(&y);
        EXPECT(same_bits(x.o, y.o.data) && same_bits(x.dq, y.dq.data) && same_bits(x.dk, y.dk.data) &&
               same_bits(x.dv, y.dv.data), "%s cp %d", ways[i].kind, ways[i].cp);
        num_clear();
    }
}

/* Rank `rank` of a dry run: nothing is computed, no other rank answers. */
static size_t planned_peak(const Case *x, int rank)
{
    Way         w = x->way;
    PlannedRank p;
    ContextRank *r = planned_open(&p, rank, &(MeshLayout){ .cp = w.cp, .cp_inner = w.inner },
                                  context_kind(w.kind), x->pack.T, x->dtype);
    int64_t     T = x->pack.T / w.cp;
    Arena      *a = &r->kept;
    Tensor      q = t3(a, "test", x->dtype, T, x->H, x->C), k = t3(a, "test", x->dtype, T, x->G, x->C);
    Tensor      o = t3(a, "test", x->dtype, T, x->H, x->Cv), v = t3(a, "test", x->dtype, T, x->G, x->Cv);
    Tensor      lse = t2(a, "test", F32, x->H, T);
    AttentionTerms terms = { .scale = 1.0f, .window = x->window };
    context_attention_fwd(&r->pass, o, lse, q, k, v, terms);
    context_attention_bwd(&r->pass, q, k, v, lse, o, o, lse, q, k, v, terms);
    return planned_close(&p);
}

/* A plan's stream says nothing of documents; its arenas rise as high as those of any run. */
static void plan_is_the_run(void)
{
    for (int i = 0; i < WAYS; i++) {
        int64_t G = key_heads(ways[i], 1);
        Pack    pack = pack_of(i % PACKS, 2 * ways[i].cp * 24, 24);
        Terms f = { i % 3, i % 4 ? 1 + num_below(60) : 0, false };
        Case    x = make_form(ways[i], pack, 2 * G, G, 8, i % 2 ? BF16 : F32, f);
        on_all(&x);
        for (int rank = 0; rank < ways[i].cp; rank++)
            EXPECT(planned_peak(&x, rank) == x.peak[rank], "%s cp %d rank %d: was %zu", ways[i].kind,
                   ways[i].cp, rank, x.peak[rank]);
        num_clear();
    }
}

int main(void)
{
    omp_set_num_threads(1);
    numlab_open();
    RUN(equals_one_rank);
    RUN(forms_equal_one_rank);
    RUN(small_and_large_chunks);
    RUN(bf16_is_near);
    RUN(gradients);
    RUN(same_bits_again);
    RUN(plan_is_the_run);
    return numlab_report();
}
