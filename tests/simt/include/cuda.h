/* tests/simt/include/cuda.h -- the part of CUDA's driver interface that Trebuchet calls. */
#ifndef TESTS_SIMT_CUDA_H
#define TESTS_SIMT_CUDA_H

#include "cuda_runtime.h"

typedef int          CUresult;
typedef cudaStream_t CUstream;
typedef uintptr_t    CUdeviceptr;
typedef uint32_t     cuuint32_t;
typedef uint64_t     cuuint64_t;
enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_NOT_FOUND = 500 };
enum { CU_STREAM_WRITE_VALUE_DEFAULT = 0 };

typedef struct alignas(64) CUtensorMap { cuuint64_t opaque[16]; } CUtensorMap;
typedef enum CUtensorMapDataType {
    CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0, CU_TENSOR_MAP_DATA_TYPE_INT32 = 4, CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9
} CUtensorMapDataType;
typedef enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE } CUtensorMapInterleave;
typedef enum CUtensorMapSwizzle {
    CU_TENSOR_MAP_SWIZZLE_NONE = 0, CU_TENSOR_MAP_SWIZZLE_128B = 3
} CUtensorMapSwizzle;
typedef enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3 } CUtensorMapL2promotion;
typedef enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE } CUtensorMapFloatOOBfill;

#endif
