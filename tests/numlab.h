/* tests/numlab.h -- numeric tests: random tensors, agreement, finite differences.
 *
 * numlab_open gives a CPU backend and an arena of host memory. Random inputs differ from run to run; the
 * seed is printed when a test fails and TREB_SEED repeats it. Outputs come poisoned with NaN (or a wild
 * index), so an unwritten element shows. */
#ifndef TESTS_NUMLAB_H
#define TESTS_NUMLAB_H

#include "lab.h"
#include "base/rng.h"
#include "ops/ops.h"

#include <time.h>

static struct { Backend be; Arena a; uint64_t seed, draws; } num_;
#define BE (&num_.be)

static inline void numlab_open(void)
{
    const char *s = getenv("TREB_SEED");
    num_.seed = s ? strtoull(s, NULL, 10) : (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
    if (backend_open(BE, "cpu") || backend_arena_open(BE, &num_.a, "lab", (size_t)1 << 31))
        printf("%s\n", status_text()), exit(1);
}

static inline int numlab_report(void)
{
    if (lab_.failed) printf("  TREB_SEED=%llu\n", (unsigned long long)num_.seed);
    backend_arena_close(BE, &num_.a);
    backend_close(BE);
    return lab_report();
}

static inline void num_clear(void) { arena_clear(&num_.a); num_.be.sticky = OK; }

static inline float get(Tensor t, int64_t i)                /* i-th element in row-major order */
{
    int64_t at = 0;
    for (int d = t.rank - 1; d >= 0; d--) at += i % t.n[d] * t.s[d], i /= t.n[d];
    float f;
    size_t w = dtype_size((DType)t.dtype);
    if (t.dtype == F32) return ((float *)t.data)[at];
    dtype_convert(&f, F32, (char *)t.data + (size_t)at * w, (DType)t.dtype, 1);
    return f;
}
static inline void put(Tensor t, int64_t i, float v)
{
    int64_t at = 0;
    for (int d = t.rank - 1; d >= 0; d--) at += i % t.n[d] * t.s[d], i /= t.n[d];
    dtype_convert((char *)t.data + (size_t)at * dtype_size((DType)t.dtype), (DType)t.dtype, &v, F32, 1);
}

static inline Tensor num_poison(DType d, int64_t n0, int64_t n1)
{
    Tensor t = t2(&num_.a, "lab", d, n0, n1);
    memset(t.data, 0xff, (size_t)t_bytes(t));               /* NaN as f32 and bf16, -1 as an index */
    return t;
}
static inline Tensor num_zeros(DType d, int64_t n0, int64_t n1)
{
    Tensor t = t2(&num_.a, "lab", d, n0, n1);
    memset(t.data, 0, (size_t)t_bytes(t));
    return t;
}
static inline Tensor num_randn(DType d, int64_t n0, int64_t n1)
{
    Tensor t = t2(&num_.a, "lab", d, n0, n1);
    uint64_t stream = num_.draws++;
    for (int64_t i = 0; i < n0 * n1; i++) put(t, i, rng_normal(num_.seed, stream, (uint64_t)i));
    return t;
}
static inline int64_t num_below(int64_t n)                  /* uniform in 0 .. n-1 */
{
    return (int64_t)(rng_uniform(num_.seed, 1u << 30, num_.draws++) * (float)n) % n;
}
static inline Tensor num_i32(int64_t n, const int32_t *v)   /* v NULL: poisoned */
{
    Tensor t = t1(&num_.a, "lab", I32, n);
    if (v) memcpy(t.data, v, (size_t)n * 4);
    else memset(t.data, 0xff, (size_t)n * 4);
    return t;
}
static inline Tensor num_vals(DType d, int64_t n0, int64_t n1, const float *v)
{
    Tensor t = t2(&num_.a, "lab", d, n0, n1);
    for (int64_t i = 0; i < n0 * n1; i++) put(t, i, v[i]);
    return t;
}
static inline Tensor num_copy(Tensor x, DType d)
{
    Tensor t = t_new(&num_.a, "lab", d, x.rank, x.n);
    for (int64_t i = 0; i < t_count(x); i++) put(t, i, get(x, i));
    return t;
}

/* max|a - b| / max(max|b|, least); NaN or an infinity anywhere counts as infinite error. */
static inline double num_error_at(double least, Tensor a, Tensor b)
{
    double diff = 0, big = least;
    for (int64_t i = 0; i < t_count(b); i++) {
        double x = get(a, i), y = get(b, i);
        if (!isfinite(x) || !isfinite(y)) return INFINITY;
        diff = fmax(diff, fabs(x - y)), big = fmax(big, fabs(y));
    }
    return big > 0 ? diff / big : diff;
}
static inline double num_error(Tensor a, Tensor b) { return num_error_at(0, a, b); }

/* _AT: relative to `least` where that exceeds all of b: what went into a sum that happens to cancel. */
#define EXPECT_CLOSE_AT(least, a, b, tol) do {                                                    \
        double e_ = num_error_at(least, a, b);                                                    \
        EXPECT(e_ <= (tol), "%s against %s: error %.3g > %.3g, shape %s", #a, #b, e_,          \
               (double)(tol), t_fmt(b));                                                          \
    } while (0)
#define EXPECT_CLOSE(a, b, tol) EXPECT_CLOSE_AT(0, a, b, tol)

/* Finite differences. f() runs the forward from the tensors as they are now and returns the scalar
 * sum(out * dout) in double. d(that)/dx is compared with the analytic dx at up to `probes` random
 * elements; the error is relative to the largest gradient element. Central difference with step h. */
typedef double NumLoss(void *arg);
static inline double num_gradient_error(NumLoss *f, void *arg, Tensor x, Tensor dx, float h, int probes)
{
    double big = 1e-6, worst = 0;
    for (int64_t i = 0; i < t_count(dx); i++) {
        if (!isfinite(get(dx, i))) return INFINITY;
        big = fmax(big, fabs(get(dx, i)));
    }
    for (int p = 0; p < probes; p++) {
        int64_t i = num_below(t_count(x));
        float was = get(x, i);
        put(x, i, was + h); double up = f(arg); float hi = get(x, i);
        put(x, i, was - h); double dn = f(arg); float lo = get(x, i);
        put(x, i, was);
        worst = fmax(worst, fabs((up - dn) / ((double)hi - lo) - get(dx, i)) / big);
    }
    return worst;
}
#define EXPECT_GRADIENT(f, arg, x, dx, h, tol) do {                                               \
        double e_ = num_gradient_error(f, arg, x, dx, h, 24);                                     \
        EXPECT(e_ <= (tol), "gradient of %s: error %.3g > %.3g, shape %s", #x, e_, (double)(tol), t_fmt(x)); \
    } while (0)

static inline double num_dot(Tensor a, Tensor b)            /* sum(a * b) in double */
{
    double s = 0;
    for (int64_t i = 0; i < t_count(a); i++) s += (double)get(a, i) * get(b, i);
    return s;
}

#endif
