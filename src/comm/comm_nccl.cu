/* comm/comm_nccl.cu -- device memory over NCCL; everything else (opening, host calls, heartbeat) over a host
 * transport: mpi where a launcher started several ranks, else self.
 *
 * The library is loaded at run time. Each group has a stream of its own: a call waits there for what the
 * compute stream has queued so far, and a join makes the compute stream wait for the call; the host never
 * waits. NCCL's order of additions is the same in every run of a layout, but not the same as over mpi. */
#include "comm/transport.h"
#include "ops/cuda/comm_clock.cuh"

#if __has_include(<nccl.h>)
#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct NcclLibrary {
    void        *file;
    ncclResult_t (*get_unique_id)(ncclUniqueId *);
    ncclResult_t (*init)(ncclComm_t *, int, ncclUniqueId, int);
    ncclResult_t (*destroy)(ncclComm_t);
    ncclResult_t (*abort)(ncclComm_t);
    ncclResult_t (*get_async_error)(ncclComm_t, ncclResult_t *);
    const char  *(*error_string)(ncclResult_t);
    ncclResult_t (*group_start)(void);
    ncclResult_t (*group_end)(void);
    ncclResult_t (*all_reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                           cudaStream_t);
    ncclResult_t (*all_gather)(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
    ncclResult_t (*reduce_scatter)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                            cudaStream_t);
    ncclResult_t (*send)(const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
    ncclResult_t (*recv)(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
} NcclLibrary;

typedef struct NcclGroup {             /* priv of a Comm */
    NcclLibrary *lib;                  /* of the world */
    Comm        *host;                 /* the same members over the host transport */
    ncclComm_t   comm;                 /* NULL until a backend is bound */
    cudaStream_t stream;
    cudaEvent_t  ready, done[COMM_TICKETS];
} NcclGroup;

static NcclGroup *group_of(const Comm *c) { return (NcclGroup *)c->priv; }

static Status library_load(NcclLibrary *l)
{
    l->file = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!l->file) return fail(E_CONFIG, "comm.kind = nccl: %s; set mpi", dlerror());
    const struct { void **to; const char *name; } all[] = {
        { (void **)&l->get_unique_id, "ncclGetUniqueId" },       { (void **)&l->init, "ncclCommInitRank" },
        { (void **)&l->destroy, "ncclCommDestroy" },  { (void **)&l->abort, "ncclCommAbort" },
        { (void **)&l->get_async_error, "ncclCommGetAsyncError" },
        { (void **)&l->error_string, "ncclGetErrorString" },
        { (void **)&l->group_start, "ncclGroupStart" },     { (void **)&l->group_end, "ncclGroupEnd" },
        { (void **)&l->all_reduce, "ncclAllReduce" },     { (void **)&l->all_gather, "ncclAllGather" },
        { (void **)&l->reduce_scatter, "ncclReduceScatter" }, { (void **)&l->send, "ncclSend" },
        { (void **)&l->recv, "ncclRecv" },
    };
    for (auto &f : all)
        if (!(*f.to = dlsym(l->file, f.name)))
            return fail(E_CONFIG, "comm.kind = nccl: libnccl.so.2 has no %s; set mpi", f.name);
    return OK;
}

/* The first failure sticks and aborts the peers, which would otherwise wait for ever. */
static void stick_failure(Comm *c, ncclResult_t r, const char *what)
{
    if (r == ncclSuccess || c->root->sticky) return;
    comm_stick(c, fail(E_COMM, "NCCL, %s: %s", what, group_of(c)->lib->error_string(r)));
    comm_abort(c, c->root->why);
}

/* ---- opening and closing ---- */

static Status nccl_group(Comm *world, Comm *out)
{
    NcclGroup *g = (NcclGroup *)calloc(1, sizeof *g);
    out->priv = g;
    if (!g) return fail(E_FIT, "no memory");
    g->lib = group_of(world)->lib;
    return comm_group(group_of(world)->host, out->world, out->size, out->group, &g->host);
}

static Status make_events(Comm *c)
{
    NcclGroup *g = group_of(c);
    cudaError_t e = cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking);
    if (e == cudaSuccess) e = cudaEventCreateWithFlags(&g->ready, cudaEventDisableTiming);
    for (int i = 0; i < COMM_TICKETS && e == cudaSuccess; i++)
        e = cudaEventCreateWithFlags(&g->done[i], cudaEventDisableTiming);
    return e == cudaSuccess ? OK : fail(E_DEVICE, "a stream for NCCL: %s", cudaGetErrorString(e));
}

/* The first member creates the unique id of the group; the others get it over the host transport. */
static Status init_comm(Comm *c)
{
    NcclGroup *g = group_of(c);
    ncclUniqueId  mine, *all = (ncclUniqueId *)calloc((size_t)c->size, sizeof *all);
    ncclResult_t  r = ncclSuccess;
    memset(&mine, 0, sizeof mine);
    if (!all) return fail(E_FIT, "no memory");
    if (c->rank == 0) r = g->lib->get_unique_id(&mine);
    Status st = OK;
    if (c->size > 1) st = g->host->transport->host_gather(g->host, all, &mine, sizeof mine);
    else             all[0] = mine;
    if (!st && r == ncclSuccess) r = g->lib->init(&g->comm, c->size, all[0], c->rank);
    free(all);
    if (st || r == ncclSuccess) return st;
    return fail(E_COMM, "NCCL cannot start: %s; it needs a GPU for each rank, else set comm.kind = mpi",
                g->lib->error_string(r));
}

/* A test all_reduce over the world: a broken NCCL shows before the first step. */
static Status test_all_reduce(Comm *c)
{
    NcclGroup *g = group_of(c);
    float  one = 1, *at = NULL;
    if (cudaMalloc((void **)&at, sizeof one) != cudaSuccess)
        return fail(E_DEVICE, "no device memory for NCCL");
    cudaMemcpy(at, &one, sizeof one, cudaMemcpyHostToDevice);
    ncclResult_t r = g->lib->all_reduce(at, at, 1, ncclFloat32, ncclSum, g->comm, g->stream);
    cudaError_t  e = cudaStreamSynchronize(g->stream);
    if (e == cudaSuccess) e = cudaMemcpy(&one, at, sizeof one, cudaMemcpyDeviceToHost);
    cudaFree(at);
    if (r != ncclSuccess) return fail(E_COMM, "NCCL, first call: %s", g->lib->error_string(r));
    if (e != cudaSuccess) return fail(E_DEVICE, "NCCL, first call: %s", cudaGetErrorString(e));
    if (one == (float)c->size) return OK;
    return fail(E_COMM, "NCCL: the test all_reduce counted %g ranks of %d", one, c->size);
}

static void nccl_bind(Comm *c)
{
    NcclGroup *g = group_of(c);
    if (!c->be || g->comm || c->root->sticky) return;
    Status st = OK;
    if (strcmp(c->be->device->name, "cuda"))
        st = fail(E_CONFIG, "comm.kind = nccl moves device memory; backend %s needs mpi",
                  c->be->device->name);
    if (!st) st = comm_clock_open(c->be);
    if (!st) st = make_events(c);
    if (!st) st = init_comm(c);
    if (!st && c->root == c) st = test_all_reduce(c);
    if (!st) return;
    comm_stick(c, st);
    comm_abort(c, c->root->why);
}

static void nccl_close(Comm *c)
{
    NcclGroup *g = group_of(c);
    if (!g) return;
    if (g->comm && (c->root->sticky || c->root->abort_sent || c->pending)) g->lib->abort(g->comm);
    else if (g->comm) g->lib->destroy(g->comm);
    for (int i = 0; i < COMM_TICKETS; i++) if (g->done[i]) cudaEventDestroy(g->done[i]);
    if (g->ready)  cudaEventDestroy(g->ready);
    if (g->stream) cudaStreamDestroy(g->stream);
    if (c->root == c) c->trace = NULL, free(g->lib);     /* the trace belongs to the host world */
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
    NcclGroup *g = group_of(c);
    int64_t      give = call_row(k->in), get = call_row(k->out);
    ncclResult_t r = g->lib->group_start();
    for (int i = 0; i < c->size && r == ncclSuccess; i++) {
        const char *from = (const char *)k->in.data + k->give.at[i] * give;
        char       *to   = (char *)k->out.data + k->get.at[i] * get;
        size_t      out = (size_t)(k->give.n[i] * give), in = (size_t)(k->get.n[i] * get);
        if (i == c->rank) {
            cudaError_t e = cudaMemcpyAsync(to, from, out, cudaMemcpyDeviceToDevice, g->stream);
            cuda_stick(c->be, e, "all_to_all");
            continue;
        }
        if (out) r = g->lib->send(from, out, ncclUint8, i, g->comm, g->stream);
        if (in && r == ncclSuccess) r = g->lib->recv(to, in, ncclUint8, i, g->comm, g->stream);
    }
    ncclResult_t e = g->lib->group_end();
    return r == ncclSuccess ? e : r;
}

static ncclResult_t launch_call(Comm *c, const CommCall *k)
{
    NcclGroup *g = group_of(c);
    ncclRedOp_t op = k->reduce == RED_SUM ? ncclSum : ncclMax;
    size_t      in = (size_t)t_bytes(k->in);
    switch (k->kind) {
    case CALL_ALL_REDUCE:
        return g->lib->all_reduce(k->in.data, k->out.data, (size_t)t_count(k->in), type_of(k->in.dtype), op,
                              g->comm, g->stream);
    case CALL_REDUCE_SCATTER:
        return g->lib->reduce_scatter(k->in.data, k->out.data, (size_t)t_count(k->out),
                                      type_of(k->in.dtype), op, g->comm, g->stream);
    case CALL_ALL_GATHER:
        return g->lib->all_gather(k->in.data, k->out.data, in, ncclUint8, g->comm, g->stream);
    case CALL_SEND:   return g->lib->send(k->in.data, in, ncclUint8, k->peer, g->comm, g->stream);
    case CALL_RECV:
        return g->lib->recv(k->out.data, (size_t)t_bytes(k->out), ncclUint8, k->peer, g->comm, g->stream);
    default:          return launch_all_to_all(c, k);
    }
}

static void nccl_start(Comm *c, int slot, const CommCall *call)
{
    NcclGroup *g = group_of(c);
    if (c->root->sticky) return;
    cuda_stick(c->be, cudaEventRecord(g->ready, cuda_of(c->be)->stream), call_name(call->kind));
    cuda_stick(c->be, cudaStreamWaitEvent(g->stream, g->ready, 0), call_name(call->kind));
    int span = comm_clock_begin(c->be, g->stream);
    stick_failure(c, launch_call(c, call), call_name(call->kind));
    comm_clock_end(c->be, span, g->stream, c->group);
    cuda_stick(c->be, cudaEventRecord(g->done[slot], g->stream), call_name(call->kind));
}

static void nccl_join(Comm *c, int slot)
{
    NcclGroup *g = group_of(c);
    ncclResult_t late = ncclSuccess;
    if (c->root->sticky) return;
    cudaStream_t compute = cuda_of(c->be)->stream;
    int span = comm_clock_begin(c->be, compute);
    cuda_stick(c->be, cudaStreamWaitEvent(compute, g->done[slot], 0), "join");
    comm_clock_end(c->be, span, compute, c->group);
    if (g->lib->get_async_error(g->comm, &late) == ncclSuccess)
        stick_failure(c, late, "an earlier call");
}

static Status nccl_host_gather(Comm *c, void *out, const void *in, size_t bytes)
{
    Comm *host = group_of(c)->host;
    return host->transport->host_gather(host, out, in, bytes);
}

static void nccl_abort(Comm *world, const char *why) { comm_abort(group_of(world)->host, why); }

static void nccl_watch(Comm *world, double seconds, void (*print)(void *self, const char *line), void *self)
{
    comm_watch(group_of(world)->host, seconds, print, self);
}

static Status nccl_world(Comm **world, Comm *host)
{
    Comm  *c = comm_new(&transport_nccl, NULL, host->rank, host->size);
    NcclGroup *g = (NcclGroup *)calloc(1, sizeof *g);
    if (g) g->lib = (NcclLibrary *)calloc(1, sizeof *g->lib);
    if (!c || !g || !g->lib) {
        if (c) comm_free(c);
        if (g) free(g->lib), free(g);
        return fail(E_FIT, "no memory");
    }
    trace_close(c->trace), free(c->trace);
    c->trace = host->trace, c->priv = g, g->host = host;
    memcpy(c->node, host->node, (size_t)host->size * sizeof *c->node);
    *world = c;
    return library_load(g->lib);
}

static Status nccl_open(Comm **world, const CommConf *conf)
{
    CommConf host_conf = *conf;
    Comm    *host = NULL;
    host_conf.kind = "auto";
    *world = NULL;
    TRY(comm_open(&host, &host_conf));
    Status st = nccl_world(world, host);
    if (st && *world) comm_close(*world);
    else if (st)      comm_close(host);
    if (st) *world = NULL;
    return st;
}

const Transport transport_nccl = {
    "nccl",           nccl_open,  nccl_group, nccl_close, nccl_bind, nccl_start, nccl_join,
    nccl_host_gather, nccl_abort, nccl_watch, true,
};

#else

static Status nccl_open(Comm **world, const CommConf *conf)
{
    *world = NULL;
    return fail(E_CONFIG, "comm.kind = nccl: this build found no nccl.h; install it, or set mpi");
}

const Transport transport_nccl = { "nccl", nccl_open };
#endif
