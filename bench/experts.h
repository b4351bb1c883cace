/* bench/experts.h -- cases of bench/cases.h about the experts' layer, as it is trained, frozen, and with
 * adapters on frozen weights. */
#ifndef BENCH_EXPERTS_H
#define BENCH_EXPERTS_H

#include "bench/cases.h"

/* A routing as a trained router makes it: uneven, every expert used. t[5]: offsets, t[6 .. 11]: what else
 * belongs to it. */
void    bench_route(Case *c);

void    make_experts(Case *c);                       /* one product */
BenchFn run_experts_nt, run_experts_nn, run_experts_tn;

void    make_moe(Case *c);                           /* a layer */
BenchFn run_moe_fwd, run_moe, run_frozen, run_moe_up, run_moe_down_bwd;

void    make_moe_fp8(Case *c);                       /* the same in e4m3, weights quantised before */
BenchFn run_moe_fwd_fp8, run_moe_fp8, run_moe_up_fp8, run_moe_down_bwd_fp8, run_expand_fp8,
        run_expand_codes;
BenchFn run_columns_fp8, run_moe_down_bwd_cols, run_moe_all_fp8;   /* with weight gradients from codes */

void    make_adapted(Case *c);                       /* with adapters */
BenchFn run_adapted_fwd, run_adapted, run_adapted_up, run_adapted_down_bwd;
BenchFn run_expert_low, run_expert_back, run_expert_da, run_expert_db;
BenchFn run_dropped_low, run_dropped_da, run_adapted_dx, run_dropped_dx, run_dropped_down_bwd;

void    make_low(Case *c);                           /* a dense adapter */
BenchFn run_low, run_low_dropped, run_da_dropped, run_dx_dropped;

#endif
