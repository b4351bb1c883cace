/* tests/test_moment_code.c -- AdamW moments in 8 bits by block: maps, codes, steps by the definition. */
#include "numlab.h"

#include "ops/moment_code.h"

#include <omp.h>

static const Tensor none;
static const MomentMap *map[2];

/* ---- maps and codes ---- */

static void maps_are_those_of_8_bit_adam(void)
{
    for (int k = 0; k < 2; k++) {
        const float *v = map[k]->value;
        int zero = k == MOMENT_FIRST ? DYNAMIC_ZERO : 0;
        EXPECT(v[zero] == 0.0f && v[255] == 1.0f, "map %d: %g at %d, %g last", k, v[zero], zero, v[255]);
        for (int i = 1; i < MOMENT_CODES; i++)
            EXPECT(v[i - 1] < v[i] && map[k]->middle[i - 1] < v[i] &&
                   (v[i - 1] < map[k]->middle[i - 1] || (k == MOMENT_SECOND && i == 1)),
                   "map %d is not sorted at %d", k, i);
    }
    /* The means of equal parts of 0.1 .. 1, twice as many in each decade, times powers of ten. */
    for (int k = 0; k < 2; k++)
        for (int d = 0, at = k == MOMENT_FIRST ? DYNAMIC_ZERO + 1 : 1; d < 7; d++)
            for (int n = (k == MOMENT_FIRST ? 1 : 2) << d, i = 0; i < n; i++, at++) {
                double want = (0.1 + 0.9 * (i + 0.5) / n) * pow(10, d - 6), got = map[k]->value[at];
                EXPECT(fabs(got / want - 1) < 3e-7, "map %d, code %d: %.9g, not %.9g", k, at, got, want);
                if (k == MOMENT_FIRST)
                    EXPECT(map[k]->value[2 * DYNAMIC_ZERO - at] == -map[k]->value[at], "code %d", at);
            }
}

static int code_of(int k, float x, float scale)
{
    MomentUnit u = moment_unit(scale);
    return moment_code_of(map[k]->base, map[k]->middle, 1, k, u, moment_unsigned(x, u));
}

/* The nearest value by looking at each of them. */
static int nearest(int k, double y)
{
    int best = 0;
    for (int i = 1; i < MOMENT_CODES; i++)
        if (fabs(y - map[k]->value[i]) < fabs(y - map[k]->value[best])) best = i;
    return k == MOMENT_SECOND && !best && y > 0 ? 1 : best;
}

/* Codes of neighbouring values are equally near where y is within rounding of a midpoint. */
static bool is_tie(int k, int a, int b, double y)
{
    double u = fabs(y - map[k]->value[a]), v = fabs(y - map[k]->value[b]);
    return abs(a - b) == 1 && fabs(u - v) <= 1e-7 * fabs(y);
}

static void codes_are_the_nearest(void)
{
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < MOMENT_CODES; i++) {
            EXPECT(code_of(k, map[k]->value[i], 1) == i, "map %d: the value of %d", k, i);
            if (i < 255)
                EXPECT(code_of(k, map[k]->middle[i], 1) == i,
                       "map %d: a tie above %d goes up", k, i);
        }
        for (int64_t i = 0; i < 100000; i++) {
            double size = pow(10, -8.0 * (double)num_below(1 << 20) / (1 << 20));
            float  y = (float)(num_below(2) && k == MOMENT_FIRST ? -size : size);
            int    got = code_of(k, y, 1), want = nearest(k, y);
            EXPECT(got == want || is_tie(k, got, want, y), "map %d, %.9g: code %d, not %d", k, y, got, want);
        }
    }
    EXPECT(code_of(MOMENT_SECOND, 0, 1) == 0 && code_of(MOMENT_SECOND, 1e-30f, 1) == 1,
           "a positive second moment vanishes");
}

/* The code by its definition: how many midpoints times the scale lie below x. Such products are exact in
 * double. */
static int midpoints_below(int k, float x, float scale)
{
    int    code = 0;
    double y = scale < 0 ? -(double)x : x, size = fabs((double)scale);
    for (int half = MOMENT_CODES / 2; half; half /= 2)
        if (map[k]->middle[code + half - 1] * size < y) code += half;
    return code;
}

static bool follows_definition(int k, float x, float scale)
{
    int got = code_of(k, x, scale), want = midpoints_below(k, x, scale);
    if (got != want) EXPECT(false, "map %d, %.9g of %.9g: code %d, not %d", k, x, scale, got, want);
    return got == want;
}

/* x and the 80 floats around it, of both signs where the map has them, that the scale can have. */
static bool neighbours_follow(int k, float x, float scale)
{
    bool right = true;
    for (uint32_t ulp = 0; ulp <= 80; ulp++) {
        float near = quant_float(quant_magnitude(x) + 40 - ulp);
        if (quant_magnitude(x) < 40 || near > fabsf(scale)) continue;
        right &= follows_definition(k, copysignf(near, scale), scale);
        if (k == MOMENT_FIRST)
            right &= follows_definition(k, -near, scale) && follows_definition(k, near, scale);
    }
    return right;
}

/* Every midpoint, value and border of a decade with the floats around them, of several scales, and a 61st of
 * all floats below 1. */
static void codes_count_midpoints(void)
{
    for (int k = 0; k < 2; k++) {
        bool right = true;
        for (int round = 0; round < 12; round++) {
            float fraction = 1 + (float)num_below(1 << 23) * 0x1p-23f;
            float scale = round ? ldexpf(fraction, (int)num_below(180) - 90) : 1;
            if (k == MOMENT_FIRST && round % 3 == 2) scale = -scale;
            for (int i = 0; i < 3 * MOMENT_CODES; i++) {
                float ten = powf(10, -(float)(i % 8));
                float y = i < 255 ? map[k]->middle[i] : i < 512 ? map[k]->value[i % 256] : ten;
                right &= neighbours_follow(k, y * scale, scale);
            }
        }
        for (uint32_t i = (uint32_t)num_below(61); i <= quant_bits(1.0f) && right; i += 61) {
            float y = quant_float(i);
            right = follows_definition(k, y, 1) && (k || follows_definition(k, -y, 1));
        }
        EXPECT(right, "map %d", k);
    }
}

/* A bin holds one midpoint at most, with the rounding of what falls into it. */
static void bins_have_one_midpoint(void)
{
    for (int k = 0; k < 2; k++) {
        uint32_t one = quant_bits(1.0f) >> moment_shift(k), sign = 0x80000000u >> moment_shift(k);
        for (int bin = 0; bin < moment_bins(k); bin++) {
            if (((uint32_t)bin & (sign - 1)) > one) continue;
            uint32_t low = (uint32_t)bin << moment_shift(k), high = low | ((1u << moment_shift(k)) - 1);
            float    a = quant_float(low), b = quant_float(high), most = (a > b ? a : b);
            int      next = map[k]->base[bin];
            most += fabsf(most) * 0x1p-20f;
            EXPECT(next == 255 || map[k]->middle[next + 1] >= most, "map %d, bin %d: two midpoints", k, bin);
        }
    }
}

static void known_blocks(void)
{
    static const struct { int which; float x[3], scale; uint8_t code[3]; float back[3]; } row[] = {
        { MOMENT_FIRST,  { 2, -1, 0 },          2,  { 255, 35, 127 }, { 2, 0, 0 } },
        { MOMENT_FIRST,  { 0.5f, -4, 0 },       -4, { 62, 255, 127 }, { 0, -4, 0 } },
        { MOMENT_FIRST,  { 3, -3, 1e-9f },      3,  { 255, 0, 127 },  { 3, 0, 0 } },
        { MOMENT_SECOND, { 8, 1e-9f, 0 },       8,  { 255, 1, 0 },    { 8, 8 * 3.2500003e-07f, 0 } },
        { MOMENT_SECOND, { 1e-35f, 0, 0 },      0x1p-100f, { 7, 0, 0 }, { 0, 0, 0 } },
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        uint8_t code[3] = { 77, 77, 77 };
        float   scale = NAN, back[3] = { NAN, NAN, NAN };
        moments_encode(code, &scale, row[i].which, row[i].x, 3);
        moments_decode(back, row[i].which, code, &scale, 3);
        EXPECT(scale == row[i].scale, "row %zu: scale %g", i, scale);
        for (int j = 0; j < 3; j++) {
            float y = row[i].x[j] / scale;
            EXPECT(code[j] == row[i].code[j] && code[j] == nearest(row[i].which, y), "row %zu: code %d", i,
                   code[j]);
            EXPECT(back[j] == map[row[i].which]->value[code[j]] * scale, "row %zu: %g", i, back[j]);
            EXPECT(row[i].back[j] == 0 || back[j] == row[i].back[j], "row %zu: %g is not exact", i, back[j]);
        }
    }
}

static void zeros_and_not_finite(void)
{
    float   x[300] = { 0 }, scale[2] = { 9, 9 }, back[300];
    uint8_t code[300];
    moments_encode(code, scale, MOMENT_FIRST, x, 300);
    moments_decode(back, MOMENT_FIRST, code, scale, 300);
    for (int i = 0; i < 300; i++) EXPECT(back[i] == 0.0f, "%d: %g", i, back[i]);
    EXPECT(scale[0] == 0 && scale[1] == 0, "scales of zeros: %g %g", scale[0], scale[1]);
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 300; i++) x[i] = 1;
        x[17] = k == 0 ? NAN : k == 1 ? INFINITY : -INFINITY;
        moments_encode(code, scale, MOMENT_FIRST, x, 300);
        moments_decode(back, MOMENT_FIRST, code, scale, 300);
        EXPECT(isnan(back[0]) && isnan(back[17]) && isnan(back[255]), "kind %d is hidden", k);
        EXPECT(back[256] == 1 && back[299] == 1, "kind %d: the next block has %g", k, back[256]);
    }
}

/* Elements of every size; a decoded block codes to the same elements. */
static void decoding_is_lossless_after_coding(void)
{
    for (int round = 0; round < 60; round++) {
        int64_t  n = 1 + num_below(3000), blocks = moment_blocks(n);
        int      k = round % 2;
        Tensor   t = num_randn(F32, 1, n);
        float   *x = t.data, *one = malloc((size_t)n * 4), *two = malloc((size_t)n * 4);
        float    s1[16], s2[16], size = powf(10, (float)num_below(76) - 38);
        uint8_t *c1 = malloc((size_t)n), *c2 = malloc((size_t)n);
        for (int64_t i = 0; i < n; i++) {
            x[i] *= size * powf(10, -(float)num_below(9));
            if (k == MOMENT_SECOND) x[i] = fabsf(x[i]);
        }
        memset(c1, 0xee, (size_t)n), memset(c2, 0x11, (size_t)n);
        moments_encode(c1, s1, k, x, n);
        moments_decode(one, k, c1, s1, n);
        moments_encode(c2, s2, k, one, n);
        moments_decode(two, k, c2, s2, n);
        EXPECT(!memcmp(one, two, (size_t)n * 4) && !memcmp(s1, s2, (size_t)blocks * 4),
               "map %d, %lld elements of %g: another round changes them", k, (long long)n, size);
        for (int64_t i = 0; i < n; i++) {
            int    c = c1[i], up = c < 255 ? c + 1 : c, down = c ? c - 1 : c;
            double gap = map[k]->value[up] - map[k]->value[down], scale = fabsf(s1[i / MOMENT_BLOCK]);
            EXPECT(scale == 0 || fabs((double)one[i] - x[i]) <= (gap + 1e-6) * scale, "%g became %g", x[i],
                   one[i]);
        }
        free(one), free(two), free(c1), free(c2);
        num_clear();
    }
}

/* ---- the step ---- */

typedef struct Coded { Tensor m, ms, v, vs; } Coded;

static Tensor flat_zeros(DType d, int64_t n)
{
    Tensor t = num_zeros(d, 1, n);
    return t_wrap(t.data, d, 1, &n);
}
static Tensor as_flat(Tensor t)
{
    int64_t n = t_count(t);
    return t_wrap(t.data, (DType)t.dtype, 1, &n);
}
static Coded coded_zeros(int64_t n)
{
    int64_t b = moment_blocks(n);
    return (Coded){ flat_zeros(U8, n), flat_zeros(F32, b), flat_zeros(U8, n), flat_zeros(F32, b) };
}
static void step(Tensor w, Tensor master, Coded c, Tensor g, Tensor norm, AdamW h)
{
    op_adamw_coded(BE, w, master, c.m, c.ms, c.v, c.vs, g, norm, h);
}

/* The first step from rest is that of f32 moments; its moments are those, rounded. */
static void first_step_is_that_of_f32(void)
{
    static const int64_t ns[] = { 1, 255, 256, 257, 2048, 2049, 40001 };
    AdamW h = { .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.5f, .step = 1 };
    for (int i = 0; i < 7; i++) {
        int64_t n = ns[i];
        Tensor  g = as_flat(num_randn(F32, 1, n)), w = as_flat(num_randn(F32, 1, n)), x = num_copy(w, F32);
        Tensor  m = flat_zeros(F32, n), v = flat_zeros(F32, n), got = as_flat(num_poison(F32, 1, n));
        Coded   c = coded_zeros(n), want = coded_zeros(n);
        x = as_flat(x);
        step(w, none, c, g, none, h);
        op_adamw(BE, x, none, m, v, g, none, h);
        EXPECT_CLOSE(w, x, 1e-6);
        moments_decode(got.data, MOMENT_FIRST, c.m.data, c.ms.data, n);
        EXPECT_CLOSE(got, m, 0.02);
        moments_decode(got.data, MOMENT_SECOND, c.v.data, c.vs.data, n);
        EXPECT_CLOSE(got, v, 0.02);
        moments_encode(want.v.data, want.vs.data, MOMENT_SECOND, v.data, n);
        double off = 0;
        for (int64_t k = 0; k < n; k++)
            off += abs(((uint8_t *)want.v.data)[k] - ((uint8_t *)c.v.data)[k]) > 1;
        EXPECT(off == 0, "%lld elements: %g codes are not those of the f32 moment", (long long)n, off);
        num_clear();
    }
}

/* The whole op by the definition, in plain loops and with double's square root and quotient rounded once. */
static void reference_step(float *p, float *m, float *v, float grad, float clip, AdamW h)
{
    AdamStep s = adam_step(&h);
    float in1 = (float)(1.0 - (double)h.beta1), in2 = (float)(1.0 - (double)h.beta2), g = grad * clip;
    volatile float shrunk = *p * (float)(1.0 - (double)h.lr * h.decay), kept = h.beta2 * *v, part = in2 * g;
    volatile float diff = g - *m;
    *m = (float)((double)in1 * (double)diff + (double)*m);       /* exact product, almost exact sum */
    *v = (float)((double)part * (double)g + (double)kept);
    volatile float root = (float)sqrt((double)*v), below = root / s.root;
    volatile float slope = *m / (below + h.eps);
    *p = (float)(-(double)s.rate * (double)slope + (double)shrunk);
}

static void agrees_with_the_definition(void)
{
    for (int round = 0; round < 8; round++) {
        int64_t n = 1 + num_below(1500);
        AdamW   h = { .lr = 0.03f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .decay = 0.1f };
        Tensor  w = as_flat(num_randn(F32, 1, n));
        float  *p = malloc((size_t)n * 4), *m = malloc((size_t)n * 4), *v = malloc((size_t)n * 4);
        Coded   c = coded_zeros(n), r = coded_zeros(n);
        memcpy(p, w.data, (size_t)n * 4);
        for (h.step = 1; h.step <= 20; h.step++) {
            Tensor g = as_flat(num_randn(round % 2 ? BF16 : F32, 1, n));
            for (int64_t i = 0; i < n; i += 5) put(g, i, get(g, i) * 1e-4f);
            step(w, none, c, g, none, h);
            moments_decode(m, MOMENT_FIRST, r.m.data, r.ms.data, n);
            moments_decode(v, MOMENT_SECOND, r.v.data, r.vs.data, n);
            for (int64_t i = 0; i < n; i++) reference_step(&p[i], &m[i], &v[i], get(g, i), 1, h);
            moments_encode(r.m.data, r.ms.data, MOMENT_FIRST, m, n);
            moments_encode(r.v.data, r.vs.data, MOMENT_SECOND, v, n);
        }
        EXPECT(!memcmp(p, w.data, (size_t)n * 4) && !memcmp(r.m.data, c.m.data, (size_t)n) &&
               !memcmp(r.v.data, c.v.data, (size_t)n) && !memcmp(r.vs.data, c.vs.data, (size_t)t_bytes(c.vs)),
               "%lld elements differ from the definition", (long long)n);
        free(p), free(m), free(v);
        num_clear();
    }
}

/* f32 weights, f32 masters, split ones: the same weights and codes; on any number of threads; a bad step does
 * nothing. */
static void masters_threads_and_verdicts(void)
{
    int     many = omp_get_max_threads();
    int64_t n = 70001;
    AdamW   h = { .lr = 0.03f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f,
                  .max_norm = 30.0f };
    Tensor  p = as_flat(num_randn(F32, 1, n)), rest = flat_zeros(I16, n), wide = as_flat(num_copy(p, F32));
    Tensor  w[2] = { as_flat(num_poison(BF16, 1, n)), as_flat(num_poison(BF16, 1, n)) };
    Coded   c[3] = { coded_zeros(n), coded_zeros(n), coded_zeros(n) };
    op_set_weight(BE, w[1], rest, p);
    op_set_weight(BE, w[0], p, p);
    for (h.step = 1; h.step <= 6; h.step++) {
        Tensor g = as_flat(num_randn(F32, 1, n));
        Tensor norm = t1(&num_.a, "lab", F64, 1), bad = t1(&num_.a, "lab", F64, 1);
        *(double *)norm.data = 0, *(double *)bad.data = h.step == 3 ? STEP_SPIKE : STEP_GOOD;
        h.verdict = bad;
        op_squares(BE, norm, none, &(Addends){ 1, { { g, 0, false } } });
        omp_set_num_threads(1), step(w[0], p, c[0], g, norm, h);
        omp_set_num_threads(many), step(w[1], rest, c[1], g, norm, h);
        step(wide, none, c[2], g, norm, h);
    }
    EXPECT(!memcmp(wide.data, p.data, (size_t)t_bytes(p)), "a master is not the f32 weight");
    for (int k = 1; k < 3; k++)
        EXPECT(!memcmp(c[0].m.data, c[k].m.data, (size_t)n) && !memcmp(c[0].v.data, c[k].v.data, (size_t)n) &&
               !memcmp(c[0].ms.data, c[k].ms.data, (size_t)t_bytes(c[0].ms)), "codes of way %d differ", k);
    EXPECT(!memcmp(w[0].data, w[1].data, (size_t)t_bytes(w[0])), "weights of split masters differ");
    num_clear();
}

/* A least-squares problem: weights reach the solution as with f32 moments. */
static double descend(bool coded, int64_t n, int steps)
{
    double  left = 0;
    Tensor  want = as_flat(num_randn(F32, 1, n)), w = flat_zeros(F32, n), g = flat_zeros(F32, n);
    Tensor  m = flat_zeros(F32, n), v = flat_zeros(F32, n);
    Coded   c = coded_zeros(n);
    AdamW   h = { .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f };
    for (h.step = 1; h.step <= steps; h.step++) {
        h.lr = 0.05f * (1 - (float)h.step / (float)(steps + 1));
        for (int64_t i = 0; i < n; i++)                       /* curvatures over two decades */
            put(g, i, (get(w, i) - get(want, i)) * powf(10, -(float)(i % 3)));
        if (coded) step(w, none, c, g, none, h);
        else       op_adamw(BE, w, none, m, v, g, none, h);
    }
    for (int64_t i = 0; i < n; i++) left += pow(get(w, i) - get(want, i), 2);
    num_clear();
    return sqrt(left / (double)n);
}

static void converges(void)
{
    double coded = descend(true, 1000, 400), wide = descend(false, 1000, 400);
    EXPECT(wide < 0.01 && coded < 0.02, "distance %.4g in 8 bits, %.4g in f32, from 1", coded, wide);
}

int main(void)
{
    numlab_open();
    map[0] = moment_map(MOMENT_FIRST), map[1] = moment_map(MOMENT_SECOND);
    RUN(maps_are_those_of_8_bit_adam);
    RUN(codes_are_the_nearest);
    RUN(codes_count_midpoints);
    RUN(bins_have_one_midpoint);
    RUN(known_blocks);
    RUN(zeros_and_not_finite);
    RUN(decoding_is_lossless_after_coding);
    RUN(first_step_is_that_of_f32);
    RUN(agrees_with_the_definition);
    RUN(masters_threads_and_verdicts);
    RUN(converges);
    return numlab_report();
}
