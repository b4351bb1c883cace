/* ops/cuda/gpu_info.cuh -- what the GPU is, without opening it: for `treb doctor`, plans and messages. */
#ifndef OPS_CUDA_GPU_INFO_CUH
#define OPS_CUDA_GPU_INFO_CUH

#include "ops/cuda/cuda.cuh"

/* Whether this program has code for the GPU: a build may be for some compute capabilities alone
 * (CUDA_ARCHS). */
Status gpu_has_code(const cudaDeviceProp *p);

static inline bool gpu_has_fp8(int major, int minor) { return 10 * major + minor >= 89; }

/* Members of Device. */
void   gpu_memory(double *left, double *all);
double gpu_memory_used(void);
double gpu_peak(DType dtype);
void   gpu_describe(char *out, size_t n);
void   gpu_describe_kernels(char *out, size_t n);

#endif
