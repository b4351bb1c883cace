/* parallel/dispatch_deepep_peer.c -- two hops: a token crosses to a node once, and there kernels write its
 * rows straight into the memory of the experts' ranks.
 *
 * Inter-node: a token that any expert of a domain needs is sent once over the network, to the member of that
 * domain with the sender's local index, as deepep does. Intra-node: that member pushes a row for each of the
 * token's experts in its domain to the place where the expert reads it (parallel/peer_hop.h); the host knows
 * no counts of this hop.
 *
 * A token travels with a tag (ops/exchange.c) whose keys are expert x domains + source domain. In the
 * intra-node hop each key is a list of its own: rows are ordered by expert, source domain, forwarding member
 * and token, which is by expert, source member and token. The experts get the rows of alltoall.
 *
 * Combine takes the hops back. The forwarding member reads a token's rows in its domain and sums them in the
 * order of the K choices, the source sums those of the domains in theirs: two sums in f32, each rounded to
 * the dtype, where alltoall has one and deepep three.
 *
 * The host waits once a layer, in forward: for the tokens between domains, which the sizes of the messages
 * follow from. They are exchanged on the device and copied to pinned memory; the host waits for that copy
 * alone, after another micro-batch had its turn. In exchange the backward of an overlapped pair has a turn
 * more while its rows are pushed, so that both have three.
 *
 * Tokens that the buffer for arrived rows does not hold are an overflow like that of experts' rows: the
 * members of the inter-node group, which all have the counts, send nothing. With host_counts all members
 * agree whether a layer fits.
 *
 *   A                     tokens that arrived in the inter-node hop
 *   index[SEND] (T, G)    row of the send buffer for each of G domains; -1: not sent to it
 *   index[ROWS] (A, K), index[WEIGHT] (A, K), index[LISTS]    of PeerRoute: rows, weight, offsets of lists */
#include "parallel/dispatch_hierarchical.h"
#include "parallel/peer_hop.h"

#include <stdlib.h>

enum { SEND, ROWS, WEIGHT, LISTS };

/* Followed by the arrays of `hop`. */
typedef struct Table { PeerRoute peer; AllToAll hop; } Table;

/* counts (G, G + 1), pinned, by lane: for each member of the inter-node group where its tokens for each
 * domain begin. */
typedef struct Bound { PeerHop hop; Tensor counts[PEER_LANES]; } Bound;

static Bound     *bound_of(const Pass *c)          { return c->env->dispatcher->bound; }
static PeerHop   *hop_of(const Pass *c)            { return &bound_of(c)->hop; }
static PeerRoute *peer_route(const Route *r)       { return &((Table *)r->table)->peer; }
static AllToAll  *hop_layout(const Route *r)       { return &((Table *)r->table)->hop; }
static Comm      *inter_node(const Dispatcher *d)  { return d->mesh->comm[GR_ep_inter_node]; }

static int64_t counts(const Dispatcher *d) { return (int64_t)d->domains * (d->domains + 1); }
static size_t  table_bytes(const Dispatcher *d)
{
    return sizeof(Table) + 4 * (size_t)d->domains * sizeof(int64_t);
}

/* ---- sizes of buffers ---- */

static int64_t max_arrived(const Dispatcher *d)
{
    int64_t all = d->domains * d->conf.shape.T;
    return d->bounded && all > d->row_capacity ? d->row_capacity : all;
}

static int64_t max_sent(const Dispatcher *d)
{
    const MoeShape *s = &d->conf.shape;
    return s->T * (d->domains < s->K ? d->domains : s->K);
}

/* ---- opening ---- */

static Status fits(const Mesh *mesh, const DispatchConf *conf)
{
    const char *why = peer_hop_refusal(mesh, conf);
    return why ? fail(E_CONFIG, "moe.dispatcher = deepep_peer: %s; set deepep or hybridep", why) : OK;
}

static Status bind(Dispatcher *d, Backend *be, const DispatchArenas *arenas)
{
    PeerHopConf conf = { d->mesh->comm[GR_ep_intra_node], d->etp, d->conf.shape.E };
    Bound *b = calloc(1, sizeof *b);
    if (!b) return fail(E_FIT, "no host memory for a token dispatcher");
    d->bound = b;
    TRY(peer_hop_open(&b->hop, d, be, arenas, &conf));
    for (int i = 0; i < PEER_LANES; i++)
        b->counts[i] = t2(arenas->host, "dispatch", I32, d->domains, d->domains + 1);
    return OK;
}

static void unbind(Dispatcher *d, bool agreed)
{
    Bound *b = d->bound;
    peer_hop_close(&b->hop, agreed);
    free(b);
}

static Status overflowed(Dispatcher *d, bool *overflow)
{
    return peer_hop_overflowed(&((Bound *)d->bound)->hop, overflow);
}

/* ---- routing: the inter-node hop ---- */

static void reserve(const Pass *c, const Moe *m, MoeAct *a, int64_t T)
{
    const Dispatcher *d = c->env->dispatcher;
    Route            *r = &a->route;
    route_table(c, r);
    need(c, L_ROUTE, &r->index[SEND], I32, T, d->domains);
    need(c, L_ROUTE, &r->index[ROWS], I32, max_arrived(d), m->K);
    need(c, L_ROUTE, &r->index[WEIGHT], F32, max_arrived(d), m->K);
    need(c, L_ROUTE, &r->index[LISTS], I32, d->local_experts * d->domains + 1, 1);
    need(c, L_ROUTE, &a->offsets, I32, d->local_experts + 1, 1);
    need(c, L_ROUTE, &a->gate, F32, d->row_capacity, 1);
}

static AllToAll *new_hop_layout(const Dispatcher *d, Route *r)
{
    AllToAll *x = hop_layout(r);
    int64_t  *memory = (int64_t *)((Table *)r->table + 1);
    *x = (AllToAll){ 0 };
    a2a_set_arrays(x, &memory, d->domains);
    return x;
}

static int32_t *fetched_counts(const Pass *c)
{
    bool readable = c->be->device != &device_meta;
    return readable ? bound_of(c)->counts[c->lane].data : c->env->dispatcher->fetched;
}

/* Sends where this member's tokens for each domain begin to every member of the inter-node group, and starts
 * the copy of what arrives to the host. */
static void exchange_counts(const Pass *c, Route *r, Tensor own)
{
    const Dispatcher *d = c->env->dispatcher;
    AllToAll *x = new_hop_layout(d, r);
    Tensor    all = scratch2(c, I32, d->domains, d->domains + 1);
    for (int g = 0; g < d->domains; g++)
        x->send_at[g] = 0, x->send_n[g] = 1, x->recv_at[g] = g, x->recv_n[g] = 1;
    x->sent = 1, x->received = d->domains;
    comm_join(a2a_dispatch_start(inter_node(d), x, all, own));
    backend_post(c->be, POST_COUNTS + c->lane, fetched_counts(c), all);
}

/* The host waits for the counts alone. To the watchdog it waits for the members that send them, or that
 * kernels before the copy wait for. */
static void wait_for_counts(const Pass *c)
{
    Comm   *comm = c->env->dispatcher->mesh->comm[GR_etp_ep];
    bool    waits = pass_has_data(c) && !c->be->device->host_memory;
    int64_t call = waits ? comm_wait_begin(comm, false) : 0;
    Status  st = backend_wait_post(c->be, POST_COUNTS + c->lane, NULL);
    if (c->be->ledger.meter) c->be->ledger.meter->fetch(c->be->ledger.meter);
    if (st && !c->be->sticky) c->be->sticky = st;
    if (waits) comm_wait_end(comm, call, false);
}

/* Another micro-batch may route tokens in its turn: the start of this one's scratch is kept here. A chunk has
 * no turn of its own. */
static void yield_while_counted(const Pass *c, const MoeAct *a)
{
    Dispatcher *d = c->env->dispatcher;
    size_t      start = d->scratch_start;
    if (!a->is_chunk) pass_yield(c);
    d->scratch_start = start;
    wait_for_counts(c);
}

/* Tokens that the member of domain `from` sends to domain `to`; evenly routed ones without data. */
static int64_t tokens_between(const Pass *c, int from, int to, int64_t T)
{
    const Dispatcher *d = c->env->dispatcher;
    const int32_t    *at = fetched_counts(c) + (int64_t)from * (d->domains + 1) + to;
    if (!pass_has_data(c)) return hier_expected_tokens(d, T, d->conf.shape.E / d->domains);
    return c->be->sticky ? 0 : at[1] - at[0];
}

/* The most tokens that arrive at a member of the inter-node group. */
static int64_t most_arriving(const Pass *c, int64_t T)
{
    const Dispatcher *d = c->env->dispatcher;
    int64_t most = 0;
    for (int to = 0; to < d->domains; to++) {
        int64_t n = 0;
        for (int from = 0; from < d->domains; from++) n += tokens_between(c, from, to, T);
        if (n > most) most = n;
    }
    return most;
}

static void set_layout(const Pass *c, Route *r, int64_t T, bool none)
{
    const Dispatcher *d = c->env->dispatcher;
    AllToAll *x = new_hop_layout(d, r);
    int       own = domain_of(d, d->me);
    for (int g = 0; g < d->domains; g++) {
        x->send_n[g] = none ? 0 : tokens_between(c, own, g, T);
        x->recv_n[g] = none ? 0 : tokens_between(c, g, own, T);
    }
    x->in = T;
    a2a_set_offsets(x, d->domains);
}

/* Makes the index and the layout of the inter-node hop. Returns the rows of the fullest buffer if it
 * overflows, else 0. */
static int64_t route_inter_node(const Pass *c, MoeAct *a, Tensor kept)
{
    const Dispatcher *d = c->env->dispatcher;
    Route  *r = &a->route;
    int64_t T = kept.n[0];
    Tensor  own = scratch2(c, I32, 1, d->domains + 1);
    r->index[SEND] = t_rows(r->index[SEND], 0, T);
    hier_sort_by_destination(c, t_as2(own, d->domains + 1, 1), r->index[SEND], kept, T,
                             (Destinations){ d->local_experts, 0, d->domain_size });
    exchange_counts(c, r, own);
    yield_while_counted(c, a);
    int64_t most = most_arriving(c, T);
    bool    none = most > max_arrived(d);
    if (none) op_fill(c->be, r->index[SEND], -1.0f);
    set_layout(c, r, T, none);
    return none ? most : 0;
}

/* ---- routing: the intra-node hop ---- */

/* Rows of tokens to the member of each domain that forwards them. */
static Ticket send_to_domains(const Pass *c, const Route *r, Exchange *w, Tensor x)
{
    const Dispatcher *d = c->env->dispatcher;
    const AllToAll   *hop = hop_layout(r);
    w->out[0] = scratch2(c, (DType)x.dtype, max_sent(d), x.n[1]);
    w->in[0]  = scratch2(c, (DType)x.dtype, max_arrived(d), x.n[1]);
    op_expand_rows(c->be, t_rows(w->out[0], 0, hop->sent), x, r->index[SEND]);
    return a2a_dispatch_start(inter_node(d), hop, w->in[0], w->out[0]);
}

static Tensor arrived(const Route *r, Tensor t) { return t_rows(t, 0, hop_layout(r)->received); }

/* Sends the tags and makes of them the assignments of the intra-node hop: lists of this domain's experts.
 * Keys of other domains' experts are out of range there. */
static Tensor exchange_tags(const Pass *c, MoeAct *a, Tensor kept)
{
    const Dispatcher *d = c->env->dispatcher;
    Route   *r = &a->route;
    int64_t  K = kept.n[1], domain = domain_of(d, d->me);
    Exchange w = { 0 };
    Tensor   tags = scratch2(c, I32, kept.n[0], 2 * K);
    op_moe_pack(c->be, tags, kept, a->weight, d->domains, domain);
    comm_join(send_to_domains(c, r, &w, tags));
    Tensor lists = arrived(r, scratch2(c, I32, max_arrived(d), K));
    op_moe_unpack(c->be, lists, arrived(r, r->index[WEIGHT]), arrived(r, w.in[0]),
                  domain * d->conf.shape.E);
    return lists;
}

static void set_peer_route(const Pass *c, const Moe *m, MoeAct *a)
{
    Route *r = &a->route;
    *peer_route(r) = (PeerRoute){ .rows = arrived(r, r->index[ROWS]), .offsets = r->index[LISTS],
                                  .weight = arrived(r, r->index[WEIGHT]), .gate = a->gate,
                                  .charged = peer_hop_most_kept(c, m, a->weight.n[0]),
                                  .layer = m->index, .fresh = true };
}

/* An expert's rows are a list for each source domain, of which a->offsets takes the first. */
static void set_expert_offsets(const Pass *c, const MoeAct *a)
{
    Tensor first_of_expert = a->offsets;
    first_of_expert.data = a->route.index[LISTS].data, first_of_expert.s[0] = c->env->dispatcher->domains;
    op_copy(c->be, a->offsets, first_of_expert);
}

/* Whether the rows of every member of etp_ep fit; `most` of the inter-node hop do not. The host waits. */
static bool agree_fits(const Pass *c, int64_t most)
{
    Dispatcher *d = c->env->dispatcher;
    int64_t     rows = peer_hop_max_rows(c, hop_of(c));
    double      all = (double)(rows > most ? rows : most);
    comm_host_max(d->mesh->comm[GR_etp_ep], &all, 1);
    d->max_rows = (int64_t)all;
    return d->max_rows <= d->row_capacity && !c->be->sticky;
}

static bool build_routing(const Pass *c, const Moe *m, MoeAct *a, Tensor kept)
{
    Dispatcher *d = c->env->dispatcher;
    PeerHop    *h = hop_of(c);
    bool        host_counts = peer_hop_needs_counts(c);
    ArenaMark   mark = routing_scratch_mark(c);
    int64_t     most = route_inter_node(c, a, kept);
    if (most && !host_counts) h->group.status[STATUS_OVERFLOW] = 1;
    Tensor lists = exchange_tags(c, a, kept);
    set_peer_route(c, m, a);
    peer_hop_route(c, h, peer_route(&a->route), lists, host_counts);
    set_expert_offsets(c, a);
    routing_scratch_note(c);
    arena_reset(c->scratch, mark);
    a->R = d->row_capacity, a->charged_rows = peer_route(&a->route)->charged * d->etp;
    return !host_counts || agree_fits(c, most);
}

/* ---- rows ---- */

static void dispatch_start(const Pass *c, const Route *r, Exchange *w, Tensor x, Tensor rows)
{
    w->ticket[0] = send_to_domains(c, r, w, x);
}

/* The backward of an overlapped pair lets the forward run while its rows are pushed. */
static void dispatch_finish(const Pass *c, const Route *r, Exchange *w, Tensor rows)
{
    comm_join(w->ticket[0]);
    peer_hop_dispatch_start(c, hop_of(c), peer_route(r), w, arrived(r, w->in[0]), rows);
    if (c->lane) pass_yield(c);
    peer_hop_dispatch_finish(c, hop_of(c), peer_route(r), w);
}

/* Returns a row of `sums` for each token that arrived to the member that it came from. */
static void return_to_source(const Pass *c, const Route *r, Exchange *w, Tensor sums)
{
    const Dispatcher *d = c->env->dispatcher;
    w->out[0] = scratch2(c, (DType)sums.dtype, max_sent(d), sums.n[1]);
    w->ticket[0] = a2a_combine_start(inter_node(d), hop_layout(r), w->out[0], sums);
}

static void sum_at_source(const Pass *c, const Route *r, Exchange *w, Tensor y, Tensor res)
{
    comm_join(w->ticket[0]);
    op_combine(c->be, y, t_rows(w->out[0], 0, hop_layout(r)->sent), r->index[SEND], res);
}

static Tensor take_sums(const Pass *c, const Route *r, Tensor like)
{
    return arrived(r, scratch2(c, (DType)like.dtype, max_arrived(c->env->dispatcher), like.n[1]));
}

static void combine_start(const Pass *c, const Route *r, Exchange *w, Tensor rows)
{
    peer_hop_combine_start(c, hop_of(c), peer_route(r), w, rows);
}

static void combine_finish(const Pass *c, const Route *r, Exchange *w, Tensor y, Tensor res)
{
    Tensor sums = take_sums(c, r, y);
    peer_hop_combine_finish(c, hop_of(c), peer_route(r), w, sums, (Tensor){ 0 }, false);
    return_to_source(c, r, w, sums);
    pass_yield(c);
    sum_at_source(c, r, w, y, res);
}

static void gate_grad_start(const Pass *c, const Route *r, Exchange *w, Tensor dgate)
{
    peer_hop_gate_grad_start(c, hop_of(c), peer_route(r), w, dgate);
}

/* The gate gradients of a token travel together: zero where the expert is another domain's. */
static void gate_grad_finish(const Pass *c, const Route *r, Exchange *w, Tensor dweight)
{
    Tensor sums = take_sums(c, r, dweight);
    peer_hop_gate_grad_finish(c, hop_of(c), peer_route(r), w, sums);
    return_to_source(c, r, w, sums);
    sum_at_source(c, r, w, dweight, (Tensor){ 0 });
}

const DispatchOps dispatch_deepep_peer = {
    .fits = fits, .table = table_bytes, .counts = counts, .reserve = reserve, .build_routing = build_routing,
    .count_token_chunks = dispatch_token_chunks,
    .dispatch_start = dispatch_start, .dispatch_finish = dispatch_finish,
    .combine_start = combine_start, .combine_finish = combine_finish,
    .gate_grad_start = gate_grad_start, .gate_grad_finish = gate_grad_finish,
    .bind = bind, .unbind = unbind, .overflowed = overflowed,
};
