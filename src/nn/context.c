/* nn/context.c -- attention of a sequence cut over ranks: choice of the method, exchange of heads for tokens.
 *
 * The exchange is among `inner` neighbours: before it each has its two chunks of tokens with all heads, after
 * it the chunks of all neighbours with its share of the heads, first chunks ascending and second chunks
 * descending by member, which is the order of the stream. Two calls, one for each chunk, put them there. */
#include "nn/context_private.h"

static Tensor some_heads(Tensor t, int64_t from, int64_t n)
{
    REQUIRE(t.rank == 3 && from >= 0 && from + n <= t.n[1], "heads %lld + %lld of %s", (long long)from,
            (long long)n, t_fmt(t));
    t.data = (char *)t.data + from * t.s[1] * (int64_t)dtype_size((DType)t.dtype);
    t.n[1] = n;
    return t;
}

/* Tensors that are exchanged together: a row is the heads of one member, one tensor behind the other. */
enum { EXCHANGED = 5 };
typedef struct Bundle { Tensor t[EXCHANGED]; int n; } Bundle;

static int64_t bundle_width(const Bundle *b, int inner)
{
    int64_t width = 0;
    for (int i = 0; i < b->n; i++) width += b->t[i].n[1] / inner * b->t[i].n[2];
    return width;
}

/* The tensors as they lie in a buffer (rows, width). */
static Bundle bundle_views(const Bundle *b, Tensor buffer, int inner)
{
    Bundle views = { .n = b->n };
    for (int64_t i = 0, at = 0; i < b->n; i++) {
        int64_t heads = b->t[i].n[1] / inner, C = b->t[i].n[2];
        views.t[i] = t_heads(buffer, at, heads, C);
        at += heads * C;
    }
    return views;
}

/* Between tensors (T, heads, C) and a buffer (inner T, width) whose m-th T rows are the heads of member m. */
static void bundle_copy(const Pass *c, const Bundle *b, Tensor buffer, int inner, bool out)
{
    int64_t T = buffer.n[0] / inner;
    for (int m = 0; m < inner; m++) {
        Bundle part = bundle_views(b, t_rows(buffer, m * T, T), inner);
        for (int i = 0; i < b->n; i++) {
            Tensor here = some_heads(b->t[i], m * part.t[i].n[1], part.t[i].n[1]);
            op_copy(c->be, out ? here : part.t[i], out ? part.t[i] : here);
        }
    }
}

/* forth: heads by member -> tokens in the order of the stream; back: the reverse. */
static void exchange(Comm *inner, Tensor to, Tensor from, bool forth)
{
    int64_t n = inner->size, chunk = to.n[0] / (2 * n);
    int64_t rows[CONTEXT_RANKS], member[2][CONTEXT_RANKS], stream[2][CONTEXT_RANKS];
    Ticket  ticket[2];
    for (int64_t m = 0; m < n; m++) {
        rows[m] = chunk;
        member[0][m] = 2 * m * chunk, member[1][m] = (2 * m + 1) * chunk;
        stream[0][m] = m * chunk,     stream[1][m] = (2 * n - 1 - m) * chunk;
    }
    for (int half = 0; half < 2; half++) {
        RowRanges a = { member[half], rows }, b = { stream[half], rows };
        ticket[half] = comm_all_to_all_start(inner, to, forth ? b : a, from, forth ? a : b);
    }
    for (int half = 0; half < 2; half++) comm_join(ticket[half]);
}

/* A buffer for b's tensors after the exchange: (inner T, width). */
static Tensor bundle_buffer(const Pass *c, const Bundle *b, int inner)
{
    return scratch2(c, (DType)b->t[0].dtype, b->t[0].n[0] * inner, bundle_width(b, inner));
}

/* b's tensors after the exchange. */
static Bundle bundle_send(const Pass *c, Comm *inner, const Bundle *b)
{
    Tensor    to = bundle_buffer(c, b, inner->size);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor    from = bundle_buffer(c, b, inner->size);
    bundle_copy(c, b, from, inner->size, false);
    exchange(inner, to, from, true);
    arena_reset(c->scratch, mark);
    return bundle_views(b, to, inner->size);
}

/* From the exchanged buffer back to b's tensors. */
static void bundle_return(const Pass *c, Comm *inner, const Bundle *b, Tensor from)
{
    ArenaMark mark = arena_mark(c->scratch);
    Tensor    to = scratch2(c, (DType)from.dtype, from.n[0], from.n[1]);
    exchange(inner, to, from, false);
    bundle_copy(c, b, to, inner->size, true);
    arena_reset(c->scratch, mark);
}

Segments segments_in_window(Segments seg, int64_t window, int64_t rows)
{
    double most = (double)rows * (double)window;
    seg.window = window;
    if (window && seg.pairs > most) seg.pairs = most;
    return seg;
}

/* Without a mask but that of documents, windows and the order of rows. */
static Segments whole_rows(const ContextCall *x, Segments seg)
{
    return segments_in_window(seg, x->terms.window, x->q.n[0]);
}

static const ContextBatch undivided = { .inner = 1, .outer = 1 };    /* all rows and heads are here */

static void attend_fwd(const Pass *c, const ContextCall *x, Segments whole)
{
    const ContextBatch *cut = x->cut;
    if (cut->outer == 1)
        op_attention_fwd(c->be, x->o, x->lse, x->q, x->k, x->v, whole_rows(x, whole), x->terms.scale);
    else if (window_is_near(x))                                    near_fwd(c, x);
    else if (cut->kind == CONTEXT_ALL_GATHER || x->terms.window) gather_fwd(c, x);
    else                                                           ring_fwd(c, x);
    if (t_has(x->terms.sinks)) op_sink_fwd(c->be, x->o, x->lse, x->terms.sinks);
}

static void attend_bwd(const Pass *c, const ContextCall *x, Segments whole)
{
    const ContextBatch *cut = x->cut;
    if (t_has(x->terms.dsinks))
        op_sink_bwd(c->be, x->terms.dsinks, x->dout, x->o, x->lse, x->terms.sinks);
    if (cut->outer == 1)
        op_attention_bwd(c->be, x->dq, x->dk, x->dv, x->delta, x->dout, x->o, x->lse, x->q, x->k, x->v,
                         whole_rows(x, whole), x->terms.scale);
    else if (window_is_near(x))                                    near_bwd(c, x);
    else if (cut->kind == CONTEXT_ALL_GATHER || x->terms.window) gather_bwd(c, x);
    else                                                           ring_bwd(c, x);
}

static Comm *inner_comm(const Pass *c, const ContextBatch *cut)
{
    return c->env->mesh->comm[cut->kind == CONTEXT_A2A ? GR_cp : GR_cp_inner];
}

static Comm *outer_comm(const Pass *c, const ContextBatch *cut)
{
    return c->env->mesh->comm[cut->kind == CONTEXT_A2A_P2P ? GR_cp_outer : GR_cp];
}

static void check_call(const Pass *c, const ContextCall *x)
{
    const ContextBatch *cut = x->cut;
    int64_t T = x->q.n[0];
    int     cp = mesh_size(c->env->mesh, AX_CP), type = x->q.dtype;
    REQUIRE(cut->inner * cut->outer == cp && T * cp == cut->tokens && x->k.n[0] == T && x->k.dtype == type &&
            x->v.dtype == type && x->o.dtype == type && x->q.n[1] % cut->inner == 0 &&
            x->k.n[1] % cut->inner == 0 && t_dense(x->lse),
            "attention over cp %d: q%s k%s v%s o%s of %lld tokens, heads exchanged by %d of %d", cp,
            t_fmt(x->q), t_fmt(x->k), t_fmt(x->v), t_fmt(x->o), (long long)cut->tokens, cut->inner,
            cut->inner * cut->outer);
}

/* Heads first and tokens behind them: a statistic of the exchanged rows has as many elements. */
static Tensor exchanged_stat(Tensor t, int inner) { return t_as2(t, t.n[0] / inner, t.n[1] * inner); }

/* The sinks of the heads that this rank has after the exchange. */
static AttentionTerms exchanged_terms(AttentionTerms t, const Comm *inner)
{
    int64_t n = t_has(t.sinks) ? t.sinks.n[1] / inner->size : 0;
    if (t_has(t.sinks))  t.sinks  = t_cols(t.sinks, inner->rank * n, n);
    if (t_has(t.dsinks)) t.dsinks = t_cols(t.dsinks, inner->rank * n, n);
    return t;
}

void context_attention_fwd(const Pass *c, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                           AttentionTerms terms)
{
    const ContextBatch *cut = &c->batch->context;
    bool        alone = mesh_size(c->env->mesh, AX_CP) == 1;
    ContextCall x = { .cut = alone ? &undivided : cut, .q = q, .k = k, .v = v, .o = o, .lse = lse,
                      .terms = terms };
    if (alone) {
        attend_fwd(c, &x, c->batch->seg);
        return;
    }
    ArenaMark mark = arena_mark(c->scratch);
    x.outer = outer_comm(c, cut);
    check_call(c, &x);
    if (cut->inner > 1) {
        Comm  *inner = inner_comm(c, cut);
        Bundle in = bundle_send(c, inner, &(Bundle){ { q, k, v }, 3 }), out = { { o }, 1 };
        Tensor buffer = bundle_buffer(c, &out, inner->size);
        x.q = in.t[0], x.k = in.t[1], x.v = in.t[2], x.o = bundle_views(&out, buffer, inner->size).t[0];
        x.lse = exchanged_stat(lse, inner->size), x.terms = exchanged_terms(terms, inner);
        attend_fwd(c, &x, cut->own);
        bundle_return(c, inner, &out, buffer);
    } else {
        attend_fwd(c, &x, cut->own);
    }
    arena_reset(c->scratch, mark);
}

void context_attention_bwd(const Pass *c, Tensor dq, Tensor dk, Tensor dv, Tensor delta, Tensor dout,
                           Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, AttentionTerms terms)
{
    const ContextBatch *cut = &c->batch->context;
    bool        alone = mesh_size(c->env->mesh, AX_CP) == 1;
    ContextCall x = { .cut = alone ? &undivided : cut, .q = q, .k = k, .v = v, .o = o, .lse = lse, .dq = dq,
                      .dk = dk, .dv = dv, .delta = delta, .dout = dout, .terms = terms };
    if (alone) {
        attend_bwd(c, &x, c->batch->seg);
        return;
    }
    ArenaMark mark = arena_mark(c->scratch);
    x.outer = outer_comm(c, cut);
    check_call(c, &x);
    if (cut->inner > 1) {
        Comm  *inner = inner_comm(c, cut);
        Bundle in = bundle_send(c, inner, &(Bundle){ { q, k, v, o, dout }, 5 });
        Bundle out = { { dq, dk, dv }, 3 };
        Tensor buffer = bundle_buffer(c, &out, inner->size);
        Bundle grads = bundle_views(&out, buffer, inner->size);
        x.q = in.t[0], x.k = in.t[1], x.v = in.t[2], x.o = in.t[3], x.dout = in.t[4];
        x.dq = grads.t[0], x.dk = grads.t[1], x.dv = grads.t[2], x.terms = exchanged_terms(terms, inner);
        x.lse = exchanged_stat(lse, inner->size), x.delta = exchanged_stat(delta, inner->size);
        attend_bwd(c, &x, cut->own);
        bundle_return(c, inner, &out, buffer);
    } else {
        attend_bwd(c, &x, cut->own);
    }
    arena_reset(c->scratch, mark);
}
