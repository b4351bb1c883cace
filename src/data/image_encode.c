/* data/image_encode.c -- see image_encode.h. Both libraries leave a failed call by longjmp; the setjmp is
 * in a function of its own, whose caller frees everything. */
#include "data/image_encode.h"
#include "base/folder.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <png.h>

enum { JPEG_SIDE = 65500, PNG_EFFORT = 3 };       /* zlib level: small drawn pictures gain little from more */

static Status check_sides(const char *what, int64_t h, int64_t w)
{
    if (h >= 1 && w >= 1 && h <= JPEG_SIDE && w <= JPEG_SIDE) return OK;
    return fail(E_DATA, "%s of %lld x %lld: sides between 1 and %d can be written", what, (long long)h,
                (long long)w, JPEG_SIDE);
}

/* ---- PNG ---- */

typedef struct PngSink { Text *out; Status st; char error[256]; } PngSink;

static void png_bytes(png_structp p, png_bytep bytes, size_t n)
{
    PngSink *s = png_get_io_ptr(p);
    if ((s->st = text_push(s->out, (const char *)bytes, n))) png_error(p, "no memory");
}

static void png_no_flush(png_structp p) { (void)p; }

static void png_on_error(png_structp p, png_const_charp text)
{
    PngSink *s = png_get_error_ptr(p);
    snprintf(s->error, sizeof s->error, "%s", text);
    png_longjmp(p, 1);
}

static void png_on_warning(png_structp p, png_const_charp text) { (void)p, (void)text; }

static bool png_rows(png_structp p, png_infop info, PngSink *sink, const uint8_t *rgb, int64_t h, int64_t w)
{
    if (setjmp(png_jmpbuf(p))) return false;
    png_set_write_fn(p, sink, png_bytes, png_no_flush);
    png_set_compression_level(p, PNG_EFFORT);
    png_set_IHDR(p, info, (png_uint_32)w, (png_uint_32)h, 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(p, info);
    for (int64_t i = 0; i < h; i++) png_write_row(p, rgb + 3 * w * i);
    png_write_end(p, NULL);
    return true;
}

Status image_encode_png(Text *out, const uint8_t *rgb, int64_t h, int64_t w)
{
    PngSink sink = { .out = out };
    size_t  before = out->n;
    TRY(check_sides("PNG", h, w));
    png_structp p = png_create_write_struct(PNG_LIBPNG_VER_STRING, &sink, png_on_error, png_on_warning);
    png_infop   info = p ? png_create_info_struct(p) : NULL;
    bool        good = info && png_rows(p, info, &sink, rgb, h, w);
    png_destroy_write_struct(&p, &info);
    if (good) return OK;
    out->n = before;
    return sink.st ? sink.st : fail(E_OTHER, "PNG of %lld x %lld: %s", (long long)h, (long long)w,
                                    *sink.error ? sink.error : "libpng cannot be initialised");
}

/* ---- JPEG ---- */

enum { JPEG_BUFFER = 4096 };

typedef struct JpegSink {
    struct jpeg_compress_struct  c;
    struct jpeg_error_mgr        errors;
    struct jpeg_destination_mgr  to;
    jmp_buf                      on_failure;
    Text                        *out;
    Status                       st;
    char                         error[JMSG_LENGTH_MAX];
    JOCTET                       buffer[JPEG_BUFFER];
} JpegSink;

static void jpeg_on_error(j_common_ptr c)
{
    JpegSink *s = c->client_data;
    c->err->format_message(c, s->error);
    longjmp(s->on_failure, 1);
}

static void jpeg_on_message(j_common_ptr c, int level) { (void)c, (void)level; }

static void jpeg_begin(j_compress_ptr c)
{
    JpegSink *s = c->client_data;
    s->to.next_output_byte = s->buffer, s->to.free_in_buffer = JPEG_BUFFER;
}

static void jpeg_push(JpegSink *s, size_t n)
{
    if ((s->st = text_push(s->out, (const char *)s->buffer, n))) longjmp(s->on_failure, 1);
}

static boolean jpeg_full(j_compress_ptr c)            /* libjpeg calls it when the buffer is full */
{
    jpeg_push(c->client_data, JPEG_BUFFER);
    return jpeg_begin(c), TRUE;
}

static void jpeg_end(j_compress_ptr c)
{
    JpegSink *s = c->client_data;
    jpeg_push(s, JPEG_BUFFER - s->to.free_in_buffer);
}

static bool jpeg_rows(JpegSink *s, const uint8_t *rgb, int64_t h, int64_t w, int quality)
{
    if (setjmp(s->on_failure)) return false;
    jpeg_create_compress(&s->c);
    s->c.dest = &s->to;
    s->c.image_width = (JDIMENSION)w, s->c.image_height = (JDIMENSION)h;
    s->c.input_components = 3, s->c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&s->c);
    jpeg_set_quality(&s->c, quality, TRUE);
    jpeg_start_compress(&s->c, TRUE);
    while (s->c.next_scanline < s->c.image_height) {
        /* libjpeg only reads it; its type has no const. */
        JSAMPROW row = (JSAMPROW)(rgb + 3 * (size_t)w * s->c.next_scanline);
        jpeg_write_scanlines(&s->c, &row, 1);
    }
    jpeg_finish_compress(&s->c);
    return true;
}

Status image_encode_jpeg(Text *out, const uint8_t *rgb, int64_t h, int64_t w, int quality)
{
    size_t before = out->n;
    REQUIRE(quality >= 1 && quality <= 100, "image_encode_jpeg: quality %d", quality);
    TRY(check_sides("JPEG", h, w));
    JpegSink *s = calloc(1, sizeof *s);
    if (!s) return fail(E_OTHER, "JPEG of %lld x %lld: no memory", (long long)h, (long long)w);
    s->out = out;
    s->to = (struct jpeg_destination_mgr){ .init_destination = jpeg_begin, .empty_output_buffer = jpeg_full,
                                           .term_destination = jpeg_end };
    s->c.err = jpeg_std_error(&s->errors);
    s->errors.error_exit = jpeg_on_error, s->errors.emit_message = jpeg_on_message;
    s->c.client_data = s;
    Status st = OK;
    if (!jpeg_rows(s, rgb, h, w, quality)) {
        out->n = before;
        st = s->st ? s->st : fail(E_OTHER, "JPEG of %lld x %lld: %s", (long long)h, (long long)w, s->error);
    }
    jpeg_destroy_compress(&s->c);
    free(s);
    return st;
}

/* ---- BMP ---- */

enum { BMP_HEAD = 54 };

static void put_le32(uint8_t *at, size_t v)
{
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(v >> 8 * i);
}

/* Rows from the top down, hence the negative height; blue first. */
static void bmp_fill(uint8_t *out, const uint8_t *rgb, int64_t h, int64_t w, size_t stride)
{
    out[0] = 'B', out[1] = 'M';
    put_le32(out + 2, BMP_HEAD + stride * (size_t)h), put_le32(out + 10, BMP_HEAD);
    put_le32(out + 14, BMP_HEAD - 14);
    put_le32(out + 18, (size_t)w), put_le32(out + 22, (size_t)-h);
    out[26] = 1, out[28] = 24;
    for (int64_t y = 0; y < h; y++)
        for (int64_t x = 0; x < w; x++) {
            uint8_t *to = out + BMP_HEAD + (size_t)y * stride + 3 * x;
            const uint8_t *from = rgb + 3 * (y * w + x);
            to[0] = from[2], to[1] = from[1], to[2] = from[0];
        }
}

Status image_encode_bmp(Text *out, const uint8_t *rgb, int64_t h, int64_t w)
{
    TRY(check_sides("BMP", h, w));
    size_t   stride = ((size_t)w * 3 + 3) / 4 * 4, n = BMP_HEAD + stride * (size_t)h;
    uint8_t *file = calloc(1, n);
    if (!file) return fail(E_FIT, "no memory for a picture of %zu bytes", n);
    bmp_fill(file, rgb, h, w, stride);
    Status st = text_push(out, (const char *)file, n);
    free(file);
    return st;
}

/* ---- files ---- */

Status image_encode_png_file(const char *path, const uint8_t *rgb, int64_t h, int64_t w)
{
    Text file = { 0 };
    Status st = image_encode_png(&file, rgb, h, w);
    if (!st) st = file_replace(path, file.v, file.n);
    text_close(&file);
    return st;
}

Status image_encode_jpeg_file(const char *path, const uint8_t *rgb, int64_t h, int64_t w, int quality)
{
    Text file = { 0 };
    Status st = image_encode_jpeg(&file, rgb, h, w, quality);
    if (!st) st = file_replace(path, file.v, file.n);
    text_close(&file);
    return st;
}
