/* ops/cuda/trace.cuh -- what the GPU executes, for profiles (DeviceTrace of ops/backend.h).
 *
 * CUPTI's activity records tell every kernel, copy and fill of every stream, and the host's call that
 * launched it. The library is loaded when a profile starts and is not needed otherwise. Where it is missing,
 * or with TREB_TRACE=events, pairs of CUDA events around the launches of each op in the compute stream stand
 * for it: copies and communication are then not seen. */
#ifndef OPS_CUDA_TRACE_CUH
#define OPS_CUDA_TRACE_CUH

#include "ops/cuda/cuda.cuh"

extern const DeviceTrace cuda_trace;

/* trace_cupti.cu. load: false where the library is missing or refuses; before graphs are captured, so that
 * it knows their kernels. */
bool   cupti_load(void);
bool   cupti_start(void);
size_t cupti_stop(DeviceSpan **out);

/* trace_callbacks.cu. subscribe: `library` is an open libcupti. calls: what launched while calls were
 * followed; tag: see DeviceTrace. */
typedef struct LaunchCall { uint32_t id; double began; } LaunchCall;     /* id: CUPTI's, of its records too */
bool              cupti_subscribe(void *library);
void              cupti_follow_calls(bool on);
const LaunchCall *cupti_calls(int64_t *n);
void              cupti_tag(uint32_t tag);
uint32_t          cupti_tag_of(uint64_t node);

/* trace_events.cu */
bool   trace_events_start(Backend *be);
void   trace_events_op(Backend *be, bool begins);
size_t trace_events_stop(Backend *be, DeviceSpan **out);

#endif
