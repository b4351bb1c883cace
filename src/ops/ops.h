/* ops/ops.h -- ops.def unrolled: for each op its price, its slot in a backend's table and its call.
 *
 *   Cost  foo_cost(be, ...)   checks shapes (REQUIRE: a wrong shape is our bug) and prices the call
 *   void  op_foo(be, ...)     charges the ledger, then calls the backend; nothing once that is poisoned: after
 *                             a full arena tensors lie on top of each other and no shape is to be trusted */
#ifndef OPS_OPS_H
#define OPS_OPS_H

#include "ops/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a call costs. flops: what the op's definition needs; extra: what this way of computing it adds
 * (attention backward forms its scores again); rd, wr: bytes that must move at least once; each: rows that a
 * group gets on average, of grouped products alone. */
typedef struct Cost { double flops, extra; int64_t rd, wr; double each; } Cost;

/* c (M, N) = op(a) op(b) [+ bias (1, N)] [+ c]; the letters say which operand is transposed. */
enum { GEMM_NT = 0, GEMM_NN = 1, GEMM_TN = 2, GEMM_MODE = 3, GEMM_ACC = 4 };

/* Elements of a matrix that chance leaves out, each with probability p: its first one is element (row, col)
 * of an endless matrix of numbers, which is a function of seed and stream alone (ops/dropout.h). What is left
 * is as it was. p 0: nothing is left out. */
typedef struct Dropout { float p; uint64_t seed, stream; int64_t row, col; } Dropout;

/* More columns of the inner dimension of a grouped product, from elsewhere: c += low op(w), low (R, r) and w
 * (E, out, r) with GEMM_NT, (E, r, out) with GEMM_NN, where a first dimension of 1 serves all groups. It is
 * summed with the rest before anything is rounded; with GEMM_NN chance may leave out some of what it adds.
 * Absent: nothing is added. */
typedef struct LoraTerm { Tensor low, w; Dropout drop; } LoraTerm;

typedef enum { GELU_TANH, GELU_ERF } Gelu;

/* How router statistics become a loss; see auxloss.c. */
typedef enum { AUX_NONE, AUX_POOLED, AUX_LAYER, AUX_DOCUMENT } AuxForm;

/* Attention borders over a flat stream. `pairs` is the number of (query, key) pairs that attend. Keys are the
 * rows of the queries themselves, or where kv_starts says, with room left between segments for later ones. */
typedef struct Segments {
    Tensor  starts;           /* (n + 1) i32: segment i is rows starts[i] .. starts[i+1] - 1 */
    int64_t n, longest;
    double  pairs;
    bool    causal;
    Tensor  kv_starts;       /* (n + 1) i32 or absent: its keys are rows kv_starts[i] .. kv_starts[i+1] - 1 */
    Tensor  kv_used;          /* (n) i32 or absent: of these the first kv_used[i] */
    int64_t keys;             /* rows of keys in all, where kv_starts is given */
} Segments;

/* Dense f32 tensors whose squares one call adds up, and the cell that each one's own sum is for; a kernel
 * takes such a list as an argument, which bounds it. */
enum { ADDENDS = 128 };
typedef struct Addend { Tensor x; int64_t cell; } Addend;
typedef struct Addends { int n; Addend at[ADDENDS]; } Addends;

typedef struct AdamW {
    float   lr, beta1, beta2, eps, decay;
    float   max_norm;         /* gradients are scaled by min(1, max_norm / (norm + 1e-6)); 0 = never */
    int64_t step;             /* from 1, for bias correction */
} AdamW;

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
        Cost cost_ = name##_cost args;                                                             \
        ledger_charge(&be->ledger, OP_##name, kind, cost_.flops, cost_.extra, cost_.rd + cost_.wr); \
        if (be->ledger.meter)                                                                      \
            be->ledger.meter->op(be->ledger.meter, &be->ledger, OP_##name, cost_.flops + cost_.extra, \
                                 cost_.rd + cost_.wr, cost_.each);                                 \
        be->ops->name args;                                                                        \
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
