/* tests/test_patches.c -- sizes, the bit-exact resize and patch order, also against the reference. */
#include "lab.h"
#include "pictures.h"

#include "base/json.h"
#include "base/rng.h"
#include "data/image.h"

#define GOLDEN "../shared/golden/images.jsonl"

/* ---- sizes ---- */

static const PatchShape qwen = {
    .patch = 16, .frames = 2, .merge = 2, .channels = 3, .min_pixels = 65536, .max_pixels = 16777216
};

static void sizes_are_the_reference_ones(void)
{
    static const int64_t golden[][4] = {
        { 480, 640, 480, 640 },     { 100, 100, 256, 256 },     { 768, 1366, 768, 1376 },
        { 1080, 1920, 1088, 1920 }, { 300, 400, 288, 384 },     { 112, 1000, 128, 992 },
        { 10, 2000, 32, 3648 },     { 3000, 7000, 2656, 6240 }, { 5000, 5000, 4096, 4096 },
    };
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        int64_t h = golden[i][0], w = golden[i][1];
        EXPECT_OK(image_fit(&h, &w, &qwen));
        EXPECT(h == golden[i][2] && w == golden[i][3], "case %zu: %lld x %lld", i, (long long)h,
               (long long)w);
    }
    int64_t h = 10, w = 2001, hh = 10, ww = 2000;
    EXPECT_FAIL(image_fit(&h, &w, &qwen), E_DATA, "200");
    EXPECT_OK(image_fit(&hh, &ww, &qwen));
}

/* ---- resize ---- */

static void row_check(const uint8_t *in, int n, const uint8_t *want, int m)
{
    Image    src = { 1, n, malloc((size_t)n * 3), 0 }, tall = { n, 1, src.rgb, 0 }, dst = { 0 };
    int      bad = 0;
    for (int i = 0; i < n * 3; i++) src.rgb[i] = in[i / 3];
    EXPECT_OK(image_resize(&dst, &src, 1, m));
    for (int i = 0; i < m * 3; i++) bad += dst.rgb[i] != want[i / 3];
    EXPECT_OK(image_resize(&dst, &tall, m, 1));
    for (int i = 0; i < m * 3; i++) bad += dst.rgb[i] != want[i / 3];
    EXPECT(!bad, "%d -> %d: %d values differ", n, m, bad);
    image_close(&dst);
    free(src.rgb);
}

static void known_rows(void)
{
    static const uint8_t a[] = { 146, 116, 56, 150, 116, 214, 178 },
                         a8[] = { 147, 124, 64, 109, 137, 141, 214, 177 };
    static const uint8_t b[] = { 0, 64, 128, 255, 17, 200, 90, 33 }, b4[] = { 35, 165, 125, 78 };
    static const uint8_t b12[] = { 0, 26, 74, 114, 210, 232, 37, 101, 198, 109, 53, 29 };
    row_check(a, 7, a8, 8);
    row_check(b, 8, b4, 4);
    row_check(b, 8, b12, 12);
}

static double keys(double t)
{
    t = fabs(t);
    return t < 1 ? (1.5 * t - 2.5) * t * t + 1 : t < 2 ? -0.5 * (((t - 5) * t + 8) * t - 4) : 0;
}

/* The definition of the resize, unoptimised: one dimension of (outer, in, inner) to (outer, out, inner). */
static void slow_axis(uint8_t *dst, const uint8_t *src, int outer, int in, int out, int inner)
{
    double  scale = (double)in / out, fs = scale > 1 ? scale : 1, most = 0;
    int     p = 22, taps = (int)(4 * fs) + 4;
    double *k = calloc((size_t)(out * taps), sizeof *k);
    int    *x0 = calloc((size_t)out, sizeof *x0), *n = calloc((size_t)out, sizeof *n);
    for (int i = 0; i < out; i++) {
        double c = (i + 0.5) * scale, sum = 0;
        x0[i] = (int)fmax(trunc(c - 2 * fs + 0.5), 0), n[i] = (int)fmin(trunc(c + 2 * fs + 0.5), in) - x0[i];
        for (int j = 0; j < n[i]; j++) sum += k[i * taps + j] = keys((x0[i] + j - c + 0.5) / fs);
        for (int j = 0; j < n[i]; j++) most = fmax(most, k[i * taps + j] /= sum);
    }
    while (trunc(most * (1 << p) + 0.5) >= 32768) p--;
    for (int64_t o = 0; o < outer; o++)
        for (int i = 0; i < out; i++)
            for (int e = 0; e < inner; e++) {
                int sum = 1 << (p - 1);
                for (int j = 0; j < n[i]; j++) {
                    double w = k[i * taps + j];
                    sum += src[(o * in + x0[i] + j) * inner + e] *
                           (int)trunc(w * (1 << p) + (w < 0 ? -0.5 : 0.5));
                }
                sum >>= p;
                dst[(o * out + i) * inner + e] = (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
            }
    free(k), free(x0), free(n);
}

static void resize_check(int h, int w, int to_h, int to_w)
{
    size_t   bytes = (size_t)(h * w * 3);
    Image    src = { h, w, malloc(bytes), 0 }, dst = { 0 };
    uint8_t *across = malloc((size_t)(h * to_w * 3)), *want = malloc((size_t)(to_h * to_w * 3));
    for (size_t i = 0; i < bytes; i++) {
        uint32_t r = rng_u32(5, (uint64_t)(h * 1000 + w), i);
        src.rgb[i] = (uint8_t)(r & 1 ? (r & 2 ? 255 : 0) : r >> 8); /* extremes: overshoot everywhere */
    }
    if (w != to_w) slow_axis(across, src.rgb, h, w, to_w, 3);
    else           memcpy(across, src.rgb, bytes);
    if (h != to_h) slow_axis(want, across, 1, h, to_h, to_w * 3);
    else           memcpy(want, across, (size_t)(h * to_w * 3));
    EXPECT_OK(image_resize(&dst, &src, to_h, to_w));
    EXPECT(dst.h == to_h && dst.w == to_w && !memcmp(dst.rgb, want, (size_t)(to_h * to_w * 3)),
           "%d x %d to %d x %d differs", h, w, to_h, to_w);
    image_close(&dst);
    free(src.rgb), free(across), free(want);
}

static void resize_equals_the_slow_one(void)
{
    static const int sizes[][4] = {
        { 1, 1, 32, 32 },    { 2, 3, 64, 32 },       { 37, 53, 32, 64 },   { 37, 53, 37, 64 },
        { 37, 53, 64, 53 },  { 37, 53, 37, 53 },     { 200, 1, 32, 32 },   { 1, 200, 32, 32 },
        { 64, 64, 32, 32 },  { 876, 30, 864, 32 },   { 411, 333, 32, 32 }, { 100, 77, 96, 96 },
        { 5, 900, 32, 160 }, { 127, 129, 128, 128 }, { 500, 20, 3, 2 },    { 640, 480, 1, 1 },
        { 33, 47, 1, 96 },   { 31, 1000, 32, 992 },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        resize_check(sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]);
    for (uint64_t i = 0; i < 60; i++)
        resize_check(1 + (int)rng_below(6, 0, i, 70), 1 + (int)rng_below(6, 1, i, 90),
                     1 + (int)rng_below(6, 2, i, 80), 1 + (int)rng_below(6, 3, i, 80));
}

/* ---- patches ---- */

static void patches_are_in_block_order(void)
{
    enum { H = 96, W = 160 };
    for (int64_t merge = 1; merge <= 3; merge++) {
        PatchShape p = { .patch = 8, .frames = 2, .merge = merge, .channels = 3 };
        int64_t block = p.patch * merge, h = H / block * merge, w = W / block * merge, dim = 3 * 2 * 8 * 8,
                bad = 0;
        Image a = { h * 8, w * 8, picture_draw(H, W, 3), 0 }, b = { h * 8, w * 8, picture_draw(H, W, 4), 0 };
        float *one = malloc((size_t)(h * w * dim) * sizeof *one),
              *two = malloc((size_t)(h * w * dim) * sizeof *two);
        image_patches(one, false, &a, NULL, &p);
        image_patches(two, false, &a, &b, &p);
        for (int64_t i = 0; i < h * w * dim; i++) {
            int64_t k = i / dim, x = i % 8, y = i / 8 % 8, t = i / 64 % 2, c = i / 128 % 3;
            int64_t row = k / (merge * merge * (w / merge)) * merge + k / merge % merge;
            int64_t col = k / (merge * merge) % (w / merge) * merge + k % merge;
            int64_t at = ((row * 8 + y) * a.w + col * 8 + x) * 3 + c;
            bad += one[i] != ((float)a.rgb[at] - 127.5f) / 127.5f;
            bad += two[i] != ((float)(t ? b : a).rgb[at] - 127.5f) / 127.5f;
        }
        EXPECT(!bad, "merge %lld: %lld values differ", (long long)merge, (long long)bad);
        free(a.rgb), free(b.rgb), free(one), free(two);
    }
}

/* ---- the reference ---- */

static Bytes file_bytes(const char *path)
{
    Bytes b = { 0 };
    char  piece[65536];
    FILE *f = fopen(path, "rb");
    for (size_t n; f && (n = fread(piece, 1, sizeof piece, f)) > 0;) bytes_add(&b, piece, n);
    if (f) fclose(f);
    return b;
}

/* Stored to 5 decimals, a hundredth of a grey level: equal means the same level. */
static void golden_check(const Image *im, const char *file, const Json *want, int64_t least, int64_t most)
{
    PatchShape  p = qwen;
    Image       fit = { 0 };
    int64_t     h = im->h, w = im->w, bad = 0;
    const Json *grid = json_object_get(want, "grid"), *idx = json_object_get(want, "idx"),
               *val = json_object_get(want, "val");
    p.min_pixels = least, p.max_pixels = most;
    EXPECT_OK(image_fit(&h, &w, &p));
    EXPECT(h / 16 == json_integer_value(json_array_get(grid, 1)) &&
               w / 16 == json_integer_value(json_array_get(grid, 2)),
           "%s: grid %lld x %lld", file, (long long)h / 16, (long long)w / 16);
    EXPECT_OK(image_resize(&fit, im, h, w));
    float *v = malloc((size_t)(h * w * 6) * sizeof *v);
    image_patches(v, false, &fit, NULL, &p);
    double sum = 0;
    for (int64_t i = 0; i < h * w * 6; i++) sum += (double)v[i];
    for (size_t i = 0; i < json_array_size(idx); i++) {
        int64_t at = json_integer_value(json_array_get(idx, i));
        bad += at >= h * w * 6 || fabs((double)v[at] - json_number_value(json_array_get(val, i))) > 6e-6;
    }
    EXPECT(!bad, "%s: %lld values differ", file, (long long)bad);
    EXPECT(fabs(sum / (double)(h * w * 6) - json_number_value(json_object_get(want, "mean"))) < 1e-6,
           "%s: mean", file);
    free(v);
    image_close(&fit);
}

static void agrees_with_the_reference(void)
{
    Bytes list = file_bytes(GOLDEN);
    Image im = { 0 };
    int   files = 0;
    if (!list.n) SKIP("no %s", GOLDEN);
    list.v[list.n] = 0;
    for (char *line = strtok((char *)list.v, "\n"); line; line = strtok(NULL, "\n"), files++) {
        Json *o;
        char  path[512];
        if (json_parse(&o, line, strlen(line), GOLDEN)) { EXPECT(false, "%s", status_text()); break; }
        const char *file = json_string_value(json_object_get(o, "file"));
        snprintf(path, sizeof path, "../shared/data/images/%s", file);
        Bytes b = file_bytes(path);
        EXPECT_OK(image_decode(&im, b.v, b.n, NULL, file));
        golden_check(&im, file, json_object_get(o, "default"), 65536, 16777216);
        golden_check(&im, file, json_object_get(o, "small"), 4096, 262144);
        json_decref(o);
        free(b.v);
    }
    EXPECT(files > 0, "no lines in %s", GOLDEN);
    image_close(&im);
    free(list.v);
}

int main(void)
{
    RUN(sizes_are_the_reference_ones);
    RUN(known_rows);
    RUN(resize_equals_the_slow_one);
    RUN(patches_are_in_block_order);
    RUN(agrees_with_the_reference);
    return lab_report();
}
