/* ops/backend.c -- the table of devices, and what all of them share. */
#include "ops/op_queue.h"

#include <stdio.h>
#include <string.h>

static const Device *const devices[] = {
    &device_cpu,
    &device_meta,
#ifdef TREB_CUDA
    &device_cuda,
#endif
};
enum { DEVICES = sizeof devices / sizeof *devices };

_Static_assert(OP_N <= LEDGER_OPS, "the ledger has too few rows for the ops");

const char *op_name(int id)
{
    static const char *const names[] = {
#define OP(name, kind, params, args) #name,
#include "ops/ops.def"
#undef OP
    };
    return id >= 0 && id < OP_N ? names[id] : "?";
}

const char *backend_names(void)
{
#ifdef TREB_CUDA
    return "cpu, meta, cuda";
#else
    return "cpu, meta (this build has no CUDA: make CUDA=1)";
#endif
}

static const Device *find_device(const char *name)
{
    for (int i = 0; i < DEVICES; i++)
        if (!strcmp(devices[i]->name, name)) return devices[i];
    return NULL;
}

/* A GPU has the memory to compute the logits in few, large products. */
BackendTraits backend_traits(const char *name)
{
    bool cuda = !strcmp(name, "cuda");
    return (BackendTraits){ .logits = cuda ? (int64_t)8192 * 151936 : (int64_t)16 << 20, 
                            .logits_in_act_dtype = cuda, .ahead = cuda };
}

const char *backend_pick(const char *name)
{
    double left = 0, all = 0;
    if (strcmp(name, "auto")) return name;
    if (find_device("cuda")) backend_memory("cuda", &left, &all);
    return all > 0 ? "cuda" : "cpu";
}

Status backend_check(const char *name)
{
    double left, all;
    char   what[256];
    if (!find_device(name))
        return fail(E_CONFIG, "backend %s: not in this build; there are %s", name, backend_names());
    backend_memory(name, &left, &all);
    if (all > 0 || !strcmp(name, "meta")) return OK;
    backend_describe(name, what, sizeof what);
    return fail(E_DEVICE, "backend %s: %s; use cpu", name, what);
}

void (*backend_pin(const char *name))(void *p, size_t bytes, bool on)
{
    const Device *m = find_device(name);
    return m ? m->pin : NULL;
}

void backend_memory(const char *name, double *left, double *all)
{
    const Device *m = find_device(name);
    *left = *all = 0;
    activity_slow_begin();                                  /* the first use of a GPU loads all kernels */
    if (m && m->memory) m->memory(left, all);
    activity_slow_end();
}

void backend_load_trace(const char *name)
{
    const Device *m = find_device(name);
    if (m && m->trace) m->trace->load();
}

double backend_memory_used(const char *name)
{
    const Device *m = find_device(name);
    return m && m->memory_used ? m->memory_used() : 0;
}

void backend_describe(const char *name, char *out, size_t n)
{
    snprintf(out, n, "not in this build");
    const Device *m = find_device(name);
    if (m) snprintf(out, n, "built in");
    if (m && m->describe) m->describe(out, n);
}

void backend_describe_kernels(const char *name, char *out, size_t n)
{
    const Device *m = find_device(name);
    snprintf(out, n, "%s", "");
    if (m && m->describe_kernels) m->describe_kernels(out, n);
}

static void tick(void *self, Part ended)
{
    Backend *be = self;
    backend_flush(be);
    be->device->clock(be, ended);
}

Status backend_open(Backend *be, const char *name)
{
    *be = (Backend){ .device = find_device(name) };
    if (!be->device)
        return fail(E_CONFIG, "backend %s: not in this build; there are %s", name, backend_names());
    be->ops = be->device->ops;
    activity_slow_begin();                                  /* a GPU loads libraries and all kernels */
    Status st = be->device->open(be);
    activity_slow_end();
    TRY_CTX(st, "backend %s", name);
    if (be->device->clock) be->ledger.tick = tick, be->ledger.self = be;
    return OK;
}

Status backend_kernels(Backend *be, const char *name)
{
    return be->device->kernels ? be->device->kernels(be, name) : OK;
}

Status backend_require_precision(Backend *be, Precision p)
{
    return be->device->require_precision ? be->device->require_precision(be, p) : OK;
}

void backend_close(Backend *be)
{
    if (be->device) be->device->close(be);
    *be = (Backend){ 0 };
}

/* The first failure is reported once with its text; the backend stays poisoned. */
Status backend_sync(Backend *be)
{
    backend_flush(be);
    ledger_host_work(&be->ledger, COST_SYNC);
    Status st = be->device->sync(be);
    ledger_done(&be->ledger);
    return st ? st : be->sticky;
}

void backend_mark(Backend *be)
{
    bool executes = !be->sticky && !be->preparing && !be->capturing;
    if (be->watched && be->device->mark && executes) be->device->mark(be);
}

bool   backend_prepares(const Backend *be) { return be->device->prepare != NULL; }

Status backend_prepare(Backend *be, bool on)
{
    be->preparing = on;
    return be->device->prepare(be, on);
}

void backend_upload(Backend *be, Tensor dst, const void *host)
{
    REQUIRE(t_dense(dst) && !be->capturing, "upload: %s has gaps, or is recorded", t_fmt(dst));
    activity_mark();
    backend_flush(be);
    ledger_host_work(&be->ledger, COST_UPLOAD);
    if (!be->sticky) be->device->upload(be, dst, host);
    ledger_done(&be->ledger);
}

void backend_join(Backend *be)
{
    backend_flush(be);
    if (!be->sticky && be->device->join) be->device->join(be);
}

void backend_put(Backend *be, void *dst, const void *host, size_t bytes)
{
    REQUIRE(bytes <= PUT_BYTES, "backend_put: %zu bytes", bytes);
    backend_flush(be);
    if (!be->sticky && !be->preparing) be->device->put(be, dst, host, bytes);
}

void backend_fetch(Backend *be, void *host, Tensor src)
{
    REQUIRE(t_dense(src) && !be->capturing, "fetch: %s has gaps, or is recorded", t_fmt(src));
    activity_mark();
    backend_scope(be, GRAPH_EAGER);
    if (be->ledger.meter) be->ledger.meter->fetch(be->ledger.meter);
    if (!be->sticky) be->device->fetch(be, host, src);
    ledger_done(&be->ledger);
}

void backend_graph_begin(Backend *be)
{
    be->capturing = true;
    if (!be->sticky) be->device->graphs->begin(be);
}

DeviceGraph *backend_graph_end(Backend *be, size_t *bytes)
{
    DeviceGraph *g = be->device->graphs->end(be, bytes);
    be->capturing = false;
    return g;
}

void backend_graph_launch(Backend *be, DeviceGraph *g)
{
    activity_mark();
    ledger_host_work(&be->ledger, COST_LAUNCH);
    if (!be->sticky) be->device->graphs->launch(be, g);
    ledger_done(&be->ledger);
    backend_mark(be);
}

void backend_graph_close(Backend *be, DeviceGraph *g)
{
    if (g) be->device->graphs->close(be, g);
}

void backend_post(Backend *be, int slot, void *host, Tensor src)
{
    REQUIRE(t_dense(src) && slot >= 0 && slot < POST_ALL, "post: slot %d, %s", slot, t_fmt(src));
    activity_mark();
    backend_scope(be, GRAPH_EAGER);
    if (be->sticky) return;
    if (be->device->post) be->device->post(be, slot, host, src);
    else if (be->device->host_memory) memcpy(host, src.data, (size_t)t_bytes(src));
}

Status backend_wait_post(Backend *be, int slot, double seconds[PART_TIMES])
{
    ledger_host_work(&be->ledger, COST_SYNC);
    if (!be->sticky && be->device->wait_post) be->device->wait_post(be, slot, seconds);
    ledger_done(&be->ledger);
    return be->sticky ? backend_sync(be) : OK;
}

typedef Status MapFn(Backend *be, size_t bytes, void **out);
typedef void   UnmapFn(Backend *be, void *p, size_t bytes);

static Status arena_over(Backend *be, Arena *a, const char *name, size_t bytes, MapFn *map, UnmapFn *unmap)
{
    void *base = NULL;
    *a = (Arena){ 0 };
    size_t cap = bytes ? (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN : ARENA_ALIGN;
    activity_slow_begin();                                  /* pinning goes page by page */
    Status st = map(be, cap, &base);
    activity_slow_end();
    TRY_CTX(st, "arena %s, %.1f MiB", name, (double)cap / (1 << 20));
    st = arena_open(a, name, base, cap, &be->sticky);
    if (st) unmap(be, base, cap), *a = (Arena){ 0 };
    return st;
}

static void arena_done(Backend *be, Arena *a, UnmapFn *unmap)
{
    activity_slow_begin();
    if (a->base) unmap(be, a->base, a->cap);
    activity_slow_end();
    arena_close(a);
}

Status backend_arena_open(Backend *be, Arena *a, const char *name, size_t bytes)
{
    return arena_over(be, a, name, bytes, be->device->map, be->device->unmap);
}

void backend_arena_close(Backend *be, Arena *a) { arena_done(be, a, be->device->unmap); }

static MapFn   *host_map(const Device *m)   { return m->host_map ? m->host_map : m->map; }
static UnmapFn *host_unmap(const Device *m) { return m->host_unmap ? m->host_unmap : m->unmap; }

Status backend_host_arena_open(Backend *be, Arena *a, const char *name, size_t bytes)
{
    return arena_over(be, a, name, bytes, host_map(be->device), host_unmap(be->device));
}

void backend_host_arena_close(Backend *be, Arena *a) { arena_done(be, a, host_unmap(be->device)); }

/* NULL while preparing, which copies nothing, and after a sticky error. */
static const CopyOps *copies_of(Backend *be)
{
    backend_flush(be);
    return be->sticky || be->preparing ? NULL : be->device->copies;
}

static void notify_meter(Backend *be, CostSide what, CopyStream stream, int id, size_t bytes)
{
    CostListener *m = be->ledger.meter;
    if (m) m->side(m, what, stream, id, (int64_t)bytes);
}

static void copy_async(Backend *be, CopyStream stream, void *dst, const void *src, size_t bytes)
{
    const CopyOps *l = copies_of(be);
    ledger_host(&be->ledger, stream == COPY_H2D, (int64_t)bytes);
    notify_meter(be, COST_COPY, stream, 0, bytes);
    if (l && bytes) l->copy(be, stream, dst, src, bytes);
    ledger_done(&be->ledger);
}

void backend_copy_d2h(Backend *be, void *host, Tensor src)
{
    REQUIRE(t_dense(src), "backend_copy_d2h: %s is not dense", t_fmt(src));
    copy_async(be, COPY_D2H, host, src.data, (size_t)t_bytes(src));
}

void backend_copy_h2d(Backend *be, Tensor dst, const void *host)
{
    REQUIRE(t_dense(dst), "backend_copy_h2d: %s is not dense", t_fmt(dst));
    copy_async(be, COPY_H2D, dst.data, host, (size_t)t_bytes(dst));
}

void backend_copy_wait_compute(Backend *be, CopyStream stream)
{
    const CopyOps *l = copies_of(be);
    notify_meter(be, COST_BEGIN, stream, 0, 0);
    if (l && l->wait_compute) l->wait_compute(be, stream);
}

void backend_copy_record(Backend *be, CopyStream stream, int id)
{
    const CopyOps *l = copies_of(be);
    REQUIRE(id >= 0 && id < COPY_EVENTS, "copy event %d", id);
    notify_meter(be, COST_MARK, stream, id, 0);
    if (l && l->record) l->record(be, stream, id);
}

void backend_wait_copy(Backend *be, int id)
{
    const CopyOps *l = copies_of(be);
    REQUIRE(id >= 0 && id < COPY_EVENTS, "copy event %d", id);
    notify_meter(be, COST_WAIT, COPY_H2D, id, 0);
    if (l && l->compute_wait) l->compute_wait(be, id);
}

void backend_copy_wait(Backend *be, CopyStream stream, int id)
{
    const CopyOps *l = copies_of(be);
    REQUIRE(id >= 0 && id < COPY_EVENTS, "copy event %d", id);
    notify_meter(be, COST_LANE_WAIT, stream, id, 0);
    if (l && l->wait) l->wait(be, stream, id);
}

void backend_copy_sync(Backend *be)
{
    const CopyOps *l = copies_of(be);
    if (l && l->sync) l->sync(be);
}
