/* ops/cuda/trace_cupti.cu -- spans by CUPTI's activity records; see trace.cuh. The library is loaded by name,
 * as cuDNN and NCCL are: a build needs its headers alone. Calls of the host that launch are recorded and
 * called back (trace_callbacks.cu): records of these calls alone, by cuptiActivityEnableRuntimeApi, did not
 * come on an H200. */
#include "ops/cuda/trace.cuh"

#if __has_include(<cupti.h>)
#include "base/grow.h"

#include <cupti.h>
#include <dlfcn.h>
#include <pthread.h>
#include <math.h>
#include <stdlib.h>

#define CUPTI_CALLS(LIB)                                                                           \
    LIB(register_callbacks, cuptiActivityRegisterCallbacks)                                        \
    LIB(register_clock, cuptiActivityRegisterTimestampCallback)                                    \
    LIB(enable, cuptiActivityEnable)                                                               \
    LIB(disable, cuptiActivityDisable)                                                             \
    LIB(flush, cuptiActivityFlushAll)                                                              \
    LIB(next, cuptiActivityGetNextRecord)                                                          \
    LIB(result_string, cuptiGetResultString)

typedef struct CuptiLibrary {
    void *file;
#define LIB(field, symbol) decltype(&symbol) field;
    CUPTI_CALLS(LIB)
#undef LIB
} CuptiLibrary;

typedef struct CuptiBuffer { uint8_t *at; size_t used; } CuptiBuffer;

enum { BUFFER_BYTES = 8 << 20 };

static struct {
    CuptiLibrary    lib;
    bool            ready;
    pthread_mutex_t lock;                               /* of the buffers, which a thread of CUPTI gives */
    CuptiBuffer    *buffer;
    int             n, cap;
} cupti = { .lock = PTHREAD_MUTEX_INITIALIZER };

static const CUpti_ActivityKind kinds[] = { CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                            CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_RUNTIME,
                                            CUPTI_ACTIVITY_KIND_DRIVER };

/* ---- buffers ---- */

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *records)
{
    *buffer = (uint8_t *)aligned_alloc(8, BUFFER_BYTES), *size = *buffer ? BUFFER_BYTES : 0, *records = 0;
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                                 size_t used)
{
    CuptiBuffer b = { buffer, used };
    pthread_mutex_lock(&cupti.lock);
    bool kept = used && GROW(cupti.buffer, cupti.cap, cupti.n + 1);
    if (kept) cupti.buffer[cupti.n++] = b;
    pthread_mutex_unlock(&cupti.lock);
    if (!kept) free(buffer);
}

static void drop_buffers(void)
{
    for (int i = 0; i < cupti.n; i++) free(cupti.buffer[i].at);
    free(cupti.buffer);
    cupti.buffer = NULL, cupti.n = cupti.cap = 0;
}

static uint64_t CUPTIAPI host_clock(void) { return (uint64_t)(clock_now() * 1e9); }

/* ---- opening ---- */

/* Keeps the reason as status_text(). */
static bool refuse(const char *format, const char *text) { return fail(E_DEVICE, format, text) == OK; }

static bool accepts(CUptiResult r, const char *what)
{
    const char *text = "";
    if (r == CUPTI_SUCCESS) return true;
    cupti.lib.result_string(r, &text);
    return fail(E_DEVICE, "CUPTI, %s: %s", what, text) == OK;
}

static bool open_library(CuptiLibrary *l)
{
    static const char *const names[] = { "libcupti.so.13", "libcupti.so",
                                         "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13",
                                         "/usr/local/cuda/lib64/libcupti.so.13" };
    for (size_t i = 0; i < sizeof names / sizeof *names && !l->file; i++)
        l->file = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!l->file) return refuse("%s", dlerror());
#define LIB(field, symbol)                                                                         \
    if (!(l->field = (decltype(l->field))dlsym(l->file, #symbol)))                                 \
        return refuse("libcupti has no %s", #symbol);
    CUPTI_CALLS(LIB)
#undef LIB
    return true;
}

static bool set_records(bool on)
{
    bool ok = true;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        ok = accepts(on ? cupti.lib.enable(kinds[i]) : cupti.lib.disable(kinds[i]), "records of work") && ok;
    return ok;
}

bool cupti_load(void)
{
    if (cupti.ready) return true;
    if (!cupti.lib.file && !open_library(&cupti.lib)) return false;
    cupti.ready = accepts(cupti.lib.register_clock(host_clock), "clock") &&
                  accepts(cupti.lib.register_callbacks(give_buffer, take_buffer), "buffers") &&
                  set_records(true) && set_records(false);
    if (cupti.ready) cupti_subscribe(cupti.lib.file);
    return cupti.ready;
}

bool cupti_start(void)
{
    if (!cupti_load()) return false;
    cupti.lib.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    drop_buffers();
    cupti_follow_calls(true);
    return set_records(true);
}

/* ---- records ---- */

typedef struct SpanLists {
    DeviceSpan *span;
    uint32_t   *id;                                     /* of each span: the call that launched it */
    LaunchCall *call;
    int64_t     n, ids_cap, spans_cap, calls, calls_cap;
} SpanLists;

static void add_span(SpanLists *l, uint32_t id, DeviceSpan s)
{
    if (!GROW(l->span, l->spans_cap, l->n + 1) || !GROW(l->id, l->ids_cap, l->n + 1)) return;
    l->id[l->n] = id, l->span[l->n++] = s;
}

static void add_call(SpanLists *l, const CUpti_ActivityAPI *a)
{
    LaunchCall c = { a->correlationId, a->start * 1e-9 };
    if (GROW(l->call, l->calls_cap, l->calls + 1)) l->call[l->calls++] = c;
}

static void add_calls(SpanLists *l)
{
    int64_t           n;
    const LaunchCall *c = cupti_calls(&n);
    for (int64_t i = 0; i < n && GROW(l->call, l->calls_cap, l->calls + 1); i++) l->call[l->calls++] = c[i];
}

static DeviceSpanKind copy_kind(uint8_t kind)
{
    if (kind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD) return SPAN_H2D;
    return kind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? SPAN_D2H : SPAN_D2D;
}

template <class R> static DeviceSpan span_of(const R *r, const char *name, int64_t bytes, DeviceSpanKind kind)
{
    DeviceSpan s = { r->start * 1e-9, r->end * 1e-9, -1, name, bytes, (int)r->streamId, kind,
                     r->graphNodeId ? cupti_tag_of(r->graphNodeId) : 0 };
    return s;
}

static void add_record(SpanLists *l, const CUpti_Activity *a)
{
    switch (a->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const CUpti_ActivityKernel10 *r = (const CUpti_ActivityKernel10 *)a;
        add_span(l, r->correlationId, span_of(r, r->name, 0, SPAN_KERNEL));
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const CUpti_ActivityMemcpy6 *r = (const CUpti_ActivityMemcpy6 *)a;
        add_span(l, r->correlationId, span_of(r, NULL, (int64_t)r->bytes, copy_kind(r->copyKind)));
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        const CUpti_ActivityMemset4 *r = (const CUpti_ActivityMemset4 *)a;
        add_span(l, r->correlationId, span_of(r, NULL, (int64_t)r->bytes, SPAN_FILL));
        break;
    }
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: add_call(l, (const CUpti_ActivityAPI *)a); break;
    default: break;
    }
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = ((const LaunchCall *)a)->id, y = ((const LaunchCall *)b)->id;
    return (x > y) - (x < y);
}

/* A span whose call is not recorded has no time of launch. */
static void find_launches(SpanLists *l)
{
    if (l->calls) qsort(l->call, (size_t)l->calls, sizeof *l->call, by_id);
    for (int64_t i = 0; i < l->n; i++) {
        LaunchCall  key = { l->id[i], 0 };
        const void *c = l->calls ? bsearch(&key, l->call, (size_t)l->calls, sizeof key, by_id) : NULL;
        l->span[i].launched = c ? ((const LaunchCall *)c)->began : NAN;
    }
}

size_t cupti_stop(DeviceSpan **out)
{
    SpanLists       l = {};
    CUpti_Activity *record = NULL;
    cupti_follow_calls(false);
    cupti.lib.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    set_records(false);
    add_calls(&l);
    for (int i = 0; i < cupti.n; i++) {
        record = NULL;
        while (cupti.lib.next(cupti.buffer[i].at, cupti.buffer[i].used, &record) == CUPTI_SUCCESS)
            add_record(&l, record);
    }
    find_launches(&l);
    drop_buffers();
    free(l.id), free(l.call);
    *out = l.span;
    return (size_t)l.n;
}

#else

bool   cupti_load(void)              { return false; }
bool   cupti_start(void)             { return false; }
size_t cupti_stop(DeviceSpan **out)  { return *out = NULL, 0; }
void   cupti_tag(uint32_t tag)       { }

#endif
