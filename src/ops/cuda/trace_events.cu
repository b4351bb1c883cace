/* ops/cuda/trace_events.cu -- spans by CUDA events around the launches of an op; see trace.cuh. */
#include "ops/cuda/trace.cuh"

#include "base/grow.h"

#include <stdlib.h>

typedef struct OpEvents { cudaEvent_t from, to; double launched; } OpEvents;

static struct {
    cudaEvent_t zero;                                    /* at `began` on the host's clock */
    double      began;
    OpEvents   *op;
    int64_t     n, cap;
} events;

bool trace_events_start(Backend *be)
{
    cudaStream_t s = cuda_of(be)->stream;
    events.n = 0;
    if (!events.zero && cudaEventCreate(&events.zero) != cudaSuccess) return false;
    bool ok = cudaStreamSynchronize(s) == cudaSuccess && cudaEventRecord(events.zero, s) == cudaSuccess &&
              cudaEventSynchronize(events.zero) == cudaSuccess;
    events.began = clock_now();
    return ok;
}

static OpEvents *add_pair(void)
{
    OpEvents p = { NULL, NULL, clock_now() };
    if (!GROW(events.op, events.cap, events.n + 1)) return NULL;
    if (cudaEventCreate(&p.from) != cudaSuccess || cudaEventCreate(&p.to) != cudaSuccess) return NULL;
    events.op[events.n] = p;
    return &events.op[events.n++];
}

void trace_events_op(Backend *be, bool begins)
{
    if (be->capturing || be->preparing || be->sticky) return;
    OpEvents *p = begins ? add_pair() : events.n ? &events.op[events.n - 1] : NULL;
    if (p) cuda_stick(be, cudaEventRecord(begins ? p->from : p->to, cuda_of(be)->stream), "recording");
}

static double time_of(cudaEvent_t e)
{
    float ms = 0;
    if (cudaEventElapsedTime(&ms, events.zero, e) != cudaSuccess) cudaGetLastError();
    return events.began + ms * 1e-3;
}

size_t trace_events_stop(Backend *be, DeviceSpan **out)
{
    size_t n = (size_t)events.n;
    *out = (DeviceSpan *)calloc(n + 1, sizeof **out);
    for (size_t i = 0; i < n; i++) {
        OpEvents *p = &events.op[i];
        if (*out) {
            DeviceSpan s = { time_of(p->from), time_of(p->to), p->launched, NULL, 0, 0, SPAN_KERNEL, 0 };
            (*out)[i] = s;
        }
        cudaEventDestroy(p->from), cudaEventDestroy(p->to);
    }
    free(events.op);
    events.op = NULL, events.n = events.cap = 0;
    return *out ? n : 0;
}
