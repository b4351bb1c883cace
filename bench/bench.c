/* bench/bench.c -- see bench.h. */
#include "bench/bench.h"
#include "base/clock.h"

#ifdef TREB_OPENBLAS
#include <cblas.h>
#endif
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_REPEATS = 101, SIDE = 2048 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_middle(double *v, int64_t n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

/* Calls of one measurement: as many as take some milliseconds. */
static int calls_of(Backend *be, BenchFn *fn, void *arg)
{
    enum { MOST = 64 };
    if (be->device->host_memory) return 1;
    double from = clock_now();
    for (int i = 0; i < 3; i++) fn(arg);
    if (backend_sync(be)) return 1;
    double n = 10e-3 / ((clock_now() - from) / 3 + 1e-7);
    return n < 2 ? 2 : n > MOST ? MOST : (int)n;
}

static double time_calls(Backend *be, BenchFn *fn, void *arg, int calls)
{
    if (backend_sync(be)) return INFINITY;
    double start = clock_now();
    for (int k = 0; k < calls; k++) fn(arg);
    return backend_sync(be) ? INFINITY : (clock_now() - start) / calls;
}

double bench_median(Backend *be, BenchFn *fn, void *arg, int repeats)
{
    double t[MOST_REPEATS];
    int    n = repeats < MOST_REPEATS ? repeats : MOST_REPEATS, calls = calls_of(be, fn, arg);
    fn(arg);
    for (int i = 0; i < n; i++) t[i] = time_calls(be, fn, arg, calls);
    return bench_middle(t, n);
}

double bench_best(Backend *be, BenchFn *fn, void *arg, int repeats)
{
    const double long_enough = 0.05;
    double best = INFINITY, from = clock_now();
    int    calls = calls_of(be, fn, arg);
    fn(arg);
    for (int i = 0; i < repeats || (i < 1000 && clock_now() - from < long_enough); i++)
        best = fmin(best, time_calls(be, fn, arg, calls));
    return best;
}

typedef struct Plain { Backend *be; Tensor a, b, c; } Plain;

static void own_gemm(void *arg)
{
    Plain *p = arg;
    op_gemm(p->be, p->c, p->a, p->b, (Tensor){ 0 }, GEMM_NT);
}

#ifdef TREB_OPENBLAS
static void host_gemm(void *arg)
{
    Plain *p = arg;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, SIDE, SIDE, SIDE, 1.0f, p->a.data, SIDE, p->b.data,
                SIDE, 0.0f, p->c.data, SIDE);
}
#else
static void host_gemm(void *arg) { own_gemm(arg); }
#endif

const char *bench_gemm_name(bool host)
{
#ifdef TREB_OPENBLAS
    return host ? "OpenBLAS sgemm of 2048^3" : "product of 8192^3";
#else
    return host ? "own f32 product of 2048^3 (OpenBLAS is not built in)" : "product of 8192^3";
#endif
}

static void plain_copy(void *arg)
{
    Plain *p = arg;
    op_copy(p->be, p->b, p->a);
}

static Plain square(Backend *be, Arena *a, DType d, int64_t n)
{
    Plain p = { be, t2(a, "bench", d, n, n), t2(a, "bench", d, n, n), t2(a, "bench", d, n, n) };
    op_normal(be, p.a, 1, 1, 0, p.a.n[1], 1.0f);
    op_normal(be, p.b, 1, 2, 0, p.b.n[1], 1.0f);
    return p;
}

/* The copy runs over what no cache holds. */
Status bench_ceiling(Ceiling *c, Backend *be, Arena *a, DType d)
{
    bool      host = be->device->host_memory;
    int64_t   side = host ? SIDE : 8192, rows = host ? 16384 : 262144;
    ArenaMark mark = arena_mark(a);
    Plain     p = square(be, a, host ? F32 : d, side);
    if (backend_prepares(be)) {
        TRY(backend_prepare(be, true));
        own_gemm(&p);
        TRY(backend_prepare(be, false));
    }
    double seconds = bench_median(be, host ? host_gemm : own_gemm, &p, 5);
    c->gflops = 2.0 * (double)(side * side * side) / seconds / 1e9;
    arena_reset(a, mark);
    p.a = t2(a, "bench", F32, rows, 2048), p.b = t2(a, "bench", F32, rows, 2048);
    op_normal(be, p.a, 1, 3, 0, p.a.n[1], 1.0f);
    c->gbs = 2.0 * (double)t_bytes(p.a) / bench_median(be, plain_copy, &p, 7) / 1e9;
    arena_reset(a, mark);
    return backend_sync(be);
}
