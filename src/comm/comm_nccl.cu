/* comm/comm_nccl.cu -- device memory over NCCL; everything else (opening, host calls, heartbeat) over a host
 * transport: mpi where a launcher started several ranks, else self. comm_nccl_queue.cu has the communicators.
 *
 * A call waits on the stream of its communicator for what the compute stream has queued so far, and a join
 * makes the compute stream wait for the call; the host never waits. Calls of one communicator run in their
 * order; calls of different communicators are independent, so that a receive that waits for its message holds
 * up nothing but later receives of its link. That is why NCCL_LAUNCH_ORDER_IMPLICIT is not set: it would hold
 * up every later call until a second posted receive has started. Without it calls of several communicators
 * must fit the GPU together, which they do: links have few CTAs, and other groups few communicators.
 *
 * Sums: see comm.h. */
#include "comm/transport.h"

#if __has_include(<nccl.h>)
#include "comm/comm_nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first failure sticks and aborts the peers, which would otherwise wait for ever. */
static void stick_failure(Comm *c, ncclResult_t r, const char *what)
{
    if (r == ncclSuccess || c->root->sticky) return;
    comm_stick(c, fail(E_COMM, "NCCL, %s: %s", what, nccl_of(c)->nccl->lib.error_string(r)));
    comm_abort(c, c->root->why);
}

/* ---- opening and closing ---- */

static Status nccl_group(Comm *world, Comm *out)
{
    NcclGroup *g = (NcclGroup *)calloc(1, sizeof *g);
    out->priv = g;
    if (!g) return fail(E_FIT, "no memory");
    g->nccl = nccl_of(world)->nccl;
    return comm_group(nccl_of(world)->host, out->world, out->size, out->group, &g->host);
}

static Status make_events(NcclGroup *g)
{
    cudaError_t e = cudaEventCreateWithFlags(&g->ready, cudaEventDisableTiming);
    for (int i = 0; i < COMM_TICKETS && e == cudaSuccess; i++)
        e = cudaEventCreateWithFlags(&g->done[i], cudaEventDisableTiming);
    return e == cudaSuccess ? OK : fail(E_DEVICE, "events for NCCL: %s", cudaGetErrorString(e));
}

static void nccl_bind(Comm *c)
{
    NcclGroup *g = nccl_of(c);
    if (!c->be || g->open || c->root->sticky) return;
    Status st = OK;
    if (strcmp(c->be->device->name, "cuda"))
        st = fail(E_CONFIG, "comm.kind = nccl moves device memory; backend %s needs mpi",
                  c->be->device->name);
    if (!st) st = comm_clock_open(c->be);
    if (!st) st = make_events(g);
    if (!st) st = nccl_open_queues(c);
    __atomic_store_n(&g->open, !st, __ATOMIC_RELEASE);
    if (!st) return;
    comm_stick(c, st);
    comm_abort(c, c->root->why);
}

static void nccl_close(Comm *c)
{
    NcclGroup *g = nccl_of(c);
    if (!g) return;
    nccl_close_queues(c);
    for (int i = 0; i < COMM_TICKETS; i++) if (g->done[i]) cudaEventDestroy(g->done[i]);
    if (g->ready)    cudaEventDestroy(g->ready);
    if (c->root == c) c->trace = NULL, free(g->nccl);    /* the trace belongs to the host world */
    comm_close(g->host);
    free(g);
    c->priv = NULL;
}

/* ---- calls ---- */

static ncclDataType_t type_of(int dtype)
{
    switch (dtype) {
    case F32:  return ncclFloat32;
    case F64:  return ncclFloat64;
    case BF16: return ncclBfloat16;
    case I32:  return ncclInt32;
    case I64:  return ncclInt64;
    default:   return ncclUint8;
    }
}

static ncclResult_t launch_all_to_all(Comm *c, const CommCall *k)
{
    const NcclLibrary *l = &nccl_of(c)->nccl->lib;
    NcclQueue   *q = nccl_of(c)->queue;
    int64_t      give = call_row(k->in), get = call_row(k->out);
    ncclResult_t r = l->group_start();
    for (int i = 0; i < c->size && r == ncclSuccess; i++) {
        const char *from = (const char *)k->in.data + k->give.at[i] * give;
        char       *to   = (char *)k->out.data + k->get.at[i] * get;
        size_t      out = (size_t)(k->give.n[i] * give), in = (size_t)(k->get.n[i] * get);
        if (i == c->rank) {
            cudaError_t e = cudaMemcpyAsync(to, from, out, cudaMemcpyDeviceToDevice, q->stream);
            cuda_stick(c->be, e, "all_to_all");
            continue;
        }
        if (out) r = l->send(from, out, ncclUint8, i, q->comm, q->stream);
        if (in && r == ncclSuccess) r = l->recv(to, in, ncclUint8, i, q->comm, q->stream);
    }
    ncclResult_t e = l->group_end();
    return r == ncclSuccess ? e : r;
}

/* The queue of a call: messages go over the links of a ring. */
static NcclQueue *queue_of(const Comm *c, const CommCall *k)
{
    NcclGroup *g = nccl_of(c);
    NcclQueue *q = k->kind == CALL_SEND ? g->to : k->kind == CALL_RECV ? g->from : g->queue;
    REQUIRE(q, "NCCL: group %s has no communicator for %s", group_name((GroupId)c->group),
            call_name(k->kind));
    int end = k->kind == CALL_SEND ? 1 : 0;
    REQUIRE((k->kind != CALL_SEND && k->kind != CALL_RECV) || q->members[end] == c->world[k->peer],
            "NCCL: group %s has no link between members %d and %d", group_name((GroupId)c->group), c->rank,
            k->peer);
    return q;
}

static ncclResult_t launch_call(Comm *c, NcclQueue *q, const CommCall *k)
{
    const NcclLibrary *l = &nccl_of(c)->nccl->lib;
    ncclRedOp_t op = k->reduce == RED_SUM ? ncclSum : ncclMax;
    size_t      in = (size_t)t_bytes(k->in);
    switch (k->kind) {
    case CALL_ALL_REDUCE:
        return l->all_reduce(k->in.data, k->out.data, (size_t)t_count(k->in), type_of(k->in.dtype), op,
                             q->comm, q->stream);
    case CALL_REDUCE_SCATTER:
        return l->reduce_scatter(k->in.data, k->out.data, (size_t)t_count(k->out), type_of(k->in.dtype), op,
                                 q->comm, q->stream);
    case CALL_ALL_GATHER:
        return l->all_gather(k->in.data, k->out.data, in, ncclUint8, q->comm, q->stream);
    case CALL_SEND: return l->send(k->in.data, in, ncclUint8, 1, q->comm, q->stream);
    case CALL_RECV:
        return l->recv(k->out.data, (size_t)t_bytes(k->out), ncclUint8, 0, q->comm, q->stream);
    default:        return launch_all_to_all(c, k);
    }
}

/* Only a difference counts, so numbers may wrap. */
static void write_progress(Comm *c, NcclQueue *q, uint32_t value)
{
    ProgressWrite write = nccl_of(c)->nccl->progress_write;
    if (write(q->stream, (CUdeviceptr)q->progress, value, CU_STREAM_WRITE_VALUE_DEFAULT))
        cuda_stick(c->be, cudaErrorUnknown, "writing the progress of a call");
}

static void nccl_start(Comm *c, int slot, const CommCall *call)
{
    NcclGroup *g = nccl_of(c);
    if (c->root->sticky || c->root->abort_sent) return;
    NcclQueue  *q = queue_of(c, call);
    const char *name = call_name(call->kind);
    uint32_t    number = q->calls++;
    g->call[c->started % COMM_RECENT] = (NcclCall){ q, number };
    cuda_stick(c->be, cudaEventRecord(g->ready, cuda_of(c->be)->stream), name);
    cuda_stick(c->be, cudaStreamWaitEvent(q->stream, g->ready, 0), name);
    int span = comm_clock_begin(c->be, q->stream);
    write_progress(c, q, 2 * number + 1);
    stick_failure(c, launch_call(c, q, call), name);
    write_progress(c, q, 2 * number + 2);
    comm_clock_end(c->be, span, q->stream, c->group);
    cuda_stick(c->be, cudaEventRecord(g->done[slot], q->stream), name);
}

static void nccl_join(Comm *c, int slot)
{
    if (c->root->sticky) return;
    cudaStream_t compute = cuda_of(c->be)->stream;
    int span = comm_clock_begin(c->be, compute);
    cuda_stick(c->be, cudaStreamWaitEvent(compute, nccl_of(c)->done[slot], 0), "join");
    comm_clock_end(c->be, span, compute, c->group);
}

/* ---- hooks of the watchdog ---- */

static bool is_open(const Comm *c) { return __atomic_load_n(&nccl_of(c)->open, __ATOMIC_ACQUIRE); }

static CallProgress nccl_call_progress(Comm *c, int64_t call)
{
    if (!is_open(c) || c->root->sticky || c->root->abort_sent) return CALL_FINISHED;
    NcclCall at = nccl_of(c)->call[call % COMM_RECENT];
    if (!at.queue) return CALL_FINISHED;                     /* NCCL had failed before it */
    uint32_t word = __atomic_load_n(at.queue->progress, __ATOMIC_ACQUIRE);
    int32_t  past = (int32_t)(word - 2 * at.number);
    return past < 1 ? CALL_QUEUED : past == 1 ? CALL_RUNNING : CALL_FINISHED;
}

static Status queue_error(const Comm *c, const NcclQueue *q)
{
    const NcclLibrary *l = &nccl_of(c)->nccl->lib;
    ncclResult_t late = ncclSuccess;
    if (!q || !q->comm || l->get_async_error(q->comm, &late) != ncclSuccess || late == ncclSuccess) return OK;
    return fail(E_COMM, "NCCL: %s", l->error_string(late));
}

static Status nccl_async_error(Comm *c)
{
    NcclGroup *g = nccl_of(c);
    if (!is_open(c)) return OK;
    TRY(queue_error(c, g->queue));
    TRY(queue_error(c, g->to));
    return queue_error(c, g->from);
}

static Status nccl_host_gather(Comm *c, void *out, const void *in, size_t bytes)
{
    Comm *host = nccl_of(c)->host;
    return host->transport->host_gather(host, out, in, bytes);
}

/* The host transport learns whether NCCL has failed: then its heartbeat may know which rank was lost. Calls
 * that wait for peers must end, because closing waits for the device. The watchdog asks no communicator
 * meanwhile. */
static void nccl_abort(Comm *world, const char *why)
{
    Comm      *host = nccl_of(world)->host;
    NcclWorld *w = nccl_of(world)->nccl;
    if (world->sticky) comm_stick(host, world->sticky);
    comm_abort(host, why);
    pthread_mutex_lock(&world->trace->comms_lock);
    for (NcclQueue *q = w->queues; q; q = q->next) {
        if (q->comm) w->lib.abort(q->comm);
        q->comm = NULL;
    }
    pthread_mutex_unlock(&world->trace->comms_lock);
}

static void nccl_watch(Comm *world, double seconds, void (*print)(void *self, const char *line), void *self)
{
    comm_watch(nccl_of(world)->host, seconds, print, self);
}

/* ---- the world ---- */

/* What NCCL tells ranks apart by: two that have the same are on one GPU, which it refuses. */
typedef struct GpuId { char uuid[16], host[64]; int node; } GpuId;

static GpuId own_gpu_id(const Comm *host)
{
    GpuId id;
    cudaDeviceProp p;
    memset(&id, 0, sizeof id);
    id.node = host->node[host->rank];
    if (cudaGetDeviceProperties(&p, cuda_own_gpu()) == cudaSuccess) memcpy(id.uuid, p.uuid.bytes, 16);
    if (getenv("NCCL_HOSTID")) snprintf(id.host, sizeof id.host, "%s", getenv("NCCL_HOSTID"));
    return id;
}

/* Every rank computes the same answer from the same ids. */
static Status find_shared_gpu(const GpuId *all, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++)
            if (!memcmp(&all[i], &all[k], sizeof *all))
                return fail(E_CONFIG, "ranks %d and %d share a GPU, which NCCL refuses; start one rank for "
                            "each GPU, or set comm.kind = mpi", i, k);
    return OK;
}

static Status check_gpus(Comm *host)
{
    GpuId  mine = own_gpu_id(host), *all = (GpuId *)calloc((size_t)host->size, sizeof *all);
    Status st = comm_agree(host, all ? OK : fail(E_FIT, "no memory"));
    if (!st) comm_host_gather(host, all, &mine, sizeof mine);
    if (!st && !getenv("NCCL_MULTI_RANK_GPU_ENABLE")) st = find_shared_gpu(all, host->size);
    free(all);
    return st;
}

static Status make_world(Comm **world, Comm *host, const NcclLibrary *lib, ProgressWrite write)
{
    Comm      *c = comm_new(&transport_nccl, NULL, host->rank, host->size);
    NcclGroup *g = (NcclGroup *)calloc(1, sizeof *g);
    NcclWorld *w = (NcclWorld *)calloc(1, sizeof *w);
    if (!c || !g || !w) {
        if (c) comm_free(c);
        free(g), free(w);
        return fail(E_FIT, "no memory");
    }
    trace_close(c->trace), free(c->trace);
    w->lib = *lib, w->progress_write = write, g->nccl = w, g->host = host;
    c->trace = host->trace, c->priv = g;
    c->seq = host->seq;                                 /* one numbering, as the watchdog expects */
    memcpy(c->node, host->node, (size_t)host->size * sizeof *c->node);
    *world = c;
    return OK;
}

static Status nccl_open_over(Comm **world, Comm *host)
{
    NcclLibrary   lib;
    ProgressWrite write = NULL;
    TRY(comm_agree(host, nccl_load(&lib)));
    TRY(check_gpus(host));
    TRY(comm_agree(host, progress_find_write(&write)));
    return make_world(world, host, &lib, write);
}

static size_t nccl_device_bytes(const Comm *world, int *communicators)
{
    *communicators = nccl_of(world)->nccl->opened;
    return nccl_of(world)->nccl->device_bytes;
}

const Transport transport_nccl = {
    .name = "nccl", .open_over = nccl_open_over, .group = nccl_group, .close = nccl_close, .bind = nccl_bind,
    .start = nccl_start, .join = nccl_join, .host_gather = nccl_host_gather, .abort = nccl_abort,
    .device_bytes = nccl_device_bytes, .watch = nccl_watch, .device_clock = true,
    .call_progress = nccl_call_progress, .async_error = nccl_async_error,
};

#else

static Status nccl_open_over(Comm **world, Comm *host)
{
    return fail(E_CONFIG, "comm.kind = nccl: this build found no nccl.h; install it, or set mpi");
}

const Transport transport_nccl = { .name = "nccl", .open_over = nccl_open_over };
#endif
