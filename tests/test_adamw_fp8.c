/* tests/test_adamw_fp8.c -- the optimizer's step that quantises the weight has the bits of adamw followed by
 * quantize_weight: every storage of masters, moments and gradients, every shape; a skipped step. */
#include "numlab.h"

#include "ops/quant.h"

#include <omp.h>

static const Tensor none;

/* Bits: 1 a split master, 2 bf16 moments, 4 a bf16 gradient, 8 a norm, 16 clip, 32 factors by address, 64 no
 * transposed codes, 128 codes with gaps between rows, 256 the elements as a vector, 512 numbers that are not
 * finite, 1024 f32 scales, 2048 a verdict. */
enum { SPLIT = 1, NARROW = 2, NARROW_GRAD = 4, NORM = 8, CLIP = 16, ADDRESS = 32, ONE_LAYOUT = 64, GAPS = 128,
       FLAT = 256, SPOILT = 512, F32_SCALES = 1024, VERDICT = 2048, KINDS = 4096 };

typedef struct Shape { int64_t E, N, K; } Shape;         /* E 0: a matrix */

typedef struct Weight { Tensor q, scale, qt, scale_t, w, master, m, v; } Weight;
enum { TENSORS = sizeof(Weight) / sizeof(Tensor) };

static Tensor tensor_of(DType d, Shape x, int64_t rows, int64_t cols)
{
    int64_t n[3] = { x.E, rows, cols };
    Tensor  t = t_new(&num_.a, "lab", d, x.E ? 3 : 2, x.E ? n : n + 1);
    memset(t.data, 0xff, (size_t)t_bytes(t));
    return t;
}

/* The whole memory of a tensor with gaps: it is compared with them. */
static Tensor codes_of(DType d, Shape x, int64_t rows, int64_t cols, unsigned kind)
{
    Tensor t = tensor_of(d, x, rows, cols + (kind & GAPS ? 5 : 0));
    return t_cols(t, kind & GAPS ? 3 : 0, cols);
}

static Tensor draw(DType d, Shape x, int64_t n, unsigned kind)
{
    static const float odd[] = { 0.0f, -0.0f, INFINITY, NAN, -3e38f, 1e-42f };
    Tensor t = kind & FLAT ? t_new(&num_.a, "lab", d, 1, &n) : tensor_of(d, x, x.N, x.K);
    uint64_t stream = num_.draws++;
    float    size = ldexpf(1, (int)num_below(30) - 15);
    for (int64_t i = 0; i < n; i++) put(t, i, size * rng_normal(num_.seed, stream, (uint64_t)i));
    for (int i = 0; i < 6 && n && kind & SPOILT; i++) put(t, num_below(n), odd[num_below(6)]);
    for (int64_t i = 0; i < n && kind & SPOILT && num_below(2); i++) put(t, i, 0);
    return t;
}

static Weight weight_of(Shape x, unsigned kind)
{
    DType   state = kind & NARROW ? BF16 : F32;
    int64_t n = (x.E ? x.E : 1) * x.N * x.K, down = quant_groups(x.N), across = quant_groups(x.K);
    Weight  z = { .q = codes_of(E4M3, x, x.N, x.K, kind), .scale = codes_of(F32, x, down, across, kind) };
    if (!(kind & ONE_LAYOUT))
        z.qt = codes_of(E4M3, x, x.K, x.N, kind), z.scale_t = codes_of(F32, x, across, down, kind);
    Tensor p = draw(F32, x, n, kind);
    z.w = draw(BF16, x, n, kind), z.master = kind & SPLIT ? t_new(&num_.a, "lab", I16, p.rank, p.n) : p;
    op_set_weight(BE, z.w, z.master, p);
    z.m = draw(state, x, n, kind & FLAT), z.v = draw(state, x, n, kind & FLAT);
    for (int64_t i = 0; i < n; i++) put(z.v, i, fabsf(get(z.v, i)));
    return z;
}

/* The tensors of z, which lie from `from` on, in a copy of that memory. */
static Weight twin_of(const Weight *z, const char *from, const char *copy)
{
    Weight  y = *z;
    Tensor *t = &y.q;
    for (int i = 0; i < TENSORS; i++)
        if (t[i].data) t[i].data = (char *)copy + ((char *)t[i].data - from);
    return y;
}

static void two_ops(const Weight *z, Shape x, Tensor g, Tensor norm, AdamW h, bool pow2)
{
    int64_t n[3] = { x.E, x.N, x.K };
    op_adamw(BE, z->w, z->master, z->m, z->v, g, norm, h);
    op_quantize_weight(BE, z->q, z->scale, z->qt, z->scale_t,
                       t_wrap(z->w.data, BF16, x.E ? 3 : 2, x.E ? n : n + 1), pow2);
}

static void one_op(const Weight *z, Tensor g, Tensor norm, AdamW h, bool pow2)
{
    op_adamw_fp8(BE, z->q, z->scale, z->qt, z->scale_t, z->w, z->master, z->m, z->v, g, norm, h, pow2);
}

static Tensor scalar(double v)
{
    Tensor t = t1(&num_.a, "lab", F64, 1);
    *(double *)t.data = v;
    return t;
}

static void compare(Shape x, unsigned kind)
{
    char   *from = num_.a.base + arena_mark(&num_.a).used;
    Weight  z = weight_of(x, kind);
    size_t  bytes = (size_t)(num_.a.base + arena_mark(&num_.a).used - from);
    char   *copy = t1(&num_.a, "lab", U8, (int64_t)bytes).data;
    Tensor  norm = kind & NORM ? scalar((double)num_below(1000)) : none;
    Tensor  g = draw(kind & NARROW_GRAD ? BF16 : F32, x, t_count(z.w), kind);
    AdamW   h = { .lr = 0.03f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f,
                  .max_norm = kind & CLIP ? 2.0f : 0.0f, .step = 1 + num_below(50) };
    AdamStep now = adam_step(&h);
    if (kind & ADDRESS) h.now = &now, h.lr = NAN, h.step = 1;
    if (kind & VERDICT) h.verdict = scalar(STEP_GOOD);
    memcpy(copy, from, bytes);
    Weight y = twin_of(&z, from, copy);
    two_ops(&z, x, g, norm, h, !(kind & F32_SCALES));
    one_op(&y, g, norm, h, !(kind & F32_SCALES));
    EXPECT(!memcmp(copy, from, bytes), "(%lld, %lld, %lld), kind %u differs", (long long)x.E, (long long)x.N,
           (long long)x.K, kind);
    memcpy(from, copy, bytes);
    if (t_has(h.verdict)) *(double *)h.verdict.data = STEP_NOT_FINITE;
    if (t_has(h.verdict)) one_op(&y, g, norm, h, !(kind & F32_SCALES));
    EXPECT(!memcmp(copy, from, bytes), "a skipped step changes something");
    num_clear();
}

static void has_the_bits_of_two_ops(void)
{
    for (int i = 0; i < 300; i++) {
        Shape x = { num_below(4), 1 + num_below(300), 1 + num_below(300) };
        compare(x, (unsigned)num_below(KINDS));
    }
    for (unsigned kind = 0; kind < KINDS; kind += 1 + (unsigned)num_below(16))
        compare((Shape){ num_below(3), 16 * num_below(12), 16 * num_below(12) }, kind);
}

static void extents_of_zero(void)
{
    for (unsigned kind = 0; kind < KINDS; kind = 3 * kind + 1) {
        compare((Shape){ 0, 0, 40 }, kind & ~(unsigned)FLAT);
        compare((Shape){ 0, 40, 0 }, kind);
        compare((Shape){ 2, 0, 0 }, kind);
    }
}

/* One step from rest moves by lr g / |g|: weights of 1 and -1 become 1.5 and -0.5. The scale is 2^-8, the
 * least 2^e with 1.5 <= 448 2^e, and both have codes: 384 and -128. */
static void a_known_step(void)
{
    enum { SIDE = 2 };
    static const float p0[] = { 1, -1, 1, -1 }, g0[] = { -1, -1, -2, -4 };
    Shape  x = { 0, SIDE, SIDE };
    Weight z = { .q = tensor_of(E4M3, x, SIDE, SIDE), .scale = tensor_of(F32, x, 1, 1),
                 .qt = tensor_of(E4M3, x, SIDE, SIDE), .scale_t = tensor_of(F32, x, 1, 1),
                 .w = num_vals(BF16, SIDE, SIDE, p0), .master = num_vals(F32, SIDE, SIDE, p0),
                 .m = num_zeros(F32, SIDE, SIDE), .v = num_zeros(F32, SIDE, SIDE) };
    AdamW  h = { .lr = 0.5f, .beta1 = 0.9f, .beta2 = 0.95f, .step = 1 };
    one_op(&z, num_vals(F32, SIDE, SIDE, g0), none, h, true);
    for (int64_t i = 0; i < 4; i++) {
        float want = i % 2 ? -0.5f : 1.5f;
        EXPECT(get(z.w, i) == want, "weight %lld is %g", (long long)i, get(z.w, i));
        EXPECT(get(z.q, i) * get(z.scale, 0) == want, "code %g", get(z.q, i));
        EXPECT(get(z.qt, i % 2 * 2 + i / 2) * get(z.scale_t, 0) == want, "transposed");
    }
    EXPECT(get(z.scale, 0) == 0x1p-8f, "scale %g", get(z.scale, 0));
    num_clear();
}

/* Bytes are those of the two ops, without a second reading of the weight. */
static void no_weight_is_read_twice(void)
{
    for (unsigned kind = 0; kind < 8; kind++) {
        Shape  x = { 2, 144, 272 };
        Weight z = weight_of(x, kind);
        Tensor g = draw(kind & NARROW_GRAD ? BF16 : F32, x, t_count(z.w), 0);
        AdamW  h = { .step = 1 };
        Cost   a = adamw_cost(BE, z.w, z.master, z.m, z.v, g, none, h);
        Cost   b = quantize_weight_cost(BE, z.q, z.scale, z.qt, z.scale_t, z.w, true);
        Cost   c = adamw_fp8_cost(BE, z.q, z.scale, z.qt, z.scale_t, z.w, z.master, z.m, z.v, g, none, h,
                                  true);
        EXPECT(c.rd == a.rd + b.rd - t_bytes(z.w) && c.wr == a.wr + b.wr && c.flops == a.flops + b.flops,
               "%lld read, %lld written", (long long)c.rd, (long long)c.wr);
        num_clear();
    }
}

static void any_number_of_threads(void)
{
    int many = omp_get_max_threads();
    for (int i = 0; i < 2; i++) {
        omp_set_num_threads(i ? many : 1);
        compare((Shape){ 3, 300, 260 }, (unsigned)num_below(KINDS) & ~(unsigned)VERDICT);
    }
}

int main(void)
{
    numlab_open();
    RUN(a_known_step);
    RUN(has_the_bits_of_two_ops);
    RUN(extents_of_zero);
    RUN(no_weight_is_read_twice);
    RUN(any_number_of_threads);
    return numlab_report();
}
