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

static size_t table_bytes(const Dispatch *d) { return sizeof(Table) + 5 * (size_t)d->n * sizeof(int64_t); }

static int64_t counts(const Dispatch *d) { return d->conf.shape.E; }

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
    Dispatch *d = c->dispatch;
    int64_t   E = d->told;
    if (m->pad) {
        for (int64_t i = 0; i < d->n * E; i++) d->all[i] = (int32_t)capacity;
        return;
    }
    backend_fetch(c->be, d->stage, offsets);
    if (!c->be->sticky && borders_real(d->stage, E, slots)) counts_of(d->mine, d->stage, E);
    else for (int64_t e = 0; e < E; e++) d->mine[e] = (int32_t)(slots / E);
    dispatch_tell(c);
}

/* Rows that `from` has for the experts of `to`. */
static int64_t between(const Dispatch *d, int from, int to)
{
    const int32_t *n = dispatch_of(d, from) + to / d->etp * d->local;
    int64_t sum = 0;
    for (int64_t e = 0; e < d->local; e++) sum += n[e];
    return sum;
}

static bool room_for_all(Dispatch *d)
{
    d->most = 0;
    for (int to = 0; to < d->n; to += d->etp) {
        int64_t rows = 0;
        for (int from = 0; from < d->n; from++) rows += between(d, from, to);
        if (rows > d->most) d->most = rows;
    }
    return d->most <= d->room;
}

static void lay_out(const Dispatch *d, Table *t)
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
    Dispatch *d = c->dispatch;
    Tensor    count = scratch2(c, I32, d->n, d->local);
    int64_t   first = d->me / d->etp * d->local;
    for (int s = 0; s < d->n; s++)
        for (int64_t e = 0; e < d->local; e++)
            d->stage[s * d->local + e] = dispatch_of(d, s)[first + e];
    backend_upload(c->be, count, d->stage);
    op_moe_regroup(c->be, a->offsets, place, count);
}

static void send(Ctx *c, const Route *r, Wire *w, Tensor x);
static void land(Ctx *c, const Route *r, Wire *w, Tensor rows);

static int64_t slots_of(const Dispatch *d, const Moe *m, int64_t T)
{
    return m->pad ? m->E * moe_capacity(m, d->conf.shape.T) : T * m->K;
}

static void claim(Ctx *c, const Moe *m, MoeAct *a, int64_t T)
{
    const Dispatch *d = c->dispatch;
    Route          *r = &a->route;
    table_of(c, r);
    r->T = T;
    need(c, L_ROUTE, &r->index[ROWS], I32, T, m->K);
    need(c, L_ROUTE, &r->index[SRC], I32, slots_of(d, m, T), 1);
    need(c, L_ROUTE, &r->index[PLACE], I32, d->room, 1);
    need(c, L_ROUTE, &a->offsets, I32, d->local + 1, 1);
    need(c, L_ROUTE, &a->gate, F32, d->room, 1);
}

/* What the experts here get, and its gates. */
static void expect(Ctx *c, MoeAct *a, Table *t)
{
    Route *r = &a->route;
    Wire   wire = { 0 };
    lay_out(c->dispatch, t);
    a->R = t->leg.came, r->sent = t->leg.sent;
    a->gate = t_rows(a->gate, 0, a->R);
    r->index[PLACE] = t_rows(r->index[PLACE], 0, a->R);
    regroup(c, a, r->index[PLACE]);
    send(c, r, &wire, t_as2(a->weight, t_count(a->weight), 1));
    land(c, r, &wire, a->gate);
}

static bool plan(Ctx *c, const Moe *m, MoeAct *a, Tensor kept)
{
    Dispatch *d = c->dispatch;
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
static void send(Ctx *c, const Route *r, Wire *w, Tensor x)
{
    Dispatch    *d = c->dispatch;
    const Table *t = r->table;
    int64_t      slots = t_count(r->index[ROWS]), div = x.n[0] && x.n[0] < slots ? slots / x.n[0] : 1;
    Tensor       src = r->index[SRC];
    w->out[0] = scratch2(c, x.dtype, src.n[0], x.n[1]);
    w->in[0]  = scratch2(c, x.dtype, d->room, x.n[1]);
    op_gather_rows(c->be, t_rows(w->out[0], 0, r->sent), x, t_rows(src, 0, r->sent), div);
    w->ticket[0] = leg_start(d->mesh->comm[GR_etp_ep], &t->leg, w->in[0], w->out[0]);
}

static void land(Ctx *c, const Route *r, Wire *w, Tensor rows)
{
    comm_join(w->ticket[0]);
    op_expand_rows(c->be, rows, t_rows(w->in[0], 0, rows.n[0]), r->index[PLACE]);
}

static void back_send(Ctx *c, const Route *r, Wire *w, Tensor rows)
{
    Dispatch    *d = c->dispatch;
    const Table *t = r->table;
    w->in[0]  = scratch2(c, rows.dtype, d->room, rows.n[1]);
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

static void back_land(Ctx *c, const Route *r, Wire *w, Tensor y, Tensor res)
{
    Tensor rows = slices(c, r);
    give_way(c);
    comm_join(w->ticket[0]);
    op_combine(c->be, y, w->out[0], rows, res);
}

static void gates_land(Ctx *c, const Route *r, Wire *w, Tensor dweight)
{
    Tensor  rows = slices(c, r);
    int64_t slots = t_count(dweight);
    comm_join(w->ticket[0]);
    op_combine(c->be, t_as2(dweight, slots, 1), w->out[0], t_as2(rows, slots, c->dispatch->etp),
               (Tensor){ 0 });
}

const DispatchOps dispatch_alltoall = {
    .name = "alltoall", .fits = fits, .table = table_bytes, .counts = counts, .claim = claim, .plan = plan,
    .slices = dispatch_slices,
    .send = send, .land = land, .back_send = back_send, .back_land = back_land,
    .gates_send = back_send, .gates_land = gates_land,
};
