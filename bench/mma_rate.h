/* bench/mma_rate.h -- what mma.sync reaches on a GPU: the ceiling of the portable kernels. */
#ifndef BENCH_MMA_RATE_H
#define BENCH_MMA_RATE_H

#ifdef __cplusplus
extern "C" {
#endif

/* FLOP/s of bf16 products whose operands, random numbers, stay in registers; 0: it could not be measured. */
double bench_mma_rate(void);

#ifdef __cplusplus
}
#endif
#endif
