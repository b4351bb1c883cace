/* bench/fp8.h -- cases of bench/cases.h about quantisation and e4m3 products of the experts. */
#ifndef BENCH_FP8_H
#define BENCH_FP8_H

#include "bench/experts.h"

void    make_fp8_experts(Case *c);                   /* k to n, transposed for dx */
BenchFn run_fp8_y, run_fp8_dx;
BenchFn run_fp8_quantize_y;                          /* with the quantisation of x */

void    make_fp8_dw(Case *c);                        /* weight gradients (n, k) */
BenchFn run_fp8_dw;

void    make_fp8_dense(Case *c);                     /* m rows of k by a weight of n rows */
BenchFn run_fp8_dense, run_fp8_residual;

void    make_quantize(Case *c);                      /* m rows of k; a stack of weights of n by k */
BenchFn run_quantize_rows, run_quantize_weight, run_transpose_codes;
void    make_adam_fp8(Case *c);                      /* weights of experts: split masters, bf16 moments */
BenchFn run_adam_split, run_adam_then_fp8, run_adam_fp8;
void    make_packed(Case *c);                        /* tokens as they travel to experts */
BenchFn run_pack_rows, run_unpack_rows;

#endif
