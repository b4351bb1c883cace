/* ops/ops.h -- ops.def expanded: for each op its cost, its entry in a backend's table and its call.
 *
 *   Cost  foo_cost(be, ...)   checks shapes (REQUIRE: a wrong shape is our bug) and computes the cost of the
 *         call
 *   void  op_foo(be, ...)     charges the ledger, then calls the backend. It does nothing after a sticky
 *                             error: once an arena is full tensors overlap and no shape can be trusted */
#ifndef OPS_OPS_H
#define OPS_OPS_H

#include "ops/backend.h"

#ifdef __CUDACC__
#define OPS_INLINE static inline __host__ __device__
#else
#define OPS_INLINE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Cost of a call. flops: by the op's definition; extra: FLOPs that the implementation adds (attention
 * backward recomputes its scores); rd, wr: bytes that must move at least once; each: average rows of a group,
 * for grouped products only; workspace: bytes of a GPU that the op takes while it runs, where they grow with
 * the batch. */
typedef struct Cost { double flops, extra; int64_t rd, wr; double each; int64_t workspace; } Cost;

/* c (M, N) = op(a) op(b) [+ bias (1, N)] [+ c]; the letters of a mode give the transposed operands. */
enum { GEMM_NT = 0, GEMM_NN = 1, GEMM_TN = 2, GEMM_MODE = 3, GEMM_ACC = 4 };

/* A factor of an op: the value at a device address, which may change from step to step while the calls stay
 * the same (CUDA graphs), or `value` where the address is NULL. */
typedef struct Factor { float value; const float *at; } Factor;

OPS_INLINE float factor_value(Factor f) { return f.at ? *f.at : f.value; }
OPS_INLINE Factor factor(float value)   { Factor f = { value, NULL }; return f; }
OPS_INLINE Factor factor_at(const float *at) { Factor f = { 0.0f, at }; return f; }
OPS_INLINE bool  factor_is(Factor f, float value) { return !f.at && f.value == value; }   /* for all steps */

/* Dropout of a matrix: each element becomes 0 with probability p. The mask is a function of seed and stream
 * alone (ops/dropout.h); element (0, 0) of the matrix has the mask's element (row, col). Kept elements are
 * not scaled. p = 0: no dropout. base: the device address of the micro-batch's seed, from which number `seed`
 * of the stream is the seed of the mask; NULL: `seed` itself is. */
typedef struct Dropout { float p; uint64_t seed, stream; int64_t row, col; const uint64_t *base; } Dropout;

/* The LoRA term of a grouped product: c += low_rank op(w), with low_rank (R, r) and w (E, out, r) with
 * GEMM_NT, (E, r, out) with GEMM_NN; a first dimension of 1 means that all groups share w. The term is summed
 * with the product before anything is rounded; with GEMM_NN dropout may apply to it. Absent low_rank: no
 * term. */
typedef struct LoraTerm { Tensor low_rank, w; Dropout dropout; } LoraTerm;

typedef enum { GELU_TANH, GELU_ERF } Gelu;

/* How router statistics become a loss; see auxloss.c. */
typedef enum { AUX_NONE, AUX_POOLED, AUX_LAYER, AUX_DOCUMENT, AUX_DOCUMENT_TOKENS } AuxForm;

/* Segments of attention over a flat stream. `pairs` is the number of (query, key) pairs that attend. Keys are
 * the rows of the queries themselves, or with kv_starts rows of a KV cache, which has spare rows between
 * segments. */
typedef struct Segments {
    Tensor  starts;           /* (n + 1) i32: segment i is rows starts[i] .. starts[i+1] - 1 */
    int64_t n, longest;
    double  pairs;
    bool    causal;
    int64_t window;           /* causal: a query sees this many keys at most, itself the last; 0: all */
    Tensor  kv_starts;       /* (n + 1) i32 or absent: keys are rows kv_starts[i] .. kv_starts[i+1] - 1 */
    Tensor  kv_used;          /* (n) i32 or absent: the first kv_used[i] of these rows are filled */
    int64_t keys;             /* total rows of keys, with kv_starts */
} Segments;

/* Components of a head that forward attention takes on a device, by its name. */
int64_t attention_widest_head(const char *device);

/* Backward attention of bf16 rows on a GPU: rows, documents, rows of the longest, query and key heads, their
 * width; repeat: Backend.repeat. */
typedef struct AttentionWork { int64_t T, docs, longest, H, G, C; bool causal, repeat; } AttentionWork;

/* Pictures that the workspace suffices for at least, since a step may have more of them than the preparation:
 * it would have to grow. */
enum { ATTENTION_DOCS = 64 };

/* Its workspace: f32 sums of dq, with cuDNN also full heads of dk and dv, or a matrix dP where results must
 * repeat (ops/cuda/attention_cudnn.cu, attention_vision_fused.cu). */
int64_t attention_bwd_workspace(const AttentionWork *w);

/* Experts in groups of neighbours, of which a token's experts lie in `top`; groups 0 or 1: anywhere. */
typedef struct RouterGroups { int groups, top; } RouterGroups;

/* Strips of a stack of matrices, each with its own sum of squares (ops/grouped_gemm.c); n: of the stack. */
enum { SQUARES_ROWS = 16, SQUARES_COLS = 256 };
int64_t grouped_squares_parts(const int64_t n[3]);

/* Dense f32 tensors whose squares one call sums, and the cell that each tensor's own sum goes to. `squared`:
 * x has sums of squares, which are added as they are. The list is a kernel argument, which limits its
 * length. */
enum { ADDENDS = 128 };
typedef struct Addend { Tensor x; int64_t cell; bool squared; } Addend;
typedef struct Addends { int n; Addend at[ADDENDS]; } Addends;

/* Elements from `at` on, flat, of a matrix (N, K) or a stack of them: ops/quantize_slice.c. */
typedef struct WeightSlice { int64_t at, N, K; } WeightSlice;

/* Counts of ops/code_stats.c. */
enum { CODE_AMAX, CODE_ELEMENTS, CODE_FLUSHED, CODE_SATURATED, CODE_GROUPS, CODE_NOT_FINITE, CODE_CELLS };

/* Codes of a frozen weight ([E,] N, K): ops/weight_code.h. q and scale:
 *   fp8    ([E,] N, K) e4m3; ([E,] ceil(N/128), ceil(K/128)) f32
 *   int8   ([E,] N, K) i8; (E N) f32
 *   nf4    ([E,] N, K/2) u8; (E N K / 64) u8, codes of amaxes; first (E N) i32: half the position of a row's
 *          first element, in the matrix that it is a part of, counted over the groups of all matrices; group
 *          (groups, 2) f32: largest magnitude and offset of each group of blocks */
typedef enum { CODE_NONE, CODE_FP8, CODE_INT8, CODE_NF4 } CodeFormat;
typedef struct WeightCodes { CodeFormat format; Tensor q, scale, first, group; } WeightCodes;

/* Where a tile of a weight begins: matrix of a stack, row, column. */
typedef struct TileAt { int64_t e, row, col; } TileAt;

/* Microscaled codes of rows (R, K), or of a weight ([E,] N, K), in groups along K (ops/quant_micro.h):
 *   PREC_MXFP8   q ([E,] R, K) e4m3; scale ([E,] R, ceil(K/32)) u8, codes of e8m0; no tensor scale
 *   PREC_NVFP4   q ([E,] R, ceil(K/2)) u8; scale ([E,] R, ceil(K/16)) e4m3; tensor (1), of a stack (E),
 *                f32 */
typedef struct MicroCodes { Precision format; Tensor q, scale, tensor; } MicroCodes;

/* How they are made of x. blocks: a group is a block of 16 x 16; transposed: they are those of x transposed.
 * seed: the device address of a seed, for codes that are rounded up or down at random by `stream` of it;
 * NULL: they are rounded to nearest. */
typedef struct MicroRule { bool blocks, transposed; uint64_t stream; const uint64_t *seed; } MicroRule;

/* Codes of rows of experts, transposed: see ops/quantize_cols.c. */
typedef struct ColumnCodes { Tensor q, scale; } ColumnCodes;

/* What AdamW takes from the number of the step: lr; lr / (1 - beta1^step); sqrt(1 - beta2^step). */
typedef struct AdamStep { float lr, rate, root; } AdamStep;

typedef struct AdamW {
    float   lr, beta1, beta2, eps, decay;
    float   max_norm;         /* gradients are scaled by min(1, max_norm / (norm + 1e-6)); 0: no clipping */
    int64_t step;             /* from 1, for bias correction */
    const AdamStep *now;      /* device address of the values of this step; NULL: by lr and step */
    Tensor  verdict;          /* (1) F64, a StepVerdict: the op does nothing unless STEP_GOOD; or absent */
} AdamW;

AdamStep adam_step(const AdamW *h);                      /* of h->lr and h->step; ops/adamw.c */

/* Whether a step updates the weights. STEP_HELD: a step before it was bad, and the host has yet to decide
 * about it (op_step_verdict). */
typedef enum { STEP_GOOD, STEP_NOT_FINITE, STEP_SPIKE, STEP_EMPTY, STEP_HELD } StepVerdict;

/* Losses of a step, and what op_step_verdict keeps from step to step; cells of F64 tensors. */
enum { SUM_CE, SUM_AUX, SUM_Z, SUM_MTP, SUMS };
enum { GUARD_VERDICT, GUARD_HIGHEST, GUARD_HELD, GUARD_CELLS };

typedef struct StepLimits {
    double aux_coeff, z_coeff;        /* loss = ce + mtp + aux_coeff aux + z_coeff z */
    double spike;                     /* a loss above spike * GUARD_HIGHEST is one; 0: no such check */
    bool   supervised;                /* a token of the step has a loss */
} StepLimits;

typedef struct PeerGroup PeerGroup;                       /* ops/peer.h */
typedef enum { PEER_READY, PEER_DONE } PeerMark;

enum { MM = 1, EW = 0 };

enum {
#define OP(name, kind, params, args) OP_##name,
#include "ops/ops.def"
#undef OP
    OP_N
};

#define OP(name, kind, params, args) Cost name##_cost params;
#include "ops/ops.def"
#undef OP

struct Ops {
#define OP(name, kind, params, args) void (*name) params;
#include "ops/ops.def"
#undef OP
};

#define OP(name, kind, params, args)                                                               \
    static inline void op_##name params                                                            \
    {                                                                                              \
        if (be->sticky) return;                                                                    \
        activity_mark();                                                                           \
        Cost cost_ = name##_cost args;                                                             \
        ledger_charge(&be->ledger, OP_##name, kind, cost_.flops, cost_.extra, cost_.rd + cost_.wr); \
        ledger_workspace(&be->ledger, cost_.workspace);                                            \
        if (be->ledger.meter)                                                                      \
            be->ledger.meter->op(be->ledger.meter, &be->ledger, OP_##name, cost_.flops + cost_.extra, \
                                 cost_.rd + cost_.wr, cost_.each);                                 \
        be->ops->name args;                                                                        \
        ledger_done(&be->ledger);                                                                  \
    }
#include "ops/ops.def"
#undef OP

#define OP(name, kind, params, args) void cpu_##name params;
#include "ops/ops.def"
#undef OP

const char *op_name(int id);

#ifdef __cplusplus
}
#endif
#endif
