/* parallel/dispatch_alltoall.c -- every slot of a token is a row of its own, sent straight to its expert.
 *
 * Rows leave sorted by expert, hence by rank, and a range goes to all ETP members of that rank. They arrive
 * by source and within one by expert and are regrouped. Results come back the same way: the ETP slices of a
 * row are planes of one buffer, and a token's sum runs over its slots in their order and for each slot over
 * the slices in theirs, in f32, rounded once. With ETP = 1 these are the bits of a single rank.
 *
 * Moved per rank and direction: T K D elements, (EP-1)/EP of them to others: a token that goes to several
 * experts of one rank is sent several times. With moe.pad sizes are known and nobody is asked. */
#include "parallel/dispatch.h"

enum { ROWS, SRC, PLACE };                   /* of Route.index: (T, K); (slots, 1); (room, 1) */

typedef struct Table { Leg leg; int64_t *back_at; } Table;

static Status fits(const Mesh *m, const DispatchConf *conf) { return OK; }

static size_t table_bytes(const Dispatcher *d) { return sizeof(Table) + 5 * (size_t)d->n * sizeof(int64_t); }

static int64_t counts(const Dispatcher *d) { return d->conf.shape.E; }

static Table *table_of(Ctx *c, Route *r)
{
    Table   *t = route_table(c, r);
    int64_t *memory = (int64_t *)(t + 1);
    leg_place(&t->leg, &memory, c->dispatch->n);
    t->back_at = memory;
    return t;
}

/* Rows per expert of every member. Only what the card has sorted is asked for, once. */
static void tell(Ctx *c, const Moe *m, Tensor offsets, int64_t slots, int64_t capacity)
{
    Dispatcher *d = c->dispatch;
    int64_t   E = d->counts_len;
    if (m->pad) {
        for (int64_t i = 0; i < d->n * E; i++) d->all_counts[i] = (int32_t)capacity;
        return;
    }
    backend_fetch(c->be, d->fetched, offsets);
    if (!c->be->sticky && borders_real(d->fetched, E, slots)) counts_of(d->own_counts, d->fetched, E);
    else for (int64_t e = 0; e < E; e++) d->own_counts[e] = (int32_t)(slots / E);
    dispatch_tell(c);
}

/* Rows that `from` has for the experts of `to`. */
static int64_t between(const Dispatcher *d, int from, int to)
{
    const int32_t *n = dispatch_of(d, from) + to / d->etp * d->local_experts;
    int64_t sum = 0;
    for (int64_t e = 0; e < d->local_experts; e++) sum += n[e];
    return sum;
}

static bool room_for_all(Dispatcher *d)
{
    d->max_rows = 0;
    for (int to = 0; to < d->n; to += d->etp) {
        int64_t rows = 0;
        for (int from = 0; from < d->n; from++) rows += between(d, from, to);
        if (rows > d->max_rows) d->max_rows = rows;
    }
    return d->max_rows <= d->row_capacity;
}

static void lay_out(const Dispatcher *d, Table *t)
{
    Leg    *l = &t->leg;
    int64_t sent = 0;
    for (int i = 0; i < d->n; i++) {
        l->give_n[i] = between(d, d->me, i);
        l->get_n[i]  = between(d, i, d->me);
    }
    leg_sum(l, d->n);
    for (int i = 0; i < d->n; i++) {
        l->give_at[i] = i % d->etp ? l->give_at[i - 1] : sent;      /* slices of an expert get the same */
        if (i % d->etp == 0) sent += l->give_n[i];
    }
    l->sent = sent;
    for (int i = 0; i < d->n; i++) t->back_at[i] = i % d->etp * sent + l->give_at[i];
}

/* How many rows of each source every expert here has, on the device. */
static void regroup(Ctx *c, MoeAct *a, Tensor place)
{
    Dispatcher *d = c->dispatch;
    Tensor    count = scratch2(c, I32, d->n, d->local_experts);
    int64_t   first = d->me / d->etp * d->local_experts;
    for (int s = 0; s < d->n; s++)
        for (int64_t e = 0; e < d->local_experts; e++)
            d->fetched[s * d->local_experts + e] = dispatch_of(d, s)[first + e];
    backend_upload(c->be, count, d->fetched);
    op_moe_regroup(c->be, a->offsets, place, count);
}

static void dispatch_start(Ctx *c, const Route *r, Exchange *w, Tensor x);
static void dispatch_finish(Ctx *c, const Route *r, Exchange *w, Tensor rows);

static int64_t slots_of(const Dispatcher *d, const Moe *m, int64_t T)
{
    return m->pad ? m->E * moe_capacity(m, d->conf.shape.T) : T * m->K;
}

static void reserve(Ctx *c, const Moe *m, MoeAct *a, int64_t T)
{
    const Dispatcher *d = c->dispatch;
    Route          *r = &a->route;
    table_of(c, r);
    r->T = T;
    need(c, L_ROUTE, &r->index[ROWS], I32, T, m->K);
    need(c, L_ROUTE, &r->index[SRC], I32, slots_of(d, m, T), 1);
    need(c, L_ROUTE, &r->index[PLACE], I32, d->row_capacity, 1);
    need(c, L_ROUTE, &a->offsets, I32, d->local_experts + 1, 1);
    need(c, L_ROUTE, &a->gate, F32, d->row_capacity, 1);
}

/* What the experts here get, and its gates. */
static void expect(Ctx *c, MoeAct *a, Table *t)
{
    Route *r = &a->route;
    Exchange   exchange = { 0 };
    lay_out(c->dispatch, t);
    a->R = t->leg.came, r->sent = t->leg.sent;
    a->gate = t_rows(a->gate, 0, a->R);
    r->index[PLACE] = t_rows(r->index[PLACE], 0, a->R);
    regroup(c, a, r->index[PLACE]);
    dispatch_start(c, r, &exchange, t_as2(a->weight, t_count(a->weight), 1));
    dispatch_finish(c, r, &exchange, a->gate);
}

static bool build_routing(Ctx *c, const Moe *m, MoeAct *a, Tensor kept)
{
    Dispatcher *d = c->dispatch;
    Route    *r = &a->route;
    int64_t   T = kept.n[0], slots = slots_of(d, m, T), capacity = m->pad ? slots / m->E : 0;
    r->index[ROWS] = t_rows(r->index[ROWS], 0, T);
    ArenaMark mark = brief_mark(c);
    Tensor offsets = scratch2(c, I32, m->E + 1, 1);
    moe_sort(c, m, offsets, r->index[ROWS], t_rows(r->index[SRC], 0, slots), kept, capacity);
    tell(c, m, offsets, slots, capacity);
    bool fits = room_for_all(d);
    if (fits) expect(c, a, r->table);
    brief_note(c);
    arena_reset(c->scratch, mark);
    return fits;
}

/* x: a row for each token, or for each slot (gates). Of a slice too buffers are as large as those of all
 * tokens, so that a step takes the same memory however it is done. */
static void dispatch_start(Ctx *c, const Route *r, Exchange *w, Tensor x)
{
    Dispatcher    *d = c->dispatch;
    const Table *t = r->table;
    int64_t      slots = t_count(r->index[ROWS]), div = x.n[0] && x.n[0] < slots ? slots / x.n[0] : 1;
    Tensor       src = r->index[SRC];
    w->out[0] = scratch2(c, x.dtype, src.n[0], x.n[1]);
    w->in[0]  = scratch2(c, x.dtype, d->row_capacity, x.n[1]);
    op_gather_rows(c->be, t_rows(w->out[0], 0, r->sent), x, t_rows(src, 0, r->sent), div);
    w->ticket[0] = leg_start(d->mesh->comm[GR_etp_ep], &t->leg, w->in[0], w->out[0]);
}

static void dispatch_finish(Ctx *c, const Route *r, Exchange *w, Tensor rows)
{
    comm_join(w->ticket[0]);
    op_expand_rows(c->be, rows, t_rows(w->in[0], 0, rows.n[0]), r->index[PLACE]);
}

static void combine_start(Ctx *c, const Route *r, Exchange *w, Tensor rows)
{
    Dispatcher    *d = c->dispatch;
    const Table *t = r->table;
    w->in[0]  = scratch2(c, rows.dtype, d->row_capacity, rows.n[1]);
    w->out[0] = scratch2(c, rows.dtype, d->etp * r->index[SRC].n[0], rows.n[1]);
    w->out[0] = t_rows(w->out[0], 0, d->etp * r->sent);
    Tensor in = t_rows(w->in[0], 0, rows.n[0]);
    op_gather_rows(c->be, in, rows, r->index[PLACE], 1);
    w->ticket[0] = comm_all_to_all_start(d->mesh->comm[GR_etp_ep], w->out[0],
                                         (RowRanges){ t->back_at, t->leg.give_n }, in,
                                         (RowRanges){ t->leg.get_at, t->leg.get_n });
}

/* Where the slices of every slot are: (T, K ETP). */
static Tensor slices(Ctx *c, const Route *r)
{
    Tensor rows = r->index[ROWS];
    if (c->dispatch->etp == 1) return rows;
    Tensor all = t_rows(scratch2(c, I32, r->T, rows.n[1] * c->dispatch->etp), 0, rows.n[0]);
    op_expand_etp_rows(c->be, all, rows, r->sent);
    return all;
}

static void combine_finish(Ctx *c, const Route *r, Exchange *w, Tensor y, Tensor res)
{
    Tensor rows = slices(c, r);
    pass_yield(c);
    comm_join(w->ticket[0]);
    op_combine(c->be, y, w->out[0], rows, res);
}

static void gate_grad_finish(Ctx *c, const Route *r, Exchange *w, Tensor dweight)
{
    Tensor  rows = slices(c, r);
    int64_t slots = t_count(dweight);
    comm_join(w->ticket[0]);
    op_combine(c->be, t_as2(dweight, slots, 1), w->out[0], t_as2(rows, slots, c->dispatch->etp),
               (Tensor){ 0 });
}

const DispatchOps dispatch_alltoall = {
    .name = "alltoall", .fits = fits, .table = table_bytes, .counts = counts, .reserve = reserve, .build_routing = build_routing,
    .count_token_chunks = dispatch_token_chunks,
    .dispatch_start = dispatch_start, .dispatch_finish = dispatch_finish, .combine_start = combine_start, .combine_finish = combine_finish,
    .gate_grad_start = combine_start, .gate_grad_finish = gate_grad_finish,
};
