/* demo/draw.h -- a small rasteriser: filled figures with antialiased edges and text in a bitmap font.
 *
 * A figure is drawn over the canvas; a pixel on its edge is blended by the share that the figure covers.
 * Coordinates are in pixels, y downwards, and the centre of the first pixel is (0.5, 0.5). Everything is
 * clipped to the canvas. */
#ifndef DEMO_DRAW_H
#define DEMO_DRAW_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Pixels (h, w, 3); zeroed: empty. */
typedef struct Canvas { int64_t h, w; uint8_t *rgb; size_t cap; } Canvas;
typedef struct Rgb { uint8_t r, g, b; } Rgb;

typedef enum { FIGURE_CIRCLE, FIGURE_SQUARE, FIGURE_TRIANGLE, FIGURE_CROSS, FIGURE_RING, FIGURE_BAR,
               FIGURE_N } Figure;

enum { GLYPH_W = 5, GLYPH_H = 7, GLYPH_STEP = 6 };       /* cells of a glyph; from one glyph to the next */

/* Makes the canvas h by w and fills it; its memory is reused. */
MUST Status canvas_open(Canvas *c, int64_t h, int64_t w, Rgb fill);
void        canvas_close(Canvas *c);                     /* twice is fine */

/* radius: of the circle that the figure fits in; turn: radians, clockwise. */
void draw_figure(Canvas *c, Figure f, double x, double y, double radius, double turn, Rgb colour);

/* Digits and letters (as capitals) in cells of `cell` pixels, with the upper left corner at (x, y). Other
 * characters are blank. */
void draw_text(Canvas *c, const char *text, double x, double y, double cell, Rgb colour);
double draw_text_width(const char *text, double cell);        /* height is GLYPH_H * cell */

/* Blends towards `to`: by 0 at the left or top edge, by `most` (0 … 1) at the opposite edge. */
void draw_shade(Canvas *c, Rgb to, double most, bool down);
/* Adds noise of at most `by` (0 … 127) levels, a pure function of (seed, stream). */
void draw_grain(Canvas *c, int by, uint64_t seed, uint64_t stream);

#endif
