/* bench/bench.h -- what the benchmarks share: medians, ceilings of this machine measured in the same run. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include "base/json.h"
#include "model/shape.h"
#include "ops/ops.h"

/* Measured matrix product (bench_gemm_name says which) and copy, which counts bytes read plus written. On the
 * CPU the product is OpenBLAS's where this build has it, else our own. */
typedef struct Ceiling { double gflops, gbs; } Ceiling;

typedef void BenchFn(void *arg);

/* Seconds of one call, after a warm-up. Where calls return before their work is done, several are timed as
 * one. */
double      bench_middle(double *v, int64_t n);                  /* the median; sorts v */
double      bench_median(Backend *be, BenchFn *fn, void *arg, int repeats);
/* The shortest of at least so many, of more where calls are short: others may use the machine too. */
double      bench_best(Backend *be, BenchFn *fn, void *arg, int repeats);
const char *bench_gemm_name(bool host);
MUST Status bench_ceiling(Ceiling *c, Backend *be, Arena *a, DType d);

/* A whole step over what hw says of it: what ops take more beside each other than each alone. */
struct Hardware;
MUST Status bench_together(double *ratio, const struct Hardware *hw, const char *backend, DType d);

/* The model of a folder or a preset, of this many layers where a preset is to have fewer; the small built-in
 * one, with every part of the large ones, when name is NULL. */
MUST Status bench_model(ModelShape *s, const char *name, int64_t layers);

#endif
