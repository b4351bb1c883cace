/* ops/backend.h -- a device: where its memory comes from, how data moves, which ops it has.
 *
 * Launches may be asynchronous and return nothing. The first failure (a launch, a full arena) sticks to
 * the backend, further ops do nothing, and backend_sync, once a step, hands the failure out as a Status. */
#ifndef OPS_BACKEND_H
#define OPS_BACKEND_H

#include "base/ledger.h"
#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Backend Backend;
typedef struct Ops Ops;

/* Copies that run beside the step, one lane each way. */
typedef enum { COPY_D2H, COPY_H2D, COPY_STREAMS } CopyStream;              /* device to host, host to device */
enum { COPY_EVENTS = 64, COPY_EVENTS_STATE = 56 };             /* from there on they are the optimizer's */

/* What a device does for the side copies below; where copies end when they return it is copy alone. */
typedef struct CopyOps {
    void (*copy)(Backend *be, CopyStream lane, void *dst, const void *src, size_t bytes);
    void (*begin)(Backend *be, CopyStream lane);
    void (*mark)(Backend *be, CopyStream lane, int id);
    void (*wait)(Backend *be, int id);
    void (*side_wait)(Backend *be, CopyStream lane, int id);
    void (*drain)(Backend *be);
} CopyOps;

typedef struct Device {
    const char *name;                                         /* "cpu" "cuda" "meta" */
    const Ops  *ops;
    bool        host_memory;                                  /* tensors may be read and written in place */
    Status (*open)(Backend *be);
    void   (*close)(Backend *be);
    Status (*map)(Backend *be, size_t bytes, void **out);     /* zeroed; arenas only */
    void   (*unmap)(Backend *be, void *p, size_t bytes);
    void   (*upload)(Backend *be, Tensor dst, const void *host);    /* dense dst, same dtype */
    void   (*fetch)(Backend *be, void *host, Tensor src);     /* the one road from device to host */
    void   (*pin)(void *p, size_t bytes, bool on);         /* host memory it will copy from often; optional */
    Status (*sync)(Backend *be);                              /* drain; hand out the sticky error */
    void   (*describe)(char *out, size_t n);                  /* the device in words, for doctor; optional */
    void   (*state)(char *out, size_t n);                     /* clocks, power and heat of now; optional */
    void   (*memory)(double *left, double *all);              /* bytes */
    double (*peak)(DType dtype);                        /* FLOP/s by the data sheet; 0 or absent: not known */
    void   (*ahead)(Backend *be, bool on);      /* while on, uploads go beside the work under way; optional */
    void   (*join)(Backend *be);                      /* what follows waits for the uploads that went ahead */
    Status (*prepare)(Backend *be, bool on);     /* while on, ops only get ready for their shapes; optional */
    void   (*clock)(Backend *be, Part ended);  /* a part's work ends here; absent: ops end when they return */
    Status (*host_map)(Backend *be, size_t bytes, void **out);   /* as map, of the host; absent: map itself */
    void   (*host_unmap)(Backend *be, void *p, size_t bytes);
    const CopyOps *lanes;                              /* copies beside the step; absent: they do nothing */
    double (*memory_used)(void);                              /* see backend_memory_used; optional */
} Device;

struct Backend {
    const Device *device;
    const Ops     *ops;
    Ledger         ledger;
    Status         sticky;
    bool           preparing;       /* ops only get ready for their shapes, ranks say nothing */
    bool           repeat;          /* equal bits from equal runs are wanted even where that is slower */
    void          *priv;            /* the device's own */
};

/* What suits a device, known by name alone: plans for a card are made where there is none. */
typedef struct BackendTraits {
    int64_t logits;                 /* elements of logits that should exist at once */
    bool    logits_in_act_dtype;          /* in the dtype of the activations instead of f32 */
    bool    ahead;                  /* it can take in a batch while it computes another */
} BackendTraits;

BackendTraits      backend_traits(const char *name);
MUST Status backend_open(Backend *be, const char *name);     /* not built in: says which there are */
void        backend_close(Backend *be);
MUST Status backend_sync(Backend *be);
MUST Status backend_prepare(Backend *be, bool on);           /* see Device.prepare; only where it */
bool        backend_prepares(const Backend *be);             /* is true */
void        backend_upload(Backend *be, Tensor dst, const void *host);
void        backend_fetch(Backend *be, void *host, Tensor src);          /* meta: zeros */
const char *backend_pick(const char *name);                 /* "auto": cuda where there is a card, else cpu */
MUST Status backend_check(const char *name);             /* it is in this build and there is such a device */
/* Its Device.pin, for whoever fills the memory without knowing the device; NULL: it is all the same to
 * it. */
void      (*backend_pin(const char *name))(void *p, size_t bytes, bool on);
void        backend_memory(const char *name, double *left, double *all);
/* Bytes in use as the system measures them: on a CPU the largest resident set of this process so far (VmHWM),
 * on a GPU what the driver has given out, to other processes too. 0: not known. */
double      backend_memory_used(const char *name);
const char *backend_names(void);                             /* "cpu meta", for messages */

/* The device behind a device of this build in words, or why it is not there. */
void        backend_describe(const char *name, char *out, size_t n);

/* Map memory of the backend's device and open an arena over it. */
MUST Status backend_arena_open(Backend *be, Arena *a, const char *name, size_t bytes);
void        backend_arena_close(Backend *be, Arena *a);

/* The same in host memory that side copies run fast to and from. Host code may read and write it unless the
 * device is meta; a copy under way is waited for with backend_copy_sync. */
MUST Status backend_host_arena_open(Backend *be, Arena *a, const char *name, size_t bytes);
void        backend_host_arena_close(Backend *be, Arena *a);

/* CopyStream copies: queued on their lane, which keeps its order and waits for nothing but what it is told to; the
 * host waits for none of them. src and dst are dense. An unset mark holds nobody. */
void        backend_copy_d2h(Backend *be, void *host, Tensor src);
void        backend_copy_h2d(Backend *be, Tensor dst, const void *host);
void        backend_copy_wait_compute(Backend *be, CopyStream lane);     /* what follows on it waits for the step so far */
void        backend_copy_record(Backend *be, CopyStream lane, int id);    /* after what it has so far; below COPY_EVENTS */
void        backend_wait_copy(Backend *be, int id);               /* what follows in the step waits for the mark */
void        backend_copy_wait(Backend *be, CopyStream lane, int id);            /* what follows on the lane does */
void        backend_copy_sync(Backend *be);                 /* the host waits for both lanes */

extern const Device device_cpu, device_meta, device_cuda;

#ifdef __cplusplus
}
#endif
#endif
