/* The optimizer's step that quantises the weight, on the GPU: the bits of its adamw and quantize_weight, and
 * within rounding of them the CPU's. */
#include "gpulab.h"

#include "ops/quant.h"

/* Bits: 1 a split master, 2 bf16 moments, 4 a bf16 gradient, 8 a norm, 16 clip, 32 factors by address, 64 no
 * transposed codes, 128 gradients that are not finite, 256 f32 scales, 512 bases not aligned for runs of
 * four, 1024 a step that is skipped. */
enum { SPLIT = 1, NARROW = 2, NARROW_GRAD = 4, NORM = 8, CLIP = 16, ADDRESS = 32, ONE_LAYOUT = 64,
       SPOILT = 128, F32_SCALES = 256, UNALIGNED = 512, SKIP_STEP = 1024, KINDS = 2048,
       STORAGES = 8 };

typedef struct Call { Tensor q, scale, qt, scale_t, w, master, m, v, g, norm; AdamW h; bool pow2; } Call;

static Tensor flat(DType d, int64_t n, unsigned kind, float mean, float deviation)
{
    int64_t all = n + 3, shift = kind & UNALIGNED ? 1 + num_below(3) : 0;
    return t_rows(gpu_normal(gpu_new(d, 1, &all, DENSE, 0), mean, deviation), shift, n);
}

static Tensor codes(DType d, int64_t E, int64_t rows, int64_t cols, Layout l)
{
    return E ? out3(d, E, rows, cols, l) : out2(d, rows, cols, l);
}

static Tensor scalar(double v)
{
    int64_t one = 1;
    Tensor  t = gpu_new(F64, 1, &one, DENSE, 0);
    *(double *)t.data = v;
    return t;
}

static Tensor master_of(int64_t n, unsigned kind)
{
    if (!(kind & SPLIT)) return output(flat(F32, n, kind, 0, 1));
    int64_t all = n + 3;
    Tensor  t = output(t_rows(gpu_new(I16, 1, &all, DENSE, 0), kind & UNALIGNED ? 1 : 0, n));
    for (int64_t i = 0; i < n; i++) ((uint16_t *)t.data)[i] = (uint16_t)num_below(65536);
    return t;
}

static void spoil(Tensor g)
{
    static const float odd[] = { INFINITY, NAN, -3e38f };
    for (int i = 0; i < 3 && t_count(g); i++)
        dtype_convert((char *)g.data + num_below(t_count(g)) * (int64_t)dtype_size((DType)g.dtype),
                      (DType)g.dtype, &odd[i], F32, 1);
}

static AdamW hyperparameters(unsigned kind)
{
    AdamW h = { .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f,
                .max_norm = kind & CLIP ? 1.0f : 0.0f, .step = 1 + num_below(2) * num_below(5000) };
    if (kind & SKIP_STEP) h.verdict = scalar(STEP_NOT_FINITE);
    else if (kind & NORM) h.verdict = scalar(STEP_GOOD);
    if (!(kind & ADDRESS)) return h;
    AdamStep *at = t1(&num_.a, "lab", U8, sizeof *at).data;
    *at = adam_step(&h), h.now = at, h.lr = NAN;
    return h;
}

static Call call_of(int64_t E, int64_t N, int64_t K, unsigned kind, Layout l)
{
    int64_t n = (E ? E : 1) * N * K;
    DType   state = kind & NARROW ? BF16 : F32;
    Call    c = { .q = codes(E4M3, E, N, K, l), .pow2 = !(kind & F32_SCALES) };
    c.scale = codes(F32, E, quant_groups(N), quant_groups(K), l);
    if (!(kind & ONE_LAYOUT)) c.qt = codes(E4M3, E, K, N, l);
    if (!(kind & ONE_LAYOUT)) c.scale_t = codes(F32, E, quant_groups(K), quant_groups(N), l);
    c.w = output(flat(BF16, n, kind, 0, ldexpf(1, (int)num_below(20) - 10))), c.master = master_of(n, kind);
    c.m = output(flat(state, n, kind, 0, 0.1f)), c.v = output(flat(state, n, kind, 0.5f, 0.05f));
    c.g = flat(kind & NARROW_GRAD ? BF16 : F32, n, kind, 0, 1);
    if (kind & NORM) c.norm = scalar((double)n * num_below(3));
    if (kind & SPOILT) spoil(c.g);
    c.h = hyperparameters(kind);
    return c;
}

static void two_ops(const Call *c)
{
    Tensor w = t_wrap(c->w.data, BF16, c->q.rank, c->q.n);
    op_adamw(GPU, ON_GPU(c->w), ON_GPU(c->master), ON_GPU(c->m), ON_GPU(c->v), ON_GPU(c->g), ON_GPU(c->norm),
             ON_GPU(c->h));
    op_quantize_weight(GPU, ON_GPU(c->q), ON_GPU(c->scale), ON_GPU(c->qt), ON_GPU(c->scale_t), ON_GPU(w),
                       c->pow2);
}

/* From the memory that CALL began with; a skipped step leaves all of it. */
static void compare_with_two_ops(const Call *c, unsigned kind)
{
    gpu_upload();
    if (!(kind & SKIP_STEP)) two_ops(c);
    gpu_fetch(gpu_.first);
    gpu_upload();
    op_adamw_fp8(GPU, ON_GPU(c->q), ON_GPU(c->scale), ON_GPU(c->qt), ON_GPU(c->scale_t), ON_GPU(c->w),
                 ON_GPU(c->master), ON_GPU(c->m), ON_GPU(c->v), ON_GPU(c->g), ON_GPU(c->norm), ON_GPU(c->h),
                 c->pow2);
    gpu_fetch(gpu_.again);
    if (!memcmp(gpu_.first, gpu_.again, gpu_.used)) return;
    size_t at = 0;
    while (gpu_.first[at] == gpu_.again[at]) at++;
    gpu_fail("kind %u: two ops have other bits, first at byte %zu; codes begin at %td, the weight at %td",
             kind, at, (char *)c->q.data - num_.a.base, (char *)c->w.data - num_.a.base);
}

/* The CPU rounds the update otherwise, which may move a code or a scale: they are compared above alone. */
static void step_of(int64_t E, int64_t N, int64_t K, unsigned kind, Layout l)
{
    fresh();
    Call   c = call_of(E, N, K, kind, l);
    Tensor loose[] = { c.q, c.scale, c.qt, c.scale_t, kind & SPLIT ? c.master : none };
    for (int i = 0; i < 5; i++)
        if (t_has(loose[i]) && !(kind & SKIP_STEP)) scratch(loose[i]);
    for (int i = 0; i < gpu_.outs && kind & SKIP_STEP; i++) gpu_.out[i].tol = (Tolerance){ 0 };
    CALL(adamw_fp8, c.q, c.scale, c.qt, c.scale_t, c.w, c.master, c.m, c.v, c.g, c.norm, c.h, c.pow2);
    compare_with_two_ops(&c, kind);
}

static void steps_of_any_size(void)
{
    for (int i = 0; i < 40; i++)
        step_of(num_below(4), any_size(1, 200), any_size(1, 200), (unsigned)num_below(KINDS), any_layout());
}

/* Every storage in runs of four; rows and columns that end inside a block. */
static void steps_of_runs(void)
{
    for (unsigned i = 0; i < 32; i++) {
        unsigned more = (unsigned)num_below(KINDS) & ~(unsigned)(UNALIGNED | (STORAGES - 1));
        step_of(num_below(3), 16 * any_size(1, 18), 16 * any_size(1, 18), i % STORAGES | more,
                maybe() ? DENSE : STRIDED);
    }
    step_of(2, 256, 384, SPLIT | NARROW | NARROW_GRAD | NORM | CLIP | ADDRESS, DENSE);
    step_of(0, gpu_size(5120, 144), gpu_size(2048, 272), SPLIT | NARROW | NORM | CLIP, DENSE);
    step_of(gpu_size(16, 1), gpu_size(1536, 128), gpu_size(2048, 128), NORM | CLIP, DENSE);
}

static void extents_of_zero(void)
{
    step_of(0, 0, 64, 0, DENSE);
    step_of(0, 64, 0, 0, DENSE);
    step_of(2, 0, 32, SPLIT, DENSE);
}

int main(void)
{
    gpulab_open();
    GPU_RUN(steps_of_any_size);
    GPU_RUN(steps_of_runs);
    GPU_RUN(extents_of_zero);
    return gpulab_report();
}
