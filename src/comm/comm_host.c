/* comm/comm_host.c -- calls on host memory: counts, losses, decisions. Each is one gather, after which every
 * member does the same arithmetic in the same order. */
#include "comm/mesh.h"
#include "comm/transport.h"
#include "ops/op_queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Status gather(Comm *c, void *out, const void *in, size_t bytes)
{
    Comm *root = c->root;
    if (c->size == 1) { memcpy(out, in, bytes); return OK; }
    if (root->sticky) return fail(root->sticky, "%s", root->why);
    root->failure_agreed = false;
    if (c->be) backend_flush(c->be);             /* another rank may wait for that work before it answers */
    double  since = clock_now();
    int64_t call  = trace_begin(c->trace, (TraceCall){ .op = call_name(CALL_HOST_GATHER), .group = c->group,
                                .seq = c->seq, .bytes = (int64_t)bytes * (c->size - 1) });
    __atomic_store_n(&c->seq, c->seq + 1, __ATOMIC_RELAXED);
    Status st = c->transport->host_gather(c, out, in, bytes);
    double waited = clock_now() - since;
    trace_end(c->trace, call, waited);
    if (st) comm_stick(c, st);
    if (!c->be) return st;
    LedgerComm *l = &c->be->ledger.comm[c->group];
    CostListener      *listener = c->be->ledger.meter;
    CostCall   m = { .group = c->group, .slot = -1, .kind = CALL_HOST_GATHER, .members = c->size };
    for (int i = 0; i < c->size; i++) {
        bool same_node = c->node[i] == c->node[c->rank];
        m.here += same_node;
        if (i != c->rank) *(same_node ? &m.intra_node : &m.inter_node) += (int64_t)bytes;
    }
    l->exposed += waited, l->length += waited;
    l->calls++, l->intra_node += m.intra_node, l->inter_node += m.inter_node, m.waited = waited;
    if (listener) listener->start(listener, &m);
    return st;
}

/* A rank whose backend has failed aborts its peers instead of taking part. */
static bool abort_if_failed(Comm *c)
{
    if (!c->be || !c->be->sticky || c->size == 1) return false;
    char why[400];
    snprintf(why, sizeof why, "%s", status_text());
    c->root->failure_agreed = false;
    comm_abort(c, why);
    return true;
}

void comm_host_gather(Comm *c, void *out, const void *in, size_t bytes)
{
    if (abort_if_failed(c) || gather(c, out, in, bytes))
        for (int i = 0; i < c->size; i++) memcpy((char *)out + (size_t)i * bytes, in, bytes);
}

/* The buffer for the data of all members; it grows at the first calls. */
static void *gather_buffer(Comm *c, size_t bytes)
{
    if (bytes > c->gathered_bytes) {
        void *more = realloc(c->gathered, bytes);
        if (!more) {
            comm_stick(c, fail(E_FIT, "no host memory to gather from %d ranks", c->size));
            comm_abort(c, c->root->why);
            return NULL;
        }
        c->gathered = more, c->gathered_bytes = bytes;
    }
    return c->gathered;
}

/* The data of all members, valid until the next call; NULL: alone, or the gather failed. */
static void *gather_all(Comm *c, const void *x, size_t bytes)
{
    if (c->size == 1 || abort_if_failed(c)) return NULL;
    void *all = gather_buffer(c, (size_t)c->size * bytes);
    return all && !gather(c, all, x, bytes) ? all : NULL;
}

void comm_host_sum(Comm *c, double *x, int n)
{
    double *all = gather_all(c, x, (size_t)n * sizeof *x);
    for (int i = 0; all && i < n; i++) {
        x[i] = all[i];
        for (int r = 1; r < c->size; r++) x[i] += all[(size_t)r * (size_t)n + (size_t)i];
    }
}

void comm_host_sum64(Comm *c, int64_t *x, int n)
{
    int64_t *all = gather_all(c, x, (size_t)n * sizeof *x);
    for (int i = 0; all && i < n; i++) {
        x[i] = all[i];
        for (int r = 1; r < c->size; r++) x[i] += all[(size_t)r * (size_t)n + (size_t)i];
    }
}

void comm_host_max(Comm *c, double *x, int n)
{
    double *all = gather_all(c, x, (size_t)n * sizeof *x);
    for (int i = 0; all && i < n; i++) {
        x[i] = all[i];
        for (int r = 1; r < c->size; r++) {
            double y = all[(size_t)r * (size_t)n + (size_t)i];
            if (y > x[i]) x[i] = y;
        }
    }
}

void comm_barrier(Comm *c)
{
    double one = 0;
    comm_host_max(c, &one, 1);
}

typedef struct MemberStatus { int status; char text[508]; } MemberStatus;

Status comm_agree(Comm *c, Status mine)
{
    MemberStatus own = { .status = (int)mine }, *all;
    if (c->size == 1) return mine;
    if (mine) snprintf(own.text, sizeof own.text, "%s", status_text());
    if (!(all = calloc((size_t)c->size, sizeof *all))) return mine ? mine : fail(E_FIT, "no memory");
    Status st = gather(c, all, &own, sizeof own), gathered = st;
    for (int i = 0; i < c->size && !st; i++)
        if (all[i].status) {
            all[i].text[sizeof all[i].text - 1] = 0;
            st = fail(E_COMM, "rank %d: %s", c->world[i], all[i].text);
        }
    free(all);
    c->root->failure_agreed = st && !gathered && c->root == c;
    return mine ? fail(mine, "%s", own.text) : st;          /* a rank reports its own failure first */
}

Status comm_host_broadcast(Comm *c, void *data, size_t bytes)
{
    void *all = gather_all(c, data, bytes);
    if (all) memcpy(data, all, bytes);
    else if (c->size > 1) return fail(c->root->sticky ? c->root->sticky : E_COMM, "%s", c->root->why);
    return OK;
}
