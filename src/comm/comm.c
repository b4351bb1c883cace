/* comm/comm.c -- opens transports by name, and what calls over any of them share: checks, ledger, trace,
 * tickets and failures. Host calls are in comm_host.c. */
#include "base/activity.h"
#include "comm/mesh.h"
#include "comm/transport.h"
#include "ops/op_queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(GR_N <= LEDGER_GROUPS, "the ledger has too few rows for the groups");
_Static_assert(COMM_TICKETS == 64, "tickets are the bits of a uint64_t");

const char *call_name(CallKind k)
{
    static const char *const names[] = { "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send",
                                         "recv", "host_gather", "push" };
    return names[k];
}

const char *comm_name(const Comm *c) { return c->transport->name; }
const char *comm_reason(const Comm *world) { return world->reason; }

size_t comm_device_bytes(const Comm *world, int *communicators)
{
    *communicators = 0;
    return world->transport->device_bytes ? world->transport->device_bytes(world, communicators) : 0;
}

int comm_ranks_on_node(const Comm *c)
{
    int n = 0;
    for (int i = 0; i < c->size; i++) n += c->node[i] == c->node[0];
    return n;
}

/* IF_<needs>(yes, no): whether this build has what a transport needs. */
#define IF_ANY(yes, no)  yes
#ifdef TREB_MPI
#define IF_MPI(yes, no)  yes
#else
#define IF_MPI(yes, no)  no
#endif
#ifdef TREB_CUDA
#define IF_CUDA(yes, no) yes
#else
#define IF_CUDA(yes, no) no
#endif

typedef struct TransportRow { const char *name; const Transport *built; bool trains; } TransportRow;

static const TransportRow transports[] = {
#define TRANSPORT(name, needs, trains, help) { #name, IF_##needs(&transport_##name, NULL), trains },
    TRANSPORTS(TRANSPORT)
#undef TRANSPORT
};
enum { TRANSPORTS_N = sizeof transports / sizeof *transports };

static const TransportRow *find_transport(const char *kind)
{
    for (int i = 0; i < TRANSPORTS_N; i++)
        if (!strcmp(transports[i].name, kind)) return &transports[i];
    return NULL;
}

bool comm_trains(const char *kind)
{
    const TransportRow *row = find_transport(kind);
    return !row || row->trains;                              /* auto picks one that does */
}

const char *comm_kinds(void)
{
#define TRANSPORT(name, needs, trains, help) IF_##needs(", " #name, "")
    static const char kinds[] = TRANSPORTS(TRANSPORT)
        IF_MPI("", " (this build has no MPI: install libopenmpi-dev, then make)");
#undef TRANSPORT
    return kinds + 2;
}

void comm_describe(char *out, size_t n)
{
#ifdef TREB_MPI
    mpi_describe(out, n);
#else
    snprintf(out, n, "not in this build");
#endif
}

bool comm_launched(void)
{
    static const char *const sizes[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS" };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *n = getenv(sizes[i]);
        if (n && atoi(n) > 1) return true;
    }
    return false;
}

/* ---- opening and closing ---- */

Comm *comm_new(const Transport *t, Comm *root, int rank, int size)
{
    Comm *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    *c = (Comm){ .transport = t, .rank = rank, .size = size, .root = root ? root : c, .group = GR_world,
                  .running = -1 };
    c->world = calloc((size_t)size, sizeof *c->world);
    c->node  = calloc((size_t)size, sizeof *c->node);
    c->sent  = calloc((size_t)size, sizeof *c->sent);
    c->received = calloc((size_t)size, sizeof *c->received);
    c->trace = root ? root->trace : calloc(1, sizeof *c->trace);
    if (!c->world || !c->node || !c->sent || !c->received || !c->trace) return comm_free(c), NULL;
    if (!root) trace_open(c->trace);
    for (int i = 0; i < size; i++) c->world[i] = i;
    return c;
}

void comm_free(Comm *c)
{
    if (c->root == c && c->trace) trace_close(c->trace), free(c->trace);
    free(c->world);
    free(c->node);
    free(c->sent);
    free(c->received);
    free(c->gathered);
    free(c);
}

/* From here on the watchdog may call the transport's hooks for c. */
static void add_to_watch(Comm *c)
{
    pthread_mutex_lock(&c->trace->comms_lock);
    c->next = c->trace->comms, c->trace->comms = c;
    pthread_mutex_unlock(&c->trace->comms_lock);
}

/* Does nothing for a Comm that was not added. */
static void remove_from_watch(Comm *c)
{
    pthread_mutex_lock(&c->trace->comms_lock);
    Comm **at = &c->trace->comms;
    while (*at && *at != c) at = &(*at)->next;
    if (*at) *at = c->next;
    pthread_mutex_unlock(&c->trace->comms_lock);
}

/* The first use of a GPU loads all kernels, which takes seconds. */
static Status open_over(const Transport *t, Comm **world, Comm *host)
{
    activity_slow_begin();
    Status st = t->open_over(world, host);
    activity_slow_end();
    TRY(st);
    add_to_watch(*world);
    return OK;
}

static Status open_kind(Comm **world, const CommConf *conf, const char *kind)
{
    const TransportRow *row = find_transport(kind);
    if (row && row->built && row->built->open_over) {
        Comm *host = NULL;
        TRY(open_kind(&host, conf, comm_launched() ? "mpi" : "self"));
        Status st = open_over(row->built, world, host);
        if (st) comm_close(host);
        return st;
    }
    if (!row || !row->built)
        return fail(E_CONFIG, "comm.kind = %s: not in this build, which has %s", kind, comm_kinds());
    TRY(row->built->open(world, conf));
    add_to_watch(*world);
    return OK;
}

/* Ranks on GPUs communicate over NCCL if it accepts them, else through host memory. */
static Status open_auto(Comm **world, const CommConf *conf)
{
    const TransportRow *nccl = find_transport("nccl");
    Comm *host = NULL;
    TRY(open_kind(&host, conf, comm_launched() ? "mpi" : "self"));
    *world = host;
    if (host->size == 1) return OK;
    bool cuda = conf->backend && !strcmp(conf->backend, "cuda");
    if (cuda && nccl->built && nccl->built->open_over && !open_over(nccl->built, world, host)) {
        snprintf((*world)->reason, sizeof (*world)->reason, "each of the %d ranks has a GPU", host->size);
        return OK;
    }
    *world = host;
    if (cuda) snprintf(host->reason, sizeof host->reason, "through host memory: %s", status_text());
    else      snprintf(host->reason, sizeof host->reason, "the ranks compute on CPUs");
    return OK;
}

Status comm_open(Comm **world, const CommConf *conf)
{
    const char *kind = conf->kind ? conf->kind : "auto";
    *world = NULL;
    return strcmp(kind, "auto") ? open_kind(world, conf, kind) : open_auto(world, conf);
}

Status comm_group(Comm *world, const int *members, int n, int group, Comm **out)
{
    int mine = -1;
    *out = NULL;
    REQUIRE(n >= 1 && world->root == world, "a group of %d ranks", n);
    for (int i = 0; i < n; i++) {
        REQUIRE(members[i] >= 0 && members[i] < world->size, "rank %d of %d", members[i], world->size);
        if (members[i] == world->rank) mine = i;
    }
    REQUIRE(mine >= 0, "rank %d is not in its own group %s", world->rank, group_name((GroupId)group));
    Comm *c = comm_new(n > 1 ? world->transport : &transport_self, world, mine, n);
    if (!c) return fail(E_FIT, "no memory");
    c->group = group;
    for (int i = 0; i < n; i++) {
        c->world[i] = world->world[members[i]];
        c->node[i]  = world->node[members[i]];
    }
    int64_t call = trace_begin(c->trace, (TraceCall){ .op = "open", .group = group });
    Status  st = c->transport->group(world, c);
    trace_end(c->trace, call, 0);
    if (st) return comm_close(c), st;
    add_to_watch(c);
    if (world->be) comm_bind(c, world->be);
    *out = c;
    return OK;
}

void comm_close(Comm *c)
{
    if (!c) return;
    remove_from_watch(c);
    c->transport->close(c);
    comm_free(c);
}

/* The watchdog sees the progress of the device that the world computes on. */
static void set_backend(Comm *c, Backend *be)
{
    c->be = be;
    if (c->root != c) return;
    if (be) be->watched = c->size > 1;
    pthread_mutex_lock(&c->trace->comms_lock);
    c->trace->device_word = be ? be->progress : NULL;
    pthread_mutex_unlock(&c->trace->comms_lock);
}

void comm_bind(Comm *c, Backend *be)
{
    set_backend(c, be);
    if (!be) return;
    if (c->root->sticky && !be->sticky) be->sticky = fail(c->root->sticky, "%s", c->root->why);
    if (!c->transport->bind) return;
    int64_t call = trace_begin(c->trace, (TraceCall){ .op = "bind", .group = c->group });
    c->transport->bind(c);
    trace_end(c->trace, call, 0);
}

/* ---- failures ---- */

void comm_stick(Comm *c, Status s)
{
    Comm *root = c->root;
    if (!root->sticky) {
        root->sticky = s;
        snprintf(root->why, sizeof root->why, "%s", status_text());
    }
    if (c->be && !c->be->sticky) c->be->sticky = s;
}

void comm_end_waits(Comm *root)
{
    if (root->stop_word) __atomic_store_n(root->stop_word, 1, __ATOMIC_RELEASE);
}

void comm_abort(Comm *c, const char *why)
{
    Comm *root = c->root;
    if (root->abort_sent || root->failure_agreed) return;
    root->abort_sent = true;
    comm_end_waits(root);
    root->transport->abort(root, why);
}

void comm_saving(Comm *c, int change) { __atomic_fetch_add(&c->trace->saving, change, __ATOMIC_RELEASE); }

void comm_watch(Comm *world, double seconds, void (*print)(void *self, const char *line), void *self)
{
    if (world->transport->watch) world->transport->watch(world, seconds, print, self);
}

/* Whether this rank may start a call. If its backend has failed, it aborts the others with the reason. */
static bool is_healthy(Comm *c)
{
    REQUIRE(c->be, "%s: call before comm_bind", group_name((GroupId)c->group));
    if (!c->be->sticky) return true;
    char why[400];
    snprintf(why, sizeof why, "%s", status_text());
    c->root->failure_agreed = false;                     /* ranks that go on to their next call would wait */
    comm_abort(c, why);
    return false;
}

/* ---- starting and joining ---- */

/* Charges the ledger with what this rank sends: `each` bytes to every member, or to one (send), or the rows
 * of all_to_all. Returns the bytes. */
static int64_t charge(Comm *c, const CommCall *call, int64_t each, int slot)
{
    CostCall m = { .group = c->group, .slot = slot, .kind = call->kind, .members = c->size };
    int64_t   row = call->kind == CALL_ALL_TO_ALL ? call_row(call->in) : 0;
    for (int i = 0; i < c->size; i++) {
        int64_t bytes = call->kind == CALL_ALL_TO_ALL ? call->give.n[i] * row : each;
        bool    same_node = c->node[i] == c->node[c->rank];
        m.here += same_node;
        if (i == c->rank || (call->kind == CALL_SEND && i != call->peer)) continue;
        *(same_node ? &m.intra_node : &m.inter_node) += bytes;
    }
    LedgerComm *l = &c->be->ledger.comm[c->group];
    CostListener      *listener = c->be->ledger.meter;
    l->calls++, l->intra_node += m.intra_node, l->inter_node += m.inter_node;
    if (listener) listener->start(listener, &m);
    return m.intra_node + m.inter_node;
}

int64_t call_row(Tensor t) { return t.n[0] ? t_bytes(t) / t.n[0] : 0; }

/* The number of a collective in its group, which is the same on all members, or of a message between two
 * members. */
static TraceCall trace_call(Comm *c, const CommCall *call, int64_t bytes)
{
    bool     message = call->kind == CALL_SEND || call->kind == CALL_RECV;
    int64_t *seq = call->kind == CALL_SEND ? &c->sent[call->peer]
                 : call->kind == CALL_RECV ? &c->received[call->peer] : &c->seq;
    TraceCall t = { .op = call_name(call->kind), .group = c->group, .seq = *seq,
                    .bytes = call->kind == CALL_RECV ? t_bytes(call->out) : bytes,
                    .peer = message ? c->world[call->peer] + 1 : 0 };
    __atomic_store_n(seq, *seq + 1, __ATOMIC_RELAXED);
    return t;
}

/* A pass that only prepares the backend starts no call: its join would fall into the first real step. */
static Ticket start_call(Comm *c, const CommCall *call, int64_t each)
{
    if (c->be->preparing) return (Ticket){ 0 };
    REQUIRE(~c->pending, "%s: more than %d calls are pending", group_name((GroupId)c->group), COMM_TICKETS);
    int slot = __builtin_ctzll(~c->pending);
    backend_flush(c->be);
    c->root->failure_agreed = false;
    int64_t bytes = charge(c, call, each, slot);
    c->pending |= 1ull << slot;
    c->began[slot] = clock_now(), c->ended[slot] = 0;
    c->traced[slot] = trace_begin(c->trace, trace_call(c, call, bytes));
    c->recent[c->started % COMM_RECENT] = c->traced[slot];
    c->transport->start(c, slot, call);
    ledger_done(&c->be->ledger);
    trace_started(c->trace, c->traced[slot]);
    __atomic_store_n(&c->started, c->started + 1, __ATOMIC_RELEASE);
    return (Ticket){ c, slot };
}

/* On the host's clock, of a join that lasted from `since` to `now`. */
static void add_times(Comm *c, int slot, double since, double now)
{
    LedgerComm *l = &c->be->ledger.comm[c->group];
    double      ended = c->ended[slot];
    bool        before = ended > 0 && ended < since;             /* done before the join began */
    l->exposed += now - since;
    l->length  += now - since + (before ? ended : since) - c->began[slot];
}

void comm_join(Ticket t)
{
    Comm *c = t.comm;
    if (!c) return;
    REQUIRE(c->pending >> t.slot & 1, "a ticket of group %s is joined twice", group_name((GroupId)c->group));
    CostListener *listener = c->be->ledger.meter;
    backend_flush(c->be);                        /* ops before the join run beside the call, not after it */
    double since = clock_now();
    if (listener) listener->join(listener, c->group, t.slot);
    trace_wait(c->trace, c->traced[t.slot]);
    c->transport->join(c, t.slot);
    ledger_done(&c->be->ledger);
    double now = clock_now();
    trace_end(c->trace, c->traced[t.slot], now - since);
    if (!c->transport->device_clock) add_times(c, t.slot, since, now);
    c->pending &= ~(1ull << t.slot);
}

void comm_push_start(Comm *c, int slot, int64_t each)
{
    if (c->size > 1 && !c->be->preparing) charge(c, &(CommCall){ .kind = CALL_PUSH }, each, slot);
}

void comm_push_join(Comm *c, int slot)
{
    CostListener *listener = c->be->ledger.meter;
    if (c->size > 1 && listener) listener->join(listener, c->group, slot);
}

int64_t comm_wait_begin(Comm *c, bool polls)
{
    if (polls) activity_poll_begin();
    return trace_begin(c->trace, trace_call(c, &(CommCall){ .kind = CALL_PUSH }, 0));
}

void comm_wait_end(Comm *c, int64_t call, bool polls)
{
    trace_end(c->trace, call, 0);
    if (polls) activity_poll_end();
}

/* ---- calls ---- */

/* A group of one rank does its own part and starts nothing. */
static Ticket start_or_copy(Comm *c, const CommCall *call, int64_t each)
{
    if (c->size > 1) return start_call(c, call, each);
    local_part(c, call);
    return (Ticket){ 0 };
}

Ticket comm_all_reduce_start(Comm *c, Tensor t, Reduce r)
{
    REQUIRE(t_dense(t) && sum_has(t.dtype), "all_reduce: %s", t_fmt(t));
    if (c->size == 1 || !is_healthy(c)) return (Ticket){ 0 };
    int64_t each = 2 * t_bytes(t) / c->size;       /* each part to the member that sums it, each sum to all */
    return start_call(c, &(CommCall){ .kind = CALL_ALL_REDUCE, .out = t, .in = t, .reduce = r }, each);
}

Ticket comm_all_gather_start(Comm *c, Tensor out, Tensor in)
{
    REQUIRE(t_dense(out) && t_dense(in) && out.dtype == in.dtype && t_count(out) == c->size * t_count(in),
            "all_gather of %d: out %s in %s", c->size, t_fmt(out), t_fmt(in));
    if (!is_healthy(c)) return (Ticket){ 0 };
    return start_or_copy(c, &(CommCall){ .kind = CALL_ALL_GATHER, .out = out, .in = in }, t_bytes(in));
}

Ticket comm_reduce_scatter_start(Comm *c, Tensor out, Tensor in, Reduce r)
{
    REQUIRE(t_dense(out) && t_dense(in) && out.dtype == in.dtype && sum_has(in.dtype) &&
            t_count(in) == c->size * t_count(out), "reduce_scatter of %d: out %s in %s", c->size, t_fmt(out),
            t_fmt(in));
    if (!is_healthy(c)) return (Ticket){ 0 };
    CommCall call = { .kind = CALL_REDUCE_SCATTER, .out = out, .in = in, .reduce = r };
    return start_or_copy(c, &call, t_bytes(out));
}

static bool ranges_fit(RowRanges r, int n, int64_t rows)
{
    for (int i = 0; i < n; i++)
        if (r.at[i] < 0 || r.n[i] < 0 || r.at[i] + r.n[i] > rows) return false;
    return true;
}

/* A tensor without rows has no width to compare. */
Ticket comm_all_to_all_start(Comm *c, Tensor out, RowRanges get, Tensor in, RowRanges give)
{
    REQUIRE(t_dense(out) && t_dense(in) && out.dtype == in.dtype &&
            (!out.n[0] || !in.n[0] || call_row(out) == call_row(in)) && ranges_fit(get, c->size, out.n[0]) &&
            ranges_fit(give, c->size, in.n[0]), "all_to_all: out %s in %s, or rows outside them", t_fmt(out),
            t_fmt(in));
    if (!is_healthy(c)) return (Ticket){ 0 };
    CommCall call = { .kind = CALL_ALL_TO_ALL, .out = out, .in = in, .get = get, .give = give };
    return start_or_copy(c, &call, 0);
}

Ticket comm_send_start(Comm *c, Tensor t, int to)
{
    REQUIRE(t_dense(t) && to >= 0 && to < c->size && to != c->rank, "send %s from %d to %d of %d", t_fmt(t),
            c->rank, to, c->size);
    if (!is_healthy(c)) return (Ticket){ 0 };
    return start_call(c, &(CommCall){ .kind = CALL_SEND, .in = t, .peer = to }, t_bytes(t));
}

Ticket comm_recv_start(Comm *c, Tensor t, int from)
{
    REQUIRE(t_dense(t) && from >= 0 && from < c->size && from != c->rank, "recv %s from %d to %d of %d",
            t_fmt(t), from, c->rank, c->size);
    if (!is_healthy(c)) return (Ticket){ 0 };
    return start_call(c, &(CommCall){ .kind = CALL_RECV, .out = t, .peer = from }, 0);
}
