/* ops/cuda/runs.cuh -- N neighbouring elements of one row in their memory format: for rows of two dtypes
 * walked together, and for unaligned rows (N = 1). A bf16 takes half a register until it is converted. */
#ifndef OPS_CUDA_RUNS_CUH
#define OPS_CUDA_RUNS_CUH

#include "ops/cuda/cuda.cuh"

/* of(x): N floats, rounded. Aligned to their size, to 16 bytes at most: longer runs are several accesses. */
template <class T, int N> struct Run;

template <int N> struct alignas(N * 4 < 16 ? N * 4 : 16) Run<float, N> {
    float w[N];
    __device__ float get(int i) const { return w[i]; }
    static __device__ Run of(const float *x)
    {
        Run r;
        #pragma unroll
        for (int i = 0; i < N; i++) r.w[i] = x[i];
        return r;
    }
};

template <int N> struct alignas(N * 2 < 16 ? N * 2 : 16) Run<bf16, N> {
    unsigned w[N / 2];
    __device__ float get(int i) const
    {
        return __uint_as_float(i & 1 ? w[i / 2] & 0xffff0000u : w[i / 2] << 16);
    }
    static __device__ Run of(const float *x)
    {
        Run r;
        #pragma unroll
        for (int i = 0; i < N; i += 2) {
            __nv_bfloat162 two = __floats2bfloat162_rn(x[i], x[i + 1]);    /* the first is the lower half */
            r.w[i / 2] = *(unsigned *)&two;
        }
        return r;
    }
};

template <> struct Run<bf16, 1> {
    bf16 w;
    __device__ float get(int) const { return to_f32(w); }
    static __device__ Run of(const float *x) { return Run{ from_f32<bf16>(*x) }; }
};

template <int N, class T> __device__ inline Run<T, N> run_load(const T *p) { return *(const Run<T, N> *)p; }
template <int N, class T> __device__ inline void run_store(T *p, const float *x)
{
    *(Run<T, N> *)p = Run<T, N>::of(x);
}

/* Whether a dense tensor can be walked from its base by runs of n. */
static inline bool starts_on(Tensor t, int n)
{
    return (int64_t)(intptr_t)t.data % min_i64(16, n * (int64_t)dtype_size((DType)t.dtype)) == 0;
}

#endif
