/* parallel/dispatch_alltoall.c -- one row for each (token, expert) assignment, sent straight to the expert's
 * rank.
 *
 * Rows leave sorted by expert, hence by rank; the range for a rank goes to all its ETP members. They arrive
 * ordered by source and within a source by expert, and are regrouped by expert. Results return the same way:
 * the ETP partial results of a row are planes of one buffer. A token's sum runs over its K assignments in
 * order and for each of them over the ETP planes in order, in f32, rounded once. With ETP = 1 the bits are
 * those of a single rank.
 *
 * Sent per rank and direction: T K D elements, (EP-1)/EP of them to other ranks; a token with several experts
 * on one rank is sent there several times. With moe.pad_to_capacity the sizes are known without an exchange
 * of counts.
 *
 *   slots                 rows that this rank sends: T K, or E x capacity with padding
 *   index[ROW_OF] (T, K)  row in the send buffer of each assignment; -1: dropped
 *   index[SRC] (slots)    assignment that each row of the send buffer comes from
 *   index[PLACE] (R)      row of the experts' input that each received row becomes */
#include "parallel/dispatch.h"

enum { ROW_OF, SRC, PLACE };

/* combine_at (n): where the result of each member begins in the combine buffer, a plane per ETP member. */
typedef struct Table { AllToAll exchange; int64_t *combine_at; } Table;

static size_t table_bytes(const Dispatcher *d) { return sizeof(Table) + 5 * (size_t)d->n * sizeof(int64_t); }

static int64_t counts(const Dispatcher *d) { return d->conf.shape.E; }

static Table *table_of(const Pass *c, Route *r)
{
    Table   *t = route_table(c, r);
    int64_t *memory = (int64_t *)(t + 1);
    a2a_set_arrays(&t->exchange, &memory, c->env->dispatcher->n);
    t->combine_at = memory;
    return t;
}

/* Gathers the rows per expert of every member; the one fetch from the device. */
static void exchange_counts(const Pass *c, const Moe *m, Tensor offsets, int64_t slots, int64_t capacity)
{
    Dispatcher *d = c->env->dispatcher;
    int64_t     E = d->counts_len;
    if (m->pad) {
        for (int64_t i = 0; i < d->n * E; i++) d->all_counts[i] = (int32_t)capacity;
        return;
    }
    backend_fetch(c->be, d->fetched, offsets);
    if (offsets_are_valid(c, d->fetched, E, slots))
        counts_from_offsets(d->own_counts, d->fetched, E);
    else for (int64_t e = 0; e < E; e++) d->own_counts[e] = (int32_t)(slots / E);
    dispatch_gather_counts(c);
}

/* Rows that member `from` sends to the experts of member `to`. */
static int64_t rows_between(const Dispatcher *d, int from, int to)
{
    const int32_t *n = counts_of_member(d, from) + to / d->etp * d->local_experts;
    int64_t sum = 0;
    for (int64_t e = 0; e < d->local_experts; e++) sum += n[e];
    return sum;
}

static bool all_fit(Dispatcher *d)
{
    d->max_rows = 0;
    for (int to = 0; to < d->n; to += d->etp) {
        int64_t rows = 0;
        for (int from = 0; from < d->n; from++) rows += rows_between(d, from, to);
        if (rows > d->max_rows) d->max_rows = rows;
    }
    return d->max_rows <= d->row_capacity;
}

static void set_layout(const Dispatcher *d, Table *t)
{
    AllToAll *x = &t->exchange;
    int64_t   sent = 0;
    for (int i = 0; i < d->n; i++) {
        x->send_n[i] = rows_between(d, d->me, i);
        x->recv_n[i] = rows_between(d, i, d->me);
    }
    a2a_set_offsets(x, d->n);
    for (int i = 0; i < d->n; i++) {
        x->send_at[i] = i % d->etp ? x->send_at[i - 1] : sent;      /* ETP members get the same rows */
        if (i % d->etp == 0) sent += x->send_n[i];
    }
    x->sent = sent;
    for (int i = 0; i < d->n; i++) t->combine_at[i] = i % d->etp * sent + x->send_at[i];
}

/* Sets offsets and `place` on the device from the rows that each source sends to each expert of this rank. */
static void group_by_expert(const Pass *c, MoeAct *a, Tensor place)
{
    Dispatcher *d = c->env->dispatcher;
    Tensor      count = scratch2(c, I32, d->n, d->local_experts);
    int64_t     first = d->me / d->etp * d->local_experts;
    for (int s = 0; s < d->n; s++)
        for (int64_t e = 0; e < d->local_experts; e++)
            d->fetched[s * d->local_experts + e] = counts_of_member(d, s)[first + e];
    backend_upload(c->be, count, d->fetched);
    op_moe_regroup(c->be, a->offsets, place, count);
}

static void dispatch_start(const Pass *c, const Route *r, Exchange *w, Tensor x, Tensor rows);
static void dispatch_finish(const Pass *c, const Route *r, Exchange *w, Tensor rows);

static int64_t slots_of(const Dispatcher *d, const Moe *m, int64_t T)
{
    return m->pad ? m->E * moe_capacity(m, d->conf.shape.T) : T * m->K;
}

static void reserve(const Pass *c, const Moe *m, MoeAct *a, int64_t T)
{
    const Dispatcher *d = c->env->dispatcher;
    Route            *r = &a->route;
    table_of(c, r);
    r->T = T;
    need(c, L_ROUTE, &r->index[ROW_OF], I32, T, m->K);
    need(c, L_ROUTE, &r->index[SRC], I32, slots_of(d, m, T), 1);
    need(c, L_ROUTE, &r->index[PLACE], I32, d->row_capacity, 1);
    need(c, L_ROUTE, &a->offsets, I32, d->local_experts + 1, 1);
    need(c, L_ROUTE, &a->gate, F32, d->row_capacity, 1);
}

/* Sets the rows of this rank's experts and dispatches the gates that belong to them. */
static void exchange_gates(const Pass *c, MoeAct *a, Table *t)
{
    Route   *r = &a->route;
    Exchange exchange = { 0 };
    set_layout(c->env->dispatcher, t);
    a->R = t->exchange.received, r->sent = t->exchange.sent;
    a->gate = t_rows(a->gate, 0, a->R);
    r->index[PLACE] = t_rows(r->index[PLACE], 0, a->R);
    group_by_expert(c, a, r->index[PLACE]);
    dispatch_start(c, r, &exchange, t_as2(a->weight, t_count(a->weight), 1), a->gate);
    dispatch_finish(c, r, &exchange, a->gate);
}

static bool build_routing(const Pass *c, const Moe *m, MoeAct *a, Tensor kept)
{
    Dispatcher *d = c->env->dispatcher;
    Route      *r = &a->route;
    int64_t     T = kept.n[0], slots = slots_of(d, m, T), capacity = m->pad ? slots / m->E : 0;
    r->index[ROW_OF] = t_rows(r->index[ROW_OF], 0, T);
    ArenaMark mark = routing_scratch_mark(c);
    Tensor offsets = scratch2(c, I32, m->E + 1, 1);
    moe_sort(c, offsets, r->index[ROW_OF], t_rows(r->index[SRC], 0, slots), kept, capacity);
    exchange_counts(c, m, offsets, slots, capacity);
    bool fits = all_fit(d);
    if (fits) exchange_gates(c, a, r->table);
    routing_scratch_note(c);
    arena_reset(c->scratch, mark);
    return fits;
}

/* x has a row for each token, or for each assignment (gates). Buffers have the size for all tokens even when
 * a token chunk is dispatched, so that a step takes the same memory in any number of chunks. */
static void dispatch_start(const Pass *c, const Route *r, Exchange *w, Tensor x, Tensor rows)
{
    Dispatcher  *d = c->env->dispatcher;
    const Table *t = r->table;
    int64_t      slots = t_count(r->index[ROW_OF]), div = x.n[0] && x.n[0] < slots ? slots / x.n[0] : 1;
    Tensor       src = r->index[SRC];
    w->out[0] = scratch2(c, x.dtype, src.n[0], x.n[1]);
    w->in[0]  = scratch2(c, x.dtype, d->row_capacity, x.n[1]);
    op_gather_rows(c->be, t_rows(w->out[0], 0, r->sent), x, t_rows(src, 0, r->sent), div);
    w->ticket[0] = a2a_dispatch_start(d->mesh->comm[GR_etp_ep], &t->exchange, w->in[0], w->out[0]);
}

static void dispatch_finish(const Pass *c, const Route *r, Exchange *w, Tensor rows)
{
    comm_join(w->ticket[0]);
    op_expand_rows(c->be, rows, t_rows(w->in[0], 0, rows.n[0]), r->index[PLACE]);
}

static void combine_start(const Pass *c, const Route *r, Exchange *w, Tensor rows)
{
    Dispatcher  *d = c->env->dispatcher;
    const Table *t = r->table;
    w->in[0]  = scratch2(c, rows.dtype, d->row_capacity, rows.n[1]);
    w->out[0] = scratch2(c, rows.dtype, d->etp * r->index[SRC].n[0], rows.n[1]);
    w->out[0] = t_rows(w->out[0], 0, d->etp * r->sent);
    Tensor in = t_rows(w->in[0], 0, rows.n[0]);
    op_gather_rows(c->be, in, rows, r->index[PLACE], 1);
    w->ticket[0] = comm_all_to_all_start(d->mesh->comm[GR_etp_ep], w->out[0],
                                         (RowRanges){ t->combine_at, t->exchange.send_n }, in,
                                         (RowRanges){ t->exchange.recv_at, t->exchange.recv_n });
}

/* Rows of the combine buffer that hold the partial results of every assignment: (T, K ETP). */
static Tensor plane_rows(const Pass *c, const Route *r)
{
    Tensor rows = r->index[ROW_OF];
    if (c->env->dispatcher->etp == 1) return rows;
    Tensor all = t_rows(scratch2(c, I32, r->T, rows.n[1] * c->env->dispatcher->etp), 0, rows.n[0]);
    op_expand_etp_rows(c->be, all, rows, r->sent);
    return all;
}

static void combine_finish(const Pass *c, const Route *r, Exchange *w, Tensor y, Tensor res)
{
    Tensor rows = plane_rows(c, r);
    pass_yield(c);
    comm_join(w->ticket[0]);
    op_combine(c->be, y, w->out[0], rows, res);
}

static void gate_grad_finish(const Pass *c, const Route *r, Exchange *w, Tensor dweight)
{
    Tensor  rows = plane_rows(c, r);
    int64_t slots = t_count(dweight);
    comm_join(w->ticket[0]);
    op_combine(c->be, t_as2(dweight, slots, 1), w->out[0], t_as2(rows, slots, c->env->dispatcher->etp),
               (Tensor){ 0 });
}

const DispatchOps dispatch_alltoall = {
    .table = table_bytes, .counts = counts, .reserve = reserve, .build_routing = build_routing,
    .count_token_chunks = dispatch_token_chunks,
    .dispatch_start = dispatch_start, .dispatch_finish = dispatch_finish,
    .combine_start = combine_start, .combine_finish = combine_finish,
    .gate_grad_start = combine_start, .gate_grad_finish = gate_grad_finish,
};
