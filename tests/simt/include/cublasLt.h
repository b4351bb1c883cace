/* tests/simt/include/cublasLt.h -- the names of cuBLASLt's interface in ops/cuda/cublaslt.cuh; the products
 * are in tests/simt/libraries.cc. */
#ifndef TESTS_SIMT_CUBLASLT_H
#define TESTS_SIMT_CUBLASLT_H

typedef enum cublasLtEpilogue_t {
    CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BGRADB, CUBLASLT_EPILOGUE_DGELU,
    CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS
} cublasLtEpilogue_t;
typedef int   cublasStatus_t;
typedef void *cublasLtHandle_t;
typedef struct { int none; } cublasLtMatmulAlgo_t, cublasLtMatmulDescOpaque_t, cublasLtMatrixLayoutOpaque_t,
    cublasLtMatmulHeuristicResult_t;

#endif
