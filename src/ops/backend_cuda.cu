/* ops/backend_cuda.cu -- an NVIDIA card as a machine: device memory, copies, one stream, the sticky error.
 *
 * The table of kernels is filled op by op as ops/<file>.cu are written. A card is only opened when every op
 * has a kernel: what was asked for runs, or the run stops before it starts and says what is missing. */
#include "ops/ops.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Cuda { cudaStream_t stream; } Cuda;

static const Ops cuda_ops = {};

static Status check(cudaError_t e, const char *what)
{
    return e == cudaSuccess ? OK : fail(E_DEVICE, "%s: %s", what, cudaGetErrorString(e));
}

/* The first op without a kernel, or NULL. */
static const char *first_missing(void)
{
#define OP(name, kind, params, args) if (!cuda_ops.name) return #name;
#include "ops/ops.def"
#undef OP
    return NULL;
}

static Status cuda_open(Backend *be)
{
    int count = 0, major = 0;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess || !count)
        return fail(E_DEVICE, "no card: %s; use --backend cpu",
                    e == cudaSuccess ? "none is visible" : cudaGetErrorString(e));
    TRY(check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "reading the card"));
    if (major != 9)
        return fail(E_DEVICE, "this build is for compute capability 9.0 (H100, H200), the card has %d",
                    major);
    const char *missing = first_missing();
    if (missing) return fail(E_DEVICE, "op %s has no kernel yet; use --backend cpu", missing);
    Cuda *c = (Cuda *)calloc(1, sizeof *c);
    if (!c) return fail(E_FIT, "no memory");
    be->priv = c;
    return check(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "creating a stream");
}

static void cuda_close(Backend *be)
{
    Cuda *c = (Cuda *)be->priv;
    if (c && c->stream) cudaStreamDestroy(c->stream);
    free(c);
    be->priv = NULL;
}

static Status cuda_map(Backend *be, size_t bytes, void **out)
{
    TRY(check(cudaMalloc(out, bytes), "device memory"));
    return check(cudaMemset(*out, 0, bytes), "device memory");
}

static void cuda_unmap(Backend *be, void *p, size_t bytes) { cudaFree(p); }

static void stick(Backend *be, cudaError_t e, const char *what)
{
    if (e != cudaSuccess && !be->sticky) be->sticky = check(e, what);
}

static void cuda_upload(Backend *be, Tensor dst, const void *host)
{
    stick(be,
          cudaMemcpyAsync(dst.data, host, (size_t)t_bytes(dst), cudaMemcpyHostToDevice,
                          ((Cuda *)be->priv)->stream),
          "upload");
}

static void cuda_fetch(Backend *be, void *host, Tensor src)
{
    cudaStream_t s = ((Cuda *)be->priv)->stream;
    stick(be, cudaMemcpyAsync(host, src.data, (size_t)t_bytes(src), cudaMemcpyDeviceToHost, s), "fetch");
    stick(be, cudaStreamSynchronize(s), "fetch");
}

static Status cuda_sync(Backend *be)
{
    stick(be, cudaStreamSynchronize(((Cuda *)be->priv)->stream), "sync");
    return be->sticky;
}

static void cuda_describe(char *out, size_t n)
{
    cudaDeviceProp p;
    int driver = 0;
    if (cudaGetDeviceProperties(&p, 0) != cudaSuccess) {
        snprintf(out, n, "built in, but no card is visible");
        return;
    }
    cudaDriverGetVersion(&driver);
    snprintf(out, n, "%s, compute %d.%d, %d multiprocessors, %.1f GiB, driver CUDA %d.%d", p.name, p.major,
             p.minor, p.multiProcessorCount, (double)p.totalGlobalMem / (1 << 30), driver / 1000,
             driver % 1000 / 10);
}

extern "C" const Machine machine_cuda = {
    "cuda",     &cuda_ops,   false,      cuda_open, cuda_close,    cuda_map,
    cuda_unmap, cuda_upload, cuda_fetch, cuda_sync, cuda_describe,
};
