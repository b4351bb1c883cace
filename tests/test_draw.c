/* tests/test_draw.c -- the rasteriser: areas, edges, letters, clipping; and PNG and JPEG encoding. */
#include "lab.h"
#include "demo/draw.h"
#include "data/image.h"
#include "data/image_encode.h"

static const Rgb black = { 0, 0, 0 }, white = { 255, 255, 255 }, red = { 220, 30, 40 };

/* White on black: the sum of one channel over 255 is the covered area in pixels. */
static double area(const Canvas *c)
{
    double sum = 0;
    for (int64_t i = 0; i < c->h * c->w; i++) sum += c->rgb[3 * i];
    return sum / 255;
}

static const uint8_t *pixel(const Canvas *c, int64_t y, int64_t x) { return c->rgb + 3 * (y * c->w + x); }

static void areas_of_figures(void)
{
    static const double want[FIGURE_N] = { 3.14159, 2.0, 1.29904, 0.95 * 0.8 * 2 - 0.16,
                                           3.14159 * (1 - 0.7 * 0.7), 0.95 * 1.2 };
    Canvas c = { 0 };
    for (int f = 0; f < FIGURE_N; f++)
        for (int turn = 0; turn < 3; turn++) {
            EXPECT_OK(canvas_open(&c, 90, 100, black));
            draw_figure(&c, (Figure)f, 50.3, 44.8, 30, turn * 0.4, white);
            EXPECT(fabs(area(&c) / 900 / want[f] - 1) < 0.02, "figure %d turned %d: %g, want %g", f, turn,
                   area(&c) / 900, want[f]);
        }
    canvas_close(&c);
    canvas_close(&c);
}

static void edges_are_shared(void)
{
    Canvas c = { 0 };
    EXPECT_OK(canvas_open(&c, 20, 20, black));
    draw_figure(&c, FIGURE_SQUARE, 10, 10.25, 4 / 0.7071, 0, white); /* 6 … 14 by 6.25 … 14.25 */
    EXPECT(pixel(&c, 10, 6)[0] == 255 && pixel(&c, 10, 5)[0] == 0, "whole pixels are whole");
    EXPECT(abs(pixel(&c, 6, 10)[0] - 191) <= 2 && abs(pixel(&c, 14, 10)[0] - 64) <= 2, "%d %d",
           pixel(&c, 6, 10)[0], pixel(&c, 14, 10)[0]);
    canvas_close(&c);
}

static void outside_is_cut_off(void)
{
    static const double at[][2] = { { -3, 5 }, { 5, -3 }, { 14, 5 }, { 5, 14 }, { -1e9, 0 }, { 1e18, 1e18 } };
    Canvas c = { 0 };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        EXPECT_OK(canvas_open(&c, 10, 10, black));
        draw_figure(&c, FIGURE_CIRCLE, at[i][0], at[i][1], 6, 0, white);
        draw_text(&c, "W8", at[i][0], at[i][1], 2.5, white);
        EXPECT(fabs(at[i][0]) > 100 ? area(&c) == 0 : area(&c) > 0 && area(&c) < 60, "figure %zu covers %g",
               i, area(&c));
    }
    EXPECT_FAIL(canvas_open(&c, 0, 10, black), E_DATA, "sides");
    EXPECT_FAIL(canvas_open(&c, 10, 1 << 20, black), E_DATA, "sides");
    canvas_close(&c);
}

/* With one cell a pixel the bitmap itself appears; other sizes keep its area. */
static void letters(void)
{
    static const char *const want[GLYPH_H] = { "#####", "...#.", "..#..", "...#.", "....#", "#...#",
                                               ".###." };
    Canvas c = { 0 };
    EXPECT_OK(canvas_open(&c, 9, 9, black));
    draw_text(&c, "3", 2, 1, 1, white);
    for (int y = 0; y < GLYPH_H; y++)
        for (int x = 0; x < GLYPH_W; x++)
            EXPECT(pixel(&c, y + 1, x + 2)[0] == (want[y][x] == '#' ? 255 : 0), "cell %d, %d", y, x);
    double cells = area(&c);
    EXPECT_OK(canvas_open(&c, 60, 60, black));
    draw_text(&c, "3", 3.3, 4.7, 2.7, white);
    EXPECT(fabs(area(&c) - cells * 2.7 * 2.7) < 0.5, "%g, want %g", area(&c), cells * 2.7 * 2.7);
    EXPECT_OK(canvas_open(&c, 60, 60, black));
    draw_text(&c, "3", 3.3, 4.7, 0.4, white);                                   /* several cells to a pixel */
    EXPECT(fabs(area(&c) - cells * 0.16) < 0.1, "%g, want %g", area(&c), cells * 0.16);
    EXPECT_OK(canvas_open(&c, 20, 60, black));
    draw_text(&c, " .?", 1, 1, 2, white);
    EXPECT(area(&c) == 0, "blanks");
    EXPECT(draw_text_width("cat", 2) == 34 && draw_text_width("", 2) == 0, "%g", draw_text_width("cat", 2));
    canvas_close(&c);
}

static void every_sign_is_another(void)
{
    static const char signs[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    Canvas a = { 0 }, b = { 0 };
    for (int i = 0; signs[i]; i++)
        for (int k = 0; k < i; k++) {
            char one[2] = { signs[i], 0 }, two[2] = { signs[k], 0 };
            EXPECT_OK(canvas_open(&a, 7, 5, black));
            EXPECT_OK(canvas_open(&b, 7, 5, black));
            draw_text(&a, one, 0, 0, 1, white), draw_text(&b, two, 0, 0, 1, white);
            EXPECT(area(&a) > 0 && memcmp(a.rgb, b.rgb, 7 * 5 * 3), "%s and %s", one, two);
        }
    draw_text(&a, "q", 0, 0, 1, white);
    canvas_close(&a), canvas_close(&b);
}

static void grounds(void)
{
    Canvas a = { 0 }, b = { 0 };
    EXPECT_OK(canvas_open(&a, 30, 40, black));
    draw_shade(&a, white, 1, 0);
    EXPECT(pixel(&a, 3, 0)[1] < 5 && pixel(&a, 3, 39)[1] > 250 && pixel(&a, 0, 20)[1] == pixel(&a, 29, 20)[1],
           "to the right");
    EXPECT_OK(canvas_open(&a, 31, 37, (Rgb){ 100, 100, 100 }));
    EXPECT_OK(canvas_open(&b, 31, 37, (Rgb){ 100, 100, 100 }));
    draw_grain(&a, 3, 1, 2), draw_grain(&b, 3, 1, 2);
    EXPECT(!memcmp(a.rgb, b.rgb, 31 * 37 * 3), "the same grain from the same numbers");
    int lo = 255, hi = 0;
    for (int i = 0; i < 31 * 37 * 3; i++)
        lo = a.rgb[i] < lo ? a.rgb[i] : lo, hi = a.rgb[i] > hi ? a.rgb[i] : hi;
    EXPECT(lo == 97 && hi == 103, "%d … %d", lo, hi);
    draw_grain(&b, 127, 1, 3);                                                      /* clamped, not wrapped */
    canvas_close(&a), canvas_close(&b);
}

static void scene(Canvas *c, int64_t h, int64_t w)
{
    EXPECT_OK(canvas_open(c, h, w, (Rgb){ 120, 130, 140 }));
    draw_figure(c, FIGURE_CIRCLE, (double)w / 2, (double)h / 2, (double)(h < w ? h : w) / 3, 0, red);
}

/* Encoded pictures decode to the same pixels: exactly for PNG, nearly for JPEG. */
static void files_read_back(void)
{
    static const int64_t size[][2] = { { 1, 1 }, { 7, 300 }, { 64, 48 }, { 201, 3 }, { 333, 257 } };
    Canvas c = { 0 };
    Image im = { 0 };
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        Text png = { 0 }, jpeg = { 0 };
        int64_t n = size[i][0] * size[i][1] * 3, off = 0;
        scene(&c, size[i][0], size[i][1]);
        EXPECT_OK(text_push(&jpeg, "before", 6));
        EXPECT_OK(image_encode_png(&png, c.rgb, c.h, c.w));
        EXPECT_OK(image_encode_jpeg(&jpeg, c.rgb, c.h, c.w, 95));
        EXPECT_OK(image_decode(&im, png.v, png.n, NULL, "png"));
        EXPECT(im.h == c.h && im.w == c.w && !memcmp(im.rgb, c.rgb, (size_t)n), "PNG %zu", i);
        EXPECT_OK(image_decode(&im, jpeg.v + 6, jpeg.n - 6, NULL, "jpeg"));
        for (int64_t k = 0; k < n; k++) off += abs(im.rgb[k] - c.rgb[k]);
        EXPECT(im.h == c.h && im.w == c.w && (double)off / (double)n < 6, "JPEG %zu is off by %g", i,
               (double)off / (double)n);
        text_close(&png), text_close(&jpeg);
    }
    image_close(&im);
    canvas_close(&c);
}

static void files_are_whole(void)
{
    char path[512], part[520], gone[512];
    Canvas c = { 0 };
    Text t = { 0 };
    scene(&c, 20, 30);
    snprintf(path, sizeof path, "%s/a.png", lab_tmp()), snprintf(part, sizeof part, "%s.part", path);
    snprintf(gone, sizeof gone, "%s/no/a.jpg", lab_tmp());
    EXPECT_OK(image_encode_png_file(path, c.rgb, c.h, c.w));
    EXPECT_OK(image_encode_jpeg_file(path, c.rgb, c.h, c.w, 80));                                /* over it */
    EXPECT(!access(path, R_OK) && access(part, F_OK), "a temporary file is left");
    EXPECT_FAIL(image_encode_jpeg_file(gone, c.rgb, c.h, c.w, 80), E_IO, gone);
    EXPECT_FAIL(image_encode_png(&t, c.rgb, 0, 5), E_DATA, "sides");
    EXPECT_FAIL(image_encode_jpeg(&t, c.rgb, 5, 70000, 80), E_DATA, "sides");
    EXPECT(t.n == 0, "nothing was appended");
    unlink(path), rmdir(lab_tmp());
    text_close(&t);
    canvas_close(&c);
}

int main(void)
{
    RUN(areas_of_figures);
    RUN(edges_are_shared);
    RUN(outside_is_cut_off);
    RUN(letters);
    RUN(every_sign_is_another);
    RUN(grounds);
    RUN(files_read_back);
    RUN(files_are_whole);
    return lab_report();
}
