/* ops/cuda/put.cu -- a few values into device memory as the argument of a kernel: the launch copies them, so
 * nothing on the host has to outlive it. */
#include "ops/cuda/cuda.cuh"

#include <string.h>

namespace {

struct Bytes { unsigned char v[PUT_BYTES]; };

static __global__ void put_kernel(unsigned char *dst, const __grid_constant__ Bytes b, int n)
{
    if ((int)threadIdx.x < n) dst[threadIdx.x] = b.v[threadIdx.x];
}

}

void cuda_put(Backend *be, void *dst, const void *host, size_t bytes)
{
    Bytes b;
    memcpy(b.v, host, bytes);
    LAUNCH(be, "put", put_kernel, bytes > 0, PUT_BYTES, 0, (unsigned char *)dst, b, (int)bytes);
}
