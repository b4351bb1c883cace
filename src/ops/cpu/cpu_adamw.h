/* ops/cpu/cpu_adamw.h -- what the CPU's AdamW ops share (ops/adamw.c). */
#ifndef OPS_CPU_CPU_ADAMW_H
#define OPS_CPU_CPU_ADAMW_H

#include "ops/adam_element.h"
#include "ops/cpu/cpu_rows.h"

AdamFactors cpu_adam_factors(AdamW h, Tensor sumsq);

/* Elements at .. at+n-1 of a dense tensor as floats, in `buf` where they are not f32 in memory. */
float *cpu_piece_open(Tensor t, int64_t at, int64_t n, float *buf);

/* Elements at .. at+n-1 of the master of w as floats, in `buf` where they are not f32 in memory, and back:
 * cpu_master_close also rounds them to w. */
float *cpu_master_open(Tensor w, Tensor master, int64_t at, int64_t n, float *buf);
void   cpu_master_close(Tensor w, Tensor master, int64_t at, int64_t n, float *p);

/* For contracts: t is dense and has the shape of w; w and its master are of types that go together; the
 * state of h and sumsq are right. */
bool adamw_same_shape(Tensor t, Tensor w);
bool adamw_is_master(Tensor w, Tensor master);
void adamw_check_step(Tensor sumsq, const AdamW *h);

#endif
