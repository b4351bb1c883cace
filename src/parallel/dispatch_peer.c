/* parallel/dispatch_peer.c -- kernels write the row of each (token, expert) assignment straight into the
 * memory of the expert's rank, and read results from it: one hop over etp_ep (parallel/peer_hop.h; ops/peer.h
 * says how).
 *
 * Rows go to the place where the expert reads them (MoeAct.x, or scratch in backward) without a copy in
 * between. Results stay where the expert has written them: the token's rank reads them there and sums them in
 * the order of dispatch_alltoall.c, so the bits are the same. The host never waits and knows no counts: R is
 * row_capacity, grouped products take the rows in use from offsets, and the ledger is charged with an even
 * share, T K ETP rows.
 *
 * A layer whose rows do not fit sends none; see nn/dispatch.h. With host_counts, and in evaluation, the host
 * fetches the rows of the fullest rank after each routing, and chunks are counted as by the others.
 *
 *   index[ROWS] (T, K)   of PeerRoute */
#include "parallel/peer_hop.h"

#include <stdlib.h>

enum { ROWS };

static PeerHop *hop_of(const Pass *c)    { return c->env->dispatcher->bound; }
static size_t   table_bytes(const Dispatcher *d) { return sizeof(PeerRoute); }
static int64_t  counts(const Dispatcher *d)      { return d->conf.shape.E; }

static Status fits(const Mesh *mesh, const DispatchConf *conf)
{
    const char *why = peer_memory_refusal(mesh->comm[GR_etp_ep]);
    if (!why && mesh->comm[GR_ep_inter_node]->size > 1) why = "moe.ranks_per_domain cuts the expert ranks";
    if (!why) why = peer_hop_refusal(mesh, conf);
    return why ? fail(E_CONFIG, "moe.dispatcher = peer: %s; set alltoall, deepep or hybridep", why) : OK;
}

static Status bind(Dispatcher *d, Backend *be, const DispatchArenas *arenas)
{
    PeerHop *h = calloc(1, sizeof *h);
    if (!h) return fail(E_FIT, "no host memory for a token dispatcher");
    d->bound = h;
    return peer_hop_open(h, d, be, arenas,
                         &(PeerHopConf){ d->mesh->comm[GR_etp_ep], d->etp, d->conf.shape.E });
}

static void unbind(Dispatcher *d, bool agreed)
{
    peer_hop_close(d->bound, agreed);
    free(d->bound);
}

static Status overflowed(Dispatcher *d, bool *overflow) { return peer_hop_overflowed(d->bound, overflow); }

/* ---- routing ---- */

static void reserve(const Pass *c, const Moe *m, MoeAct *a, int64_t T)
{
    const Dispatcher *d = c->env->dispatcher;
    Route            *r = &a->route;
    route_table(c, r);
    need(c, L_ROUTE, &r->index[ROWS], I32, T, m->K);
    need(c, L_ROUTE, &a->offsets, I32, d->local_experts + 1, 1);
    need(c, L_ROUTE, &a->gate, F32, d->row_capacity, 1);
}

/* The host waits here alone. */
static bool fetch_fits(const Pass *c)
{
    Dispatcher *d = c->env->dispatcher;
    d->max_rows = peer_hop_max_rows(c, hop_of(c));
    return d->max_rows <= d->row_capacity && !c->be->sticky;
}

static bool build_routing(const Pass *c, const Moe *m, MoeAct *a, Tensor kept)
{
    Dispatcher *d = c->env->dispatcher;
    Route      *r = &a->route;
    PeerRoute  *p = r->table;
    bool        host_counts = peer_hop_needs_counts(c);
    *p = (PeerRoute){ .rows = t_rows(r->index[ROWS], 0, kept.n[0]), .offsets = a->offsets,
                      .weight = a->weight, .gate = a->gate, .charged = peer_hop_most_kept(c, m, kept.n[0]),
                      .layer = m->index, .fresh = true };
    routing_scratch_mark(c);
    peer_hop_route(c, hop_of(c), p, kept, host_counts);
    routing_scratch_note(c);
    a->R = d->row_capacity, a->charged_rows = p->charged * d->etp;
    return !host_counts || fetch_fits(c);
}

/* ---- rows ---- */

static void dispatch_start(const Pass *c, const Route *r, Exchange *w, Tensor x, Tensor rows)
{
    peer_hop_dispatch_start(c, hop_of(c), r->table, w, x, rows);
}

static void dispatch_finish(const Pass *c, const Route *r, Exchange *w, Tensor rows)
{
    peer_hop_dispatch_finish(c, hop_of(c), r->table, w);
}

static void combine_start(const Pass *c, const Route *r, Exchange *w, Tensor rows)
{
    peer_hop_combine_start(c, hop_of(c), r->table, w, rows);
}

static void combine_finish(const Pass *c, const Route *r, Exchange *w, Tensor y, Tensor res)
{
    peer_hop_combine_finish(c, hop_of(c), r->table, w, y, res, true);
}

static void gate_grad_start(const Pass *c, const Route *r, Exchange *w, Tensor dgate)
{
    peer_hop_gate_grad_start(c, hop_of(c), r->table, w, dgate);
}

static void gate_grad_finish(const Pass *c, const Route *r, Exchange *w, Tensor dweight)
{
    peer_hop_gate_grad_finish(c, hop_of(c), r->table, w, dweight);
}

const DispatchOps dispatch_peer = {
    .fits = fits, .table = table_bytes, .counts = counts, .reserve = reserve, .build_routing = build_routing,
    .count_token_chunks = dispatch_token_chunks,
    .dispatch_start = dispatch_start, .dispatch_finish = dispatch_finish,
    .combine_start = combine_start, .combine_finish = combine_finish,
    .gate_grad_start = gate_grad_start, .gate_grad_finish = gate_grad_finish,
    .bind = bind, .unbind = unbind, .overflowed = overflowed,
};
