/* tests/pictures.h -- picture files of every format that treb reads, made in memory by the encoders of the
 * libraries. */
#ifndef TESTS_PICTURES_H
#define TESTS_PICTURES_H

#include "base/status.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <png.h>
#include <webp/decode.h>
#include <webp/encode.h>

typedef struct Bytes { uint8_t *v; size_t n; } Bytes;                 /* the caller frees v */

static inline void bytes_add(Bytes *b, const void *v, size_t n)
{
    b->v = realloc(b->v, b->n + n + 1);
    memcpy(b->v + b->n, v, n);
    b->n += n;
}

/* Inserts n bytes at `at`. */
static inline void bytes_insert(Bytes *b, size_t at, const void *v, size_t n)
{
    b->v = realloc(b->v, b->n + n);
    memmove(b->v + at + n, b->v + at, b->n - at);
    memcpy(b->v + at, v, n);
    b->n += n;
}

/* A smooth picture of `channels` samples a pixel, so that lossy formats change it little. */
static inline uint8_t *picture_draw(int h, int w, int channels)
{
    uint8_t *p = malloc((size_t)(h * w * channels));
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            for (int c = 0; c < channels; c++)
                p[(y * w + x) * channels + c] =
                    (uint8_t)(128 + 60 * sin(x / 9.0 + c) + 60 * cos(y / (7.0 + c)));
    return p;
}

/* stored: the colour space in the file; in: that of the given samples. */
enum { JPEG_PLAIN = 0, JPEG_PROGRESSIVE = 1, JPEG_FULL_CHROMA = 2, JPEG_BY_COMPONENT = 4 };
typedef struct JpegKind { J_COLOR_SPACE in, stored; int channels, how; } JpegKind;

static inline Bytes picture_jpeg(const uint8_t *samples, int h, int w, JpegKind k)
{
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr       err;
    static const jpeg_scan_info one_each[3] = { { 1, { 0 }, 0, 63, 0, 0 },
                                                { 1, { 1 }, 0, 63, 0, 0 },
                                                { 1, { 2 }, 0, 63, 0, 0 } };
    unsigned char *out = NULL;
    unsigned long  len = 0;
    c.err = jpeg_std_error(&err);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &out, &len);
    c.image_height = (JDIMENSION)h, c.image_width = (JDIMENSION)w;
    c.input_components = k.channels, c.in_color_space = k.in;
    jpeg_set_defaults(&c);
    jpeg_set_colorspace(&c, k.stored);
    jpeg_set_quality(&c, 95, TRUE);
    if (k.how & JPEG_FULL_CHROMA) c.comp_info[0].h_samp_factor = c.comp_info[0].v_samp_factor = 1;
    if (k.how & JPEG_BY_COMPONENT) c.scan_info = one_each, c.num_scans = 3;
    if (k.how & JPEG_PROGRESSIVE) jpeg_simple_progression(&c);
    jpeg_start_compress(&c, TRUE);
    for (int y = 0; y < h; y++) {
        JSAMPROW row = (JSAMPROW)samples + (size_t)y * (size_t)w * (size_t)k.channels;
        jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    Bytes b = { 0 };
    bytes_add(&b, out, len);
    free(out);
    return b;
}

static inline void picture_png_write(png_structp p, png_bytep v, size_t n)
{
    bytes_add(png_get_io_ptr(p), v, n);
}
static inline void picture_png_flush(png_structp p) {}

/* rows: as PNG stores them, `stride` bytes each. trns: transparency of some kind, where the type allows
 * it. */
typedef struct PngKind { int type, depth; bool interlaced, trns; } PngKind;

static inline int png_channels(int type)
{
    return type == PNG_COLOR_TYPE_RGB          ? 3
           : type == PNG_COLOR_TYPE_RGB_ALPHA  ? 4
           : type == PNG_COLOR_TYPE_GRAY_ALPHA ? 2
                                               : 1;
}
static inline int png_stride(int w, PngKind k) { return (w * png_channels(k.type) * k.depth + 7) / 8; }
static inline png_color png_palette_at(int i)
{
    return (png_color){ (uint8_t)(i * 7 + 3), (uint8_t)(255 - i), (uint8_t)(i * i) };
}

static inline Bytes picture_png(const uint8_t *rows, int h, int w, PngKind k)
{
    Bytes       b = { 0 };
    png_structp p = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop   info = png_create_info_struct(p);
    png_color   palette[256];
    png_byte    alpha[256];
    png_color_16 clear = { .gray = 1, .red = 5, .green = 6, .blue = 7 };
    png_set_write_fn(p, &b, picture_png_write, picture_png_flush);
    png_set_IHDR(p, info, (png_uint_32)w, (png_uint_32)h, k.depth, k.type,
                 k.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    for (int i = 0; i < 256; i++) palette[i] = png_palette_at(i), alpha[i] = (png_byte)(i * 3);
    bool table = k.type == PNG_COLOR_TYPE_PALETTE;
    if (table) png_set_PLTE(p, info, palette, 1 << k.depth);
    if (k.trns) png_set_tRNS(p, info, alpha, table ? 1 << k.depth : 0, &clear);
    png_set_gAMA(p, info, 1.0);
    png_write_info(p, info);
    for (int pass = png_set_interlace_handling(p); pass > 0; pass--)
        for (int y = 0; y < h; y++) png_write_row(p, rows + (size_t)y * (size_t)png_stride(w, k));
    png_write_end(p, info);
    png_destroy_write_struct(&p, &info);
    return b;
}

static inline Bytes picture_webp(const uint8_t *samples, int h, int w, int channels, bool lossless)
{
    uint8_t *out = NULL;
    size_t   n;
    int      stride = w * channels;
    if (channels == 4)
        n = lossless ? WebPEncodeLosslessRGBA(samples, w, h, stride, &out)
                     : WebPEncodeRGBA(samples, w, h, stride, 90, &out);
    else
        n = lossless ? WebPEncodeLosslessRGB(samples, w, h, stride, &out)
                     : WebPEncodeRGB(samples, w, h, stride, 90, &out);
    Bytes b = { 0 };
    bytes_add(&b, out, n);
    WebPFree(out);
    return b;
}

static inline void le_put(uint8_t *to, uint32_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) to[i] = (uint8_t)(v >> (8 * i));
}

/* An animation of one frame at (x, y), which are even, on a larger canvas; the frame is a bare WebP file. */
static inline Bytes picture_webp_animated(const uint8_t *rgb, int h, int w, int x, int y, int canvas_h,
                                          int canvas_w)
{
    Bytes    still = picture_webp(rgb, h, w, 3, true), b = { 0 };
    uint8_t  head[12 + 18 + 14 + 8 + 16] = { 0 };
    uint32_t data = (uint32_t)still.n - 12;                          /* its chunks, after the RIFF header */
    memcpy(head, "RIFF", 4), le_put(head + 4, (uint32_t)sizeof head - 8 + data, 4),
        memcpy(head + 8, "WEBP", 4);
    memcpy(head + 12, "VP8X", 4), le_put(head + 16, 10, 4), head[20] = 2;
    le_put(head + 24, (uint32_t)canvas_w - 1, 3), le_put(head + 27, (uint32_t)canvas_h - 1, 3);
    memcpy(head + 30, "ANIM", 4), le_put(head + 34, 6, 4);
    memcpy(head + 44, "ANMF", 4), le_put(head + 48, 16 + data, 4);
    le_put(head + 52, (uint32_t)x / 2, 3), le_put(head + 55, (uint32_t)y / 2, 3);
    le_put(head + 58, (uint32_t)w - 1, 3), le_put(head + 61, (uint32_t)h - 1, 3);
    bytes_add(&b, head, sizeof head);
    bytes_add(&b, still.v + 12, data);
    free(still.v);
    return b;
}

/* A TIFF block whose only entry is the orientation. */
static inline size_t exif_block(uint8_t *to, int orientation, bool little)
{
    static const uint8_t big_block[] = { 'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0,
                                         3,   0,   0, 0,  1, 0, 0, 0, 0, 0, 0, 0,    0 };
    static const uint8_t little_block[] = { 'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3,
                                            0,   1,   0,  0, 0, 0, 0, 0, 0, 0, 0,    0, 0 };
    memcpy(to, little ? little_block : big_block, sizeof big_block);
    to[little ? 18 : 19] = (uint8_t)orientation;
    return sizeof big_block;
}

/* The same files with an EXIF orientation, stored as each format does. */
static inline void jpeg_orient(Bytes *b, int orientation, bool little)
{
    uint8_t app[4 + 6 + 32] = { 0xFF, 0xE1, 0, 0, 'E', 'x', 'i', 'f' };
    size_t  n = exif_block(app + 10, orientation, little) + 10;
    app[3] = (uint8_t)(n - 2);
    bytes_insert(b, 2, app, n);
}
static inline void jpeg_orient_xmp(Bytes *b, int orientation)
{
    uint8_t app[128] = { 0xFF, 0xE1 };
    int n = snprintf((char *)app + 4, sizeof app - 4,
                     "http://ns.adobe.com/xap/1.0/%c<a tiff:Orientation=\"%d\"/>", 0, orientation);
    app[3] = (uint8_t)(n + 2);
    bytes_insert(b, 2, app, (size_t)n + 4);
}
/* Before the end chunk; the checksum may be zero, since the chunk is not decoded. */
static inline void png_orient(Bytes *b, int orientation, bool little)
{
    uint8_t chunk[48] = { 0, 0, 0, 0, 'e', 'X', 'I', 'f' };
    size_t  n = exif_block(chunk + 8, orientation, little);
    chunk[3] = (uint8_t)n;
    bytes_insert(b, b->n - 12, chunk, n + 12);
}
/* The extended header at the start announces the EXIF chunk at the end. */
static inline void webp_orient(Bytes *b, int orientation, bool little)
{
    uint8_t chunk[40] = { 'E', 'X', 'I', 'F' }, wide[18] = { 'V', 'P', '8', 'X', 10, 0, 0, 0, 8 };
    size_t  n = exif_block(chunk + 8, orientation, little);
    int     h = 0, w = 0;
    if (!WebPGetInfo(b->v, b->n, &w, &h)) return;
    le_put(wide + 12, (uint32_t)w - 1, 3), le_put(wide + 15, (uint32_t)h - 1, 3);
    le_put(chunk + 4, (uint32_t)n, 4);
    bytes_insert(b, 12, wide, sizeof wide);
    bytes_add(b, chunk, n + 8);
    le_put(b->v + 4, (uint32_t)b->n - 8, 4);
}

#endif
