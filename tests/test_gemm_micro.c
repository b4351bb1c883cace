/* tests/test_gemm_micro.c -- MXFP8 and NVFP4 as ops: quantize_micro, gemm_micro, grouped_gemm_micro. */
#include "fp8_torch.h"
#include "rowlab.h"
#include "base/num.h"
#include "ops/quant_micro.h"

static const Precision formats[] = { PREC_MXFP8, PREC_NVFP4 };
#define EACH_FORMAT(f) (int f##_ = 0; f##_ < 2 && ((f) = formats[f##_], 1); f##_++)

/* Poisoned memory for the codes of (R, K), or of a stack of E of them. */
static MicroCodes codes(Precision f, int64_t E, int64_t R, int64_t K)
{
    int64_t    rows = E ? E * R : R;
    MicroCodes z = { .format = f, .q = num_poison(micro_code_type(f), rows, micro_bytes(f, K)),
                     .scale = num_poison(micro_scale_type(f), rows, micro_groups(f, K)) };
    if (E) z.q = t_as3(z.q, E, R, z.q.n[1]), z.scale = t_as3(z.scale, E, R, z.scale.n[1]);
    if (f == PREC_NVFP4) z.tensor = t1(&num_.a, "test", F32, E ? E : 1);
    return z;
}

static MicroCodes coded(Precision f, Tensor x, MicroRule rule)
{
    int        last = x.rank - 1;
    MicroCodes z = codes(f, x.rank == 3 ? x.n[0] : 0, x.n[rule.transposed ? last : last - 1],
                         x.n[rule.transposed ? last - 1 : last]);
    op_quantize_micro(BE, z, x, none, rule);
    return z;
}

/* The values of one matrix of codes, tensor scale e included. */
static Tensor values(MicroCodes z, int64_t K, int64_t e)
{
    int64_t R = z.q.n[0];
    Tensor  v = num_poison(F32, R, K);
    for (int64_t i = 0; i < R * K; i++) {
        int64_t r = i / K, k = i % K;
        uint8_t q = ((uint8_t *)z.q.data)[r * z.q.s[0] + (z.format == PREC_MXFP8 ? k : k / 2)];
        uint8_t s = ((uint8_t *)z.scale.data)[r * z.scale.s[0] + k / micro_group(z.format)];
        float   four = e2m1_to_f32(k % 2 ? q >> 4 : q & 15);
        put(v, i, z.format == PREC_MXFP8 ? e4m3_to_f32(q) * e8m0_to_f32(s)
                                         : four * e4m3_to_f32(s) * get(z.tensor, e));
    }
    return v;
}

/* ---- quantisation ---- */

static void rows_as_pytorch(void)
{
    Tensor     x = num_poison(F32, TORCH_ROWS, TORCH_COLS);
    memcpy(x.data, torch_x, sizeof torch_x);
    MicroCodes mx = coded(PREC_MXFP8, x, (MicroRule){ 0 }), nv = coded(PREC_NVFP4, x, (MicroRule){ 0 });
    EXPECT(!memcmp(mx.q.data, torch_mx_q, sizeof torch_mx_q) &&
           !memcmp(mx.scale.data, torch_mx_scale, sizeof torch_mx_scale), "MXFP8 has other bits");
    EXPECT(quant_bits(get(nv.tensor, 0)) == torch_nv_tensor, "tensor scale %g", get(nv.tensor, 0));
    EXPECT(!memcmp(nv.scale.data, torch_nv_scale, sizeof torch_nv_scale), "NVFP4 has other scales");
    EXPECT(!memcmp(nv.q.data, torch_nv_q, sizeof torch_nv_q), "NVFP4 has other codes");
    num_clear();
}

/* 2688 = 448 x 6 makes the tensor scale 1; the second group has scale 1, the third is zeros. */
static void known_codes(void)
{
    Tensor x = num_zeros(F32, 1, 37);
    put(x, 0, 2688), put(x, 1, -1344), put(x, 16, 6), put(x, 17, -0.5f), put(x, 18, 1.25f), put(x, 36, 0);
    MicroCodes     nv = coded(PREC_NVFP4, x, (MicroRule){ 0 }), mx = coded(PREC_MXFP8, x, (MicroRule){ 0 });
    const uint8_t *q = nv.q.data, *s = nv.scale.data, *e = mx.scale.data;
    EXPECT(get(nv.tensor, 0) == 1 && s[0] == 0x7e && s[1] == 0x38 && s[2] == 0x38, "scales %02x %02x %02x",
           s[0], s[1], s[2]);
    EXPECT(q[0] == 0xd7 && q[8] == 0x97 && q[9] == 0x02 && q[18] == 0, "codes %02x %02x %02x %02x", q[0],
           q[8], q[9], q[18]);
    EXPECT(e[0] == 127 + 3 && e[1] == 127 && ((uint8_t *)mx.q.data)[0] == e4m3_from_f32(336),
           "MXFP8 %02x %02x", e[0], e[1]);
    num_clear();
}

static Tensor transpose_of(Tensor x)
{
    int64_t R = x.n[0], K = x.n[1];
    Tensor  y = num_poison((DType)x.dtype, K, R);
    for (int64_t i = 0; i < R * K; i++) put(y, i % K * R + i / K, get(x, i));
    return y;
}

/* Codes of x transposed are those of the transposed matrix; with blocks they are also those of x. */
static void transposed_codes(void)
{
    Precision f;
    for EACH_FORMAT(f) for (int i = 0; i < 6; i++) {
        int64_t   R = 1 + num_below(70), K = 1 + num_below(90);
        Tensor    x = loose_copy(num_randn(i % 2 ? BF16 : F32, R, K));
        MicroRule rule = { .blocks = f == PREC_NVFP4 && i > 1 }, back = rule;
        back.transposed = true;
        MicroCodes a = coded(f, x, back), b = coded(f, transpose_of(x), rule), c = coded(f, x, rule);
        EXPECT(same_bits(a.q, b.q) && same_bits(a.scale, b.scale), "%s (%lld, %lld)", precision_word(f),
               (long long)R, (long long)K);
        if (rule.blocks)
            EXPECT(same_bits(values(a, R, 0), transpose_of(values(c, K, 0))), "blocks of (%lld, %lld)",
                   (long long)R, (long long)K);
        num_clear();
    }
}

static void stacks_are_matrices(void)
{
    enum { E = 3, R = 21, K = 50 };
    Precision f;
    for EACH_FORMAT(f) for (int t = 0; t < 2; t++) {
        MicroRule  rule = { .blocks = f == PREC_NVFP4, .transposed = t };
        Tensor     x = t_as3(num_randn(BF16, E * R, K), E, R, K);
        MicroCodes z = coded(f, x, rule);
        for (int e = 0; e < E; e++) {
            MicroCodes one = coded(f, t_at(x, e), rule);
            EXPECT(same_bits(one.q, t_at(z.q, e)) && same_bits(one.scale, t_at(z.scale, e)) &&
                   (f == PREC_MXFP8 || get(one.tensor, 0) == get(z.tensor, e)), "matrix %d", e);
        }
        num_clear();
    }
}

/* Rows past the last expert, and what lies between strided rows, stay as they are; padding is not read. */
static void padding_stays(void)
{
    enum { R = 9, USED = 6, K = 45 };
    Precision f;
    for EACH_FORMAT(f) {
        Tensor     x = num_randn(F32, R, K), off = num_i32(3, (int32_t[]){ 0, 2, USED });
        MicroCodes z = codes(f, 0, R, K);
        z.q = loose(micro_code_type(f), R, micro_bytes(f, K));
        for (int64_t i = USED * K; i < R * K; i++) put(x, i, INFINITY);
        op_quantize_micro(BE, z, x, off, (MicroRule){ 0 });
        MicroCodes want = coded(f, t_rows(x, 0, USED), (MicroRule){ 0 });
        EXPECT(gaps_intact(z.q), "a gap was written");
        EXPECT(same_bits(t_rows(values(z, K, 0), 0, USED), values(want, K, 0)), "%s: other rows",
               precision_word(f));
        for (int64_t i = USED; i < R; i++)
            EXPECT(((uint8_t *)z.q.data)[i * z.q.s[0]] == 0xff &&
                   ((uint8_t *)z.scale.data)[i * z.scale.s[0]] == 0xff, "row %lld was written", (long long)i);
        num_clear();
    }
}

static void not_finite_shows(void)
{
    enum { R = 2, K = 96 };
    Tensor x = num_randn(F32, R, K), w = num_randn(F32, 3, K);
    put(x, K + 5, NAN);
    MicroCodes mx = coded(PREC_MXFP8, x, (MicroRule){ 0 }), nv = coded(PREC_NVFP4, x, (MicroRule){ 0 });
    Tensor     y = num_poison(F32, R, 3), v = values(mx, K, 0);
    for (int64_t i = 0; i < R * K; i++)
        EXPECT(isnan(get(v, i)) == (i >= K && i < K + MXFP8_GROUP), "[%lld]", (long long)i);
    op_gemm_micro(BE, y, mx, coded(PREC_MXFP8, w, (MicroRule){ 0 }), none, none);
    for (int64_t i = 0; i < 3 * R; i++) EXPECT(isnan(get(y, i)) == (i >= 3), "MXFP8 [%lld]", (long long)i);
    op_gemm_micro(BE, y, nv, coded(PREC_NVFP4, w, (MicroRule){ 0 }), none, none);
    for (int64_t i = 0; i < 3 * R; i++)
        EXPECT(isnan(get(y, i)), "NVFP4 [%lld]: the scale of the tensor", (long long)i);
    num_clear();
}

/* Over many seeds a code is one of the two next to the element, and stands for it on average. */
static void random_codes_are_fair(void)
{
    enum { K = 64, SEEDS = 4000 };
    Tensor     x = num_randn(F32, 1, K), near = num_poison(F32, 1, K);
    double     sum[K] = { 0 };
    uint64_t   seed = 0;
    MicroRule  rule = { .stream = 7, .seed = &seed };
    MicroCodes z = coded(PREC_NVFP4, x, (MicroRule){ 0 });
    Tensor     step = values(z, K, 0);
    for (int64_t k = 0; k < K; k++) put(near, k, get(step, k));
    for (seed = 0; seed < SEEDS; seed++) {
        op_quantize_micro(BE, z, x, none, rule);
        Tensor v = values(z, K, 0);
        for (int64_t k = 0; k < K; k++) sum[k] += get(v, k);
        num_.a.used = (size_t)((char *)v.data - num_.a.base);
    }
    for (int64_t k = 0; k < K; k++) {
        uint8_t scale = ((uint8_t *)z.scale.data)[k / NVFP4_GROUP];
        float   unit = e4m3_to_f32(scale) * get(z.tensor, 0), at = fabsf(get(x, k)) / unit;
        double  gap = unit * (at < 2 ? 0.5 : at < 4 ? 1 : 2), off = fabs(sum[k] / SEEDS - (double)get(x, k));
        if (at < 6)
            EXPECT(off <= 5 * gap / 2 / sqrt(SEEDS), "%g is %g on average", get(x, k), sum[k] / SEEDS);
        EXPECT(fabsf(get(near, k) - get(x, k)) <= (float)gap / 2 * 1.001f || at > 6, "nearest");
    }
    num_clear();
}

/* A seed gives the same codes again, another one others; exact values are never moved. */
static void random_codes_repeat(void)
{
    uint64_t   seed[2] = { 11, 12 };
    Tensor     x = num_randn(BF16, 20, 100);
    MicroCodes a = coded(PREC_NVFP4, x, (MicroRule){ .stream = 1, .seed = &seed[0] });
    MicroCodes b = coded(PREC_NVFP4, x, (MicroRule){ .stream = 1, .seed = &seed[0] });
    MicroCodes c = coded(PREC_NVFP4, x, (MicroRule){ .stream = 1, .seed = &seed[1] });
    MicroCodes d = coded(PREC_NVFP4, x, (MicroRule){ .stream = 2, .seed = &seed[0] });
    EXPECT(same_bits(a.q, b.q) && !same_bits(a.q, c.q) && !same_bits(a.q, d.q),
           "the seed or the stream is not read");
    for (int code = 0; code < 16; code++)
        for (uint32_t r = 0; r < 0x10000; r += 0x1111)
            EXPECT(e2m1_at_random(e2m1_to_f32((uint8_t)code), r) == code, "code %x moved", code);
    EXPECT(e2m1_at_random(-7, 0) == 15 && e2m1_at_random(NAN, 9) == 7 && e2m1_at_random(0.25f, 0x7fff) == 1 &&
           e2m1_at_random(0.25f, 0x8000) == 0 && e2m1_at_random(-5, 0) == 15, "rounding");
    num_clear();
}

/* ---- products ---- */

typedef struct Case { Tensor c, bias, res, x, w; MicroCodes a, b; } Case;

static Case make(Precision f, DType out, int64_t M, int64_t N, int64_t K)
{
    Case c = { .c = num_poison(out, M, N), .x = num_randn(BF16, M, K), .w = num_randn(BF16, N, K) };
    c.a = coded(f, c.x, (MicroRule){ 0 }), c.b = coded(f, c.w, (MicroRule){ .blocks = f == PREC_NVFP4 });
    return c;
}
static void run(Case *c) { op_gemm_micro(BE, c->c, c->a, c->b, c->bias, c->res); }

static Tensor naive(const Case *c, Tensor before)
{
    int64_t M = c->c.n[0], N = c->c.n[1], K = c->x.n[1];
    Tensor  want = num_poison(F32, M, N), a = values(c->a, K, 0), b = values(c->b, K, 0);
    for (int64_t i = 0; i < M * N; i++) {
        double sum = t_has(c->bias) ? get(c->bias, i % N) : 0;
        for (int64_t k = 0; k < K; k++) sum += (double)get(a, i / N * K + k) * (double)get(b, i % N * K + k);
        put(want, i, (float)(t_has(c->res) ? sum + get(before, i) : sum));
    }
    return want;
}

static void agrees_with_double(void)
{
    static const int64_t sizes[][3] = { { 1, 1, 1 }, { 5, 3, 131 }, { 193, 129, 130 }, { 33, 7, 128 } };
    Precision f;
    DType     d;
    for EACH_FORMAT(f) for (int i = 0; i < 4; i++) for EACH_FLOAT(d) for (int more = 0; more < 4; more++) {
        Case c = make(f, d, sizes[i][0], sizes[i][1], sizes[i][2]);
        if (more & 1) c.bias = num_randn(F32, 1, sizes[i][1]), c.c = loose(d, sizes[i][0], sizes[i][1]);
        if (more > 1) c.res = num_randn(d, sizes[i][0], sizes[i][1]);
        if (more > 2) c.c = c.res;
        Tensor want = naive(&c, t_has(c.res) ? num_copy(c.res, F32) : none);
        run(&c);
        EXPECT_CLOSE_AT(1, c.c, want, 2 * tolerance(d));
        EXPECT(more != 1 || gaps_intact(c.c), "a gap was written");
        num_clear();
    }
}

/* Small integers have exact codes: the product is exact. */
static void known_products(void)
{
    Precision f;
    for EACH_FORMAT(f) {
        Tensor x = num_poison(F32, 2, 256), w = num_poison(F32, 2, 256), y = num_poison(F32, 2, 2);
        for (int64_t i = 0; i < 512; i++) put(x, i, i < 256 ? 6 : 3), put(w, i, i % 2 ? 6 : -2);
        op_gemm_micro(BE, y, coded(f, x, (MicroRule){ 0 }), coded(f, w, (MicroRule){ 0 }), none, none);
        for (int64_t i = 0; i < 4; i++)
            EXPECT(fabsf(get(y, i) / (i < 2 ? 3072 : 1536) - 1) < (f == PREC_MXFP8 ? 1e-9f : 1e-6f), "%g",
                   get(y, i));
        num_clear();
    }
}

static double cosine(Tensor a, Tensor b) { return num_dot(a, b) / sqrt(num_dot(a, a) * num_dot(b, b)); }

/* Against the product that was not quantised: e4m3 loses 2.6 % of an element, e2m1 9 to 12 %. */
static void near_the_bf16_product(void)
{
    Precision f;
    for EACH_FORMAT(f) for (int i = 0; i < 3; i++) {
        Case   c = make(f, BF16, 64 + num_below(100), 64 + num_below(200), 128 + num_below(600));
        Tensor plain = num_poison(BF16, c.c.n[0], c.c.n[1]);
        run(&c);
        op_gemm(BE, plain, c.x, c.w, none, GEMM_NT);
        EXPECT(cosine(c.c, plain) >= (f == PREC_MXFP8 ? 0.999 : 0.98), "%s: cosine %.6f", precision_word(f),
               cosine(c.c, plain));
        num_clear();
    }
}

/* ---- experts ---- */

enum { EXPERTS = 4 };
static const int32_t shares[][EXPERTS + 1] = { { 0, 3, 3, 200, 210 }, { 0, 0, 0, 0, 0 },
                                               { 0, 1, 2, 3, 400 } };

typedef struct Group { Tensor c, offsets; MicroCodes a, b; } Group;

static Group experts(Precision f, DType out, const int32_t *off, int64_t N, int64_t K, bool transposed)
{
    int64_t R = off[EXPERTS] + 5, rows = transposed ? K : N, cols = transposed ? N : K;
    Group   g = { .c = num_poison(out, R, N), .offsets = num_i32(EXPERTS + 1, off), .a = codes(f, 0, R, K) };
    op_quantize_micro(BE, g.a, num_randn(BF16, R, K), g.offsets, (MicroRule){ 0 });
    g.b = coded(f, t_as3(num_randn(BF16, EXPERTS * rows, cols), EXPERTS, rows, cols),
                (MicroRule){ .blocks = f == PREC_NVFP4, .transposed = transposed });
    return g;
}
static void run_experts(Group *g) { op_grouped_gemm_micro(BE, g->c, g->a, g->b, g->offsets); }

static MicroCodes part(MicroCodes z, int64_t at, int64_t n)
{
    z.q = t_rows(z.q, at, n), z.scale = t_rows(z.scale, at, n);
    return z;
}
static MicroCodes expert(MicroCodes z, int64_t e)
{
    z.q = t_at(z.q, e), z.scale = t_at(z.scale, e);
    if (t_has(z.tensor)) z.tensor = t_wrap((float *)z.tensor.data + e, F32, 1, &(int64_t){ 1 });
    return z;
}

/* Each expert's rows have the bits of a product by themselves; padding rows stay. */
static void experts_are_products(void)
{
    Precision f;
    for EACH_FORMAT(f) for (int s = 0; s < 3; s++) {
        Group g = experts(f, s % 2 ? BF16 : F32, shares[s], 130, 77, s > 1);
        run_experts(&g);
        for (int e = 0; e < EXPERTS; e++) {
            int64_t at = shares[s][e], n = shares[s][e + 1] - at;
            Tensor  one = num_poison((DType)g.c.dtype, n, 130);
            op_gemm_micro(BE, one, part(g.a, at, n), expert(g.b, e), none, none);
            EXPECT(same_bits(one, num_copy(t_rows(g.c, at, n), (DType)g.c.dtype)), "share %d expert %d", s,
                   e);
        }
        for (int64_t i = shares[s][EXPERTS] * 130; i < t_count(g.c); i++)
            EXPECT(isnan(get(g.c, i)), "padding row was written");
        num_clear();
    }
}

typedef struct Coding { Tensor x; MicroCodes z; uint64_t seed; } Coding;
static void run_coding(Coding *c)
{
    op_quantize_micro(BE, c->z, c->x, none, (MicroRule){ .blocks = true, .stream = 3, .seed = &c->seed });
}

static void threads_agree(void)
{
    Precision f;
    for EACH_FORMAT(f) {
        Case  c = make(f, BF16, 300, 260, 200);
        Group g = experts(f, BF16, shares[2], 260, 200, false);
        EXPECT_THREADS_AGREE(run, &c, &c.c, 1);
        EXPECT_THREADS_AGREE(run_experts, &g, &g.c, 1);
        num_clear();
    }
    Coding c = { .x = num_randn(F32, 300, 200), .z = codes(PREC_NVFP4, 0, 300, 200), .seed = 5 };
    EXPECT_THREADS_AGREE(run_coding, &c, &c.z.q, 1);
    num_clear();
}

static void nothing_to_sum(void)
{
    Precision f;
    for EACH_FORMAT(f) {
        Case none_of_k = make(f, F32, 3, 4, 0), no_rows = make(f, BF16, 0, 4, 130);
        none_of_k.bias = num_randn(F32, 1, 4);
        run(&none_of_k), run(&no_rows);
        for (int64_t i = 0; i < 12; i++)
            EXPECT(get(none_of_k.c, i) == get(none_of_k.bias, i % 4), "the bias alone");
        num_clear();
    }
}

int main(void)
{
    rowlab_open();
    RUN(rows_as_pytorch);
    RUN(known_codes);
    RUN(transposed_codes);
    RUN(stacks_are_matrices);
    RUN(padding_stays);
    RUN(not_finite_shows);
    RUN(random_codes_are_fair);
    RUN(random_codes_repeat);
    RUN(known_products);
    RUN(agrees_with_double);
    RUN(near_the_bf16_product);
    RUN(experts_are_products);
    RUN(threads_agree);
    RUN(nothing_to_sum);
    return numlab_report();
}
