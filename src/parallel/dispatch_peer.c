/* parallel/dispatch_peer.c -- kernels write the row of each (token, expert) assignment straight into the
 * memory of the expert's rank, and results into the memory of the token's rank; see ops/peer.h for how.
 *
 * Rows go to the place where the expert reads them (MoeAct.x, or scratch in backward) without a copy in
 * between. Results go into a return buffer with a row for each assignment, a plane for each ETP member, from
 * which they are summed as in dispatch_alltoall.c: the bits are the same. A rank has a return buffer for each
 * lane (Pass.lane), and no scratch. The host never waits and knows no counts: R is row_capacity, grouped
 * products take the rows in use from offsets, and the ledger is charged with an even share, T K ETP rows.
 *
 * A layer whose rows do not fit sends none; see nn/dispatch.h. With host_counts, and in evaluation, the host
 * fetches the rows of the fullest rank after each routing, and chunks are counted as by the others.
 *
 *   index[ROWS] (T, K)    EP rank and row of each assignment; -1: dropped
 *   index[SLOTS] (T, K)   its row in the return buffer
 *   index[ORIGIN] (R)     source member and slot of each row of this rank's experts */
#include "comm/peer_memory.h"
#include "parallel/dispatch.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS, SLOTS, ORIGIN };

/* On the host. fresh: gates and origins have not been pushed yet. */
typedef struct Table { Tensor weight, gate, offsets; bool fresh; int layer; } Table;

typedef struct Bound {
    PeerGroup  group;
    PeerMemory memory;
    Backend   *be;
    Tensor     mail, state, status, table;
    Tensor     back[PEER_LANES][2];                /* return buffers: rows, gates */
    char     **addresses;                          /* `table`, on the host */
} Bound;

static Bound           *bound_of(const Pass *c)  { return c->env->dispatcher->bound; }
static const PeerGroup *group_of(const Pass *c)  { return &bound_of(c)->group; }
static Comm            *comm_of(const Pass *c)   { return c->env->dispatcher->mesh->comm[GR_etp_ep]; }
static int channel_of(const Pass *c, PeerKind k) { return peer_channel(c->lane, k); }

static size_t table_bytes(const Dispatcher *d) { return sizeof(Table); }
static int64_t counts(const Dispatcher *d) { return d->conf.shape.E; }

static Status fits(const Mesh *mesh, const DispatchConf *conf)
{
    const char *why = peer_memory_refusal(mesh->comm[GR_etp_ep]);
    if (!why && mesh->comm[GR_ep_inter_node]->size > 1) why = "moe.ranks_per_domain cuts the expert ranks";
    return why ? fail(E_CONFIG, "moe.dispatcher = peer: %s; set alltoall, deepep or hybridep", why) : OK;
}

/* ---- memory ---- */

static int lanes_of(const Dispatcher *d) { return d->conf.overlap ? PEER_LANES : 1; }

static void take_memory(Dispatcher *d, Bound *b, const DispatchArenas *arenas)
{
    const MoeShape *s = &d->conf.shape;
    int64_t planes = d->etp * s->T * s->K;
    REQUIRE(s->row > 0, "moe.dispatcher = peer: the width of a row is not known");
    b->mail   = t1(arenas->lasting, "dispatch", I64, mail_words(d->n, s->E));
    b->state  = t1(arenas->lasting, "dispatch", I64, STATE_WORDS);
    b->table  = t1(arenas->lasting, "dispatch", I64, table_region(PEER_REGIONS) * d->n);
    b->status = t1(arenas->host, "dispatch", I64, STATUS_WORDS);
    for (int i = 0; i < lanes_of(d); i++) {
        b->back[i][0] = t1(arenas->lasting, "dispatch", BF16, planes * s->row / 2);
        b->back[i][1] = t1(arenas->lasting, "dispatch", F32, planes);
    }
}

static void set_group(Dispatcher *d, Bound *b)
{
    const MoeShape *s = &d->conf.shape;
    Comm *comm = d->mesh->comm[GR_etp_ep];
    b->group = (PeerGroup){ .n = d->n, .me = d->me, .etp = d->etp, .group = comm->group, .E = s->E,
                            .regions = b->memory.regions, .region = b->memory.region,
                            .row_capacity = d->row_capacity, .slots = s->T * s->K, .state = b->state.data,
                            .status = b->status.data, .table = b->table.data,
                            .timeout = d->conf.timeout > 0 ? d->conf.timeout : 600,
                            .aborted = peer_memory_aborted, .comm = comm };
}

/* Finds the mailboxes and return buffers of all members and puts their addresses on the device. */
static Status set_table(Dispatcher *d, Bound *b)
{
    int n = d->n;
    b->addresses = calloc((size_t)t_count(b->table), sizeof *b->addresses);
    if (!b->addresses) return fail(E_FIT, "no host memory for the addresses of %d ranks", n);
    peer_memory_find(&b->memory, &b->group, b->mail, b->addresses);
    for (int lane = 0; lane < lanes_of(d); lane++)
        for (int i = 0; i < 2; i++)
            peer_memory_find(&b->memory, &b->group, b->back[lane][i],
                             b->addresses + (1 + 2 * lane + i) * n);
    memcpy(b->addresses + table_region(0) * n, b->memory.at,
           (size_t)(b->memory.regions * n) * sizeof *b->addresses);
    backend_upload(b->be, b->table, b->addresses);
    return OK;
}

/* Every mailbox is empty before one of them is written: arenas are zeroed when they are mapped. */
static Status bind_memory(Dispatcher *d, Bound *b, const DispatchArenas *arenas)
{
    Comm *comm = d->mesh->comm[GR_etp_ep];
    Status st = comm_agree(d->mesh->comm[GR_world],
                           peer_memory_open(&b->memory, comm, arenas->mapped, arenas->n));
    d->unmapped = st;
    TRY_CTX(st, "moe.dispatcher = peer cannot map memory of the node's ranks; set alltoall");
    take_memory(d, b, arenas);
    set_group(d, b);
    TRY(comm_agree(comm, set_table(d, b)));
    TRY(comm_agree(comm, backend_sync(b->be)));
    comm->root->stop_word = b->status.data;
    return OK;
}

static void unbind(Dispatcher *d, bool agreed)
{
    Bound *b = d->bound;
    Comm  *comm = d->mesh->comm[GR_etp_ep];
    if (comm->root->stop_word == b->group.status) comm->root->stop_word = NULL;
    peer_memory_close(&b->memory, agreed);
    free(b->addresses);
    free(b);
}

static Status bind(Dispatcher *d, Backend *be, const DispatchArenas *arenas)
{
    Bound *b = calloc(1, sizeof *b);
    if (!b) return fail(E_FIT, "no host memory for a token dispatcher");
    b->be = be, d->bound = b;
    return bind_memory(d, b, arenas);
}

static Status overflowed(Dispatcher *d, bool *overflow)
{
    const Bound   *b = d->bound;
    const Comm    *c = d->mesh->comm[GR_etp_ep];
    int64_t       *s = b->group.status;
    const char    *what[] = { "counts", "rows", "results", "gate gradients" };
    if (b->be->device == &device_meta) return OK;             /* its memory cannot be read */
    *overflow = s[STATUS_OVERFLOW];
    s[STATUS_OVERFLOW] = 0;
    if (!s[STATUS_FAILED]) return OK;
    int64_t channel = s[STATUS_CHANNEL];
    return fail(E_COMM, "MoE layer %lld: no %s from rank %d within %.0f s (exchange %lld of etp_ep)",
                (long long)s[STATUS_LAYER], what[channel < 0 ? 0 : 1 + channel % PEER_KINDS],
                c->world[s[STATUS_MEMBER]], b->group.timeout, (long long)s[STATUS_EPOCH]);
}

/* An op on a CPU waits for other ranks itself: its time is exposed communication, and a call to the watchdog.
 * A GPU measures it on its own clock. */
typedef struct HostWait { bool on; double since; int64_t call; } HostWait;

static HostWait host_wait_begin(const Pass *c)
{
    HostWait w = { .on = c->be->device->host_memory && !c->be->sticky, .since = clock_now() };
    if (w.on) w.call = comm_wait_begin(comm_of(c), true);
    return w;
}

static void host_wait_end(const Pass *c, HostWait w)
{
    LedgerComm *l = &c->be->ledger.comm[GR_etp_ep];
    double      took = clock_now() - w.since;
    if (!w.on) return;
    comm_wait_end(comm_of(c), w.call, true);
    l->exposed += took, l->length += took;
}

/* ---- routing ---- */

static void reserve(const Pass *c, const Moe *m, MoeAct *a, int64_t T)
{
    const Dispatcher *d = c->env->dispatcher;
    Route            *r = &a->route;
    route_table(c, r);
    r->T = T;
    need(c, L_ROUTE, &r->index[ROWS], I32, T, m->K);
    need(c, L_ROUTE, &r->index[SLOTS], I32, T, m->K);
    need(c, L_ROUTE, &r->index[ORIGIN], I32, d->row_capacity, 1);
    need(c, L_ROUTE, &a->offsets, I32, d->local_experts + 1, 1);
    need(c, L_ROUTE, &a->gate, F32, d->row_capacity, 1);
}

/* The host waits here alone. A device without data answers with 0 rows. */
static bool fetch_fits(const Pass *c)
{
    Dispatcher *d = c->env->dispatcher;
    int64_t     most = 0;
    backend_fetch(c->be, &most, t_rows(bound_of(c)->state, STATE_MAX_ROWS, 1));
    d->max_rows = most;
    return most <= d->row_capacity && !c->be->sticky;
}

/* Whether the host must look at the counts of this pass. In evaluation no step is run again; decoding drops
 * no assignment over capacity, so it may have more rows than any training step. */
static bool needs_host_counts(const Pass *c)
{
    const Dispatcher *d = c->env->dispatcher;
    if (c->mode == EVAL) return d->bounded || d->conf.shape.capacity > 0;
    return d->bounded && d->host_counts;
}

static bool build_routing(const Pass *c, const Moe *m, MoeAct *a, Tensor kept)
{
    Dispatcher *d = c->env->dispatcher;
    Route      *r = &a->route;
    Table      *t = r->table;
    bool        host_counts = needs_host_counts(c);
    r->index[ROWS] = t_rows(r->index[ROWS], 0, kept.n[0]);
    r->index[SLOTS] = t_rows(r->index[SLOTS], 0, kept.n[0]);
    routing_scratch_mark(c);
    HostWait wait = host_wait_begin(c);
    op_peer_route(c->be, group_of(c), a->offsets, r->index[ROWS], r->index[SLOTS], kept, host_counts,
                  m->index);
    host_wait_end(c, wait);
    routing_scratch_note(c);
    a->R = d->row_capacity, a->charged_rows = t_count(kept) * d->etp;
    r->sent = t_count(kept);
    *t = (Table){ .weight = a->weight, .gate = a->gate, .offsets = a->offsets, .fresh = true,
                  .layer = m->index };
    return !host_counts || fetch_fits(c);
}

/* ---- rows ---- */

/* Charges `rows` rows of this size, evenly spread over the EP ranks and sent to all their ETP members. */
static void charge(const Pass *c, PeerKind kind, int64_t rows, Tensor like, int64_t more)
{
    int64_t row = like.n[1] * (int64_t)dtype_size((DType)like.dtype) + more;
    comm_push_start(comm_of(c), channel_of(c, kind), rows * row * group_of(c)->etp / group_of(c)->n);
}

static void wait_for(const Pass *c, const Route *r, const Exchange *w, PeerKind kind)
{
    const Table *t = r->table;
    if (!w->at_once) {
        HostWait wait = host_wait_begin(c);
        op_peer_wait(c->be, group_of(c), channel_of(c, kind), t->layer);
        host_wait_end(c, wait);
    }
    comm_push_join(comm_of(c), channel_of(c, kind));
}

static void dispatch_start(const Pass *c, const Route *r, Exchange *w, Tensor x, Tensor rows)
{
    Table *t = r->table;
    int    channel = channel_of(c, PEER_DISPATCH);
    Tensor none = { 0 };
    HostWait wait = host_wait_begin(c);
    charge(c, PEER_DISPATCH, r->sent, x, t->fresh ? 8 : 0);
    op_peer_post(c->be, group_of(c), channel, rows, t->fresh ? t->gate : none,
                 t->fresh ? r->index[ORIGIN] : none, t->layer);
    op_peer_push(c->be, group_of(c), channel, x, r->index[ROWS], t->fresh ? t->weight : none, w->at_once,
                 t->layer);
    t->fresh = false;
    host_wait_end(c, wait);
}

static void dispatch_finish(const Pass *c, const Route *r, Exchange *w, Tensor rows)
{
    wait_for(c, r, w, PEER_DISPATCH);
}

static void return_start(const Pass *c, const Route *r, Exchange *w, Tensor rows, PeerKind kind)
{
    const Table *t = r->table;
    HostWait     wait = host_wait_begin(c);
    charge(c, kind, r->sent, rows, 0);
    op_peer_return(c->be, group_of(c), channel_of(c, kind), rows, r->index[ORIGIN], t->offsets, w->at_once,
                   t->layer);
    host_wait_end(c, wait);
}

static void combine_start(const Pass *c, const Route *r, Exchange *w, Tensor rows)
{
    return_start(c, r, w, rows, PEER_COMBINE);
}

static void gate_grad_start(const Pass *c, const Route *r, Exchange *w, Tensor dgate)
{
    return_start(c, r, w, dgate, PEER_GATE_GRAD);
}

/* The return buffer as rows of this width: a plane for each ETP member. */
static Tensor returned(const Pass *c, PeerKind kind, DType d, int64_t cols)
{
    const PeerGroup *g = group_of(c);
    Tensor back = bound_of(c)->back[c->lane][kind == PEER_GATE_GRAD];
    return t_wrap(back.data, d, 2, (int64_t[]){ g->etp * g->slots, cols });
}

/* Rows of the return buffer with the partial results of every assignment: (T, K ETP). */
static Tensor plane_rows(const Pass *c, const Route *r)
{
    Tensor slots = r->index[SLOTS];
    int    etp = group_of(c)->etp;
    if (etp == 1) return slots;
    Tensor all = t_rows(scratch2(c, I32, r->T, slots.n[1] * etp), 0, slots.n[0]);
    op_expand_etp_rows(c->be, all, slots, group_of(c)->slots);
    return all;
}

static void combine_finish(const Pass *c, const Route *r, Exchange *w, Tensor y, Tensor res)
{
    Tensor rows = plane_rows(c, r);
    pass_yield(c);
    wait_for(c, r, w, PEER_COMBINE);
    op_combine(c->be, y, returned(c, PEER_COMBINE, (DType)y.dtype, y.n[1]), rows, res);
}

static void gate_grad_finish(const Pass *c, const Route *r, Exchange *w, Tensor dweight)
{
    Tensor  rows = plane_rows(c, r);
    int64_t n = t_count(dweight);
    wait_for(c, r, w, PEER_GATE_GRAD);
    op_combine(c->be, t_as2(dweight, n, 1), returned(c, PEER_GATE_GRAD, F32, 1),
               t_as2(rows, n, group_of(c)->etp), (Tensor){ 0 });
}

const DispatchOps dispatch_peer = {
    .fits = fits, .table = table_bytes, .counts = counts, .reserve = reserve, .build_routing = build_routing,
    .count_token_chunks = dispatch_token_chunks,
    .dispatch_start = dispatch_start, .dispatch_finish = dispatch_finish,
    .combine_start = combine_start, .combine_finish = combine_finish,
    .gate_grad_start = gate_grad_start, .gate_grad_finish = gate_grad_finish,
    .bind = bind, .unbind = unbind, .overflowed = overflowed,
};
