/* tests/gpulab.h -- every op on the GPU against the CPU: fresh inputs, poisoned outputs, equal bits twice.
 *
 * Tensors are made in numlab's arena of host memory; the GPU has an arena of the same size, and a tensor's
 * twin lies at the same offset. CALL(op, arguments...) uploads the whole arena, runs the op on both,
 * fetches the whole arena and checks every byte of it: outputs agree within their tolerance, an output that
 * the CPU left poisoned is still poisoned, and everything else (inputs, gaps between rows, the guards between
 * tensors) is unchanged. The op then runs again from the same memory and must give the same bits (or, for an
 * output marked any_order, agree again); in between it is prepared, which must write nothing. CALL evaluates
 * its arguments several times: make tensors before it.
 *
 * TREB_GPU_BACKEND=cpu runs the CPU backend in place of the GPU, which tests the tests. Without a GPU all
 * tests are skipped. */
#ifndef TESTS_GPULAB_H
#define TESTS_GPULAB_H

#include "rowlab.h"
#include "bench/hold_sms.h"

#include <stdarg.h>

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
    bool    open, lost;
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

/* ---- arguments of a call: their copies on the GPU, and their text in messages ---- */

static inline Tensor on_gpu_tensor(Tensor t)
{
    if (t.data) t.data = gpu_.a.base + ((char *)t.data - num_.a.base);
    return t;
}
static inline Segments on_gpu_segments(Segments s)
{
    s.starts = on_gpu_tensor(s.starts), s.kv_starts = on_gpu_tensor(s.kv_starts),
    s.kv_used = on_gpu_tensor(s.kv_used);
    return s;
}
static inline const void *on_gpu_address(const void *p)
{
    REQUIRE(!p || (const char *)p - num_.a.base < (ptrdiff_t)num_.a.used, "an address from before fresh()");
    return p ? gpu_.a.base + ((const char *)p - num_.a.base) : NULL;
}
static inline Dropout on_gpu_dropout(Dropout x)
{
    x.base = on_gpu_address(x.base);
    return x;
}
static inline LoraTerm     on_gpu_lora(LoraTerm t)
{
    t.low_rank = on_gpu_tensor(t.low_rank), t.w = on_gpu_tensor(t.w);
    t.dropout = on_gpu_dropout(t.dropout);
    return t;
}
static inline Factor   on_gpu_factor(Factor x)     { x.at = on_gpu_address(x.at); return x; }
static inline float    on_gpu_float(float x)       { return x; }
static inline int64_t  on_gpu_long(int64_t x)      { return x; }
static inline AdamW    on_gpu_adamw(AdamW x)
{
    x.now = on_gpu_address(x.now), x.verdict = on_gpu_tensor(x.verdict);
    return x;
}
static inline StepLimits on_gpu_limits(StepLimits x) { return x; }
static inline WeightSlice on_gpu_slice(WeightSlice x) { return x; }
static inline const Addends *on_gpu_list(const Addends *s)
{
    gpu_.list = *s;
    for (int i = 0; i < s->n; i++) gpu_.list.at[i].x = on_gpu_tensor(s->at[i].x);
    return &gpu_.list;
}
#define ON_GPU(x)                                                                                  \
    _Generic((x), Tensor: on_gpu_tensor, Segments: on_gpu_segments, AdamW: on_gpu_adamw,               \
             LoraTerm: on_gpu_lora, Factor: on_gpu_factor, Dropout: on_gpu_dropout,                    \
             StepLimits: on_gpu_limits, WeightSlice: on_gpu_slice, const Addends *: on_gpu_list,       \
             float: on_gpu_float, double: on_gpu_float, default: on_gpu_long)(x)

static inline void say(const char *fmt, ...)
{
    size_t  at = strlen(gpu_.said);
    va_list v;
    va_start(v, fmt);
    vsnprintf(gpu_.said + at, SAID - at, fmt, v);
    va_end(v);
}
static inline int say_tensor(Tensor t)
{
    say(" %s", t_fmt(t));
    if (t.data && !t_dense(t)) say("/%lld", (long long)t.s[0]);
    return 0;
}
static inline int say_segments(Segments s)
{
    return say(" %s %lld segments of %lld at most%s", s.causal ? "causal" : "full", (long long)s.n,
               (long long)s.longest, t_has(s.kv_starts) ? " over a cache" : ""),
           0;
}
static inline int say_dropout(Dropout d)
{
    if (d.p > 0) say(" dropout %g at (%lld, %lld)", (double)d.p, (long long)d.row, (long long)d.col);
    return 0;
}
static inline int say_lora(LoraTerm t)
{
    return t_has(t.low_rank) ? say(" LoRA term"), say_tensor(t.w), say_dropout(t.dropout) : 0;
}
static inline int say_list(const Addends *s)
{
    say(" %d:", s->n);
    for (int i = 0; i < s->n; i++) say(" %lld", (long long)t_count(s->at[i].x));
    return 0;
}
static inline int say_adamw(AdamW h)    { return say(" step %lld", (long long)h.step), 0; }
static inline int say_factor(Factor x)  { return say(" %g", (double)factor_value(x)), 0; }
/* By value or by address. */
static inline Factor any_factor(float value)
{
    float *at = t1(&num_.a, "lab", F32, 1).data;
    *at = value;
    return num_below(2) ? factor_at(at) : factor(value);
}
static inline int say_slice(WeightSlice s)
{
    return say(" at %lld of (%lld, %lld)", (long long)s.at, (long long)s.N, (long long)s.K), 0;
}
static inline int say_limits(StepLimits h) { return say(" spike %g", h.spike), 0; }
static inline int say_float(float x)    { return say(" %g", (double)x), 0; }
static inline int say_long(int64_t x)   { return say(" %lld", (long long)x), 0; }
#define SAY(x)                                                                                     \
    _Generic((x), Tensor: say_tensor, Segments: say_segments, AdamW: say_adamw, LoraTerm: say_lora,    \
             Dropout: say_dropout, Factor: say_factor, const Addends *: say_list,                      \
             StepLimits: say_limits, WeightSlice: say_slice, float: say_float, double: say_float,      \
             default: say_long)(x)

#define MAP1(f, a)       f(a)
#define MAP2(f, a, ...)  f(a), MAP1(f, __VA_ARGS__)
#define MAP3(f, a, ...)  f(a), MAP2(f, __VA_ARGS__)
#define MAP4(f, a, ...)  f(a), MAP3(f, __VA_ARGS__)
#define MAP5(f, a, ...)  f(a), MAP4(f, __VA_ARGS__)
#define MAP6(f, a, ...)  f(a), MAP5(f, __VA_ARGS__)
#define MAP7(f, a, ...)  f(a), MAP6(f, __VA_ARGS__)
#define MAP8(f, a, ...)  f(a), MAP7(f, __VA_ARGS__)
#define MAP9(f, a, ...)  f(a), MAP8(f, __VA_ARGS__)
#define MAP10(f, a, ...) f(a), MAP9(f, __VA_ARGS__)
#define MAP11(f, a, ...) f(a), MAP10(f, __VA_ARGS__)
#define MAP12(f, a, ...) f(a), MAP11(f, __VA_ARGS__)
#define MAP13(f, a, ...) f(a), MAP12(f, __VA_ARGS__)
#define NTH_(a, b, c, d, e, f, g, h, i, j, k, l, m, n, ...) n
#define MAP(f, ...) NTH_(__VA_ARGS__, MAP13, MAP12, MAP11, MAP10, MAP9, MAP8, MAP7, MAP6, MAP5,    \
                         MAP4, MAP3, MAP2, MAP1)(f, __VA_ARGS__)

/* ---- the call ---- */

static inline void gpu_fail(const char *fmt, ...)
{
    va_list v;
    lab_.bad = true;
    if (gpu_.failures++ >= MESSAGES) return;                               /* limit the output of one fault */
    va_start(v, fmt);
    printf("  %s:%d: %s\n    ", gpu_.file, gpu_.line, gpu_.said);
    vprintf(fmt, v);
    putchar('\n');
    va_end(v);
}

/* Reports the sticky error and clears it for the next test, unless the CUDA context is lost. */
static inline void gpu_sync(void)
{
    if (!backend_sync(GPU)) return;
    gpu_fail("%s", status_text());
    gpu_.be.sticky = OK;
    gpu_.lost = backend_sync(GPU) != OK;
}

static inline Tensor gpu_all(void)
{
    int64_t n = (int64_t)gpu_.used;
    return t_wrap(gpu_.a.base, U8, 1, &n);
}
static inline void gpu_upload(void)        { backend_upload(GPU, gpu_all(), gpu_.before); }
static inline void gpu_fetch(char *to)     { backend_fetch(GPU, to, gpu_all()), gpu_sync(); }

static inline void gpu_begin(const char *file, int line, const char *op)
{
    gpu_.file = file, gpu_.line = line, gpu_.used = num_.a.used;
    snprintf(gpu_.said, SAID, "%s", op);
    if (num_.be.sticky) printf("  %s\n", status_text()), exit(1);          /* the arena is too small */
    if (gpu_.used > gpu_.cap) {
        gpu_.cap    = gpu_.used;
        gpu_.before = realloc(gpu_.before, gpu_.cap), gpu_.first = realloc(gpu_.first, gpu_.cap);
        gpu_.again  = realloc(gpu_.again, gpu_.cap);
    }
    if (!gpu_.before || !gpu_.first || !gpu_.again) printf("  no memory\n"), exit(1);
    memcpy(gpu_.before, num_.a.base, gpu_.used);
    gpu_upload();
}

static inline bool gpu_poisoned(const char *p, DType d)
{
    uint64_t ones = UINT64_MAX;
    return d != I32 && !memcmp(p, &ones, dtype_size(d));
}
static inline double gpu_value(const char *p, DType d)
{
    float    f;
    double   x;
    int32_t  i;
    uint16_t h;
    switch (d) {
    case F32:  return memcpy(&f, p, 4), f;
    case BF16: return memcpy(&h, p, 2), bf16_to_f32(h);
    case F64:  return memcpy(&x, p, 8), x;
    case I16:  return memcpy(&h, p, 2), (int16_t)h;
    case E4M3: return dtype_convert(&f, F32, p, E4M3, 1), f;
    default:   return memcpy(&i, p, 4), i;
    }
}

/* Sums over the elements that both sides wrote, for the norm; threads share the rows. */
typedef struct Norms { double diff, size, count; } Norms;

static inline Norms gpu_norms(Tensor t)
{
    DType  d = (DType)t.dtype;
    size_t w = dtype_size(d);
    double diff = 0, size = 0, count = 0;
    #pragma omp parallel for schedule(static) reduction(+ : diff, size, count)
    for (int64_t r = 0; r < gpu_rows(t); r++) {
        const char *want = gpu_row(t, r), *got = gpu_.first + (want - num_.a.base);
        for (int64_t c = 0; c < gpu_width(t); c++, want += w, got += w) {
            double a = gpu_value(got, d), b = gpu_value(want, d);
            if (a - a == 0 && b - b == 0) diff += (a - b) * (a - b), size += b * b, count++;
        }
    }
    return (Norms){ diff, size, count };
}

static inline bool gpu_element(Output o, const char *want, const char *got, double rms)
{
    DType  d = (DType)o.t.dtype;
    double a = gpu_value(got, d), b = gpu_value(want, d);
    if (gpu_poisoned(want, d) || gpu_poisoned(got, d)) return !memcmp(want, got, dtype_size(d));
    if (a == b || (isnan(a) && isnan(b))) return true;
    return fabs(a - b) <= o.tol.each * fabs(b) + o.tol.more * rms; /* false where one is not finite */
}

/* Reports the first element outside its tolerance. */
static inline bool gpu_elements(Output o, double rms)
{
    DType  d = (DType)o.t.dtype;
    size_t w = dtype_size(d), width = (size_t)gpu_width(o.t);
    for (int64_t r = 0; r < gpu_rows(o.t); r++) {
        const char *want = gpu_row(o.t, r), *got = gpu_.first + (want - num_.a.base);
        if (!memcmp(want, got, width * w)) continue;
        for (size_t c = 0; c < width; c++, want += w, got += w) {
            if (gpu_element(o, want, got, rms)) continue;
            gpu_fail("output %s at row %lld, column %zu: %.9g%s, on the CPU %.9g%s (rms %.3g)", t_fmt(o.t),
                     (long long)r, c, gpu_value(got, d), gpu_poisoned(got, d) ? ", never written" : "",
                     gpu_value(want, d), gpu_poisoned(want, d) ? ", not to be written" : "", rms);
            return false;
        }
    }
    return true;
}

static inline void gpu_compare(Output o)
{
    if (o.tol.norm < 0) return;
    Norms  n = gpu_norms(o.t);
    double root = sqrt(fmax(n.count, 1)), rms = fmax(sqrt(n.size) / root, o.tol.least),
           diff = sqrt(n.diff) / root;
    if (gpu_elements(o, rms) && !(diff <= o.tol.norm * rms))
        gpu_fail("output %s: relative error %.3g > %.3g", t_fmt(o.t), diff / rms, o.tol.norm);
}

/* With the outputs restored the memory must equal the memory before the call. */
static inline void gpu_untouched(const char *device, char *memory)
{
    for (int i = 0; i < gpu_.outs; i++) {
        Tensor t = gpu_.out[i].t;
        for (int64_t r = 0; r < gpu_rows(t); r++) {
            ptrdiff_t at = gpu_row(t, r) - num_.a.base;
            memcpy(memory + at, gpu_.before + at, (size_t)gpu_width(t) * dtype_size((DType)t.dtype));
        }
    }
    if (!memcmp(memory, gpu_.before, gpu_.used)) return;
    size_t at = 0;
    while (memory[at] == gpu_.before[at]) at++;
    gpu_fail("%s wrote to byte %zu of the arena, which is no output", device, at);
    for (int i = 0; i < gpu_.outs; i++)
        printf("    output %s begins at %td\n", t_fmt(gpu_.out[i].t),
               (char *)gpu_.out[i].t.data - num_.a.base);
}

/* Where sums may have any order the second run is compared with the CPU instead of the first. */
static inline void gpu_again_any_order(Output o)
{
    char *first = gpu_.first;
    gpu_.first = gpu_.again;
    gpu_compare(o);
    gpu_.first = first;
    for (int64_t r = 0; r < gpu_rows(o.t); r++) {
        ptrdiff_t at = gpu_row(o.t, r) - num_.a.base;
        memcpy(gpu_.again + at, first + at, (size_t)gpu_width(o.t) * dtype_size((DType)o.t.dtype));
    }
}

static inline void gpu_end(void)
{
    REQUIRE(gpu_.used == num_.a.used,
            "a tensor was made in the arguments of CALL, which are evaluated more than once");
    for (int i = 0; i < gpu_.outs; i++)
        if (gpu_.out[i].any_order) gpu_again_any_order(gpu_.out[i]);
    if (memcmp(gpu_.first, gpu_.again, gpu_.used)) {
        size_t at = 0;
        while (gpu_.first[at] == gpu_.again[at]) at++;
        gpu_fail("a second run, beside %d held and %d reserved SMs, gives other bits, first at byte %zu of "
                 "the arena", gpu_.held_sms, gpu_.reserved_sms, at);
    }
    for (int i = 0; i < gpu_.outs; i++) gpu_compare(gpu_.out[i]);
    gpu_untouched("the GPU", gpu_.first);
    memcpy(gpu_.again, num_.a.base, gpu_.used);
    gpu_untouched("the CPU", gpu_.again);
    gpu_.outs = 0;
}

static inline void gpu_quiet(void)
{
    gpu_fetch(gpu_.again);
    if (memcmp(gpu_.again, gpu_.before, gpu_.used)) gpu_fail("preparing the op wrote to memory");
}

/* From now on the second run of a CALL is beside a kernel that holds this many SMs, or leaves this many free:
 * neither may change a bit. */
static inline void gpu_share(int held, int reserved)
{
    bool shared = !gpu_.be.device->host_memory;
    gpu_.held_sms = shared ? held : 0, gpu_.reserved_sms = shared ? reserved : 0;
}

static inline void gpu_share_begin(void)
{
    GPU->reserved_sms = gpu_.reserved_sms;
    if (gpu_.held_sms && hold_sms(gpu_.held_sms)) gpu_fail("%s", status_text());
}

static inline void gpu_share_end(void)
{
    if (gpu_.held_sms) release_sms();
    GPU->reserved_sms = 0;
}

#define CALL(op, ...) do {                                                                        \
        if (gpu_.lost) break;                                                                     \
        gpu_begin(__FILE__, __LINE__, #op);                                                       \
        (void)(MAP(SAY, __VA_ARGS__));                                                            \
        op_##op(BE, __VA_ARGS__);                                                                 \
        op_##op(GPU, MAP(ON_GPU, __VA_ARGS__));                                                 \
        gpu_fetch(gpu_.first);                                                                    \
        gpu_upload();                                                                             \
        if (backend_prepares(GPU)) {                                                             \
            if (!backend_prepare(GPU, true)) op_##op(GPU, MAP(ON_GPU, __VA_ARGS__));           \
            if (backend_prepare(GPU, false)) gpu_sync();                                         \
            gpu_quiet();                                                                          \
        }                                                                                         \
        gpu_share_begin();                                                                        \
        op_##op(GPU, MAP(ON_GPU, __VA_ARGS__));                                                 \
        gpu_fetch(gpu_.again);                                                                    \
        gpu_share_end();                                                                          \
        gpu_end();                                                                                \
    } while (0)

/* ---- the lab ---- */

static inline Layout  any_layout(void)                     { return (Layout)num_below(LAYOUTS); }
static inline int64_t any_size(int64_t lo, int64_t hi)     { return lo + num_below(hi - lo + 1); }
static inline DType   any_float(void)                      { return floats[num_below(2)]; }
static inline bool    maybe(void)                          { return num_below(2); }

static inline void gpulab_open(void)
{
    const char *name = getenv("TREB_GPU_BACKEND");
    numlab_open();
    gpu_.open = !backend_open(GPU, name ? name : "cuda");
    GPU->repeat = true;
    if (!gpu_.open) {
        printf("  skip all: %s\n", status_text());
        return;
    }
    printf("  seed %llu (TREB_SEED repeats it)\n", (unsigned long long)num_.seed);
    if (backend_arena_open(GPU, &gpu_.a, "gpu", num_.a.cap)) printf("%s\n", status_text()), exit(1);
}

/* Lists every op and every op this program called, for gpu.sh to compare over all programs. */
static inline void gpu_note_ops(void)
{
    const char *path = getenv("TREB_GPU_OPS");
    FILE *f = path && gpu_.open ? fopen(path, "a") : NULL;
    if (!f) return;
    for (int i = 0; i < OP_N; i++) {
        fprintf(f, "have %s\n", op_name(i));
        if (gpu_.be.ledger.op[i].calls) fprintf(f, "ran %s\n", op_name(i));
    }
    fclose(f);
}

static inline int gpulab_report(void)
{
    gpu_note_ops();
    if (gpu_.open) backend_arena_close(GPU, &gpu_.a);
    if (gpu_.open) backend_close(GPU);
    free(gpu_.before), free(gpu_.first), free(gpu_.again);
    return numlab_report();
}

/* After an error that the GPU does not recover from, the tests that follow count as failed. */
#define GPU_RUN(test) do {                                                                        \
        if (!gpu_.open) { lab_.skipped++; break; }                                                \
        num_clear(), gpu_.outs = gpu_.failures = 0;                                               \
        if (gpu_.lost) { printf("  FAIL %s: the CUDA context is lost\n", #test), lab_.failed++; break; }  \
        RUN(test);                                                                                \
    } while (0)

/* A test is a loop over cases; each begins with an empty arena. */
static inline void fresh(void) { num_clear(), gpu_.outs = 0; }

#endif
