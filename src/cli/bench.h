/* cli/bench.h -- what the benchmarks share: medians, ceilings of this machine measured in the same run. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "base/json.h"
#include "ops/ops.h"

/* OpenBLAS sgemm 2048^3; a copy, bytes read plus written. */
typedef struct Ceiling { double gflops, gbs; } Ceiling;

typedef void BenchFn(void *arg);

double bench_median(BenchFn *fn, void *arg, int repeats);    /* seconds, after one warm-up */
Ceiling bench_ceiling(Backend *be, Arena *a);

MUST Status bench_ops(int argc, char **argv);
MUST Status bench_step(int argc, char **argv);

#endif
