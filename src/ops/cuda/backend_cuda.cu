/* ops/cuda/backend_cuda.cu -- an NVIDIA GPU as a device: memory, copies, the compute stream and the copy
 * streams, the sticky error. The kernels are in ops/cuda/<file>.cu. */
#include "ops/cuda/comm_clock.cuh"
#include "ops/cuda/gpu_info.cuh"
#include "ops/cuda/kernel_set.cuh"
#include "ops/cuda/nvml.cuh"
#include "ops/cuda/progress.cuh"
#include "ops/cuda/trace.cuh"

#include "base/grow.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const Ops cuda_ops = {
#define OP(name, kind, params, args) cuda_##name,
#include "ops/ops.def"
#undef OP
};

static Status check(cudaError_t e, const char *what)
{
    return e == cudaSuccess ? OK : fail(E_DEVICE, "%s: %s", what, cudaGetErrorString(e));
}

void cuda_stick(Backend *be, cudaError_t e, const char *what)
{
    if (e != cudaSuccess && !be->sticky) be->sticky = check(e, what);
}

/* The number of this rank on its host, as its launcher sets it; NULL: there is no launcher. */
static const char *local_rank(void)
{
    static const char *const names[] = { "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID",
                                         "PMI_LOCAL_RANK" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (const char *local = getenv(names[i])) return local;
    return NULL;
}

/* Read by CUDA when it starts. It has 8 hardware queues by default: a stream in which a call waits
 * for another rank would hold up compute and copies. And it loads a kernel at its first launch, for which it
 * waits until no kernel runs: for ever, if one of them waits for a message that this rank has yet to ask for.
 * A process that a launcher started loads all kernels at once. */
static void set_environment(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    if (local_rank()) setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

/* Each rank of a node takes its own GPU, by the local rank that its launcher sets; with fewer GPUs than ranks
 * they share. Every thread calls this before it uses CUDA: the current device is per thread, and is GPU 0 by
 * default. */
int cuda_own_gpu(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int count = 0, gpu = 0;
    pthread_once(&once, set_environment);
    if (cudaGetDeviceCount(&count) != cudaSuccess || count < 1) return 0;
    if (local_rank()) gpu = atoi(local_rank()) % count;
    if (gpu < 0) gpu = 0;
    cudaSetDevice(gpu);
    return gpu;
}

static Status find_card(void)
{
    int count = 0;
    cuda_own_gpu();
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e == cudaSuccess && count) return OK;
    return fail(E_DEVICE, "no GPU: %s; use --backend cpu",
                e == cudaSuccess ? "none is visible" : cudaGetErrorString(e));
}

static Status open_lanes(Cuda *c)
{
    for (int i = 0; i < COPY_STREAMS; i++) {
        TRY(check(cudaStreamCreateWithFlags(&c->copy_stream[i], cudaStreamNonBlocking), "creating a stream"));
        TRY(check(cudaEventCreateWithFlags(&c->compute_event[i], cudaEventDisableTiming),
                  "creating an event"));
    }
    for (int i = 0; i < COPY_EVENTS; i++)
        TRY(check(cudaEventCreateWithFlags(&c->copy_event[i], cudaEventDisableTiming), "creating an event"));
    return OK;
}

static void close_lanes(Cuda *c)
{
    for (int i = 0; i < COPY_EVENTS; i++)
        if (c->copy_event[i]) cudaEventDestroy(c->copy_event[i]);
    for (int i = 0; i < COPY_STREAMS; i++) {
        if (c->compute_event[i]) cudaEventDestroy(c->compute_event[i]);
        if (c->copy_stream[i]) cudaStreamDestroy(c->copy_stream[i]);
    }
}

static Status open_counter(Cuda *c)
{
    size_t bytes = (1 + CODE_COUNTERS) * sizeof(int);
    TRY(check(cudaMalloc((void **)&c->tile_counter, bytes), "allocating counters"));
    TRY(check(cudaMemsetAsync(c->tile_counter, 0, bytes, c->stream), "clearing counters"));
    c->code_counters = c->tile_counter + 1;
    return OK;
}

static Status open_gpu(Cuda *c)
{
    cudaDeviceProp p;
    TRY(check(cudaGetDeviceProperties(&p, cuda_own_gpu()), "reading the GPU's properties"));
    TRY(kernel_set_choose(&c->kernels, "auto", p.name, p.major, p.minor));
    TRY(gpu_has_code(&p));
    c->sms = p.multiProcessorCount, c->major = p.major, c->minor = p.minor;
    c->smem_sm = p.sharedMemPerMultiprocessor, c->smem_block = p.sharedMemPerBlockOptin;
    snprintf(c->name, sizeof c->name, "%.63s", p.name);
    TRY(check(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "creating a stream"));
    TRY(check(cudaStreamCreateWithFlags(&c->copy, cudaStreamNonBlocking), "creating a stream"));
    TRY(check(cudaEventCreateWithFlags(&c->freed, cudaEventDisableTiming), "creating an event"));
    TRY(check(cudaEventCreateWithFlags(&c->arrived, cudaEventDisableTiming), "creating an event"));
    TRY(open_lanes(c));
    TRY(open_counter(c));
    TRY(lt_open(c));
    return dnn_open(c);
}

static void cuda_close(Backend *be)
{
    Cuda *c = cuda_of(be);
    if (!c) return;
    dnn_close(c);
    lt_close(c);
    if (c->ws) cudaFree(c->ws);
    for (int i = 0; i < c->retired_n; i++) cudaFree(c->retired[i]);
    free(c->retired);
    if (c->tile_counter) cudaFree(c->tile_counter);
    progress_word_close(c->progress);
    for (int i = 0; i < c->marks_cap; i++)
        if (c->mark[i].event) cudaEventDestroy(c->mark[i].event);
    free(c->mark);
    for (int i = 0; i < POST_ALL; i++)
        if (c->post[i].done) cudaEventDestroy(c->post[i].done);
    comm_clock_close(c);
    close_lanes(c);
    if (c->freed) cudaEventDestroy(c->freed);
    if (c->arrived) cudaEventDestroy(c->arrived);
    if (c->copy) cudaStreamDestroy(c->copy);
    if (c->stream) cudaStreamDestroy(c->stream);
    free(c);
    be->priv = NULL, be->progress = NULL;
}

static Status cuda_open(Backend *be)
{
    TRY(find_card());
    Cuda *c = (Cuda *)calloc(1, sizeof *c);
    if (!c) return fail(E_FIT, "no memory");
    be->priv  = c;
    Status st = open_gpu(c);
    if (!st) st = progress_open(be);
    if (st) cuda_close(be);
    return st;
}

static Status cuda_kernels(Backend *be, const char *name)
{
    Cuda *c = cuda_of(be);
    return kernel_set_choose(&c->kernels, name, c->name, c->major, c->minor);
}

static Status cuda_require_precision(Backend *be, Precision p)
{
    const Cuda *c = cuda_of(be);
    if (p == PREC_BF16) return OK;
    if (p != PREC_FP8)
        return fail(E_CONFIG, "train.precision=%s: there are no such products on GPUs yet (%s); use "
                    "train.precision=%s, or device.backend=cpu, which emulates it", precision_word(p),
                    c->name, gpu_has_fp8(c->major, c->minor) ? "fp8_block" : "bf16");
    if (gpu_has_fp8(c->major, c->minor)) return OK;
    return fail(E_CONFIG, "train.precision=fp8_block: %s has no FP8 units (compute capability %d.%d; they "
                "begin with 8.9); use train.precision=bf16", c->name, c->major, c->minor);
}

static double gib(size_t bytes) { return (double)bytes / (1 << 30); }

static Status take_memory(size_t bytes, void **out)
{
    size_t      left = 0, all = 0;
    cudaError_t e = cudaMalloc(out, bytes);
    if (e != cudaErrorMemoryAllocation) return check(e, "device memory");
    cudaGetLastError();                                 /* reported here: clear it for later launches */
    cudaMemGetInfo(&left, &all);
    return fail(E_FIT, "%.2f GiB of GPU memory asked for, %.2f of %.1f GiB are free; take fewer tokens a "
                "step (train.micro_tokens) or recompute more", gib(bytes), gib(left), gib(all));
}

/* Zeroed in the compute stream, so that later writes of that stream come after. Memory that other processes
 * open has whole pages of its own: an IPC handle is one of a page. */
static Status cuda_map(Backend *be, size_t bytes, void **out)
{
    size_t page = (size_t)2 << 20;
    TRY(take_memory(be->shares ? (bytes + page - 1) / page * page : bytes, out));
    return check(cudaMemsetAsync(*out, 0, bytes, cuda_of(be)->stream), "device memory");
}

static void cuda_unmap(Backend *be, void *p, size_t bytes) { cudaFree(p); }

/* Mapped: kernels may read and write this host memory at the host's address, so that values loaded or drawn
 * once need no staging copy. */
static Status pin_mapped(void *p, size_t bytes)
{
    void       *seen = NULL;
    cudaError_t e = cudaHostRegister(p, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
    if (e == cudaSuccess) {
        if (cudaHostGetDevicePointer(&seen, p, 0) == cudaSuccess && seen == p) return OK;
        cudaHostUnregister(p);
        return fail(E_DEVICE, "the GPU does not map host memory at the host's address");
    }
    cudaGetLastError();
    return fail(E_FIT, "%.2f GiB of host memory cannot be pinned: %s; keep less on the host "
                "(memory.optimizer_offload, activation_offload)", gib(bytes), cudaGetErrorString(e));
}

/* Pinned, because copies of pageable memory wait for the host; huge pages are asked for first, because
 * pinning goes page by page. Pinning allocates at once, so a machine with too little memory fails here. */
static Status cuda_host_map(Backend *be, size_t bytes, void **out)
{
    double left, all;
    backend_memory("cpu", &left, &all);
    if ((double)bytes > left)
        return fail(E_FIT, "%.2f GiB of host memory are wanted, %.2f of %.1f GiB are free; keep less on the "
                    "host (memory.optimizer_offload, activation_offload)", gib(bytes), left / 0x1p30,
                    all / 0x1p30);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return fail(E_FIT, "no address space on the host");
    madvise(p, bytes, MADV_HUGEPAGE);
    Status st = pin_mapped(p, bytes);
    if (st) munmap(p, bytes);
    else    *out = p;
    return st;
}

static void cuda_host_unmap(Backend *be, void *p, size_t bytes)
{
    cudaDeviceSynchronize();                                    /* finish copies under way */
    cudaHostUnregister(p);
    munmap(p, bytes);
}

static void copy_async(Backend *be, CopyStream which, void *dst, const void *src, size_t bytes)
{
    cudaMemcpyKind way = which == COPY_D2H ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
    cuda_stick(be, cudaMemcpyAsync(dst, src, bytes, way, cuda_of(be)->copy_stream[which]), "offload copy");
}

static void copy_wait_compute(Backend *be, CopyStream which)
{
    Cuda *c = cuda_of(be);
    cuda_stick(be, cudaEventRecord(c->compute_event[which], c->stream), "offload copy");
    cuda_stick(be, cudaStreamWaitEvent(c->copy_stream[which], c->compute_event[which], 0), "offload copy");
}

static void copy_record(Backend *be, CopyStream which, int id)
{
    Cuda *c = cuda_of(be);
    cuda_stick(be, cudaEventRecord(c->copy_event[id], c->copy_stream[which]), "offload copy");
}

static void compute_wait(Backend *be, int id)
{
    Cuda *c = cuda_of(be);
    cuda_stick(be, cudaStreamWaitEvent(c->stream, c->copy_event[id], 0), "offload copy");
}

static void copy_wait(Backend *be, CopyStream which, int id)
{
    Cuda *c = cuda_of(be);
    cuda_stick(be, cudaStreamWaitEvent(c->copy_stream[which], c->copy_event[id], 0), "offload copy");
}

static void copy_sync(Backend *be)
{
    for (int i = 0; i < COPY_STREAMS; i++)
        cuda_stick(be, cudaStreamSynchronize(cuda_of(be)->copy_stream[i]), "offload copy");
}

static const CopyOps cuda_copies = {
    copy_async, copy_wait_compute, copy_record, compute_wait, copy_wait, copy_sync,
};

/* dst may be in host memory (host_map): the driver tells by the address. */
static void cuda_upload(Backend *be, Tensor dst, const void *host)
{
    Cuda        *c = cuda_of(be);
    cudaStream_t s = c->going_ahead ? c->copy : c->stream;
    if (be->preparing) return;
    size_t n = (size_t)t_bytes(dst);
    cuda_stick(be, cudaMemcpyAsync(dst.data, host, n, cudaMemcpyDefault, s), "upload");
}

static void cuda_fetch(Backend *be, void *host, Tensor src)
{
    cudaStream_t s = cuda_of(be)->stream;
    if (be->preparing) { memset(host, 0, (size_t)t_bytes(src)); return; }
    cuda_stick(be, cudaMemcpyAsync(host, src.data, (size_t)t_bytes(src), cudaMemcpyDefault, s), "fetch");
    cuda_stick(be, cudaStreamSynchronize(s), "fetch");
}

/* On: uploads wait for the work queued before the last join, the last that read the memory they overwrite.
 * Off: an event marks the end of the uploads for join. */
static void cuda_ahead(Backend *be, bool on)
{
    Cuda *c = cuda_of(be);
    c->going_ahead = on;
    if (on) cuda_stick(be, cudaStreamWaitEvent(c->copy, c->freed, 0), "copy stream");
    else    cuda_stick(be, cudaEventRecord(c->arrived, c->copy), "copy stream");
}

static void cuda_join(Backend *be)
{
    Cuda *c = cuda_of(be);
    cuda_stick(be, cudaStreamWaitEvent(c->stream, c->arrived, 0), "copy stream");
    cuda_stick(be, cudaEventRecord(c->freed, c->stream), "copy stream");
}

/* Memory that cannot be pinned is copied more slowly. Unpinning waits for the device, because an upload that
 * was never joined may still read the memory. */
static void cuda_pin(void *p, size_t bytes, bool on)
{
    cuda_own_gpu();
    if (!on) cudaDeviceSynchronize();
    cudaError_t e = on ? cudaHostRegister(p, bytes, cudaHostRegisterDefault) : cudaHostUnregister(p);
    if (e != cudaSuccess) cudaGetLastError();
}

/* cudaFree waits for the whole device, also for a call that waits for another rank: a workspace that is too
 * small is kept until the backend closes. */
static void retire_workspace(Cuda *c)
{
    if (c->ws && GROW(c->retired, c->retired_cap, c->retired_n + 1)) c->retired[c->retired_n++] = c->ws;
    c->ws = NULL, c->ws_bytes = 0;
}

void cuda_launched(Backend *be, double from)
{
    const double longest = 20e-6;
    double took = clock_now() - from;
    be->ledger.launches++;
    if (took > longest) be->ledger.launch_wait += took;
}

void *cuda_workspace(Backend *be, size_t bytes)
{
    Cuda *c = cuda_of(be);
    if (bytes > c->ws_needed) c->ws_needed = bytes;
    if (be->preparing) return NULL;
    if (bytes > c->ws_bytes) {
        retire_workspace(c);
        Status st = take_memory(bytes, &c->ws);
        if (!st) c->ws_bytes = bytes;
        else if (!be->sticky) be->sticky = wrap(st, "workspace of an op");
    }
    return c->ws;
}

/* Off: allocates the largest workspace asked for while preparing. */
static Status cuda_prepare(Backend *be, bool on)
{
    Cuda *c = cuda_of(be);
    if (!on && c->ws_needed) cuda_workspace(be, c->ws_needed);
    return be->sticky;
}

/* Capacity for one more timing mark; a step has as many as its micro-batches need. */
static bool marks_hold(Cuda *c, Backend *be)
{
    int before = c->marks_cap;
    if (!GROW(c->mark, c->marks_cap, c->marks + 1)) {
        be->sticky = fail(E_FIT, "no memory");
        return false;
    }
    memset(c->mark + before, 0, (size_t)(c->marks_cap - before) * sizeof *c->mark);
    return true;
}

/* An event in the stream marks where one part of the model ends and the next begins; the times between events
 * are read at the next sync. */
static void cuda_clock(Backend *be, Part ended)
{
    Cuda *c = cuda_of(be);
    if (be->preparing || be->capturing || be->sticky || !marks_hold(c, be)) return;
    CudaMark *m = &c->mark[c->marks++];
    if (!m->event) cuda_stick(be, cudaEventCreate(&m->event), "timing");
    m->part = ended;
    cuda_stick(be, cudaEventRecord(m->event, c->stream), "timing");
}

static void add_interval(Backend *be, const CudaMark *from, const CudaMark *to, double *seconds)
{
    float ms = 0;
    cuda_stick(be, cudaEventElapsedTime(&ms, from->event, to->event), "timing");
    seconds[to->part] += ms * 1e-3;
}

/* Reads the first n marks, whose events have happened, and moves the others up. The last one read stays: it
 * starts the next interval. */
static void read_marks(Backend *be, int n, double *seconds)
{
    Cuda *c = cuda_of(be);
    for (int i = 1; i < n; i++) add_interval(be, &c->mark[i - 1], &c->mark[i], seconds);
    for (int i = n - 1, to = 0; n > 1 && i < c->marks; i++, to++) {
        CudaMark read = c->mark[to];
        c->mark[to] = c->mark[i], c->mark[i] = read;
    }
    if (n > 1) c->marks -= n - 1, c->marks_read += n - 1;
}

static Status cuda_sync(Backend *be)
{
    Cuda *c = cuda_of(be);
    cuda_stick(be, cudaStreamSynchronize(c->stream), "sync");
    if (!be->sticky) read_marks(be, c->marks, be->ledger.seconds), comm_clock_read(be);
    return be->sticky;
}

/* The copy is in the compute stream: results of the next step overwrite src after it. */
static void cuda_post(Backend *be, int slot, void *host, Tensor src)
{
    Cuda     *c = cuda_of(be);
    CudaPost *p = &c->post[slot];
    if (be->preparing) return;
    if (!p->done) cuda_stick(be, cudaEventCreateWithFlags(&p->done, cudaEventDisableTiming), "results");
    cuda_stick(be, cudaMemcpyAsync(host, src.data, (size_t)t_bytes(src), cudaMemcpyDefault, c->stream),
               "results");
    cuda_stick(be, cudaEventRecord(p->done, c->stream), "results");
    p->marks = c->marks_read + c->marks;
}

static void cuda_wait_post(Backend *be, int slot, double *seconds)
{
    Cuda *c = cuda_of(be);
    if (be->preparing || !c->post[slot].done) return;
    cuda_stick(be, cudaEventSynchronize(c->post[slot].done), "results");
    if (!be->sticky && seconds) read_marks(be, (int)(c->post[slot].marks - c->marks_read), seconds);
}

extern "C" const Device device_cuda = {
    "cuda",     &cuda_ops,   false,      cuda_open,    cuda_close, cuda_map,
    cuda_unmap, cuda_upload, cuda_put,   cuda_fetch,   cuda_pin,   cuda_sync,  gpu_describe, nvml_state,
    gpu_memory,  gpu_peak,   cuda_ahead, cuda_join,    cuda_prepare, cuda_clock, cuda_host_map,
    cuda_host_unmap, &cuda_copies, gpu_memory_used, &cuda_shared_memory, cuda_mark, &cuda_graphs, cuda_post,
    cuda_wait_post, nvml_energy, &cuda_trace, cuda_kernels, gpu_describe_kernels,
    cuda_require_precision,
};
