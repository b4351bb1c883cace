/* parallel/peer_hop.c -- see peer_hop.h. A member has a mailbox and no other buffers. The ledger is charged
 * with an even share of rows: the host does not know how many there are. */
#include "parallel/peer_hop.h"

#include <stdlib.h>
#include <string.h>

static int channel_of(const Pass *c, PeerKind k) { return peer_channel(c->lane, k); }

/* ---- memory ---- */

const char *peer_hop_refusal(const Mesh *mesh, const DispatchConf *conf)
{
    const Comm *node = mesh->comm[GR_ep_intra_node];
    int         ep = mesh_size(mesh, AX_EP), etp = mesh_size(mesh, AX_ETP);
    int64_t     rows = node->size / etp * dispatch_row_capacity(conf, ep, etp);
    if (node->size % etp) return "the parts of an expert (parallel.etp) are on several nodes";
    if (rows > INT32_MAX) return "buffers of more than 2^31 rows in all; lower moe.rank_capacity";
    return peer_memory_refusal(node);
}

static void take_memory(PeerHop *h, const DispatchArenas *arenas, const PeerHopConf *conf)
{
    int n = conf->comm->size;
    h->mail   = t1(arenas->lasting, "dispatch", I64, mail_words(n, conf->E));
    h->state  = t1(arenas->lasting, "dispatch", I64, STATE_WORDS);
    h->table  = t1(arenas->lasting, "dispatch", I64, table_region(PEER_REGIONS) * n);
    h->status = t1(arenas->host, "dispatch", I64, STATUS_WORDS);
}

static void set_group(PeerHop *h, const Dispatcher *d, const PeerHopConf *conf)
{
    Comm *comm = conf->comm;
    h->group = (PeerGroup){ .n = comm->size, .me = comm->rank, .etp = conf->etp, .group = comm->group,
                            .E = conf->E, .regions = h->memory.regions, .region = h->memory.region,
                            .row_capacity = d->row_capacity, .state = h->state.data,
                            .status = h->status.data, .table = h->table.data,
                            .timeout = d->conf.timeout > 0 ? d->conf.timeout : 600,
                            .aborted = peer_memory_aborted, .comm = comm };
}

/* Finds the mailboxes of all members and puts the addresses of their memory on the device. */
static Status set_table(PeerHop *h)
{
    int n = h->comm->size;
    h->addresses = calloc((size_t)t_count(h->table), sizeof *h->addresses);
    if (!h->addresses) return fail(E_FIT, "no host memory for the addresses of %d ranks", n);
    peer_memory_find(&h->memory, &h->group, h->mail, h->addresses);
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
    if (st) peer_memory_close(&h->memory, true);             /* all ranks are here, of other groups too */
    TRY_CTX(st, "moe.dispatcher = %s cannot map memory of the node's ranks; set %s", d->row->name,
            d->row->two_level ? "deepep" : "alltoall");
    take_memory(h, arenas, conf);
    set_group(h, d, conf);
    TRY(comm_agree(h->comm, set_table(h)));
    TRY(comm_agree(h->comm, backend_sync(be)));
    if (be->device != &device_meta) h->comm->root->stop_word = h->status.data;
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
    return fail(E_COMM, "MoE layer %lld: no %s from rank %d within %.0f s (exchange %lld of %s); see its "
                "log, or raise comm.timeout",
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
    op_peer_route(c->be, &h->group, r->offsets, r->rows, kept, host_counts, r->layer);
    host_wait_end(c, h, wait);
}

int64_t peer_hop_max_rows(const Pass *c, const PeerHop *h)
{
    int64_t most = 0, call = comm_wait_begin(h->comm, false);
    backend_fetch(c->be, &most, t_rows(h->state, STATE_MAX_ROWS, 1));
    comm_wait_end(h->comm, call, false);
    return most;
}

bool peer_hop_needs_counts(const Pass *c)
{
    const Dispatcher *d = c->env->dispatcher;
    if (c->evaluates) return d->bounded || d->conf.shape.capacity > 0;
    return d->bounded && d->host_counts;
}

int64_t peer_hop_most_kept(const Pass *c, const Moe *m, int64_t T)
{
    int64_t all = T * m->K, kept = c->cache ? 0 : m->E * moe_capacity(m, T);
    return kept && kept < all ? kept : all;
}

/* ---- rows ---- */

/* Charges r->charged rows, evenly spread over the EP ranks and sent to all their ETP members. */
static void charge(const Pass *c, const PeerHop *h, const PeerRoute *r, PeerKind kind, Tensor like,
                   int64_t more)
{
    int64_t row = like.n[1] * (int64_t)dtype_size((DType)like.dtype) + more;
    comm_push_start(h->comm, channel_of(c, kind), r->charged * row * h->group.etp / h->group.n);
}

void peer_hop_dispatch_start(const Pass *c, PeerHop *h, PeerRoute *r, const Exchange *w, Tensor x,
                             Tensor rows)
{
    int      channel = channel_of(c, PEER_DISPATCH);
    Tensor   none = { 0 };
    HostWait wait = host_wait_begin(c, h);
    charge(c, h, r, PEER_DISPATCH, x, r->fresh ? 4 : 0);
    op_peer_post(c->be, &h->group, channel, rows, r->fresh ? r->gate : none, true, r->layer);
    op_peer_push(c->be, &h->group, channel, x, r->rows, r->fresh ? r->weight : none, w->at_once, r->layer);
    r->fresh = false;
    host_wait_end(c, h, wait);
}

void peer_hop_dispatch_finish(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w)
{
    int      channel = channel_of(c, PEER_DISPATCH);
    HostWait wait = host_wait_begin(c, h);
    if (!w->at_once) op_peer_wait(c->be, &h->group, channel, PEER_DONE, r->layer);
    host_wait_end(c, h, wait);
    comm_push_join(h->comm, channel);
}

static void pull_start(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w, Tensor rows,
                       PeerKind kind)
{
    HostWait wait = host_wait_begin(c, h);
    charge(c, h, r, kind, rows, 0);
    op_peer_post(c->be, &h->group, channel_of(c, kind), rows, (Tensor){ 0 }, w->at_once, r->layer);
    host_wait_end(c, h, wait);
}

static void pull_finish(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w, PeerKind kind,
                        Tensor y, Tensor rows, Tensor res)
{
    int      channel = channel_of(c, kind);
    HostWait wait = host_wait_begin(c, h);
    if (!w->at_once) op_peer_wait(c->be, &h->group, channel, PEER_READY, r->layer);
    op_peer_pull(c->be, &h->group, channel, y, rows, res, r->layer);
    host_wait_end(c, h, wait);
    comm_push_join(h->comm, channel);
}

void peer_hop_combine_start(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w, Tensor rows)
{
    pull_start(c, h, r, w, rows, PEER_COMBINE);
}

void peer_hop_combine_finish(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w, Tensor y,
                             Tensor res, bool yields)
{
    if (yields) pass_yield(c);
    pull_finish(c, h, r, w, PEER_COMBINE, y, r->rows, res);
}

void peer_hop_gate_grad_start(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w, Tensor dgate)
{
    pull_start(c, h, r, w, dgate, PEER_GATE_GRAD);
}

void peer_hop_gate_grad_finish(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w,
                               Tensor dweight)
{
    int64_t n = t_count(dweight);
    pull_finish(c, h, r, w, PEER_GATE_GRAD, t_as2(dweight, n, 1), t_as2(r->rows, n, 1), (Tensor){ 0 });
}
