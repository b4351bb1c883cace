/* ops/cuda/grouped_call.cuh -- calls of grouped_gemm.c and grouped_fused.c as every kernel set gets them
 * (kernel_set.cuh), and what the sets share: dropout as an argument, the rows of experts, their order.
 *
 * grouped_gemm.cu, grouped_narrow.cu and grouped_fused.cu check the operands and fill in these structs. */
#ifndef OPS_CUDA_GROUPED_CALL_CUH
#define OPS_CUDA_GROUPED_CALL_CUH

#include "ops/dropout.h"
#include "ops/cuda/cuda.cuh"

enum { NARROW = 64 };                                /* columns of a narrow tile */

/* Dropout (ops/dropout.h) as a kernel argument: an element whose random number, in the upper half of a word,
 * is at least `least` is kept and multiplied by `scale`. */
typedef struct DropoutArgs {
    uint64_t seed, stream;
    uint32_t row, col, least;
    float    scale;
    const uint64_t *base;           /* see Dropout */
} DropoutArgs;

static inline DropoutArgs dropout_args(Dropout d, float scale)
{
    DropoutArgs h = { d.seed, d.stream, (uint32_t)d.row, (uint32_t)d.col, dropout_threshold(d.p) << 16,
                      scale, d.base };
    return h;
}

/* A call of grouped_gemm.c. A c that is the sum over all experts (TN) is computed as one expert that has all
 * the rows: experts begin at every `every`-th offset. Without offsets there is one expert of `every` rows.
 * `drops`: dropout applies to the LoRA term, or without one to a (NT) or b (TN). */
typedef struct GroupedCall {
    Tensor  c, a, b, offsets;
    LoraTerm    lora;
    float   scale;
    int     mode;
    bool    add;
    int64_t E, every;
    bool    drops;
    DropoutArgs dropout;
    float  *squares;            /* of c, see grouped_squares; NULL: not wanted */
    WeightCodes codes;          /* b is where they are decoded to; see grouped_coded.c */
} GroupedCall;

/* A product with few columns of c, or few rows in TN: a is the wide operand, b the narrow one. Element (i, j)
 * of an expert's part of c, i along a and j along b, is `i` and `j` elements from its begin. In TN an
 * expert's rows are cut into `parts`, each with its own c. Dropout applies to a. */
typedef struct NarrowCall {
    Tensor  a, b, offsets;
    int     mode;
    int64_t E, every, parts;    /* E counts the parts of all experts */
    void   *c;
    DType   dtype;              /* of c */
    int64_t expert, i, j;       /* strides of c */
    float   scale;
    bool    add, drops;
    DropoutArgs dropout;
    int    *counters;           /* TN: 3 counters at 0, then the experts by falling number of rows */
} NarrowCall;

/* grouped_swiglu: wide gu, slim h, w (E, 2F, D). grouped_dswiglu: wide dgu, gu, w (E, D, F); part: sums of
 * dgate over KernelSet.dgate_cols columns, (tiles, R), or NULL. */
typedef struct FusedCall {
    Tensor   a, w, offsets, wide, slim, gu, gate;
    LoraTerm lora;
    float   *part;
    int64_t  F;
    WeightCodes codes;          /* w is where they are decoded to */
} FusedCall;

/* The first row of each expert, or of each of the `parts` that an expert's rows are cut into. */
struct Firsts {
    const int *offsets;
    int        every, parts;

#ifdef __CUDACC__
    /* LONE: there may be one expert without offsets. */
    template <bool LONE> __device__ int at(int i) const
    {
        if (LONE && !offsets) return (int)((int64_t)every * i / parts);
        return begin(i);
    }
    __device__ int begin(int i) const
    {
        int e = i / parts, p = i % parts, at = offsets[e * every];
        return p ? at + (int)((int64_t)(offsets[(e + 1) * every] - at) * p / parts) : at;
    }
#endif
};

#ifdef __CUDACC__

/* At the begin of a kernel: the same with the seed of the mask. */
template <bool DROP> __device__ inline DropoutArgs dropout_seeded(DropoutArgs h)
{
    if (DROP) h.seed = dropout_seed(h.base, h.seed, h.stream);
    return h;
}

/* Applies dropout to two bf16. */
__device__ inline uint32_t dropout_pair(uint32_t x, uint32_t numbers, uint32_t least)
{
    if (numbers < least)       x &= 0xffff;
    if (numbers << 16 < least) x &= 0xffff0000u;
    return x;
}

/* Applies dropout to two neighbouring sums. */
__device__ inline void dropout_two(float *x, uint32_t numbers, const DropoutArgs &h)
{
    x[0] = (numbers << 16) >= h.least ? h.scale * x[0] : 0.0f;
    x[1] = numbers >= h.least ? h.scale * x[1] : 0.0f;
}

template <class C> __device__ inline void put_one(C *at, float x, bool add)
{
    *at = from_f32<C>(add ? x + to_f32(*at) : x);
}

/* One block: sorts the experts by falling number of rows and clears the counters. */
static __global__ void order_experts(int *order, int *drawn, Firsts first, int E)
{
    __shared__ int rows[EXPERTS_MOST];
    int e = threadIdx.x, before = 0;
    if (e < 3) drawn[e] = 0;
    if (e < E) rows[e] = first.at<true>(e + 1) - first.at<true>(e);
    __syncthreads();
    if (e >= E) return;
    for (int i = 0; i < E; i++) before += rows[i] > rows[e] || (rows[i] == rows[e] && i < e);
    order[before] = e;
}

/* Two numbers rounded to bf16, the first in the low half, and back. */
__device__ inline uint32_t pair_of(float x, float y)
{
    __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
    return *(uint32_t *)&two;
}
__device__ inline float low(uint32_t two)  { return __uint_as_float(two << 16); }
__device__ inline float high(uint32_t two) { return __uint_as_float(two & 0xffff0000u); }

#endif

/* Whether rows begin on 16 bytes, whatever their length: enough for the fast kernels to read them. */
static inline bool begins(Tensor t)
{
    bool ok = (intptr_t)t.data % 16 == 0;
    for (int i = 0; i + 1 < t.rank; i++) ok = ok && t.s[i] * (int64_t)dtype_size((DType)t.dtype) % 16 == 0;
    return ok;
}

/* Whether the fast kernels take the LoRA term; true without one. */
static inline bool lora_packs(LoraTerm t) { return !t_has(t.low_rank) || (packs(t.low_rank) && packs(t.w)); }

/* A matrix as a stack of one. */
static inline Tensor stack_of(Tensor t)
{
    if (t.rank == 3) return t;
    t.n[2] = t.n[1], t.n[1] = t.n[0], t.n[0] = 1;
    t.s[2] = 1, t.s[1] = t.s[0], t.s[0] = t.n[1] * t.s[1];
    t.rank = 3;
    return t;
}

/* Columns 0 .. F - 1 of a wide matrix, or the rest. */
static inline Tensor half_of(Tensor wide, int i)
{
    int64_t F = wide.n[1] / 2;
    return t_cols(wide, i * F, F);
}

/* Products with few columns of c, or few rows in TN (grouped_narrow.cu); false: c is not narrow, nothing was
 * done. */
bool grouped_narrow(Backend *be, const GroupedCall &q);

#endif
