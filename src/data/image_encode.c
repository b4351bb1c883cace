/* data/image_encode.c -- see image_write.h. Both libraries leave a failed call by longjmp; the setjmp stands
 * in a function of its own, whose caller owns all that must be cleaned up. */
#include "data/image_encode.h"
#include "base/folder.h"

#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jpeglib.h>
#include <png.h>

enum { JPEG_SIDE = 65500, PNG_EFFORT = 3 };       /* zlib's level: small drawn pictures gain little beyond */

static Status sides(const char *what, int64_t h, int64_t w)
{
    if (h >= 1 && w >= 1 && h <= JPEG_SIDE && w <= JPEG_SIDE) return OK;
    return fail(E_DATA, "%s of %lld x %lld: sides between 1 and %d can be written", what, (long long)h,
                (long long)w, JPEG_SIDE);
}

/* ---- PNG ---- */

typedef struct PngSink { Text *out; Status st; char trouble[256]; } PngSink;

static void png_bytes(png_structp p, png_bytep bytes, size_t n)
{
    PngSink *s = png_get_io_ptr(p);
    if ((s->st = text_push(s->out, (const char *)bytes, n))) png_error(p, "no memory");
}

static void png_no_flush(png_structp p) { (void)p; }

static void png_trouble(png_structp p, png_const_charp text)
{
    PngSink *s = png_get_error_ptr(p);
    snprintf(s->trouble, sizeof s->trouble, "%s", text);
    png_longjmp(p, 1);
}

static void png_remark(png_structp p, png_const_charp text) { (void)p, (void)text; }

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
    TRY(sides("PNG", h, w));
    png_structp p = png_create_write_struct(PNG_LIBPNG_VER_STRING, &sink, png_trouble, png_remark);
    png_infop   info = p ? png_create_info_struct(p) : NULL;
    bool        good = info && png_rows(p, info, &sink, rgb, h, w);
    png_destroy_write_struct(&p, &info);
    if (good) return OK;
    out->n = before;
    return sink.st ? sink.st : fail(E_OTHER, "PNG of %lld x %lld: %s", (long long)h, (long long)w,
                                    *sink.trouble ? sink.trouble : "libpng cannot start");
}

/* ---- JPEG ---- */

enum { JPEG_PIECE = 4096 };

typedef struct JpegSink {
    struct jpeg_compress_struct  c;
    struct jpeg_error_mgr        errors;
    struct jpeg_destination_mgr  to;
    jmp_buf                      out_of_it;
    Text                        *out;
    Status                       st;
    char                         trouble[JMSG_LENGTH_MAX];
    JOCTET                       piece[JPEG_PIECE];
} JpegSink;

static void jpeg_trouble(j_common_ptr c)
{
    JpegSink *s = c->client_data;
    c->err->format_message(c, s->trouble);
    longjmp(s->out_of_it, 1);
}

static void jpeg_remark(j_common_ptr c, int level) { (void)c, (void)level; }

static void jpeg_begin(j_compress_ptr c)
{
    JpegSink *s = c->client_data;
    s->to.next_output_byte = s->piece, s->to.free_in_buffer = JPEG_PIECE;
}

static void jpeg_push(JpegSink *s, size_t n)
{
    if ((s->st = text_push(s->out, (const char *)s->piece, n))) longjmp(s->out_of_it, 1);
}

static boolean jpeg_full(j_compress_ptr c)            /* called when nothing is free: the count is not kept */
{
    jpeg_push(c->client_data, JPEG_PIECE);
    return jpeg_begin(c), TRUE;
}

static void jpeg_end(j_compress_ptr c)
{
    JpegSink *s = c->client_data;
    jpeg_push(s, JPEG_PIECE - s->to.free_in_buffer);
}

static bool jpeg_rows(JpegSink *s, const uint8_t *rgb, int64_t h, int64_t w, int quality)
{
    if (setjmp(s->out_of_it)) return false;
    jpeg_create_compress(&s->c);
    s->c.dest = &s->to;
    s->c.image_width = (JDIMENSION)w, s->c.image_height = (JDIMENSION)h;
    s->c.input_components = 3, s->c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&s->c);
    jpeg_set_quality(&s->c, quality, TRUE);
    jpeg_start_compress(&s->c, TRUE);
    while (s->c.next_scanline < s->c.image_height) {
        /* Read only, whatever the type says. */
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
    TRY(sides("JPEG", h, w));
    JpegSink *s = calloc(1, sizeof *s);
    if (!s) return fail(E_OTHER, "JPEG of %lld x %lld: no memory", (long long)h, (long long)w);
    s->out = out;
    s->to = (struct jpeg_destination_mgr){ .init_destination = jpeg_begin, .empty_output_buffer = jpeg_full,
                                           .term_destination = jpeg_end };
    s->c.err = jpeg_std_error(&s->errors);
    s->errors.error_exit = jpeg_trouble, s->errors.emit_message = jpeg_remark;
    s->c.client_data = s;
    Status st = OK;
    if (!jpeg_rows(s, rgb, h, w, quality)) {
        out->n = before;
        st = s->st ? s->st : fail(E_OTHER, "JPEG of %lld x %lld: %s", (long long)h, (long long)w, s->trouble);
    }
    jpeg_destroy_compress(&s->c);
    free(s);
    return st;
}

/* ---- files ---- */

Status file_replace(const char *path, const void *bytes, size_t n)
{
    Path part;
    if (snprintf(part, sizeof part, "%s.part", path) >= (int)sizeof part)
        return fail(E_IO, "%s: the name is too long", path);
    FILE *f = fopen(part, "wb");
    if (!f) return fail(E_IO, "%s: %s", part, strerror(errno));
    bool good = fwrite(bytes, 1, n, f) == n;
    good = !fclose(f) && good;
    if (good && !rename(part, path)) return OK;
    Status st = fail(E_IO, "%s: %s", path, strerror(errno));
    unlink(part);
    return st;
}

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
