/* bench/delta_rule.h -- cases of bench/cases.h about the gated delta rule: heads of Qwen3-Next in equal
 * documents. */
#ifndef BENCH_DELTA_RULE_H
#define BENCH_DELTA_RULE_H

#include "bench/cases.h"

void    make_delta_rule(Case *c);
BenchFn run_delta_rule, run_delta_rule_bwd;

#endif
