/* parallel/peer_hop.c -- see peer_hop.h. A member has a return buffer for each lane (Pass.lane), and no
 * scratch. The ledger is charged with an even share of rows: the host does not know how many there are. */
#include "parallel/peer_hop.h"

#include <stdlib.h>
#include <string.h>

static int channel_of(const Pass *c, PeerKind k) { return peer_channel(c->lane, k); }

/* ---- memory ---- */

static int lanes_of(const Dispatcher *d) { return d->conf.overlap ? PEER_LANES : 1; }

static void take_memory(PeerHop *h, const Dispatcher *d, const DispatchArenas *arenas,
                        const PeerHopConf *conf)
{
    const MoeShape *s = &d->conf.shape;
    int     n = conf->comm->size;
    int64_t planes = conf->etp * conf->tokens * s->K;
    REQUIRE(s->row > 0, "moe.dispatcher = %s: the width of a row is not known", d->row->name);
    h->mail   = t1(arenas->lasting, "dispatch", I64, mail_words(n, conf->E));
    h->state  = t1(arenas->lasting, "dispatch", I64, STATE_WORDS);
    h->table  = t1(arenas->lasting, "dispatch", I64, table_region(PEER_REGIONS) * n);
    h->status = t1(arenas->host, "dispatch", I64, STATUS_WORDS);
    for (int i = 0; i < lanes_of(d); i++) {
        h->back[i][0] = t1(arenas->lasting, "dispatch", BF16, planes * s->row / 2);
        h->back[i][1] = t1(arenas->lasting, "dispatch", F32, planes);
    }
}

static void set_group(PeerHop *h, const Dispatcher *d, const PeerHopConf *conf)
{
    Comm *comm = conf->comm;
    h->group = (PeerGroup){ .n = comm->size, .me = comm->rank, .etp = conf->etp, .group = comm->group,
                            .E = conf->E, .regions = h->memory.regions, .region = h->memory.region,
                            .row_capacity = d->row_capacity, .slots = conf->tokens * d->conf.shape.K,
                            .state = h->state.data, .status = h->status.data, .table = h->table.data,
                            .timeout = d->conf.timeout > 0 ? d->conf.timeout : 600,
                            .aborted = peer_memory_aborted, .comm = comm };
}

/* Finds the mailboxes and return buffers of all members and puts their addresses on the device. */
static Status set_table(PeerHop *h, const Dispatcher *d)
{
    int n = h->comm->size;
    h->addresses = calloc((size_t)t_count(h->table), sizeof *h->addresses);
    if (!h->addresses) return fail(E_FIT, "no host memory for the addresses of %d ranks", n);
    peer_memory_find(&h->memory, &h->group, h->mail, h->addresses);
    for (int lane = 0; lane < lanes_of(d); lane++)
        for (int i = 0; i < 2; i++)
            peer_memory_find(&h->memory, &h->group, h->back[lane][i],
                             h->addresses + (1 + 2 * lane + i) * n);
    memcpy(h->addresses + table_region(0) * n, h->memory.at,
           (size_t)(h->memory.regions * n) * sizeof *h->addresses);
    backend_upload(h->be, h->table, h->addresses);
    return OK;
}

/* Every mailbox is empty before one of them is written: arenas are zeroed when they are mapped. */
Status peer_hop_open(PeerHop *h, Dispatcher *d, Backend *be, const DispatchArenas *arenas,
                     const PeerHopConf *conf)
{
    *h = (PeerHop){ .comm = conf->comm, .be = be };
    Status st = comm_agree(d->mesh->comm[GR_world],
                           peer_memory_open(&h->memory, conf->comm, arenas->mapped, arenas->n));
    d->unmapped = st;
    TRY_CTX(st, "moe.dispatcher = %s cannot map memory of the node's ranks; set alltoall", d->row->name);
    take_memory(h, d, arenas, conf);
    set_group(h, d, conf);
    TRY(comm_agree(h->comm, set_table(h, d)));
    TRY(comm_agree(h->comm, backend_sync(be)));
    h->comm->root->stop_word = h->status.data;
    return OK;
}

void peer_hop_close(PeerHop *h, bool agreed)
{
    if (h->comm && h->comm->root->stop_word == h->group.status) h->comm->root->stop_word = NULL;
    peer_memory_close(&h->memory, agreed);
    free(h->addresses);
    *h = (PeerHop){ 0 };
}

Status peer_hop_overflowed(PeerHop *h, bool *overflow)
{
    const Comm *c = h->comm;
    int64_t    *s = h->group.status;
    const char *what[] = { "counts", "rows", "results", "gate gradients" };
    if (h->be->device == &device_meta) return OK;             /* its memory cannot be read */
    *overflow = s[STATUS_OVERFLOW];
    s[STATUS_OVERFLOW] = 0;
    if (!s[STATUS_FAILED]) return OK;
    int64_t channel = s[STATUS_CHANNEL];
    return fail(E_COMM, "MoE layer %lld: no %s from rank %d within %.0f s (exchange %lld of %s)",
                (long long)s[STATUS_LAYER], what[channel < 0 ? 0 : 1 + channel % PEER_KINDS],
                c->world[s[STATUS_MEMBER]], h->group.timeout, (long long)s[STATUS_EPOCH],
                group_name((GroupId)c->group));
}

/* ---- routing ---- */

/* An op on a CPU waits for other ranks itself: its time is exposed communication, and a call to the watchdog.
 * A GPU measures it on its own clock. */
typedef struct HostWait { bool on; double since; int64_t call; } HostWait;

static HostWait host_wait_begin(const Pass *c, const PeerHop *h)
{
    HostWait w = { .on = c->be->device->host_memory && !c->be->sticky, .since = clock_now() };
    if (w.on) w.call = comm_wait_begin(h->comm, true);
    return w;
}

static void host_wait_end(const Pass *c, const PeerHop *h, HostWait w)
{
    LedgerComm *l = &c->be->ledger.comm[h->comm->group];
    double      took = clock_now() - w.since;
    if (!w.on) return;
    comm_wait_end(h->comm, w.call, true);
    l->exposed += took, l->length += took;
}

void peer_hop_route(const Pass *c, PeerHop *h, PeerRoute *r, Tensor kept, bool host_counts)
{
    HostWait wait = host_wait_begin(c, h);
    op_peer_route(c->be, &h->group, r->offsets, r->rows, r->slots, kept, host_counts, r->layer);
    host_wait_end(c, h, wait);
}

int64_t peer_hop_max_rows(const Pass *c, const PeerHop *h)
{
    int64_t most = 0;
    backend_fetch(c->be, &most, t_rows(h->state, STATE_MAX_ROWS, 1));
    return most;
}

bool peer_hop_needs_counts(const Pass *c)
{
    const Dispatcher *d = c->env->dispatcher;
    if (c->mode == EVAL) return d->bounded || d->conf.shape.capacity > 0;
    return d->bounded && d->host_counts;
}

/* ---- rows ---- */

/* Charges a row for each assignment, evenly spread over the EP ranks and sent to all their ETP members. */
static void charge(const Pass *c, const PeerHop *h, const PeerRoute *r, PeerKind kind, Tensor like,
                   int64_t more)
{
    int64_t row = like.n[1] * (int64_t)dtype_size((DType)like.dtype) + more;
    comm_push_start(h->comm, channel_of(c, kind), t_count(r->rows) * row * h->group.etp / h->group.n);
}

static void wait_for(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w, PeerKind kind)
{
    if (!w->at_once) {
        HostWait wait = host_wait_begin(c, h);
        op_peer_wait(c->be, &h->group, channel_of(c, kind), r->layer);
        host_wait_end(c, h, wait);
    }
    comm_push_join(h->comm, channel_of(c, kind));
}

void peer_hop_dispatch_start(const Pass *c, PeerHop *h, PeerRoute *r, const Exchange *w, Tensor x,
                             Tensor rows)
{
    int      channel = channel_of(c, PEER_DISPATCH);
    Tensor   none = { 0 };
    HostWait wait = host_wait_begin(c, h);
    charge(c, h, r, PEER_DISPATCH, x, r->fresh ? 8 : 0);
    op_peer_post(c->be, &h->group, channel, rows, r->fresh ? r->gate : none, r->fresh ? r->origin : none,
                 r->layer);
    op_peer_push(c->be, &h->group, channel, x, r->rows, r->fresh ? r->weight : none, w->at_once, r->layer);
    r->fresh = false;
    host_wait_end(c, h, wait);
}

void peer_hop_dispatch_finish(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w)
{
    wait_for(c, h, r, w, PEER_DISPATCH);
}

static void return_start(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w, Tensor rows,
                         PeerKind kind)
{
    HostWait wait = host_wait_begin(c, h);
    charge(c, h, r, kind, rows, 0);
    op_peer_return(c->be, &h->group, channel_of(c, kind), rows, r->origin, r->offsets, w->at_once, r->layer);
    host_wait_end(c, h, wait);
}

void peer_hop_combine_start(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w, Tensor rows)
{
    return_start(c, h, r, w, rows, PEER_COMBINE);
}

void peer_hop_gate_grad_start(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w, Tensor dgate)
{
    return_start(c, h, r, w, dgate, PEER_GATE_GRAD);
}

/* The return buffer as rows of this width: a plane for each ETP member. */
static Tensor returned(const Pass *c, const PeerHop *h, PeerKind kind, DType d, int64_t cols)
{
    Tensor back = h->back[c->lane][kind == PEER_GATE_GRAD];
    return t_wrap(back.data, d, 2, (int64_t[]){ h->group.etp * h->group.slots, cols });
}

/* Rows of the return buffer with the partial results of every assignment: (T, K ETP). */
static Tensor plane_rows(const Pass *c, const PeerHop *h, const PeerRoute *r)
{
    Tensor slots = r->slots;
    int    etp = h->group.etp;
    if (etp == 1) return slots;
    Tensor all = t_rows(scratch2(c, I32, r->max_tokens, slots.n[1] * etp), 0, slots.n[0]);
    op_expand_etp_rows(c->be, all, slots, h->group.slots);
    return all;
}

void peer_hop_combine_finish(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w, Tensor y,
                             Tensor res, bool yields)
{
    Tensor rows = plane_rows(c, h, r);
    if (yields) pass_yield(c);
    wait_for(c, h, r, w, PEER_COMBINE);
    op_combine(c->be, y, returned(c, h, PEER_COMBINE, (DType)y.dtype, y.n[1]), rows, res);
}

void peer_hop_gate_grad_finish(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w,
                               Tensor dweight)
{
    Tensor  rows = plane_rows(c, h, r);
    int64_t n = t_count(dweight);
    wait_for(c, h, r, w, PEER_GATE_GRAD);
    op_combine(c->be, t_as2(dweight, n, 1), returned(c, h, PEER_GATE_GRAD, F32, 1),
               t_as2(rows, n, h->group.etp), (Tensor){ 0 });
}
