/* ops/cuda/results.cu -- kernels of results.c. Losses and verdict are one thread each, in the order of the
 * CPU. count_experts: a block counts its share of the slots in shared memory, then adds its counts; sums of
 * integers do not depend on the order. */
#include "ops/cuda/cuda.cuh"

#include <math.h>

namespace {

enum { THREADS = 256, SLOTS_PER_BLOCK = 8192 };

static __global__ void add_one(double *sums, const double *ce, const float *aux, Factor aux_scale,
                               Factor z_scale)
{
    sums[SUM_CE]  = __dadd_rn(sums[SUM_CE], ce[0]);
    sums[SUM_MTP] = __dadd_rn(sums[SUM_MTP], ce[1]);
    if (!aux) return;
    sums[SUM_AUX] = __dadd_rn(sums[SUM_AUX], __dmul_rn(factor_value(aux_scale), aux[0]));
    sums[SUM_Z]   = __dadd_rn(sums[SUM_Z], __dmul_rn(factor_value(z_scale), aux[1]));
}

/* The expert of slot i, or -1: its token does not count. */
static __device__ inline int expert_of(const int *idx, const int *group, const int *rows, int64_t i,
                                       int64_t T, int K)
{
    int64_t t = rows ? rows[i / K] : i / K;
    if (t < 0 || t >= T || (!rows && group[t] < 0)) return -1;
    return idx[t * K + i % K];
}

static __global__ void __launch_bounds__(THREADS) count_slots(int *count, const int *idx, const int *group,
                                                              const int *rows, int64_t slots, int64_t T,
                                                              int K, int E)
{
    extern __shared__ int hist[];
    int64_t from = (int64_t)blockIdx.x * SLOTS_PER_BLOCK, to = from + SLOTS_PER_BLOCK;
    for (int e = threadIdx.x; e < E; e += THREADS) hist[e] = 0;
    __syncthreads();
    for (int64_t i = from + threadIdx.x; i < to && i < slots; i += THREADS) {
        int e = expert_of(idx, group, rows, i, T, K);
        if (e >= 0 && e < E) atomicAdd(&hist[e], 1);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < E; e += THREADS)
        if (hist[e]) atomicAdd(&count[e], hist[e]);
}

static __global__ void __launch_bounds__(THREADS) step_biases(float *bias, const int *count,
                                                              const double *verdict, int64_t E, float rate)
{
    __shared__ long long sum;
    long long mine = 0;
    if (verdict && *verdict != STEP_GOOD) return;
    if (!threadIdx.x) sum = 0;
    __syncthreads();
    for (int64_t e = threadIdx.x; e < E; e += THREADS) mine += count[e];
    atomicAdd((unsigned long long *)&sum, (unsigned long long)mine);
    __syncthreads();
    for (int64_t e = threadIdx.x; e < E; e += THREADS) {
        long long n = (long long)count[e] * E;
        bias[e] = __fadd_rn(bias[e], __fmul_rn(rate, (float)((n < sum) - (n > sum))));
    }
}

static __device__ inline StepVerdict verdict_of(const double *guard, double loss, double norm,
                                                StepLimits limits)
{
    if (guard[GUARD_HELD] > 0) return STEP_HELD;
    if (!isfinite(loss) || !isfinite(norm)) return STEP_NOT_FINITE;
    if (!limits.supervised) return STEP_EMPTY;
    bool spike = limits.spike > 0 && guard[GUARD_HIGHEST] > 0 &&
                 loss > __dmul_rn(limits.spike, guard[GUARD_HIGHEST]);
    return spike ? STEP_SPIKE : STEP_GOOD;
}

static __global__ void decide(double *guard, const double *sums, const double *sumsq, StepLimits limits)
{
    double loss = __dadd_rn(__dadd_rn(__dadd_rn(sums[SUM_CE], sums[SUM_MTP]),
                                      __dmul_rn(limits.aux_coeff, sums[SUM_AUX])),
                            __dmul_rn(limits.z_coeff, sums[SUM_Z]));
    StepVerdict v = verdict_of(guard, loss, sqrt(*sumsq), limits);
    guard[GUARD_VERDICT] = v;
    if (v == STEP_NOT_FINITE || v == STEP_SPIKE) guard[GUARD_HELD] = 1;
    if (v == STEP_GOOD && loss > guard[GUARD_HIGHEST]) guard[GUARD_HIGHEST] = loss;
}

}

extern "C" void cuda_add_losses(Backend *be, Tensor sums, Tensor ce, Tensor aux, Factor aux_scale,
                                Factor z_scale)
{
    LAUNCH(be, "add_losses", add_one, 1, 1, 0, (double *)sums.data, (const double *)ce.data,
           (const float *)aux.data, aux_scale, z_scale);
}

extern "C" void cuda_count_experts(Backend *be, Tensor count, Tensor idx, Tensor group, Tensor rows)
{
    int64_t E = count.n[0], K = idx.n[1], slots = (t_has(rows) ? rows.n[0] : idx.n[0]) * K;
    LAUNCH(be, "count_experts", count_slots, ceil_div(slots, SLOTS_PER_BLOCK), THREADS, E * sizeof(int),
           (int *)count.data, (const int *)idx.data, (const int *)group.data, (const int *)rows.data, slots,
           idx.n[0], (int)K, (int)E);
}

extern "C" void cuda_bias_step(Backend *be, Tensor bias, Tensor count, Tensor verdict, float rate)
{
    LAUNCH(be, "bias_step", step_biases, 1, THREADS, 0, (float *)bias.data, (const int *)count.data,
           (const double *)verdict.data, t_count(count), rate);
}

extern "C" void cuda_step_verdict(Backend *be, Tensor guard, Tensor sums, Tensor sumsq, StepLimits limits)
{
    LAUNCH(be, "step_verdict", decide, 1, 1, 0, (double *)guard.data, (const double *)sums.data,
           (const double *)sumsq.data, limits);
}
