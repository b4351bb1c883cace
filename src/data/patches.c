/* data/patches.c -- the size a picture is resized to, and its pixels as rows of the vision stream.
 *
 * A patch is one row of (colour, frame, line, column) values, column innermost. Patches are ordered in
 * blocks of merge x merge, row by row inside a block, so that merging them is a reshape. */
#include "data/image_private.h"

#include "base/hot.h"

#include <math.h>
#include <string.h>

enum { MOST_ASPECT = 200, COLOURS = 3, MOST_SIDE = 64 };

/* Doubles and rounding equal the reference: half to even, two divisions in this order. */
Status image_fit(int64_t *h, int64_t *w, const PatchShape *p)
{
    double f = (double)(p->patch * p->merge), H = (double)*h, W = (double)*w;
    double most = (double)p->max_pixels, least = (double)p->min_pixels;
    if (*h < 1 || *w < 1 || fmax(H, W) / fmin(H, W) > MOST_ASPECT)
        return fail(E_DATA, "%lld x %lld pixels: one side is more than %d times the other", (long long)*w,
                    (long long)*h, MOST_ASPECT);
    double a = rint(H / f) * f, b = rint(W / f) * f;
    if (a * b > most) {
        double shrink = sqrt(H * W / most);
        a = fmax(f, floor(H / shrink / f) * f), b = fmax(f, floor(W / shrink / f) * f);
    } else if (a * b < least) {
        double grow = sqrt(least / (H * W));
        a = ceil(H * grow / f) * f, b = ceil(W * grow / f) * f;
    }
    *h = (int64_t)a, *w = (int64_t)b;
    return OK;
}

/* One patch of one frame as three planes. */
HOT static void split_planes(uint8_t *restrict planes, const uint8_t *restrict rgb, int64_t stride,
                            int64_t side)
{
    uint8_t *r = planes, *g = r + side * side, *b = g + side * side;
    for (int64_t y = 0; y < side; y++, rgb += stride, r += side, g += side, b += side)
        for (int64_t x = 0; x < side; x++)
            r[x] = rgb[3 * x], g[x] = rgb[3 * x + 1], b[x] = rgb[3 * x + 2];
}

/* 8-bit levels, which the device normalises, or (level - 127.5) / 127.5 in f32. */
HOT static void put_plane(void *restrict out, bool bytes, int64_t at, const uint8_t *restrict plane,
                          int64_t n)
{
    float *f = (float *)out + at;
    if (bytes) memcpy((uint8_t *)out + at, plane, (size_t)n);
    else for (int64_t i = 0; i < n; i++) f[i] = ((float)plane[i] - 127.5f) / 127.5f;
}

static void make_patch(void *out, bool bytes, int64_t at, const Image *im, const Image *second,
                       const PatchShape *p, int64_t row, int64_t col)
{
    uint8_t planes[COLOURS * MOST_SIDE * MOST_SIDE];
    int64_t plane = p->patch * p->patch, from = (row * im->w + col) * p->patch * COLOURS;
    for (int64_t t = 0; t < p->frames; t++) {
        if (t == 0 || (t == 1 && second))
            split_planes(planes, (t ? second : im)->rgb + from, im->w * COLOURS, p->patch);
        for (int64_t c = 0; c < COLOURS; c++)
            put_plane(out, bytes, at + (c * p->frames + t) * plane, planes + c * plane, plane);
    }
}

void image_patches(void *out, bool bytes, const Image *im, const Image *second, const PatchShape *p)
{
    int64_t m = p->merge, block = p->patch * m, across = im->w / block;
    int64_t dim = p->channels * p->frames * p->patch * p->patch;
    REQUIRE(p->channels == COLOURS && p->patch <= MOST_SIDE && im->h % block == 0 && im->w % block == 0,
            "%lld channels, patches of %lld, %lld x %lld pixels, merged by %lld", (long long)p->channels,
            (long long)p->patch, (long long)im->h, (long long)im->w, (long long)m);
    REQUIRE(!second || (second->h == im->h && second->w == im->w), "frames of a pair differ in size");
    for (int64_t k = 0; k < im->h / p->patch * across * m; k++) {
        int64_t in = k % (m * m), at = k / (m * m);
        make_patch(out, bytes, k * dim, im, second, p, at / across * m + in / m, at % across * m + in % m);
    }
}
