/* tests/fuzz_image.c -- hostile pictures. For any bytes the reader returns an error with a text, or a
 * picture of the size in its header, whose pixels can all be read, resized and cut into patches. */
#include "pictures.h"

#include "base/rng.h"
#include "data/image.h"

#include <unistd.h>

enum { MOST_PIXELS = 1 << 20 };

static void pipeline_check(const Image *im)
{
    PatchShape p = {
        .patch = 4, .frames = 2, .merge = 2, .channels = 3, .min_pixels = 64, .max_pixels = 4096
    };
    Image      fit = { 0 };
    int64_t    h = im->h, w = im->w;
    float      patches[6 * 4096];
    if (image_fit(&h, &w, &p)) return;
    REQUIRE(h > 0 && w > 0 && h * w <= 4096 + 8 * (h + w), "%lld x %lld", (long long)h, (long long)w);
    if (h * w > 4096) return;                           /* one side was raised to a whole block */
    REQUIRE(!image_resize(&fit, im, h, w), "%s", status_text());
    image_patches(patches, false, &fit, NULL, &p);
    for (int64_t i = 0; i < 6 * h * w; i++)
        REQUIRE(patches[i] >= -1.0f && patches[i] <= 1.0f, "%f", (double)patches[i]);
    image_close(&fit);
}

/* A copy of exactly the right size lets the sanitizer see a read beyond its end. */
static void file_check(const uint8_t *data, size_t size)
{
    ImageLimits lim = { .max_pixels = MOST_PIXELS };
    Image       im = { 0 };
    int64_t     h = 0, w = 0;
    unsigned    sum = 0;
    uint8_t    *copy = malloc(size ? size : 1);
    if (size) memcpy(copy, data, size);
    Status head = image_size(&h, &w, copy, size, &lim, "fuzz"),
           st = image_decode(&im, copy, size, &lim, "fuzz");
    REQUIRE(!st || (status_text()[0] && !im.h && !im.w), "an error without text, or half a picture");
    REQUIRE(st || (!head && h == im.h && w == im.w && h * w <= MOST_PIXELS), "not the size of its header");
    for (int64_t i = 0; i < im.h * im.w * 3; i++) sum += im.rgb[i];
    REQUIRE(st || sum <= (unsigned)(im.h * im.w) * 3u * 255u, "a sum of bytes");
    if (!st) pipeline_check(&im);
    image_close(&im);
    image_close(&im);
    free(copy);
}

static uint32_t checksum(const uint8_t *v, size_t n)
{
    uint32_t c = ~0u;
    for (size_t i = 0; i < n; i++) {
        c ^= v[i];
        for (int bit = 0; bit < 8; bit++) c = c >> 1 ^ (c & 1 ? 0xEDB88320u : 0);
    }
    return ~c;
}

/* Corrects the checksums of PNG chunks, as far as their lengths are valid. */
static void checksums_mend(uint8_t *v, size_t n)
{
    for (size_t at = 8; n >= 20 && at <= n - 12;) {
        size_t len = (size_t)v[at] << 24 | (size_t)v[at + 1] << 16 | (size_t)v[at + 2] << 8 | v[at + 3];
        if (len > n - at - 12) return;
        uint32_t c = checksum(v + at + 4, len + 4);
        for (int i = 0; i < 4; i++) v[at + 8 + len + (size_t)i] = (uint8_t)(c >> (24 - 8 * i));
        at += len + 12;
    }
}

/* A PNG is run twice: as it is, and with correct checksums, so that edits reach the code after the
 * checksum test. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    file_check(data, size);
    if (size < 8 || png_sig_cmp(data, 0, 8)) return 0;
    uint8_t *mended = malloc(size);
    memcpy(mended, data, size);
    checksums_mend(mended, size);
    file_check(mended, size);
    free(mended);
    return 0;
}

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"

static void seed_add(Fuzz *f, Bytes b)
{
    fuzz_add(f, b.v, b.n);
    free(b.v);
}

static void seeds_jpeg(Fuzz *f, const uint8_t *p, const uint8_t *p4, int h, int w)
{
    static const JpegKind kinds[] = {
        { JCS_RGB, JCS_YCbCr, 3, JPEG_PLAIN },        { JCS_RGB, JCS_YCbCr, 3, JPEG_PROGRESSIVE },
        { JCS_RGB, JCS_YCbCr, 3, JPEG_BY_COMPONENT }, { JCS_GRAYSCALE, JCS_GRAYSCALE, 1, JPEG_PLAIN },
        { JCS_CMYK, JCS_YCCK, 4, JPEG_PLAIN },
    };
    for (int i = 0; i < 5; i++) seed_add(f, picture_jpeg(kinds[i].channels == 4 ? p4 : p, h, w, kinds[i]));
    Bytes turned = picture_jpeg(p, h, w, kinds[0]), xmp = picture_jpeg(p, h, w, kinds[1]);
    jpeg_orient(&turned, 6, true), jpeg_orient_xmp(&xmp, 8);
    seed_add(f, turned), seed_add(f, xmp);
}

static void seeds_png(Fuzz *f, const uint8_t *rows, int h, int w)
{
    static const int type[] = { PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_PALETTE,
                                PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB_ALPHA };
    for (int t = 0; t < 5; t++)
        for (int depth = 1; depth <= 16; depth *= 2) {
            bool table = type[t] == PNG_COLOR_TYPE_PALETTE, grey = type[t] == PNG_COLOR_TYPE_GRAY;
            if ((depth < 8 && !table && !grey) || (depth == 16 && table)) continue;
            Bytes b = picture_png(rows, h, w, (PngKind){ type[t], depth, depth % 3 == 1, t < 3 });
            if (depth == 8) png_orient(&b, 5, false);
            seed_add(f, b);
        }
}

static void fuzz_seeds(Fuzz *f)
{
    static const char gif[]       = "GIF89a\x02\0\x02\0\x80\0\0\xff\xff\xff\0\0\0!\xf9\x04\x01\0\0\x01\0,"
                                    "\0\0\0\0\x02\0\x02\0@\x02\x02\x44\x52\0;";
    static char       bmp[54 + 8] = "BM\0\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x02\0\0\0\x01\0\x18";
    fuzz_add(f, gif, sizeof gif - 1);
    fuzz_add(f, bmp, sizeof bmp);
    enum { H = 20, W = 28 };
    uint8_t *p = picture_draw(H, W, 3), *p4 = picture_draw(H, W, 4), *rows = picture_draw(H, W, 8);
    for (int i = 0; i < H * W; i++) p4[i * 4 + 3] |= 1;
    seeds_jpeg(f, p, p4, H, W);
    seeds_png(f, rows, H, W);
    for (int i = 0; i < 4; i++) seed_add(f, picture_webp(i & 1 ? p4 : p, H, W, i & 1 ? 4 : 3, i & 2));
    Bytes turned = picture_webp(p, H, W, 3, true);
    webp_orient(&turned, 7, true);
    seed_add(f, turned);
    seed_add(f, picture_webp_animated(p, H, W, 4, 2, 40, 40));
    free(p), free(p4), free(rows);
}
#endif
