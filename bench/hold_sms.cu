/* bench/hold_sms.cu -- see hold_sms.h. */
#include "bench/hold_sms.h"

#include <cuda_runtime.h>
#include <stdint.h>
#include <time.h>

namespace {

/* More than half of an SM's shared memory: each block has an SM to itself, and no large block joins it. */
enum { SMEM = 160 << 10 };

cudaStream_t  stream, control;
int          *stop;                             /* in device memory, see spin */
volatile int *started;                          /* blocks, in host memory */
int          *one;                              /* the value that stops them, in host memory */

__device__ inline uint64_t nanoseconds()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

/* The flag is in device memory: while these blocks read one in host memory, kernels beside them took 2 to 20
 * times as long, which says nothing about the SMs that are held. */
__global__ void spin(volatile int *end, volatile int *begun)
{
    uint64_t from = nanoseconds();
    atomicAdd_system((int *)begun, 1);
    while (!*end && nanoseconds() - from < 10000000000ull) __nanosleep(20000);
}

Status check(cudaError_t e, const char *what)
{
    return e == cudaSuccess ? OK : fail(E_DEVICE, "%s: %s", what, cudaGetErrorString(e));
}

Status open_once()
{
    if (one) return OK;
    TRY(check(cudaFuncSetAttribute(spin, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM),
              "shared memory"));
    TRY(check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"));
    TRY(check(cudaStreamCreateWithFlags(&control, cudaStreamNonBlocking), "creating a stream"));
    TRY(check(cudaMalloc((void **)&stop, sizeof *stop), "device memory"));
    TRY(check(cudaHostAlloc((void **)&started, sizeof *started, cudaHostAllocMapped), "pinned memory"));
    return check(cudaHostAlloc((void **)&one, sizeof *one, cudaHostAllocDefault), "pinned memory");
}

}

Status hold_sms(int n)
{
    TRY(open_once());
    *started = 0, *one = 1;
    TRY(check(cudaMemsetAsync(stop, 0, sizeof *stop, stream), "clearing a flag"));
    spin<<<(unsigned)n, 1, SMEM, stream>>>(stop, started);
    TRY(check(cudaGetLastError(), "the kernel that holds SMs"));
    for (int ms = 0; *started < n && ms < 5000; ms++) {
        struct timespec wait = { 0, 1000000 };
        nanosleep(&wait, NULL);
    }
    if (*started >= n) return OK;
    int got = *started;
    release_sms();
    return fail(E_DEVICE, "only %d of %d SMs could be held", got, n);
}

void release_sms()
{
    if (!one) return;
    cudaMemcpyAsync(stop, one, sizeof *stop, cudaMemcpyHostToDevice, control);
    cudaStreamSynchronize(stream);
}
