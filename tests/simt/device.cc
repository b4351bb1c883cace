/* tests/simt/device.cc -- the emulated GPU: what it says of itself, its memory, launches. */
#include "simt/device.h"

#include "simt/tensor_map.h"

#include <stdio.h>
#include <sys/mman.h>

#include <map>
#include <mutex>

using namespace simt;

namespace {

thread_local cudaError_t last;

cudaError_t noted(cudaError_t e) { return e == cudaSuccess ? e : last = e; }

/* ---- memory: ranges by their begin ---- */

struct Ranges {
    std::map<const char *, size_t> at;
    std::mutex lock;

    void put(const void *p, size_t bytes)
    {
        std::lock_guard<std::mutex> held(lock);
        at[(const char *)p] = bytes;
    }
    size_t take(const void *p)                          /* 0: unknown */
    {
        std::lock_guard<std::mutex> held(lock);
        auto   i = at.find((const char *)p);
        size_t bytes = i == at.end() ? 0 : i->second;
        if (bytes) at.erase(i);
        return bytes;
    }
    bool has(const void *p)
    {
        std::lock_guard<std::mutex> held(lock);
        auto i = at.upper_bound((const char *)p);
        return i != at.begin() && (--i, (const char *)p < i->first + i->second);
    }
    size_t sum()
    {
        std::lock_guard<std::mutex> held(lock);
        size_t n = 0;
        for (auto &i : at) n += i.second;
        return n;
    }
};

Ranges device, pinned;

enum { ALIGN = 4096, LARGE = 1 << 26 };

/* Zeros in a large range of device memory: fresh pages, which take no memory until they are used. */
bool drop_pages(char *p, size_t bytes)
{
    return bytes >= LARGE && !((uintptr_t)p % ALIGN) && device.has(p) &&
           !madvise(p, bytes - bytes % ALIGN, MADV_DONTNEED);
}

void set_bytes(char *p, int value, size_t bytes)
{
    size_t done = !value && drop_pages(p, bytes) ? bytes - bytes % ALIGN : 0;
    memset(p + done, value, bytes - done);
}

std::map<const void *, size_t> shared_allowed;          /* dynamic, by kernel */

CUresult write_value(CUstream s, CUdeviceptr at, cuuint32_t value, unsigned)
{
    queue(s, [=] { __atomic_store_n((cuuint32_t *)at, value, __ATOMIC_RELEASE); });
    return 0;
}

}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    if (bytes > MEMORY_BYTES - device.sum() || posix_memalign(p, ALIGN, bytes ? bytes : 1))
        return noted(cudaErrorMemoryAllocation);
    if (bytes <= LARGE) memset(*p, 0xff, bytes);
    device.put(*p, bytes ? bytes : 1);
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    if (!p) return cudaSuccess;
    run_everything();
    if (!device.take(p)) return noted(cudaErrorInvalidValue);
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    *all = MEMORY_BYTES, *left = MEMORY_BYTES - device.sum();
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned)
{
    pinned.put(p, bytes);
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *p)
{
    return pinned.take(p) ? cudaSuccess : noted(cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    if (posix_memalign(p, ALIGN, bytes)) return noted(cudaErrorMemoryAllocation);
    return cudaHostRegister(*p, bytes, flags);
}
cudaError_t cudaFreeHost(void *p)
{
    run_everything();
    if (!pinned.take(p)) return noted(cudaErrorInvalidValue);
    free(p);
    return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void **at, void *host, unsigned)
{
    *at = host;
    return cudaSuccess;
}

/* A copy of host memory that is not pinned waits for its end. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s)
{
    bool source = device.has(from) || pinned.has(from), target = device.has(to) || pinned.has(to);
    if (kind == cudaMemcpyDeviceToHost && !source) return noted(cudaErrorInvalidValue);
    if (kind == cudaMemcpyHostToDevice && !target) return noted(cudaErrorInvalidValue);
    queue(s, [=] { memcpy(to, from, bytes); });
    return source && target ? cudaSuccess : cudaStreamSynchronize(s);
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    queue(s, [=] { set_bytes((char *)p, value, bytes); });
    return cudaSuccess;
}

/* Other processes cannot open this memory. */
static cudaError_t refused() { return noted(cudaErrorNotSupported); }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *, void *)           { return refused(); }
cudaError_t cudaIpcOpenMemHandle(void **, cudaIpcMemHandle_t, unsigned) { return refused(); }
cudaError_t cudaIpcCloseMemHandle(void *)                               { return refused(); }

/* ---- what it says of itself ---- */

static const Gpu *choose_gpu()
{
    static const Gpu gpus[] = { { 8, 9, 99 << 10, 100 << 10 }, { 9, 0, 227 << 10, 228 << 10 } };
    const char *wish = getenv("SIMT_CAPABILITY");
    if (!wish || !*wish || !strcmp(wish, "8.9")) return &gpus[0];
    if (strcmp(wish, "9.0")) fail("SIMT_CAPABILITY=%s: there are 8.9 and 9.0", wish);
    return &gpus[1];
}
const Gpu &simt::gpu()
{
    static const Gpu *const chosen = choose_gpu();
    return *chosen;
}

const char *cudaGetErrorString(cudaError_t e)
{
    static const char *const words[] = {
        "no error", "invalid argument", "out of memory", "invalid configuration argument",
        "invalid device ordinal", "device not ready", "operation not supported", "unknown error"
    };
    return words[e];
}

cudaError_t cudaGetLastError()
{
    cudaError_t e = last;
    last = cudaSuccess;
    return e;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int gpu) { return gpu ? noted(cudaErrorInvalidDevice) : cudaSuccess; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int)
{
    *p = { };
    snprintf(p->name, sizeof p->name, "emulated GPU");
    p->major = gpu().major, p->minor = gpu().minor, p->multiProcessorCount = SMS;
    p->totalGlobalMem = MEMORY_BYTES;
    p->sharedMemPerMultiprocessor = (size_t)gpu().shared_sm;
    p->sharedMemPerBlockOptin = (size_t)gpu().shared_most;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr, int)
{
    *v = gpu().major;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *id, int n, int)
{
    snprintf(id, (size_t)n, "0000:00:00.0");
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 12000;
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *found)
{
    *f = !strcmp(name, "cuStreamWriteValue32")   ? (void *)write_value
       : !strcmp(name, "cuTensorMapEncodeTiled") ? (void *)encode_tiled : NULL;
    if (!*f) return noted(cudaErrorNotSupported);
    *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

/* ---- launches ---- */

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute, int value)
{
    if (value > gpu().shared_most) return noted(cudaErrorInvalidValue);
    shared_allowed[kernel] = (size_t)value;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *)
{
    *a = { };
    return cudaSuccess;
}

void simt::submit(const Grid &g, std::function<void()> kernel)
{
    auto   known = shared_allowed.find(g.kernel);
    size_t threads = (size_t)g.threads.x * g.threads.y * g.threads.z;
    size_t most = known == shared_allowed.end() ? (size_t)SHARED_USUAL : known->second;
    bool   fits = threads && threads <= 1024 && g.blocks.x && g.bytes <= most;
    if (fits) queue(g.stream, [=] { run_grid(g, kernel); });
    else      noted(cudaErrorInvalidConfiguration);
}
