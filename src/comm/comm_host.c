/* comm/comm_host.c -- small things in host memory: counts, losses, decisions. All are one gather, after which
 * every member does the same arithmetic in the same order. */
#include "comm/mesh.h"
#include "comm/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Status gather(Comm *c, void *out, const void *in, size_t bytes)
{
    Comm *root = c->root;
    if (c->size == 1) { memcpy(out, in, bytes); return OK; }
    if (root->sticky) return fail(root->sticky, "%s", root->why);
    root->agreed = false;
    double  since = clock_now();
    int64_t call  = trace_begin(c->trace, call_name(CALL_HOST_GATHER), group_name((GroupId)c->group), c->seq++,
                                (int64_t)bytes * (c->size - 1));
    trace_wait(c->trace, call);
    Status st = c->transport->host_gather(c, out, in, bytes);
    double waited = clock_now() - since;
    trace_end(c->trace, call, waited);
    if (st) comm_stick(c, st);
    if (!c->be) return st;
    LedgerComm *l = &c->be->ledger.comm[c->group];
    CostListener      *heard = c->be->ledger.meter;
    CostCall   m = { .group = c->group, .slot = -1, .kind = CALL_HOST_GATHER, .members = c->size };
    for (int i = 0; i < c->size; i++) {
        bool here = c->node[i] == c->node[c->rank];
        m.here += here;
        if (i != c->rank) *(here ? &m.intra_node : &m.inter_node) += (int64_t)bytes;
    }
    l->calls++, l->waited += waited, l->intra_node += m.intra_node, l->inter_node += m.inter_node;
    if (heard) heard->start(heard, &m);
    return st;
}

/* A rank that has failed already tells its peers instead of taking part. */
static bool gives_up(Comm *c)
{
    if (!c->be || !c->be->sticky || c->size == 1) return false;
    char why[400];
    snprintf(why, sizeof why, "%s", status_text());
    c->root->agreed = false;
    comm_abort(c, why);
    return true;
}

void comm_host_gather(Comm *c, void *out, const void *in, size_t bytes)
{
    if (gives_up(c) || gather(c, out, in, bytes))
        for (int i = 0; i < c->size; i++) memcpy((char *)out + (size_t)i * bytes, in, bytes);
}

/* Room for what all members say; it grows at the first calls and then stays. */
static void *said_room(Comm *c, size_t bytes)
{
    if (bytes > c->said_room) {
        void *more = realloc(c->said, bytes);
        if (!more) {
            comm_stick(c, fail(E_FIT, "no memory for what %d ranks say", c->size));
            comm_abort(c, c->root->why);
            return NULL;
        }
        c->said = more, c->said_room = bytes;
    }
    return c->said;
}

/* The values of all members, n each, until the next call, or NULL: then x stays as it is. */
static void *of_all(Comm *c, const void *x, size_t bytes)
{
    if (c->size == 1 || gives_up(c)) return NULL;
    void *all = said_room(c, (size_t)c->size * bytes);
    return all && !gather(c, all, x, bytes) ? all : NULL;
}

void comm_host_sum(Comm *c, double *x, int n)
{
    double *all = of_all(c, x, (size_t)n * sizeof *x);
    for (int i = 0; all && i < n; i++) {
        x[i] = all[i];
        for (int r = 1; r < c->size; r++) x[i] += all[(size_t)r * (size_t)n + (size_t)i];
    }
}

void comm_host_sum64(Comm *c, int64_t *x, int n)
{
    int64_t *all = of_all(c, x, (size_t)n * sizeof *x);
    for (int i = 0; all && i < n; i++) {
        x[i] = all[i];
        for (int r = 1; r < c->size; r++) x[i] += all[(size_t)r * (size_t)n + (size_t)i];
    }
}

void comm_host_max(Comm *c, double *x, int n)
{
    double *all = of_all(c, x, (size_t)n * sizeof *x);
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

typedef struct Word { int status; char text[508]; } Word;      /* what a member says of itself */

Status comm_agree(Comm *c, Status mine)
{
    Word word = { .status = (int)mine }, *all;
    if (c->size == 1) return mine;
    if (mine) snprintf(word.text, sizeof word.text, "%s", status_text());
    if (!(all = calloc((size_t)c->size, sizeof *all))) return mine ? mine : fail(E_FIT, "no memory");
    Status st = gather(c, all, &word, sizeof word), heard = st;
    for (int i = 0; i < c->size && !st; i++)
        if (all[i].status) {
            all[i].text[sizeof all[i].text - 1] = 0;
            st = fail(E_COMM, "rank %d: %s", c->world[i], all[i].text);
        }
    free(all);
    c->root->agreed = st && !heard && c->root == c;
    return mine ? fail(mine, "%s", word.text) : st;         /* its own trouble is nearer to a rank */
}

Status comm_host_broadcast(Comm *c, void *data, size_t bytes)
{
    void *all = of_all(c, data, bytes);
    if (all) memcpy(data, all, bytes);
    else if (c->size > 1) return fail(c->root->sticky ? c->root->sticky : E_COMM, "%s", c->root->why);
    return OK;
}
