/* tests/simt/include/cuda.h -- the part of CUDA's driver interface that Trebuchet calls. */
#ifndef TESTS_SIMT_CUDA_H
#define TESTS_SIMT_CUDA_H

#include "cuda_runtime.h"

typedef int          CUresult;
typedef cudaStream_t CUstream;
typedef uintptr_t    CUdeviceptr;
typedef uint32_t     cuuint32_t;
enum { CU_STREAM_WRITE_VALUE_DEFAULT = 0 };

#endif
