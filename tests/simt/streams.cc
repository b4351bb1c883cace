/* tests/simt/streams.cc -- streams, events and graphs of the emulated GPU.
 *
 * Work stays in its stream until a caller waits for it: a synchronisation, an event that another stream waits
 * for, memory that is freed. What a GPU might do at once happens as late as it may, so that a host that reads
 * results too early, or changes what a copy has yet to read, is found. A full stream runs its oldest work, as
 * a GPU does. Any host thread may call; one of them runs the work. */
#include "simt/device.h"

#include "cuda.h"

#include <time.h>

#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace simt {

enum { QUEUE = 1024 };
typedef std::function<void()> Work;
typedef std::vector<Work>     Recorded;

struct Stream {
    std::deque<Work> work;
    uint64_t queued = 0, done = 0;
    bool     running = false;
    std::unique_ptr<Recorded> capture;                  /* what a graph is made of */
};

static std::recursive_mutex lock;
static std::set<Stream *>   streams;

/* Up to the given count. Work that waits for another stream runs that stream's first. */
static void run_until(Stream *s, uint64_t count)
{
    if (s->done >= count) return;
    if (s->running) fail("streams wait for each other");
    s->running = true;
    while (s->done < count) {
        Work w = std::move(s->work.front());
        s->work.pop_front();
        w();
        s->done++;
    }
    s->running = false;
}

static void run_all(Stream *s) { run_until(s, s->queued); }

void queue(Stream *s, Work work)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    if (s && s->capture) { s->capture->push_back(std::move(work)); return; }
    if (!s) {                                           /* the legacy stream: after all others, before all */
        for (Stream *each : streams) run_all(each);
        work();
        return;
    }
    s->work.push_back(std::move(work)), s->queued++;
    if (s->queued - s->done > QUEUE) run_until(s, s->done + 1);
}

void run_everything()
{
    std::lock_guard<std::recursive_mutex> held(lock);
    for (Stream *s : streams) run_all(s);
}

static double now()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

}

using namespace simt;
typedef std::lock_guard<std::recursive_mutex> Held;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    Held held(simt::lock);
    streams.insert(*s = new Stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    Held held(simt::lock);
    if (s && s->capture) return cudaErrorInvalidValue;
    if (s) run_all(s);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    Held held(simt::lock);
    run_all(s), streams.erase(s);
    delete s;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize()
{
    run_everything();
    return cudaSuccess;
}

/* ---- events: a place in a stream; `at` is shared with work that outlives the event ---- */

struct simt_event { Stream *stream; uint64_t count; std::shared_ptr<double> at; };

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    *e = new simt_event{ NULL, 0, std::make_shared<double>(0) };
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete e;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    Held held(simt::lock);
    std::shared_ptr<double> at = e->at;
    queue(s, [at] { *at = now(); });
    if (s && !s->capture) e->stream = s, e->count = s->queued;
    return cudaSuccess;
}

static void run_to_event(Stream *s, uint64_t count)
{
    if (streams.count(s)) run_until(s, count);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    Held held(simt::lock);
    Stream  *of = e->stream;
    uint64_t count = e->count;
    if (of && of != s) queue(s, [of, count] { run_to_event(of, count); });
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    Held held(simt::lock);
    run_to_event(e->stream, e->count);
    return cudaSuccess;
}

/* Each question lets the stream go one step ahead. */
cudaError_t cudaEventQuery(cudaEvent_t e)
{
    Held held(simt::lock);
    if (!streams.count(e->stream) || e->stream->done >= e->count) return cudaSuccess;
    run_until(e->stream, e->stream->done + 1);
    return cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    *ms = (float)(*to->at - *from->at);
    return cudaSuccess;
}

/* ---- graphs: work that is recorded in place of being queued ---- */

struct simt_graph { std::shared_ptr<Recorded> work; };

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
    Held held(simt::lock);
    s->capture.reset(new Recorded);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    Held held(simt::lock);
    if (!s->capture) return cudaErrorInvalidValue;
    *graph = new simt_graph{ std::shared_ptr<Recorded>(s->capture.release()) };
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    *exec = new simt_graph{ graph->work };
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    std::shared_ptr<Recorded> all = exec->work;
    queue(s, [all] { for (const Work &w : *all) w(); });
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *, size_t *n)
{
    *n = g->work->size();
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t g)                { delete g; return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g)        { delete g; return cudaSuccess; }
