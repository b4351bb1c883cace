/* bench/cases.h -- single ops at sizes of training, made to be timed: tensors laid out with random data,
 * one call. `treb bench ops` holds them to their floors, `treb bench calibrate` makes a machine's curves. */
#ifndef BENCH_CASES_H
#define BENCH_CASES_H

#include "bench/bench.h"
#include "ops/energy.h"

typedef struct Setup {
    Backend *be;
    Arena   *a;
    DType    d;
    int64_t  T, D, F, E, K, H, G, C, V, P;
    int64_t  docs, images, VH, VC, rows;             /* of the tower: heads and their width; rows of logits */
    bool     best;                                   /* the shortest time counts, not the middle one */
    bool     energy;                                 /* measure joules, where the device tells them */
    int64_t  held_sms;                               /* time calls beside a kernel that holds them, too */
} Setup;

enum { CASE_TENSORS = 48 };
typedef struct Case {
    const Setup *s;
    int64_t      m, n, k, width;
    Tensor       t[CASE_TENSORS];
    Segments     seg;
} Case;

/* A row: how to lay out its tensors (inputs are random, never zeros), and one call. Of products m, n, k are
 * the sizes, of experts n and k are; 0: the setup's. */
typedef struct Bench { const char *name; void (*make)(Case *c); BenchFn *run; int64_t m, n, k; } Bench;

enum { PLAIN_PRODUCTS = 6 };                         /* first rows of bench_list */

typedef struct BenchList { const Bench *at; int n; } BenchList;

extern const Setup setup_cpu, setup_gpu;            /* for two cores; Qwen3-VL-30B-A3B at 32,768 tokens */
BenchList   bench_list(void);                        /* every op once, dense and expert products first */
BenchList   bench_products(void);                    /* of Qwen3-VL-30B-A3B by their sizes, for a GPU */
const Bench *bench_find(const char *name);           /* of bench_list */

/* Seconds of a call, alone and with held_sms; what the ledger charges for it; the op that nearly all of it
 * is, OP_N: none; with Setup.energy also the joules of a call. */
typedef struct Timing { double seconds, held_seconds, flops; int64_t bytes; int op; Energy energy; } Timing;

static inline Tensor randn(const Setup *s, DType d, int64_t rows, int64_t cols)
{
    Tensor t = t2(s->a, "bench", d, rows, cols);
    op_normal(s->be, t, 7, (uint64_t)arena_mark(s->a).used, 0, cols, 1.0f);
    return t;
}
static inline Tensor blank(const Setup *s, DType d, int64_t rows, int64_t cols)
{
    Tensor t = t2(s->a, "bench", d, rows, cols);
    op_fill(s->be, t, 0.0f);
    return t;
}

MUST Status bench_time(Timing *out, const Setup *s, const Bench *b, int repeats);

#endif
