/* parallel/dispatch_hierarchical.c -- the dispatchers deepep and hybridep: a token crosses to a node once and
 * is forwarded there.
 *
 * Dispatch has two steps. Inter-node: a token that any expert of a domain needs is sent once over the
 * network, to the member of that domain with the sender's local index. Intra-node: that member forwards the
 * token over NVLink to each member of its domain that needs it, once each. A group of one domain has the
 * intra-node step alone, domains of one member the inter-node step alone.
 *
 * Each token travels with a tag (ops/exchange.c): a sort key and a gate for each of its K experts. At the
 * destination the key orders rows by expert, source and token: the rows that alltoall would make.
 *
 * Combine takes the steps back. A rank sums a token's rows of its experts in the order of the K choices, the
 * forwarding member sums the rows of its domain's members in their order, the source sums those of the
 * domains in theirs: three sums, each in f32 and rounded to the dtype, where alltoall has one. In f32 the two
 * differ by the order of additions alone; in bf16 each step rounds. Both repeat to the bit.
 *
 * deepep sends all tokens of a step at once. hybridep cuts them into chunks: while a chunk is in the
 * intra-node step, the next is in the inter-node step and the one after it is being packed.
 *
 * The notation is in dispatch_hierarchical.h. */
#include "parallel/dispatch_hierarchical.h"

static Status fits_hybridep(const Mesh *m, const DispatchConf *conf)
{
    if (conf->chunk > 0 && conf->shape.T > conf->chunk * DISPATCH_CHUNKS)
        return fail(E_CONFIG, "hybridep: chunks of %lld of %lld tokens are more than %d; set %lld or more",
                    (long long)conf->chunk, (long long)conf->shape.T, DISPATCH_CHUNKS,
                    (long long)((conf->shape.T + DISPATCH_CHUNKS - 1) / DISPATCH_CHUNKS));
    return OK;
}

/* ---- sizes of buffers ---- */

/* Where row_capacity bounds the experts' rows it bounds the rows of every step. */
static int64_t bounded_rows(const Dispatcher *d, int64_t rows)
{
    return d->bounded && rows > d->row_capacity ? d->row_capacity : rows;
}

/* Rows that step s receives at most. Each row of the last step becomes at least one row of an expert. */
static int64_t max_received(const Dispatcher *d, int s)
{
    int64_t T = d->conf.shape.T, all = d->n * T;
    if (s == last_step(d)) return all < d->row_capacity ? all : d->row_capacity;
    return bounded_rows(d, d->domains * T);
}

/* Rows that step s sends at most. */
static int64_t max_sent(const Dispatcher *d, int s)
{
    int64_t before = s ? max_received(d, s - 1) : d->conf.shape.T, ranks = d->conf.shape.K * d->etp;
    int64_t rows = before * (peers(d, s) < ranks ? peers(d, s) : ranks);
    return s ? bounded_rows(d, rows) : rows;
}

/* ---- dispatch ---- */

static Tensor in_rows(Tensor t, const AllToAll *x)       { return t_rows(t, x->in_at, x->in); }
static Tensor sent_rows(Tensor t, const AllToAll *x)     { return t_rows(t, x->sent_at, x->sent); }
static Tensor received_rows(Tensor t, const AllToAll *x) { return t_rows(t, x->received_at, x->received); }

static void take_buffers(const Pass *c, Exchange *w, DType dtype, int64_t width)
{
    const Dispatcher *d = c->env->dispatcher;
    for (int s = 0; s < steps(d); s++) {
        w->out[s] = scratch2(c, dtype, max_sent(d, s), width);
        w->in[s]  = scratch2(c, dtype, max_received(d, s), width);
    }
}

/* Copies a chunk's rows to the send buffer, once for each peer that needs them, and starts step s. */
static void start_step(const Pass *c, const Route *r, Exchange *w, Tensor from, int s, int k)
{
    const AllToAll *x = exchange_of(r, k, s);
    op_expand_rows(c->be, sent_rows(w->out[s], x), in_rows(from, x), in_rows(r->index[s], x));
    w->ticket[k] = a2a_dispatch_start(step_comm(c->env->dispatcher, s), x, w->in[s], w->out[s]);
}

static void dispatch_start(const Pass *c, const Route *r, Exchange *w, Tensor x, Tensor rows)
{
    take_buffers(c, w, (DType)x.dtype, x.n[1]);
    for (int k = 0; k < c->env->dispatcher->exchange_chunks; k++) start_step(c, r, w, x, 0, k);
}

static void dispatch_finish(const Pass *c, const Route *r, Exchange *w, Tensor rows)
{
    const Dispatcher *d = c->env->dispatcher;
    int last = last_step(d);
    if (d->conf.shape.pad) op_fill(c->be, rows, 0.0f);
    for (int k = 0; k < d->exchange_chunks && last; k++) {
        comm_join(w->ticket[k]);
        start_step(c, r, w, w->in[0], last, k);
    }
    for (int k = 0; k < d->exchange_chunks; k++) {
        const AllToAll *x = exchange_of(r, k, last);
        comm_join(w->ticket[k]);
        c->be->ledger.shares = d->exchange_chunks;
        op_expand_rows(c->be, rows, received_rows(w->in[last], x), received_rows(r->index[FINAL], x));
        c->be->ledger.shares = 0;
    }
}

/* ---- routing ---- */

/* Dispatches the tags before any row: the index of the intra-node step is made from them where
 * they arrive. */
static void dispatch_tags(const Pass *c, const Route *r, Exchange *w, Tensor kept, Tensor weight)
{
    const Dispatcher *d = c->env->dispatcher;
    int64_t T = kept.n[0], K = kept.n[1];
    Tensor  tags = scratch2(c, I32, T, 2 * K), none = { 0 };
    op_moe_pack(c->be, tags, kept, weight, d->n, d->me);
    dispatch_start(c, r, w, tags, (Tensor){ 0 });
    if (steps(d) == 2) {
        Tensor key = scratch2(c, I32, max_received(d, 0), K);
        Tensor offsets = scratch2(c, I32, d->domain_size + 1, 1);
        Destinations to = { d->local_experts * d->n, member_at(d, domain_of(d, d->me), 0), 1 };
        for (int k = 0; k < d->exchange_chunks; k++) {
            const AllToAll *x = exchange_of(r, k, 1);
            Tensor chunk_key = in_rows(key, x);
            comm_join(w->ticket[k]);
            op_moe_unpack(c->be, chunk_key, none, in_rows(w->in[0], x), 0);
            hier_sort_by_destination(c, offsets, in_rows(r->index[1], x), chunk_key, max_received(d, 0), to);
            start_step(c, r, w, w->in[0], 1, k);
        }
    }
    for (int k = 0; k < d->exchange_chunks; k++) comm_join(w->ticket[k]);
}

/* Makes index[FINAL], offsets and gates from the tags that arrived. Keys are ordered by expert and source: an
 * expert's rows are n lists, of which a->offsets takes the first. */
static void index_expert_rows(const Pass *c, const Moe *m, MoeAct *a, Tensor tags)
{
    const Dispatcher *d = c->env->dispatcher;
    Tensor  index = a->route.index[FINAL];
    int64_t A = index.n[0], K = index.n[1], lists = d->local_experts * d->n, max_rows = tags.n[0];
    Tensor  key     = t_rows(scratch2(c, I32, max_rows, K), 0, A);
    Tensor  gate    = t_rows(scratch2(c, F32, max_rows, K), 0, A);
    Tensor  src     = t_rows(scratch2(c, I32, max_rows * K, 1), 0, A * K);
    Tensor  offsets = scratch2(c, I32, lists + 1, 1);
    op_moe_unpack(c->be, key, gate, t_rows(tags, 0, A), d->me / d->etp * lists);
    op_sort_by_expert(c->be, offsets, index, src, key);
    if (m->pad) {
        int64_t capacity = moe_capacity(m, d->conf.shape.T);
        Tensor  padded = scratch2(c, I32, lists + 1, 1), to = scratch2(c, I32, lists * capacity, 1);
        op_moe_pad(c->be, padded, index, to, offsets, src, capacity);
        op_fill(c->be, a->gate, 0.0f);
        offsets = padded;
    }
    Tensor first_of_expert = a->offsets;
    first_of_expert.data = offsets.data, first_of_expert.s[0] = d->n;
    op_copy(c->be, a->offsets, first_of_expert);
    op_scatter_rows(c->be, a->gate, t_as2(gate, A * K, 1), t_as2(index, A * K, 1), false);
}

static void reserve(const Pass *c, const Moe *m, MoeAct *a, int64_t T)
{
    const Dispatcher *d = c->env->dispatcher;
    Route *r = &a->route;
    int    last = last_step(d);
    route_table(c, r);
    need(c, L_ROUTE, &r->index[0], I32, T, peers(d, 0));
    if (last) need(c, L_ROUTE, &r->index[1], I32, max_received(d, 0), peers(d, 1));
    need(c, L_ROUTE, &r->index[FINAL], I32, max_received(d, last), m->K);
    need(c, L_ROUTE, &a->offsets, I32, d->local_experts + 1, 1);
    need(c, L_ROUTE, &a->gate, F32, d->row_capacity, 1);
}

/* Sets the rows of this rank's experts and the gates that belong to them. */
static void exchange_tags(const Pass *c, const Moe *m, MoeAct *a, Tensor kept)
{
    const Dispatcher *d = c->env->dispatcher;
    Route   *r = &a->route;
    Exchange exchange = { 0 };
    hier_set_layout(c, r, kept.n[0]);
    a->R = m->pad ? d->row_capacity : 0;
    for (int from = 0; from < d->n && !m->pad; from++) a->R += hier_rows_for_experts(d, from, d->me);
    a->gate = t_rows(a->gate, 0, a->R);
    r->index[FINAL] = t_rows(r->index[FINAL], 0, arrived_rows(d, r));
    dispatch_tags(c, r, &exchange, kept, a->weight);
    index_expert_rows(c, m, a, exchange.in[last_step(d)]);
}

static bool build_routing(const Pass *c, const Moe *m, MoeAct *a, Tensor kept)
{
    Route    *r = &a->route;
    ArenaMark mark = routing_scratch_mark(c);
    r->index[0] = t_rows(r->index[0], 0, kept.n[0]);
    hier_exchange_counts(c, r->index[0], kept);
    bool fits = hier_all_fit(c->env->dispatcher);
    if (fits) exchange_tags(c, m, a, kept);
    routing_scratch_note(c);
    arena_reset(c->scratch, mark);
    return fits;
}

/* ---- combine ---- */

static void combine_start(const Pass *c, const Route *r, Exchange *w, Tensor rows)
{
    const Dispatcher *d = c->env->dispatcher;
    int    last = last_step(d);
    Tensor none = { 0 };
    take_buffers(c, w, (DType)rows.dtype, rows.n[1]);
    for (int k = 0; k < d->exchange_chunks; k++) {
        const AllToAll *x = exchange_of(r, k, last);
        c->be->ledger.shares = d->exchange_chunks;
        op_combine(c->be, received_rows(w->in[last], x), rows, received_rows(r->index[FINAL], x), none);
        c->be->ledger.shares = 0;
        w->ticket[k] = a2a_combine_start(step_comm(d, last), x, w->out[last], w->in[last]);
    }
}

/* Where there are two steps: the forwarding member sums what its domain returned and starts the inter-node
 * step. */
static void combine_inter_node(const Pass *c, const Route *r, Exchange *w)
{
    const Dispatcher *d = c->env->dispatcher;
    Tensor none = { 0 };
    for (int k = 0; k < d->exchange_chunks && steps(d) == 2; k++) {
        const AllToAll *x = exchange_of(r, k, 1);
        comm_join(w->ticket[k]);
        op_combine(c->be, in_rows(w->in[0], x), sent_rows(w->out[1], x), in_rows(r->index[1], x), none);
        w->ticket[k] = a2a_combine_start(step_comm(d, 0), exchange_of(r, k, 0), w->out[0], w->in[0]);
    }
}

static void combine_at_source(const Pass *c, const Route *r, Exchange *w, Tensor y, Tensor res)
{
    const Dispatcher *d = c->env->dispatcher;
    Tensor none = { 0 };
    for (int k = 0; k < d->exchange_chunks; k++) {
        const AllToAll *x = exchange_of(r, k, 0);
        comm_join(w->ticket[k]);
        op_combine(c->be, in_rows(y, x), sent_rows(w->out[0], x), in_rows(r->index[0], x),
                   t_has(res) ? in_rows(res, x) : none);
    }
}

static void combine_finish(const Pass *c, const Route *r, Exchange *w, Tensor y, Tensor res)
{
    combine_inter_node(c, r, w);
    pass_yield(c);
    combine_at_source(c, r, w, y, res);
}

/* The gate gradients of a token travel together, (rows, K): zero where the expert is another rank's, so that
 * the sums of combine leave them unchanged. */
static void gate_grad_start(const Pass *c, const Route *r, Exchange *w, Tensor dgate)
{
    const Dispatcher *d = c->env->dispatcher;
    int     last = last_step(d);
    int64_t A = arrived_rows(d, r), K = d->conf.shape.K;
    take_buffers(c, w, F32, K);
    op_gather_rows(c->be, t_as2(t_rows(w->in[last], 0, A), A * K, 1), dgate, r->index[FINAL], 1);
    for (int k = 0; k < d->exchange_chunks; k++)
        w->ticket[k] = a2a_combine_start(step_comm(d, last), exchange_of(r, k, last), w->out[last],
                                         w->in[last]);
}

static void gate_grad_finish(const Pass *c, const Route *r, Exchange *w, Tensor dweight)
{
    combine_inter_node(c, r, w);
    combine_at_source(c, r, w, dweight, (Tensor){ 0 });
}

#define HIERARCHICAL                                                                               \
    .table = hier_table_bytes, .counts = hier_counts, .reserve = reserve, .build_routing = build_routing,    \
    .count_token_chunks = dispatch_token_chunks,                                                   \
    .dispatch_start = dispatch_start, .dispatch_finish = dispatch_finish,                          \
    .combine_start = combine_start, .combine_finish = combine_finish,                              \
    .gate_grad_start = gate_grad_start, .gate_grad_finish = gate_grad_finish

const DispatchOps dispatch_deepep   = { HIERARCHICAL };
const DispatchOps dispatch_hybridep = { .fits = fits_hybridep, HIERARCHICAL };
