/* ops/adam_element.h -- one element of an AdamW step, on every device; the formula is in ops/adamw.c.
 *
 * Every product, sum and rounding is spelled out, so that no compiler contracts others: a CPU with FMA
 * instructions (and, slowly, one without) and a GPU get the same bits. */
#ifndef OPS_ADAM_ELEMENT_H
#define OPS_ADAM_ELEMENT_H

#include "ops/ops.h"

/* A step's factors: shrink = 1 - lr decay, in1 = 1 - beta1, keep2 = beta2, in2 = 1 - beta2, root and step of
 * AdamStep (its root and rate). */
typedef struct AdamFactors { float shrink, clip, in1, keep2, in2, root, eps, step; } AdamFactors;

#ifdef __CUDA_ARCH__
#define ADAM_MUL(a, b)    __fmul_rn(a, b)
#define ADAM_ADD(a, b)    __fadd_rn(a, b)
#define ADAM_DIV(a, b)    __fdiv_rn(a, b)
#define ADAM_FMA(a, b, c) __fmaf_rn(a, b, c)
#define ADAM_SQRT(a)      __fsqrt_rn(a)
#else
#define ADAM_MUL(a, b)    ((a) * (b))
#define ADAM_ADD(a, b)    ((a) + (b))
#define ADAM_DIV(a, b)    ((a) / (b))
#define ADAM_FMA(a, b, c) __builtin_fmaf(a, b, c)
#define ADAM_SQRT(a)      __builtin_sqrtf(a)
#endif

/* g = grad clip has a use that is no sum, and no other product is an operand of a plain sum: there is nothing
 * to contract. */
OPS_INLINE void adam_moments(float *m, float *v, float grad, AdamFactors f)
{
    float g = ADAM_MUL(grad, f.clip);
    *m = ADAM_FMA(f.in1, ADAM_ADD(g, -*m), *m);
    *v = ADAM_FMA(ADAM_MUL(f.in2, g), g, ADAM_MUL(f.keep2, *v));
}

OPS_INLINE float adam_slope(float m, float v, AdamFactors f)
{
    return ADAM_DIV(m, ADAM_ADD(ADAM_DIV(ADAM_SQRT(v), f.root), f.eps));
}

OPS_INLINE float adam_weight(float p, float slope, AdamFactors f)
{
    return ADAM_FMA(-f.step, slope, ADAM_MUL(p, f.shrink));
}

OPS_INLINE void adam_element(float *p, float *m, float *v, float grad, AdamFactors f)
{
    adam_moments(m, v, grad, f);
    *p = adam_weight(*p, adam_slope(*m, *v, f), f);
}

#endif
