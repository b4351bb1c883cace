/* ops/cuda/shared_memory.cu -- device memory that other processes of the node open, by CUDA IPC. */
#include "ops/cuda/cuda.cuh"

#include <string.h>

static Status check(cudaError_t e, const char *what)
{
    return e == cudaSuccess ? OK : fail(E_DEVICE, "%s: %s", what, cudaGetErrorString(e));
}

static Status make_handle(Backend *be, void *base, size_t bytes, MemoryHandle *out)
{
    static_assert(sizeof(cudaIpcMemHandle_t) == sizeof out->ipc, "a handle is a cudaIpcMemHandle_t");
    memset(out, 0, sizeof *out);
    out->bytes = bytes;
    return check(cudaIpcGetMemHandle((cudaIpcMemHandle_t *)(void *)out->ipc, base), "IPC handle");
}

static Status open_handle(Backend *be, const MemoryHandle *h, void **at)
{
    cudaIpcMemHandle_t ipc;
    memcpy(&ipc, h->ipc, sizeof ipc);
    cudaError_t e = cudaIpcOpenMemHandle(at, ipc, cudaIpcMemLazyEnablePeerAccess);
    if (e != cudaSuccess) cudaGetLastError();           /* the caller may do without: clear it for launches */
    return check(e, "CUDA IPC");
}

static void close_handle(Backend *be, void *at, const MemoryHandle *h)
{
    cudaStreamSynchronize(cuda_of(be)->stream);
    cudaIpcCloseMemHandle(at);
}

const SharedMemoryOps cuda_shared_memory = { make_handle, open_handle, close_handle };
