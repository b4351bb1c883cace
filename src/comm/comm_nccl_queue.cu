/* comm/comm_nccl_queue.cu -- the communicators of NCCL groups: which groups share one, how they open, their
 * first calls; see comm_nccl.h.
 *
 * Opening blocks the host until all members have come; the watchdog of the process ends the run if one never
 * does (the trace has the call "open"). NCCL connects two ranks at their first call, and blocks both hosts
 * until both have made it: in a pipeline, where one stage posts a receive while the other posts another, that
 * would be for ever. So the first calls are made here, by all members at once. */
#if __has_include(<nccl.h>)
#include "comm/comm_nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* CTAs, each of which holds an SM, of a link, where a receive waits for its message, and of token dispatch.
 * An all_to_all has buffers for each of them and each peer. */
enum { LINK_CTAS = 4, EXPERT_CTAS = 16 };

Status nccl_load(NcclLibrary *l)
{
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);             /* connections for all sizes of calls at opening */
    l->file = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!l->file) return fail(E_CONFIG, "comm.kind = nccl: %s; set mpi", dlerror());
#define LIB(field, symbol)                                                                                  \
    if (!(l->field = (decltype(l->field))dlsym(l->file, #symbol)))                                          \
        return fail(E_CONFIG, "comm.kind = nccl: libnccl.so.2 has no %s; install NCCL 2.18 or later, or "   \
                    "set mpi", #symbol);
    NCCL_CALLS(LIB)
#undef LIB
    return OK;
}

static Status check(const NcclLibrary *l, ncclResult_t r, const Comm *c, const char *what)
{
    if (r == ncclSuccess) return OK;
    return fail(E_COMM, "NCCL, %s of group %s: %s%s%s", what, group_name((GroupId)c->group),
                l->error_string(r), *l->last_error(NULL) ? ": " : "", l->last_error(NULL));
}

/* ---- queues ---- */

static NcclQueue *find_queue(NcclWorld *w, const int *members, int n, GroupTraffic traffic)
{
    for (NcclQueue *q = w->queues; q; q = q->next)
        if (q->traffic == traffic && q->n == n && !memcmp(q->members, members, (size_t)n * sizeof *members))
            return q;
    return NULL;
}

/* Communication comes before compute where both want the GPU: its kernels are short and few. */
static Status make_stream(cudaStream_t *stream)
{
    int least = 0, greatest = 0;
    cudaError_t e = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (e == cudaSuccess) e = cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, greatest);
    return e == cudaSuccess ? OK : fail(E_DEVICE, "a stream for NCCL: %s", cudaGetErrorString(e));
}

static NcclQueue *add_queue(NcclWorld *w, const int *members, int n, int me, GroupTraffic traffic)
{
    NcclQueue *q = (NcclQueue *)calloc(1, sizeof *q);
    int       *copy = (int *)malloc((size_t)n * sizeof *copy);
    if (!q || !copy) return free(q), free(copy), (NcclQueue *)NULL;
    memcpy(copy, members, (size_t)n * sizeof *copy);
    q->traffic = traffic, q->n = n, q->me = me, q->members = copy, q->next = w->queues;
    w->queues  = q;
    return q;
}

static void drop_queue(NcclWorld *w, NcclQueue *q, bool abort)
{
    if (!q || --q->groups > 0) return;
    NcclQueue **at = &w->queues;
    while (*at != q) at = &(*at)->next;
    *at = q->next;
    if (q->comm && abort) w->lib.abort(q->comm);
    else if (q->comm)     w->lib.destroy(q->comm);
    if (q->stream) cudaStreamDestroy(q->stream);
    progress_word_close(q->progress);
    free(q->members), free(q);
}

/* ---- opening ---- */

static Status init_queue(const Comm *c, NcclQueue *q, const ncclUniqueId *id)
{
    const NcclLibrary *l = &nccl_of(c)->nccl->lib;
    ncclConfig_t conf = NCCL_CONFIG_INITIALIZER;
    conf.commName = group_name((GroupId)c->group);
    if (c->be->reserved_sms)                conf.maxCTAs = c->be->reserved_sms;
    else if (q->traffic == TRAFFIC_EXPERTS) conf.maxCTAs = EXPERT_CTAS;
    if (q->traffic == TRAFFIC_LINKS)        conf.maxCTAs = LINK_CTAS;
    TRY(make_stream(&q->stream));
    TRY(progress_word_open(&q->progress));
    return check(l, l->init(&q->comm, q->n, *id, q->me, &conf), c, "opening the communicator");
}

/* Every member passes an id; all[i] is that of member i. */
static Status gather_ids(Comm *c, ncclUniqueId *all)
{
    NcclGroup   *g = nccl_of(c);
    ncclUniqueId mine;
    TRY(check(&g->nccl->lib, g->nccl->lib.get_unique_id(&mine), c, "an id for a communicator"));
    if (c->size > 1) return g->host->transport->host_gather(g->host, all, &mine, sizeof mine);
    all[0] = mine;
    return OK;
}

static ncclResult_t warm_sums(const NcclLibrary *l, const NcclQueue *q, float *at, float *other)
{
    ncclResult_t r = l->all_gather(at, other, 1, ncclFloat32, q->comm, q->stream);
    if (r == ncclSuccess) r = l->reduce_scatter(other, at, 1, ncclFloat32, ncclSum, q->comm, q->stream);
    return r;
}

static ncclResult_t warm_exchange(const NcclLibrary *l, const NcclQueue *q, float *at, float *other)
{
    ncclResult_t r = ncclSuccess;
    l->group_start();
    for (int i = 0; i < q->n && r == ncclSuccess; i++) {
        r = l->send(at + i, 1, ncclFloat32, i, q->comm, q->stream);
        if (r == ncclSuccess) r = l->recv(other + i, 1, ncclFloat32, i, q->comm, q->stream);
    }
    ncclResult_t end = l->group_end();
    return r == ncclSuccess ? end : r;
}

/* The kinds of calls that the traffic has: connections that are never used would take memory. all_reduce must
 * count the members. */
static Status warm_queue(Comm *c, float *at, float *sum)
{
    NcclQueue         *q = nccl_of(c)->queue;
    const NcclLibrary *l = &nccl_of(c)->nccl->lib;
    float       *other = at + q->n;
    ncclResult_t r = l->all_reduce(at, at, 1, ncclFloat32, ncclSum, q->comm, q->stream);
    cudaMemcpyAsync(sum, at, sizeof *sum, cudaMemcpyDeviceToHost, q->stream);
    if (r == ncclSuccess && q->traffic != TRAFFIC_EXPERTS) r = warm_sums(l, q, at, other);
    if (r == ncclSuccess && q->traffic != TRAFFIC_STATES)  r = warm_exchange(l, q, at, other);
    return check(l, r, c, "the first calls");
}

static Status test_queue(Comm *c)
{
    NcclQueue *q = nccl_of(c)->queue;
    float      one = 1, sum = 0, *at = NULL;
    if (cudaMalloc((void **)&at, 2 * (size_t)q->n * sizeof *at) != cudaSuccess)
        return fail(E_DEVICE, "no device memory for NCCL");
    cudaMemsetAsync(at, 0, 2 * (size_t)q->n * sizeof *at, q->stream);
    cudaMemcpyAsync(at, &one, sizeof one, cudaMemcpyHostToDevice, q->stream);
    Status      st = warm_queue(c, at, &sum);
    cudaError_t e = cudaStreamSynchronize(q->stream);
    cudaFree(at);
    if (!st && e != cudaSuccess) st = fail(E_DEVICE, "NCCL, first calls: %s", cudaGetErrorString(e));
    if (!st && sum != (float)q->n)
        st = fail(E_COMM, "NCCL: the test all_reduce of group %s counted %g ranks of %d",
                  group_name((GroupId)c->group), sum, q->n);
    return st;
}

static Status open_collectives(Comm *c)
{
    NcclGroup   *g = nccl_of(c);
    GroupTraffic traffic = group_traffic((GroupId)c->group);
    g->queue = find_queue(g->nccl, c->world, c->size, traffic);
    bool shared = g->queue != NULL;
    if (!shared) g->queue = add_queue(g->nccl, c->world, c->size, c->rank, traffic);
    ncclUniqueId *ids = (ncclUniqueId *)calloc((size_t)c->size, sizeof *ids);
    Status st = g->queue && ids ? OK : fail(E_FIT, "no memory");
    if (g->queue) g->queue->groups++;
    if (!st && !shared) {
        st = gather_ids(c, ids);
        if (!st) st = init_queue(c, g->queue, &ids[0]);
        if (!st) st = test_queue(c);
        g->nccl->opened++;
    }
    free(ids);
    return st;
}

/* ---- links ---- */

static int neighbour(const Comm *c, int by)
{
    return (c->rank + by * group_direction((GroupId)c->group) + c->size) % c->size;
}

static NcclQueue *add_link(Comm *c, int sender, int receiver)
{
    int        ends[2] = { c->world[sender], c->world[receiver] };
    NcclQueue *q = add_queue(nccl_of(c)->nccl, ends, 2, c->rank == receiver, TRAFFIC_LINKS);
    if (q) q->groups = 1;
    return q;
}

/* Member i makes the id of the link that it sends over. */
static Status init_links(Comm *c, ncclUniqueId *ids)
{
    NcclGroup         *g = nccl_of(c);
    const NcclLibrary *l = &g->nccl->lib;
    TRY(gather_ids(c, ids));
    l->group_start();
    Status st = init_queue(c, g->to, &ids[c->rank]);
    if (!st) st = init_queue(c, g->from, &ids[neighbour(c, -1)]);
    ncclResult_t end = l->group_end();
    return st ? st : check(l, end, c, "opening the links");
}

/* A message on every link, all in one call. */
static Status warm_links(Comm *c)
{
    NcclGroup         *g = nccl_of(c);
    const NcclLibrary *l = &g->nccl->lib;
    float             *at = NULL;
    if (cudaMalloc((void **)&at, 2 * sizeof *at) != cudaSuccess)
        return fail(E_DEVICE, "no device memory for NCCL");
    l->group_start();
    ncclResult_t r = l->send(at, 1, ncclFloat32, 1, g->to->comm, g->to->stream);
    if (r == ncclSuccess) r = l->recv(at + 1, 1, ncclFloat32, 0, g->from->comm, g->from->stream);
    ncclResult_t end = l->group_end();
    cudaError_t  e = cudaStreamSynchronize(g->to->stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(g->from->stream);
    cudaFree(at);
    TRY(check(l, r == ncclSuccess ? end : r, c, "the first messages"));
    return e == cudaSuccess ? OK : fail(E_DEVICE, "NCCL, first messages: %s", cudaGetErrorString(e));
}

static Status open_links(Comm *c)
{
    NcclGroup    *g = nccl_of(c);
    ncclUniqueId *ids = (ncclUniqueId *)calloc((size_t)c->size, sizeof *ids);
    g->to   = add_link(c, c->rank, neighbour(c, 1));
    g->from = add_link(c, neighbour(c, -1), c->rank);
    Status st = ids && g->to && g->from ? OK : fail(E_FIT, "no memory");
    if (!st) st = init_links(c, ids);
    if (!st) st = warm_links(c);
    free(ids);
    g->nccl->opened += 2;
    return st;
}

static size_t free_bytes(void)
{
    size_t left = 0, all = 0;
    cudaMemGetInfo(&left, &all);
    return left;
}

Status nccl_open_queues(Comm *c)
{
    GroupTraffic traffic = group_traffic((GroupId)c->group);
    if (traffic == TRAFFIC_HOST) return OK;
    size_t  before = free_bytes();
    int64_t call   = trace_begin(c->trace, (TraceCall){ "open", c->group });
    Status st = traffic == TRAFFIC_LINKS ? open_links(c) : open_collectives(c);
    trace_end(c->trace, call, 0);
    size_t after = free_bytes();
    nccl_of(c)->nccl->device_bytes += before > after ? before - after : 0;
    return st;
}

void nccl_close_queues(Comm *c)
{
    NcclGroup *g = nccl_of(c);
    bool abort = c->root->sticky || c->root->abort_sent || c->pending;
    drop_queue(g->nccl, g->queue, abort);
    drop_queue(g->nccl, g->to, abort);
    drop_queue(g->nccl, g->from, abort);
}
#endif
