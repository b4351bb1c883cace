/* ops/cuda/trace.cu -- see trace.cuh. */
#include "ops/cuda/trace.cuh"

#include <nvtx3/nvToolsExt.h>
#include <stdlib.h>
#include <string.h>

static bool events_wanted(void)
{
    const char *word = getenv("TREB_TRACE");
    return word && !strcmp(word, "events");
}

static void trace_load(void)
{
    if (!events_wanted()) cupti_load();
}

static bool by_cupti;                                    /* of the recording under way */

static const char *trace_start(Backend *be)
{
    by_cupti = !events_wanted() && cupti_start();
    if (by_cupti) return "cupti";
    return trace_events_start(be) ? "events" : NULL;
}

static size_t trace_stop(Backend *be, DeviceSpan **out)
{
    cuda_stick(be, cudaDeviceSynchronize(), "recording");
    return by_cupti ? cupti_stop(out) : trace_events_stop(be, out);
}

static void trace_range(const char *name)
{
    static bool open;
    if (open) nvtxRangePop();
    open = name != NULL;
    if (open) nvtxRangePushA(name);
}

const DeviceTrace cuda_trace = { trace_load, trace_start, trace_events_op, cupti_tag, trace_stop,
                                 trace_range };
