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

#include "gpuargs.h"
#include "bench/hold_sms.h"

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
    case U8:   return *(const uint8_t *)p;
    case I8:   return *(const int8_t *)p;
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

/* False for the CPU in place of the GPU, and for the emulated GPU (tests/simt), where kernels take a thousand
 * times as long and nothing overlaps: what measures time is left out, and gpu_size takes the smaller size. */
static inline bool gpu_is_real(void)
{
    char what[256] = "";
    if (GPU->device->describe) GPU->device->describe(what, sizeof what);
    return !GPU->device->host_memory && !strstr(what, "emulated");
}
static inline int64_t gpu_size(int64_t real, int64_t small) { return gpu_.real ? real : small; }

static inline Layout  any_layout(void)                     { return (Layout)num_below(LAYOUTS); }
static inline int64_t any_size(int64_t lo, int64_t hi)     { return lo + num_below(hi - lo + 1); }
static inline DType   any_float(void)                      { return floats[num_below(2)]; }
static inline bool    maybe(void)                          { return num_below(2); }

static inline void gpulab_open(void)
{
    const char *name = getenv("TREB_GPU_BACKEND");
    numlab_open();
    gpu_.open = !backend_open(GPU, name ? name : "cuda");
    GPU->repeat = true, gpu_.real = gpu_.open && gpu_is_real();
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
