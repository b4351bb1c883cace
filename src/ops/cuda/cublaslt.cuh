/* ops/cuda/cublaslt.cuh -- dense products by cuBLASLt: one call, and the algorithm that serves its shape.
 *
 *   lt_matmul       one product, as gemm.cu and gemm_fused.cu ask for it            cublaslt.cu
 *   lt_measure      the fastest of several algorithms, measured               cublaslt_tune.cu
 *   lt_load, save   the measured algorithms, as a file                         cublaslt_cache.cu
 *
 * The library knows column-major matrices only. A row-major (r, c) tensor is a column-major c x r matrix, its
 * transpose, so the call computes d' = op(b)' op(a)': the library's A is our b, its B our a, its m our N, its
 * n our M.
 *
 *              d (M, N)     our a     our b     A = b as c.-m.    its op    B = a as c.-m.    its op
 *   GEMM_NT    a b'         (M, K)    (N, K)    K x N  (b')       T         K x M  (a')       N
 *   GEMM_NN    a b          (M, K)    (K, N)    N x K  (b')       N         K x M  (a')       N
 *   GEMM_TN    a' b         (K, M)    (K, N)    N x K  (b')       N         M x K  (a')       T
 *   d, c       N x M column-major; leading dimensions are our row strides. A bias: one value per row of d'.
 *
 * Algorithms. Rows (tokens, patches) differ from step to step, the other extents are the model's; so
 * measurements are kept by `bucket`, the shape with its rows rounded up. A shape takes its bucket's algorithm
 * if the library confirms that it fits, else the library's first proposal. Both are functions of the shape
 * alone while the buckets stay as they are; a bucket that is first used in a step stays unmeasured to the end
 * of the run. */
#ifndef OPS_CUDA_CUBLASLT_CUH
#define OPS_CUDA_CUBLASLT_CUH

#include "ops/cuda/cuda.cuh"

#include <cublasLt.h>

#define LT_WORKSPACE ((size_t)64 << 20)   /* at the start of the op's workspace */

typedef struct LtCall {
    int                mode;                  /* GEMM_NT, GEMM_NN, GEMM_TN */
    float              scale;                 /* of the product, before anything is added */
    Tensor             d, a, b;               /* not empty */
    Tensor             c;                     /* to add: absent, d itself, or another (M, N) of d's dtype */
    cublasLtEpilogue_t epilogue;
    void              *bias;                  /* of d's dtype: N values to add, or M that BGRADB writes */
    Tensor             aux;                   /* (M, N) of d's dtype, written by GELU and read by DGELU */
} LtCall;

/* False: the library has no algorithm for this call and nothing was done. Launches nothing while
 * preparing. */
bool lt_matmul(Backend *be, const LtCall *call);

/* Whether all rows are aligned to 16 bytes. The library's kernels for other rows round the product to bf16
 * before they add a bias. */
static inline bool lt_aligned(Tensor c, Tensor a, Tensor b) { return packs(c) && packs(a) && packs(b); }

/* All that the choice of an algorithm depends on; compared as bytes. */
typedef struct LtKey {
    int64_t  m, n, k, lda, ldb, ldc, ldd, ldx;
    uint16_t epilogue;
    uint8_t  mode, in, out, beta;
    uint8_t  align[6];                        /* of a, b, c, d, bias, aux: up to 16 */
    uint8_t  zero[4];
} LtKey;
static_assert(sizeof(LtKey) == 80, "no gaps");

typedef struct LtKnown {                      /* a bucket */
    LtKey                key;
    cublasLtMatmulAlgo_t algo;
    int64_t              measured;            /* 0: first used in a step, not measured in this run */
} LtKnown;

typedef struct LtSlot {                       /* a shape, in a direct-mapped cache */
    LtKey                key;
    cublasLtMatmulAlgo_t algo;
    bool                 used, works;
} LtSlot;

enum { LT_KNOWN = 1024, LT_SLOTS = 4096, LT_TRIED = 16 };

typedef struct Lt {
    cublasLtHandle_t handle;
    LtKnown          known[LT_KNOWN];
    int              knowns;
    bool             unsaved;
    char             gpu[64];
    LtSlot           slot[LT_SLOTS];
} Lt;

/* The call in the library's terms; lives on the stack. */
typedef struct LtPlan {
    cublasLtMatmulDescOpaque_t   op;
    cublasLtMatrixLayoutOpaque_t a, b, c, d;
} LtPlan;

bool           lt_plan(LtPlan *p, const LtCall *call);
cublasStatus_t lt_launch(Lt *lt, const LtCall *call, LtPlan *p, const cublasLtMatmulAlgo_t *algo, void *ws,
                         cudaStream_t stream);

/* The fastest of n candidates on random operands of the call's shape, in memory allocated for it; -1 when
 * memory is short or no candidate runs. */
int  lt_measure(Lt *lt, cudaStream_t stream, const LtCall *call, const cublasLtMatmulHeuristicResult_t *tried,
                int n);

/* Launches the algorithm once, with few rows and in memory allocated for it: the library loads a kernel's
 * code at its first launch, which must not happen in a step. */
void lt_warm(Lt *lt, cudaStream_t stream, const LtCall *call, const cublasLtMatmulAlgo_t *algo);

/* Failing to read or write the file is no error: the next run measures again. */
int  lt_load(LtKnown *known, int max, const char *gpu);       /* how many */
void lt_save(const Lt *lt);

#endif
