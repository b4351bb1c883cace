/* tests/gputensors.h -- tensors of the tests of ops on the GPU: inputs of any layout, outputs with their
 * tolerances. They lie in numlab's arena of host memory; gpulab.h has the whole picture. */
#ifndef TESTS_GPUTENSORS_H
#define TESTS_GPUTENSORS_H

#include "rowlab.h"

/* Row layouts: dense, 16-byte aligned with gaps, or one element off the alignment. */
typedef enum { DENSE, STRIDED, LOOSE, LAYOUTS } Layout;

/* |a - b| <= norm |b| over the tensor; each element within each |b| + more rms(b), rms no less than
 * `least`. */
typedef struct Tolerance { double norm, each, more, least; } Tolerance;
typedef struct Output { Tensor t; Tolerance tol; bool any_order; } Output;

enum { OUTPUTS = 8, SAID = 600, MESSAGES = 6 };
static struct {
    Backend be;
    Arena   a;
    bool    open, real, lost;                               /* real: see gpu_is_real */
    char   *before, *first, *again;
    size_t  cap, used;
    Output  out[OUTPUTS];
    int     outs, line, failures;
    int     held_sms, reserved_sms;                         /* of the second run, see gpu_share */
    Addends list;                                           /* of on_gpu_list */
    char    said[SAID];
    const char *file;
} gpu_;
#define GPU (&gpu_.be)

/* ---- tensors ---- */

static inline Tensor gpu_new(DType d, int rank, const int64_t *n, Layout l, int byte)
{
    int64_t pad = dtype_size(d) == 1 ? 16 : 8;
    int64_t wide[MAXDIM], gap = l == STRIDED ? 2 * pad : l == LOOSE ? 3 : 0;
    memcpy(wide, n, (size_t)rank * sizeof *wide);
    wide[rank - 1] += gap;
    arena_push(&num_.a, "guard", ARENA_ALIGN);
    Tensor t = t_new(&num_.a, "lab", d, rank, wide);
    memset(t.data, byte, (size_t)t_bytes(t));
    return gap ? t_cols(t, l == STRIDED ? pad : 1, n[rank - 1]) : t;
}

static inline char *gpu_row(Tensor t, int64_t r)            /* r-th row, rows of all outer dims counted */
{
    int64_t at = 0;
    for (int d = t.rank - 2; d >= 0; d--) at += r % t.n[d] * t.s[d], r /= t.n[d];
    return (char *)t.data + at * (int64_t)dtype_size((DType)t.dtype);
}
static inline int64_t gpu_width(Tensor t) { return t.n[t.rank - 1]; }
static inline int64_t gpu_rows(Tensor t)  { return gpu_width(t) ? t_count(t) / gpu_width(t) : 0; }

static inline Tensor gpu_normal(Tensor t, float mean, float deviation)
{
    int64_t  W = gpu_width(t);
    uint64_t stream = num_.draws++;
    #pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < gpu_rows(t); r++) {
        float some[256];
        for (int64_t c = 0; c < W; c += 256) {
            int64_t n = W - c < 256 ? W - c : 256;
            rng_fill_normal(some, n, num_.seed, stream, (uint64_t)(r * W + c), mean, deviation);
            dtype_convert(gpu_row(t, r) + c * (int64_t)dtype_size((DType)t.dtype), (DType)t.dtype, some, F32,
                          n);
        }
    }
    return t;
}

static inline Tensor in2(DType d, int64_t n0, int64_t n1, Layout l)
{
    return gpu_normal(gpu_new(d, 2, (int64_t[]){ n0, n1 }, l, 0xff), 0, 1);
}
static inline Tensor in3(DType d, int64_t n0, int64_t n1, int64_t n2, Layout l)
{
    return gpu_normal(gpu_new(d, 3, (int64_t[]){ n0, n1, n2 }, l, 0xff), 0, 1);
}
static inline Tensor in_weight(DType d, int64_t n) { return gpu_normal(in2(d, 1, n, DENSE), 1, 0.3f); }

/* Indices; the poison must differ from -1, which is a valid index. */
static inline Tensor int2(int64_t n0, int64_t n1)
{
    return gpu_new(I32, 2, (int64_t[]){ n0, n1 }, DENSE, 0x5a);
}
static inline Tensor int1(int64_t n)              { return gpu_new(I32, 1, &n, DENSE, 0x5a); }
static inline Tensor int_list(int64_t n, const int32_t *v)
{
    Tensor t = int1(n);
    if (n) memcpy(t.data, v, (size_t)n * 4);
    return t;
}
static inline Tensor int_below(int64_t n, int64_t lo, int64_t hi)       /* each in lo .. hi - 1 */
{
    Tensor   t = int1(n);
    uint64_t stream = num_.draws++;
    for (int64_t i = 0; i < n; i++)
        ((int32_t *)t.data)[i] =
            (int32_t)(lo + (int64_t)rng_below(num_.seed, stream, (uint64_t)i, (uint64_t)(hi - lo)));
    return t;
}

/* Registers t as something the next call may write. */
static inline Tensor output(Tensor t)
{
    static const Tolerance f32 = { 1e-5, 1e-4, 5e-5, 0 }, bf16 = { 4e-3, 1.0 / 120, 2e-3, 0 },
                           f64 = { 1e-5, 1e-5, 0, 0 }, whole = { 0 };
    REQUIRE(gpu_.outs < OUTPUTS, "too many outputs");
    const Tolerance *tol = t.dtype == F32 ? &f32 : t.dtype == BF16 ? &bf16 : t.dtype == F64 ? &f64 : &whole;
    gpu_.out[gpu_.outs++] = (Output){ t, *tol, false };
    return t;
}
static inline Tensor out2(DType d, int64_t n0, int64_t n1, Layout l)
{
    return output(gpu_new(d, 2, (int64_t[]){ n0, n1 }, l, d == I32 ? 0x5a : 0xff));
}
static inline Tensor out3(DType d, int64_t n0, int64_t n1, int64_t n2, Layout l)
{
    return output(gpu_new(d, 3, (int64_t[]){ n0, n1, n2 }, l, 0xff));
}
static inline Tensor add2(DType d, int64_t n0, int64_t n1, Layout l)    /* an output that the op adds to */
{
    return output(in2(d, n0, n1, l));
}
static inline Tensor add_scalar(double v)
{
    int64_t one = 1;
    Tensor  t = gpu_new(F64, 1, &one, DENSE, 0);
    *(double *)t.data = v;
    return output(t);
}

static inline Output *gpu_output(Tensor t)
{
    for (int i = 0; i < gpu_.outs; i++)
        if (gpu_.out[i].t.data == t.data) return &gpu_.out[i];
    REQUIRE(false, "%s is no output", t_fmt(t));
    return NULL;
}
static inline Tolerance *gpu_tolerance(Tensor t)            { return &gpu_output(t)->tol; }
/* Without Backend.repeat the bits of t may differ from run to run. */
static inline void any_order(Tensor t)                      { gpu_output(t)->any_order = !GPU->repeat; }
static inline void exact(Tensor t)                          { *gpu_tolerance(t) = (Tolerance){ 0 }; }
static inline void within(Tensor t, Tolerance tol)          { *gpu_tolerance(t) = tol; }
static inline void scratch(Tensor t) { gpu_tolerance(t)->norm = -1; } /* not compared */
static inline void at_least(Tensor t, double rms)           { gpu_tolerance(t)->least = rms; }
static inline void times(Tensor t, double factor)
{
    Tolerance *x = gpu_tolerance(t);
    *x = (Tolerance){ x->norm * factor, x->each * factor, x->more * factor, x->least };
}

/* Of bf16 that a product was added to after it was rounded: by 1/512 of what may be 6 rms and cancel out. */
static inline void added_rounded(Tensor t) { within(t, (Tolerance){ 8e-3, 1.0 / 60, 6.0 / 512, 1 }); }

#endif
