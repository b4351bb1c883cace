/* ops/backend.h -- a device and its ops: memory, copies, launches.
 *
 * Launches may be asynchronous and return nothing. The first failure (a launch, a full arena) is the
 * backend's sticky error: later ops do nothing, and backend_sync, once a step, returns the failure as a
 * Status. */
#ifndef OPS_BACKEND_H
#define OPS_BACKEND_H

#include "base/activity.h"
#include "base/ledger.h"
#include "base/precisions.h"
#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Backend Backend;
typedef struct Ops Ops;
typedef struct OpQueue OpQueue;

/* Copies between device and host that overlap with compute: one stream each way. */
typedef enum { COPY_D2H, COPY_H2D, COPY_STREAMS } CopyStream;     /* device to host, host to device */
enum { PUT_BYTES = 256 };
enum { COPY_EVENTS = 64, COPY_EVENTS_STATE = 56 };           /* from there on: optimizer state */

/* A device's implementation of the copy streams below; a device with synchronous copies sets copy alone. */
typedef struct CopyOps {
    void (*copy)(Backend *be, CopyStream stream, void *dst, const void *src, size_t bytes);
    void (*wait_compute)(Backend *be, CopyStream stream);
    void (*record)(Backend *be, CopyStream stream, int id);
    void (*compute_wait)(Backend *be, int id);
    void (*wait)(Backend *be, CopyStream stream, int id);
    void (*sync)(Backend *be);
} CopyOps;

/* Memory of `map` as another process of the node opens it. */
typedef struct MemoryHandle {
    int64_t       process;
    int           file;
    size_t        bytes;
    unsigned char ipc[64];
} MemoryHandle;

/* Opening memory of other processes; `at` is what `open` gave. */
typedef struct SharedMemoryOps {
    Status (*handle)(Backend *be, void *base, size_t bytes, MemoryHandle *out);
    Status (*open)(Backend *be, const MemoryHandle *h, void **at);
    void   (*close)(Backend *be, void *at, const MemoryHandle *h);
} SharedMemoryOps;

/* Recorded work of a device. */
typedef struct DeviceGraph DeviceGraph;

/* Between begin and end what is queued to compute is recorded and does not run. */
typedef struct GraphOps {
    void (*begin)(Backend *be);
    DeviceGraph *(*end)(Backend *be, size_t *bytes);          /* device memory that it takes, at least */
    void (*launch)(Backend *be, DeviceGraph *g);
    void (*close)(Backend *be, DeviceGraph *g);
} GraphOps;

/* What the device executed, on the clock of clock_now(). */
typedef enum { SPAN_KERNEL, SPAN_H2D, SPAN_D2H, SPAN_D2D, SPAN_FILL } DeviceSpanKind;
typedef struct DeviceSpan {
    double         from, to;
    double         launched;                                  /* when the host's launching call began */
    const char    *name;                                      /* of a kernel; NULL otherwise */
    int64_t        bytes;                                     /* of a copy */
    int            stream;
    DeviceSpanKind kind;
    uint32_t       tag;                                       /* of a kernel in a graph, see DeviceTrace */
} DeviceSpan;

/* Recording of spans, for profiles. Nothing is recorded, and nothing costs time, before start and after
 * stop. */
typedef struct DeviceTrace {
    void   (*load)(void);                                     /* once, before the backend opens */
    const char *(*start)(Backend *be);                        /* how: "cupti", "events"; NULL: not possible */
    void   (*op)(Backend *be, bool begins);                   /* around the launches of an op */
    void   (*tag)(uint32_t tag);                              /* of kernels that are captured in graphs from
                                                                 now on; 0: none */
    size_t (*stop)(Backend *be, DeviceSpan **out);            /* waits for the device; for free() */
    void   (*range)(const char *name);                        /* an NVTX range ends, and this one begins;
                                                                 NULL: none */
} DeviceTrace;

typedef struct Device {
    const char *name;                                         /* "cpu" "cuda" "meta" */
    const Ops  *ops;
    bool        host_memory;                                  /* host code may access tensors */
    Status (*open)(Backend *be);
    void   (*close)(Backend *be);
    Status (*map)(Backend *be, size_t bytes, void **out);     /* zeroed; arenas only */
    void   (*unmap)(Backend *be, void *p, size_t bytes);
    void   (*upload)(Backend *be, Tensor dst, const void *host);    /* dense dst, same dtype */
    void   (*put)(Backend *be, void *dst, const void *host, size_t bytes);   /* see backend_put */
    void   (*fetch)(Backend *be, void *host, Tensor src);     /* device to host; waits for the data */
    void   (*pin)(void *p, size_t bytes, bool on);            /* of host memory; optional */
    Status (*sync)(Backend *be);                              /* wait for all work; return the sticky error */
    void   (*describe)(char *out, size_t n);                  /* for `treb doctor`; optional */
    void   (*state)(char *out, size_t n);                     /* clock, power, temperature; optional */
    void   (*memory)(double *left, double *all);              /* bytes */
    double (*peak)(DType dtype);                        /* FLOP/s by the data sheet; 0 or absent: not known */
    void   (*ahead)(Backend *be, bool on);      /* while on, uploads overlap with compute; optional */
    void   (*join)(Backend *be);                      /* later work waits for those uploads */
    Status (*prepare)(Backend *be, bool on);     /* while on, ops only prepare for their shapes; optional */
    void   (*clock)(Backend *be, Part ended);  /* end of a part's work; absent: ops are synchronous */
    Status (*host_map)(Backend *be, size_t bytes, void **out);   /* pinned host memory; absent: map */
    void   (*host_unmap)(Backend *be, void *p, size_t bytes);
    const CopyOps *copies;                                    /* absent: copies do nothing */
    double (*memory_used)(void);                              /* see backend_memory_used; optional */
    const SharedMemoryOps *shared;                            /* absent: other processes cannot open memory */
    void   (*mark)(Backend *be);                              /* see backend_mark; absent: synchronous ops */
    const GraphOps *graphs;                                   /* absent: work cannot be recorded */
    void   (*post)(Backend *be, int slot, void *host, Tensor src);       /* absent: copies are done at once */
    void   (*wait_post)(Backend *be, int slot, double *seconds);
    bool   (*energy)(double *joules, double *mhz);            /* total; now; optional. false: unknown */
    const DeviceTrace *trace;                                 /* absent: ops are done when they return */
    Status (*kernels)(Backend *be, const char *name);         /* see backend_kernels; absent: one set */
    void   (*describe_kernels)(char *out, size_t n);          /* for `treb doctor`; optional */
    Status (*require_precision)(Backend *be, Precision p);    /* absent: it has products of all formats */
} Device;

struct Backend {
    const Device *device;
    const Ops     *ops;
    Ledger         ledger;
    Status         sticky;
    bool           preparing;       /* ops only prepare for their shapes, ranks do not communicate */
    bool           capturing;       /* work is recorded, see GraphOps: nothing may wait for it */
    OpQueue       *queue;           /* of ops in scopes that run as graphs (ops/op_queue.h); NULL: none */
    bool           repeat;          /* deterministic: equal runs give equal bits, even where that is slower */
    int            reserved_sms;    /* SMs of a GPU that persistent kernels leave to communication */
    bool           shares;          /* set before memory is mapped: other processes will open it */
    const uint32_t *progress;       /* changes when the device comes to a mark; NULL: ops are synchronous */
    bool           watched;         /* a watchdog reads it */
    void          *priv;            /* of the device */
};

/* Properties of a device that the planner needs on machines without that device. */
typedef struct BackendTraits {
    int64_t logits;                 /* elements of logits to materialise at once */
    bool    logits_in_act_dtype;          /* logits have the dtype of the activations, not f32 */
    bool    ahead;                  /* the next batch is uploaded while the current one is computed */
} BackendTraits;

BackendTraits      backend_traits(const char *name);
MUST Status backend_open(Backend *be, const char *name);     /* fails with the list of built-in ones */
void        backend_close(Backend *be);
/* Which kernels run, before the first op: "auto", or a set of the device by its name (device.kernels). A
 * device with one set ignores it. */
MUST Status backend_kernels(Backend *be, const char *name);
/* Products of this format; an error names the device and the way out. */
MUST Status backend_require_precision(Backend *be, Precision p);
MUST Status backend_sync(Backend *be);
/* A mark in the work that is queued: the watchdog sees that the device goes on (Backend.progress). Marks are
 * not recorded in a graph; launching one marks its end. */
void        backend_mark(Backend *be);
MUST Status backend_prepare(Backend *be, bool on);           /* see Device.prepare; only where */
bool        backend_prepares(const Backend *be);             /* this is true */
void        backend_upload(Backend *be, Tensor dst, const void *host);
void        backend_join(Backend *be);                       /* see Device.join; work that is queued is run */
/* The same for a few values, at most PUT_BYTES: host may change as soon as the call returns. */
void        backend_put(Backend *be, void *dst, const void *host, size_t bytes);
void        backend_fetch(Backend *be, void *host, Tensor src);          /* meta: zeros */
/* A fetch that the host does not wait for: queued after the work so far, into pinned memory, which may be
 * read after backend_wait_post of the same slot. That adds the seconds by part up to the post, as far as no
 * sync or other wait has read them, where the device measures them; with NULL it leaves them. Slots below
 * POST_SLOTS are for results of steps, the others for counts of a token dispatch, one a lane. */
enum { POST_SLOTS = 2, POST_COUNTS = POST_SLOTS, POST_ALL = POST_COUNTS + 2 };
void        backend_post(Backend *be, int slot, void *host, Tensor src);
MUST Status backend_wait_post(Backend *be, int slot, double seconds[PART_TIMES]);
const char *backend_pick(const char *name);                 /* "auto": cuda where there is a GPU, else cpu */
MUST Status backend_check(const char *name);             /* it is built in and the device exists */
/* Device.pin by name, for code that fills host memory without a backend; NULL: pinning is not needed. */
void      (*backend_pin(const char *name))(void *p, size_t bytes, bool on);
void        backend_memory(const char *name, double *left, double *all);
void        backend_load_trace(const char *name);           /* a profile will start Device.trace */
/* Bytes in use as the system measures them: on a CPU the largest resident set of this process so far (VmHWM),
 * on a GPU what the driver has given out, to other processes too. 0: not known. */
double      backend_memory_used(const char *name);
const char *backend_names(void);                             /* "cpu meta", for messages */

/* Describes the device, or why it is not available. */
void        backend_describe(const char *name, char *out, size_t n);
void        backend_describe_kernels(const char *name, char *out, size_t n);  /* which run; "": one set */

/* Recording work of compute, where the device can (Device.graphs). A failure is sticky, and end returns NULL.
 * What the work reads and writes must stay where it is. */
void         backend_graph_begin(Backend *be);
DeviceGraph *backend_graph_end(Backend *be, size_t *bytes);
void         backend_graph_launch(Backend *be, DeviceGraph *g);
void         backend_graph_close(Backend *be, DeviceGraph *g);     /* g may be NULL */

/* Maps memory of the device and opens an arena over it. */
MUST Status backend_arena_open(Backend *be, Arena *a, const char *name, size_t bytes);
void        backend_arena_close(Backend *be, Arena *a);

/* The same in host memory that is pinned for the copy streams. Host code may access it unless the device is
 * meta, after backend_copy_sync has waited for copies under way. */
MUST Status backend_host_arena_open(Backend *be, Arena *a, const char *name, size_t bytes);
void        backend_host_arena_close(Backend *be, Arena *a);

/* Asynchronous copies. A copy stream runs its copies in order and waits only for what the calls below name;
 * the host does not wait. src and dst are dense. Waiting for an event that was never recorded does not
 * wait. */
void        backend_copy_d2h(Backend *be, void *host, Tensor src);
void        backend_copy_h2d(Backend *be, Tensor dst, const void *host);
void        backend_copy_wait_compute(Backend *be, CopyStream stream);    /* copies wait for compute so far */
void        backend_copy_record(Backend *be, CopyStream stream, int id);   /* event after the copies so far */
void        backend_wait_copy(Backend *be, int id);          /* later compute waits for the event */
void        backend_copy_wait(Backend *be, CopyStream stream, int id);   /* later copies of the stream wait */
void        backend_copy_sync(Backend *be);                 /* the host waits for both copies */

extern const Device device_cpu, device_meta, device_cuda;

#ifdef __cplusplus
}
#endif
#endif
