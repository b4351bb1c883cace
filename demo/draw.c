/* demo/draw.c -- see draw.h. A figure is the signed distance to its outline: a pixel whose centre lies d
 * inside the edge is covered by clamp(0.5 + d, 0, 1), which is exact for edges along the axes. */
#include "demo/draw.h"
#include "base/rng.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

Status canvas_open(Canvas *c, int64_t h, int64_t w, Rgb fill)
{
    if (h < 1 || w < 1 || h > 1 << 15 || w > 1 << 15)
        return fail(E_DATA, "canvas of %lld x %lld: sides must be between 1 and 32768", (long long)h,
                    (long long)w);
    size_t bytes = (size_t)h * (size_t)w * 3;
    if (bytes > c->cap) {
        uint8_t *p = realloc(c->rgb, bytes);
        if (!p) return fail(E_OTHER, "canvas of %lld x %lld: no memory", (long long)h, (long long)w);
        c->rgb = p, c->cap = bytes;
    }
    c->h = h, c->w = w;
    for (size_t i = 0; i < bytes; i += 3) c->rgb[i] = fill.r, c->rgb[i + 1] = fill.g, c->rgb[i + 2] = fill.b;
    return OK;
}

void canvas_close(Canvas *c)
{
    free(c->rgb);
    *c = (Canvas){ 0 };
}

static void mix(uint8_t *p, Rgb to, double share)
{
    const uint8_t v[3] = { to.r, to.g, to.b };
    for (int i = 0; i < 3; i++) p[i] = (uint8_t)(p[i] + (v[i] - p[i]) * share + 0.5);
}

/* ---- figures ---- */

static double box(double x, double y, double half_w, double half_h)
{
    double dx = fabs(x) - half_w, dy = fabs(y) - half_h;
    return hypot(fmax(dx, 0), fmax(dy, 0)) + fmin(fmax(dx, dy), 0);
}

/* An equilateral triangle, point up: the largest of its three edge distances. */
static double triangle(double x, double y, double r)
{
    return fmax(y, fmax(0.8660254037844386 * x - 0.5 * y, -0.8660254037844386 * x - 0.5 * y)) - 0.5 * r;
}

/* Distance to the outline, negative inside. Every figure fits in a circle of radius r around 0. */
static double distance(Figure f, double x, double y, double r)
{
    switch (f) {
    case FIGURE_CIRCLE:   return hypot(x, y) - r;
    case FIGURE_SQUARE:   return box(x, y, 0.7071 * r, 0.7071 * r);
    case FIGURE_TRIANGLE: return triangle(x, y, r);
    case FIGURE_CROSS:    return fmin(box(x, y, 0.95 * r, 0.2 * r), box(x, y, 0.2 * r, 0.95 * r));
    case FIGURE_RING:     return fabs(hypot(x, y) - 0.85 * r) - 0.15 * r;
    case FIGURE_BAR:      return box(x, y, 0.95 * r, 0.3 * r);
    case FIGURE_N:        break;
    }
    return r;
}

/* The pixels [from, to) that [lo, hi] touches, within 0 … n. NaN and values far outside give an empty
 * range. */
static void span(double lo, double hi, int64_t n, int64_t *from, int64_t *to)
{
    lo = floor(lo), hi = ceil(hi);
    *from = lo > 0 ? lo < (double)n ? (int64_t)lo : n : 0;
    *to   = hi < (double)n ? hi > 0 ? (int64_t)hi : 0 : n;
}

void draw_figure(Canvas *c, Figure f, double x, double y, double radius, double turn, Rgb colour)
{
    double cs = cos(turn), sn = sin(turn), reach = radius + 1;
    int64_t y0, y1, x0, x1;
    span(y - reach, y + reach, c->h, &y0, &y1);
    span(x - reach, x + reach, c->w, &x0, &x1);
    for (int64_t i = y0; i < y1; i++)
        for (int64_t j = x0; j < x1; j++) {
            double u = (double)j + 0.5 - x, v = (double)i + 0.5 - y;
            double share = 0.5 - distance(f, cs * u + sn * v, cs * v - sn * u, radius);
            if (share > 0) mix(c->rgb + 3 * (i * c->w + j), colour, fmin(share, 1));
        }
}

/* ---- text ---- */

/* A 5 x 7 bitmap font; a row is five bits, the leftmost highest. */
static const struct { char sign; uint8_t row[GLYPH_H]; } font[] = {
    { '0', { 0x0e, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0e } },
    { '1', { 0x04, 0x0c, 0x04, 0x04, 0x04, 0x04, 0x0e } },
    { '2', { 0x0e, 0x11, 0x01, 0x02, 0x04, 0x08, 0x1f } },
    { '3', { 0x1f, 0x02, 0x04, 0x02, 0x01, 0x11, 0x0e } },
    { '4', { 0x02, 0x06, 0x0a, 0x12, 0x1f, 0x02, 0x02 } },
    { '5', { 0x1f, 0x10, 0x1e, 0x01, 0x01, 0x11, 0x0e } },
    { '6', { 0x06, 0x08, 0x10, 0x1e, 0x11, 0x11, 0x0e } },
    { '7', { 0x1f, 0x01, 0x02, 0x04, 0x08, 0x08, 0x08 } },
    { '8', { 0x0e, 0x11, 0x11, 0x0e, 0x11, 0x11, 0x0e } },
    { '9', { 0x0e, 0x11, 0x11, 0x0f, 0x01, 0x02, 0x0c } },
    { 'A', { 0x0e, 0x11, 0x11, 0x11, 0x1f, 0x11, 0x11 } },
    { 'B', { 0x1e, 0x11, 0x11, 0x1e, 0x11, 0x11, 0x1e } },
    { 'C', { 0x0e, 0x11, 0x10, 0x10, 0x10, 0x11, 0x0e } },
    { 'D', { 0x1c, 0x12, 0x11, 0x11, 0x11, 0x12, 0x1c } },
    { 'E', { 0x1f, 0x10, 0x10, 0x1e, 0x10, 0x10, 0x1f } },
    { 'F', { 0x1f, 0x10, 0x10, 0x1e, 0x10, 0x10, 0x10 } },
    { 'G', { 0x0e, 0x11, 0x10, 0x17, 0x11, 0x11, 0x0f } },
    { 'H', { 0x11, 0x11, 0x11, 0x1f, 0x11, 0x11, 0x11 } },
    { 'I', { 0x0e, 0x04, 0x04, 0x04, 0x04, 0x04, 0x0e } },
    { 'J', { 0x07, 0x02, 0x02, 0x02, 0x02, 0x12, 0x0c } },
    { 'K', { 0x11, 0x12, 0x14, 0x18, 0x14, 0x12, 0x11 } },
    { 'L', { 0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x1f } },
    { 'M', { 0x11, 0x1b, 0x15, 0x15, 0x11, 0x11, 0x11 } },
    { 'N', { 0x11, 0x11, 0x19, 0x15, 0x13, 0x11, 0x11 } },
    { 'O', { 0x0e, 0x11, 0x11, 0x11, 0x11, 0x11, 0x0e } },
    { 'P', { 0x1e, 0x11, 0x11, 0x1e, 0x10, 0x10, 0x10 } },
    { 'Q', { 0x0e, 0x11, 0x11, 0x11, 0x15, 0x12, 0x0d } },
    { 'R', { 0x1e, 0x11, 0x11, 0x1e, 0x14, 0x12, 0x11 } },
    { 'S', { 0x0f, 0x10, 0x10, 0x0e, 0x01, 0x01, 0x1e } },
    { 'T', { 0x1f, 0x04, 0x04, 0x04, 0x04, 0x04, 0x04 } },
    { 'U', { 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x0e } },
    { 'V', { 0x11, 0x11, 0x11, 0x11, 0x11, 0x0a, 0x04 } },
    { 'W', { 0x11, 0x11, 0x11, 0x15, 0x15, 0x15, 0x0a } },
    { 'X', { 0x11, 0x11, 0x0a, 0x04, 0x0a, 0x11, 0x11 } },
    { 'Y', { 0x11, 0x11, 0x11, 0x0a, 0x04, 0x04, 0x04 } },
    { 'Z', { 0x1f, 0x01, 0x02, 0x04, 0x08, 0x10, 0x1f } },
};

static const uint8_t *glyph(char sign)
{
    for (size_t i = 0; i < sizeof font / sizeof *font; i++)
        if (font[i].sign == toupper((unsigned char)sign)) return font[i].row;
    return NULL;
}

/* The share of a pixel that the glyph covers; (px, py) is the corner of the pixel, in cells. */
static double covered(const uint8_t *row, double px, double py, double pixel)
{
    double sum = 0;
    for (int r = py > 0 ? (int)py : 0; r < GLYPH_H && r < py + pixel; r++)
        for (int k = px > 0 ? (int)px : 0; k < GLYPH_W && k < px + pixel; k++)
            if (row[r] >> (GLYPH_W - 1 - k) & 1)
                sum += (fmin(r + 1, py + pixel) - fmax(r, py)) * (fmin(k + 1, px + pixel) - fmax(k, px));
    return fmin(sum / (pixel * pixel), 1);
}

static void draw_glyph(Canvas *c, const uint8_t *row, double x, double y, double cell, Rgb colour)
{
    int64_t y0, y1, x0, x1;
    span(y, y + GLYPH_H * cell, c->h, &y0, &y1);
    span(x, x + GLYPH_W * cell, c->w, &x0, &x1);
    for (int64_t i = y0; i < y1; i++)
        for (int64_t j = x0; j < x1; j++) {
            double share = covered(row, ((double)j - x) / cell, ((double)i - y) / cell, 1 / cell);
            if (share > 0) mix(c->rgb + 3 * (i * c->w + j), colour, share);
        }
}

void draw_text(Canvas *c, const char *text, double x, double y, double cell, Rgb colour)
{
    REQUIRE(cell > 0, "draw_text: cells of %g pixels", cell);
    for (; *text; text++, x += GLYPH_STEP * cell) {
        const uint8_t *row = glyph(*text);
        if (row) draw_glyph(c, row, x, y, cell, colour);
    }
}

double draw_text_width(const char *text, double cell)
{
    size_t n = 0;
    while (text[n]) n++;
    return n ? ((double)n * GLYPH_STEP - 1) * cell : 0;
}

/* ---- backgrounds ---- */

void draw_shade(Canvas *c, Rgb to, double most, bool down)
{
    for (int64_t i = 0; i < c->h; i++)
        for (int64_t j = 0; j < c->w; j++) {
            double at = down ? ((double)i + 0.5) / (double)c->h : ((double)j + 0.5) / (double)c->w;
            mix(c->rgb + 3 * (i * c->w + j), to, at * most);
        }
}

void draw_grain(Canvas *c, int by, uint64_t seed, uint64_t stream)
{
    enum { BLOCK = 16 };                                     /* bytes of one draw */
    size_t n = (size_t)c->h * (size_t)c->w * 3;
    int wide = 2 * by + 1;
    REQUIRE(by >= 0 && by < 128, "draw_grain: by %d levels", by);
    for (size_t i = 0; i < n; i += BLOCK) {
        Rng4 r = rng_block(seed, stream, i / BLOCK);
        for (size_t k = 0; k < BLOCK && i + k < n; k++) {
            int v = c->rgb[i + k] + ((int)(r.v[k / 4] >> k % 4 * 8 & 255) * wide >> 8) - by;
            c->rgb[i + k] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
        }
    }
}
