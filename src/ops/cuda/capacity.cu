/* ops/cuda/capacity.cu -- kernels of capacity.c: integers, so no result depends on the order of threads.
 *
 * moe_drop   One block per expert; each thread counts for its slots how many of the expert's slots rank
 *            higher. An expert has at most one slot of a token, so all tokens on one expert make T^2
 *            comparisons in cache: for 4096 tokens less time than the products of one row.
 * moe_pad    One thread per row. */
#include "ops/cuda/cuda.cuh"

enum { THREADS = 256 };

static __global__ void copy_slots(int *kept, const int *idx, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) kept[i] = idx[i];
}

static __global__ void __launch_bounds__(THREADS)
drop(int *kept, const unsigned *weight, const int *offsets, const int *src, int64_t capacity)
{
    int from = offsets[blockIdx.x], to = offsets[blockIdx.x + 1];
    if (to - from <= capacity) return;
    for (int i = from + threadIdx.x; i < to; i += THREADS) {
        int      slot = src[i];
        unsigned w = weight[slot];
        int64_t  better = 0;
        for (int j = from; j < to; j++) {
            unsigned x = weight[src[j]];
            better += x > w || (x == w && src[j] < slot);
        }
        if (better >= capacity) kept[slot] = -1;
    }
}

extern "C" void cuda_moe_drop(Backend *be, Tensor kept, Tensor idx, Tensor weight, Tensor offsets, Tensor src,
                              int64_t capacity)
{
    int64_t n = t_count(idx);
    LAUNCH(be, "moe_drop", copy_slots, ceil_div(n, THREADS), THREADS, 0, (int *)kept.data,
           (const int *)idx.data, n);
    LAUNCH(be, "moe_drop", drop, t_count(offsets) - 1, THREADS, 0, (int *)kept.data,
           (const unsigned *)weight.data, (const int *)offsets.data, (const int *)src.data, capacity);
}

static __global__ void pad(int *out, int *rows, int *to, const int *offsets, const int *src, int E,
                           int capacity)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i <= E) out[i] = (int)(i * capacity);
    if (i >= (int64_t)E * capacity) return;
    int e = (int)(i / capacity), r = offsets[e] + (int)(i % capacity),
        slot = r < offsets[e + 1] ? src[r] : -1;
    to[i] = slot;
    if (slot >= 0) rows[slot] = (int)i;
}

extern "C" void cuda_moe_pad(Backend *be, Tensor out, Tensor rows, Tensor to, Tensor offsets, Tensor src,
                             int64_t capacity)
{
    int64_t E = t_count(offsets) - 1, n = E * capacity > E + 1 ? E * capacity : E + 1;
    LAUNCH(be, "moe_pad", pad, ceil_div(n, THREADS), THREADS, 0, (int *)out.data, (int *)rows.data,
           (int *)to.data, (const int *)offsets.data, (const int *)src.data, (int)E, (int)capacity);
}
