/* tests/simt/selftest.cu -- that the emulated GPU finds the faults it is there for, and runs what is right;
 * selftest_hopper.cu has what Hopper alone has. */
#include "ops/cuda/warp_mma.cuh"
#include "simt/cases.h"

namespace {

enum { N = 96 };

float        *out;                              /* N floats of device memory */
float        *host;                             /* and of pinned host memory */
cudaStream_t  stream, other;

/* ---- kernels ---- */

template <bool BARRIER> __global__ void reverse(float *y)
{
    __shared__ float x[N];
    x[threadIdx.x] = (float)threadIdx.x;
    if (BARRIER) __syncthreads();
    y[threadIdx.x] = x[N - 1 - threadIdx.x];
}

template <bool BARRIER> __global__ void neighbours(float *y)    /* within warps, without a barrier */
{
    __shared__ float x[N];
    x[threadIdx.x] = (float)threadIdx.x;
    if (BARRIER) __syncwarp();
    y[threadIdx.x] = x[threadIdx.x ^ 1];
}

__global__ void split_barrier(float *y)
{
    if (threadIdx.x < 32) __syncthreads();
    else                  y[0] = 0;
    if (threadIdx.x >= 32) __syncthreads();
}

__global__ void early_return(float *y)                          /* nobody waits for threads that have */
{
    if (threadIdx.x % 2) return;
    __syncthreads();
    y[threadIdx.x] = 1;
}

__global__ void absent_lane(float *y)
{
    if (threadIdx.x % 32) y[threadIdx.x] = __shfl_xor_sync(~0u, 1.0f, 1);
    else                  __syncthreads();
}

__global__ void foreign_lane(float *y)
{
    if (threadIdx.x % 32 < 16) y[threadIdx.x] = __shfl_xor_sync(0xffffu, 1.0f, 16);
}

__global__ void one_half(float *y)                              /* a mask of half the lanes */
{
    if (threadIdx.x % 32 < 16) y[threadIdx.x] = __shfl_xor_sync(0xffffu, (float)threadIdx.x, 8);
}

template <bool WAIT> __global__ void copied(float *y, const float *x)
{
    __shared__ __align__(16) float s[4];
    if (!threadIdx.x) copy_16(s, x, true), copies_commit();
    if (WAIT) copies_wait<0>();
    __syncthreads();
    if (threadIdx.x < 4) y[threadIdx.x] = s[threadIdx.x];
}

__global__ void beyond(float *y)
{
    extern __shared__ float s[];
    uint32_t v[4];
    matrix_load(v, (const bf16 *)(s + N));
    y[threadIdx.x] = (float)v[0];
}

__global__ void wait_for_next(volatile int *done)               /* block i for block i + 1 */
{
    while (blockIdx.x + 1 < gridDim.x && !done[blockIdx.x + 1]) __nanosleep(100);
    done[blockIdx.x] = 1;
}

__global__ void last_block(float *y)                            /* differs with the order of blocks */
{
    *y = (float)blockIdx.x;
}

/* c (16, 8) = a (16, 16) b (16, 8), fragments by the PTX manual. */
__global__ void product(float *y, const bf16 *a, const bf16 *b)
{
    float    c[4] = { };
    uint32_t fa[4], fb[2];
    int      g = threadIdx.x / 4, t = threadIdx.x % 4 * 2;
    for (int i = 0; i < 4; i++) fa[i] = *(const uint32_t *)&a[(g + i % 2 * 8) * 16 + t + i / 2 * 8];
    for (int i = 0; i < 2; i++) {
        bf16 two[2] = { b[(t + i * 8) * 8 + g], b[(t + i * 8 + 1) * 8 + g] };
        memcpy(&fb[i], two, 4);
    }
    mma_16x8(c, fa, fb[0], fb[1]);
    for (int i = 0; i < 4; i++) y[(g + i / 2 * 8) * 8 + t + i % 2] = c[i];
}

/* ---- cases: false fails ---- */

void fetch()
{
    cudaMemcpyAsync(host, out, N * sizeof *host, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
}

bool reversed()
{
    bool ok = true;
    fetch();
    for (int i = 0; i < N; i++) ok = ok && host[i] == (float)(N - 1 - i);
    return ok;
}

bool has_neighbours()
{
    bool ok = true;
    fetch();
    for (int i = 0; i < N; i++) ok = ok && host[i] == (float)(i ^ 1);
    return ok;
}

bool with_barrier()    { reverse<true><<<1, N, 0, stream>>>(out); return reversed(); }
bool without_barrier() { reverse<false><<<1, N, 0, stream>>>(out); return !reversed(); }
bool with_syncwarp()   { neighbours<true><<<1, N, 0, stream>>>(out); return has_neighbours(); }
bool without_syncwarp() { neighbours<false><<<1, N, 0, stream>>>(out); return !has_neighbours(); }
bool barrier_divided() { split_barrier<<<1, N, 0, stream>>>(out); fetch(); return false; }
bool returned_early()  { early_return<<<1, N, 0, stream>>>(out); fetch(); return host[2] == 1; }
bool lane_absent()     { absent_lane<<<1, N, 0, stream>>>(out); fetch(); return false; }
bool lane_foreign()    { foreign_lane<<<1, N, 0, stream>>>(out); fetch(); return false; }
bool half_a_warp()
{
    one_half<<<1, N, 0, stream>>>(out);
    fetch();
    return host[3] == 11 && host[43] == 35;
}
bool shared_beyond()   { beyond<<<1, 32, N * 4, stream>>>(out); fetch(); return false; }

bool copy_awaited()
{
    for (int i = 0; i < N; i++) host[i] = 7;
    copied<true><<<1, 32, 0, stream>>>(out, host);
    fetch();
    return host[0] == 7 && host[3] == 7;
}
bool copy_not_awaited()
{
    for (int i = 0; i < N; i++) host[i] = 7;
    copied<false><<<1, 32, 0, stream>>>(out, host);
    fetch();
    return host[0] != 7 && host[3] != 7;
}

bool too_much_shared()
{
    beyond<<<1, 32, 64 << 10, stream>>>(out);
    return cudaGetLastError() == cudaErrorInvalidConfiguration && cudaGetLastError() == cudaSuccess;
}

bool blocks_in_any_order()
{
    bool differs = false;
    for (int i = 0; i < 20; i++) {
        float before = *host;
        last_block<<<5, 1, 0, stream>>>(out);
        fetch();
        differs = differs || (i && *host != before);
    }
    return differs;
}

bool later_block_awaited()                                      /* in some order of blocks */
{
    for (int i = 0; i < 20; i++) {
        cudaMemsetAsync(out, 0, N * sizeof *out, stream);
        wait_for_next<<<5, 32, 0, stream>>>((int *)out);
        fetch();
    }
    return false;
}

bool results_read_early()                                       /* work is done when it is waited for */
{
    *host = -1;
    reverse<true><<<1, N, 0, stream>>>(out);
    cudaMemcpyAsync(host, out, sizeof *host, cudaMemcpyDeviceToHost, stream);
    bool early = *host == -1;
    cudaStreamSynchronize(stream);
    return early && *host == N - 1;
}

bool streams_in_order()                                         /* by an event, and only by one */
{
    cudaEvent_t e;
    cudaEventCreate(&e);
    reverse<true><<<1, N, 0, stream>>>(out);
    cudaMemcpyAsync(host, out, 4, cudaMemcpyDeviceToHost, other);
    cudaStreamSynchronize(other);
    bool early = *host != N - 1;
    cudaEventRecord(e, stream);
    cudaStreamWaitEvent(other, e);
    cudaMemcpyAsync(host, out, 4, cudaMemcpyDeviceToHost, other);
    cudaStreamSynchronize(other);
    return early && *host == N - 1;
}

bool fragments()
{
    bf16  *a, *b;
    float *c, want[128] = { };
    cudaHostAlloc((void **)&a, 512, 0), cudaHostAlloc((void **)&b, 256, 0);
    cudaHostAlloc((void **)&c, 512, 0);
    for (int i = 0; i < 256; i++) a[i] = __float2bfloat16_rn((float)(i * 7 % 13 - 6));
    for (int i = 0; i < 128; i++) b[i] = __float2bfloat16_rn((float)(i * 5 % 11 - 5));
    for (int i = 0; i < 128; i++)
        for (int k = 0; k < 16; k++) want[i] += to_f32(a[i / 8 * 16 + k]) * to_f32(b[k * 8 + i % 8]);
    product<<<1, 32, 0, stream>>>(c, a, b);
    cudaStreamSynchronize(stream);
    return !memcmp(c, want, sizeof want);
}

/* ---- the cases ---- */

const Case cases[] = {
    { "a barrier orders the threads of a block", with_barrier, NULL },
    { "a missing barrier shows", without_barrier, NULL },
    { "a barrier orders the lanes of a warp", with_syncwarp, NULL },
    { "a missing __syncwarp shows", without_syncwarp, NULL },
    { "two barriers for two halves of a block", barrier_divided, "threads wait for others that never come" },
    { "threads that have returned", returned_early, NULL },
    { "a lane that never comes", lane_absent, "absent_lane" },
    { "a lane outside the mask", lane_foreign, "takes no part in the shuffle" },
    { "half a warp", half_a_warp, NULL },
    { "an address outside shared memory", shared_beyond, "at shared address" },
    { "cp.async", copy_awaited, NULL },
    { "cp.async without a wait", copy_not_awaited, NULL },
    { "too much shared memory", too_much_shared, NULL },
    { "the order of blocks", blocks_in_any_order, NULL },
    { "a wait for a later block", later_block_awaited, "no thread of the block does" },
    { "results that are read early", results_read_early, NULL },
    { "an event orders streams", streams_in_order, NULL },
    { "fragments of mma.sync", fragments, NULL },
};

void open()
{
    cudaMalloc((void **)&out, N * sizeof *out);
    cudaHostAlloc((void **)&host, N * sizeof *host, cudaHostAllocMapped);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
}

}

int main() { return run_cases(cases, open); }
