/* bench/links.c -- see links.h.
 *
 * Four kinds of calls at sizes that grow, in a group whose members are all on one node or all on different
 * ones. The planner (plan/timeline.c) takes a call of n members to be `hops` messages of one latency and the
 * bytes that a rank sends at one rate: the shortest call gives the latency, the largest the rate. */
#include "bench/links.h"

#include "base/clock.h"
#include "bench/bench.h"
#include "comm/mesh.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Bytes of a rank: 1 KiB to 4 MiB in host memory, to 64 MiB on a GPU. */
enum { SIZES = 5, SIZES_HOST = 4, FIRST = 1 << 10, GROWTH = 16, MOST_CALLS = 64 };

typedef struct LinkBench { Comm *c; Backend *be; int sizes; Tensor in, out; int64_t *at, *n; } LinkBench;

/* ---- the calls: `bytes` are those of one member's tensor ---- */

static Tensor words(Tensor t, double bytes) { return t_rows(t, 0, (int64_t)bytes / 4); }

static void run_all_reduce(const LinkBench *b, double bytes)
{
    comm_all_reduce(b->c, words(b->in, bytes), RED_SUM);
}

static void run_all_gather(const LinkBench *b, double bytes)
{
    double part = bytes / b->c->size;
    comm_all_gather(b->c, words(b->out, floor(part / 4) * 4 * b->c->size), words(b->in, part));
}

static void run_all_to_all(const LinkBench *b, double bytes)
{
    int64_t part = (int64_t)bytes / 4 / b->c->size;
    for (int i = 0; i < b->c->size; i++) b->at[i] = i * part, b->n[i] = part;
    RowRanges same = { b->at, b->n };
    Tensor    in = t_as2(b->in, b->in.n[0], 1), out = t_as2(b->out, b->out.n[0], 1);
    comm_all_to_all(b->c, out, same, in, same);
}

/* To the next member, then from the one before; members of odd rank the other way round. */
static void run_send(const LinkBench *b, double bytes)
{
    Comm *c = b->c;
    for (int turn = 0; turn < 2; turn++)
        if (turn == c->rank % 2) comm_send(c, words(b->in, bytes), (c->rank + 1) % c->size);
        else comm_recv(c, words(b->out, bytes), (c->rank + c->size - 1) % c->size);
}

/* Bytes that pass a link one after the other, and latencies, for a tensor of `bytes` and n members. */
static double sent_twice(double bytes, double n) { return 2 * bytes * (n - 1) / n; }
static double sent_once(double bytes, double n)  { return bytes * (n - 1) / n; }
static double sent_turns(double bytes, double n) { return n > 1 ? 2 * bytes : 0; }
static double hops_twice(double n) { return 2 * (n - 1); }
static double hops_ring(double n)  { return n - 1; }
static double hops_one(double n)   { return n > 1; }
static double hops_turns(double n) { return n > 1 ? 2 : 0; }

static const struct LinkKind {
    const char *name;
    void   (*run)(const LinkBench *b, double bytes);
    double (*sent)(double bytes, double n), (*hops)(double n);
} kinds[] = {
    { "all_reduce", run_all_reduce, sent_twice, hops_twice },
    { "all_gather", run_all_gather, sent_once, hops_ring },
    { "all_to_all", run_all_to_all, sent_once, hops_one },
    { "send", run_send, sent_turns, hops_turns },
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- times ---- */

static double size_of(int i) { return FIRST * pow(GROWTH, i); }

/* Seconds of one call; of small ones many are made in a row. The slowest member counts. */
static double time_once(const LinkBench *b, int kind, int size)
{
    int    calls = MOST_CALLS >> (3 * size);
    double seconds;
    if (calls < 1) calls = 1;
    comm_barrier(b->c);
    double from = clock_now();
    for (int i = 0; i < calls; i++) kinds[kind].run(b, size_of(size));
    if (backend_sync(b->be)) return INFINITY;
    seconds = (clock_now() - from) / calls;
    comm_host_max(b->c, &seconds, 1);
    return seconds;
}

/* The best of some: others may use the machine. */
static double time_kind(const LinkBench *b, int kind, int size, int repeats)
{
    double best = INFINITY;
    time_once(b, kind, size);
    for (int i = 0; i < repeats; i++) best = fmin(best, time_once(b, kind, size));
    return best;
}

typedef struct KindTime { double seconds[SIZES], delay, rate; } KindTime;

/* A small call takes no longer than a larger one: where it seems to, others used the machine. */
static void fit(KindTime *t, int kind, double n, int sizes)
{
    double least = INFINITY;
    for (int i = 0; i < sizes; i++) least = fmin(least, t->seconds[i]);
    t->delay = least / kinds[kind].hops(n);
    t->rate  = kinds[kind].sent(size_of(sizes - 1), n) / t->seconds[sizes - 1];
}

static void print_kinds(const KindTime *t, const LinkBench *b, const char *what)
{
    const Comm *c = b->c;
    printf("%s, %d ranks over %s; microseconds by bytes of a rank\n  %-12s", what, c->size, comm_name(c), "");
    for (int i = 0; i < b->sizes; i++) printf(" %8.0f K", size_of(i) / 1024);
    printf("   latency   bandwidth\n");
    for (int k = 0; k < KINDS; k++) {
        printf("  %-12s", kinds[k].name);
        for (int i = 0; i < b->sizes; i++) printf(" %10.1f", t[k].seconds[i] * 1e6);
        printf(" %6.1f us %6.2f GB/s\n", t[k].delay * 1e6, t[k].rate / 1e9);
    }
}

static Link link_of(const KindTime *t, int ranks)
{
    Link l = { .ranks = ranks };
    for (int k = 0; k < KINDS; k++) l.bw = fmax(l.bw, t[k].rate);
    for (int k = 0; k < KINDS; k++) l.share += t[k].rate / l.bw / KINDS, l.delay += t[k].delay / KINDS;
    return l;
}

static void time_kinds(KindTime *t, const LinkBench *b, int repeats)
{
    op_fill(b->be, b->in, 0.0f), op_fill(b->be, b->out, 0.0f);
    for (int k = 0; k < KINDS; k++) {
        for (int i = 0; i < b->sizes; i++) t[k].seconds[i] = time_kind(b, k, i, repeats);
        fit(&t[k], k, b->c->size, b->sizes);
    }
}

static Status measure_group(Link *out, Comm *c, Backend *be, Arena *a, const char *what, int repeats)
{
    int       sizes = be->device->host_memory ? SIZES_HOST : SIZES;
    int64_t   rows = (int64_t)size_of(sizes - 1) / 4, *range = calloc(2 * (size_t)c->size, sizeof *range);
    KindTime  t[KINDS];
    LinkBench b = { c, be, sizes, t1(a, "links", F32, rows), t1(a, "links", F32, rows), range,
                    range + c->size };
    if (!range) return fail(E_FIT, "no memory");
    time_kinds(t, &b, repeats);
    free(range);
    TRY(backend_sync(be));
    *out = link_of(t, c->size);
    if (c->world[c->rank] == 0) print_kinds(t, &b, what);
    return OK;
}

/* ---- groups ---- */

/* The ranks of rank 0's node, or the first rank of each node. */
static int members_of(int *member, const Comm *world, bool inter)
{
    int n = 0;
    for (int i = 0; i < world->size; i++) {
        bool first = true;
        for (int j = 0; j < i; j++) first &= world->node[j] != world->node[i];
        if (inter ? first : world->node[i] == world->node[0]) member[n++] = i;
    }
    return n;
}

static Status measure_link(Link *out, Comm *world, Backend *be, Arena *a, bool inter, int repeats)
{
    int   *member = calloc((size_t)world->size, sizeof *member);
    Comm  *group = NULL;
    Status st = member ? OK : fail(E_FIT, "no memory");
    int    n = member ? members_of(member, world, inter) : 0;
    bool   mine = false;
    ArenaMark mark = arena_mark(a);
    for (int i = 0; i < n; i++) mine |= member[i] == world->rank;
    *out = (Link){ 0 };
    if (!st && mine && n > 1) {
        st = comm_group(world, member, n, GR_world, &group);
        if (!st) comm_bind(group, be);
        if (!st) st = measure_group(out, group, be, a, inter ? "inter-node" : "intra-node", repeats);
        comm_close(group);
    }
    arena_reset(a, mark);
    free(member);
    return comm_agree(world, st);
}

Status links_measure(Links *out, Comm *world, Backend *be, Arena *a, int repeats)
{
    *out = (Links){ .per_node = comm_ranks_on_node(world) };
    snprintf(out->transport, sizeof out->transport, "%s", comm_name(world));
    TRY(measure_link(&out->intra_node, world, be, a, false, repeats));
    TRY(measure_link(&out->inter_node, world, be, a, true, repeats));
    return comm_host_broadcast(world, out, sizeof *out);
}

void links_apply(Hardware *h, const Links *l)
{
    const Link *x = &l->intra_node, *y = &l->inter_node;
    snprintf(h->transport, sizeof h->transport, "%s", l->transport);
    if (x->ranks)
        h->intra_bw = x->bw, h->intra_share = x->share, h->intra_delay = x->delay, h->intra_ranks = x->ranks;
    if (y->ranks)
        h->inter_bw = y->bw, h->inter_share = y->share, h->inter_delay = y->delay, h->inter_nodes = y->ranks;
    if (y->ranks) h->domain = l->per_node;
}
