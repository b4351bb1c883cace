/* cli/cmd_bench.c -- `treb bench`: how fast, against a ceiling measured in the same run. */
#include "cli/bench.h"
#include "base/clock.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_REPEATS = 101, SIDE = 2048 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(BenchFn *fn, void *arg, int repeats)
{
    double t[MOST_REPEATS];
    int n = repeats < MOST_REPEATS ? repeats : MOST_REPEATS;
    fn(arg);
    for (int i = 0; i < n; i++) {
        double start = clock_now();
        fn(arg);
        t[i] = clock_now() - start;
    }
    qsort(t, (size_t)n, sizeof *t, by_value);
    return t[n / 2];
}

typedef struct Plain { Backend *be; Tensor a, b, c; } Plain;

static void plain_sgemm(void *arg)
{
    Plain *p = arg;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, SIDE, SIDE, SIDE, 1.0f, p->a.data, SIDE, p->b.data,
                SIDE, 0.0f, p->c.data, SIDE);
}

static void plain_copy(void *arg)
{
    Plain *p = arg;
    op_copy(p->be, p->b, p->a);
}

/* The copy runs over 256 MiB, past any cache. */
Ceiling bench_ceiling(Backend *be, Arena *a)
{
    ArenaMark mark = arena_mark(a);
    Plain     p    = { be, t2(a, "bench", F32, SIDE, SIDE), t2(a, "bench", F32, SIDE, SIDE),
                       t2(a, "bench", F32, SIDE, SIDE) };
    op_fill(be, p.a, 0.5f), op_fill(be, p.b, 0.25f);
    Ceiling c = { .gflops = 2.0 * SIDE * SIDE * SIDE / bench_median(plain_sgemm, &p, 5) / 1e9 };
    arena_reset(a, mark);
    p.a = t2(a, "bench", F32, 16384, 2048), p.b = t2(a, "bench", F32, 16384, 2048);
    op_fill(be, p.a, 1.0f);
    c.gbs = 2.0 * (double)t_bytes(p.a) / bench_median(plain_copy, &p, 7) / 1e9;
    arena_reset(a, mark);
    return c;
}

Status cmd_bench(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "ops"))  return bench_ops(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "step")) return bench_step(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "decode")) return bench_decode(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "loader")) return bench_loader(argc - 1, argv + 1);
    return fail(E_CONFIG, "bench: ops, step, decode or loader? See treb help bench");
}
