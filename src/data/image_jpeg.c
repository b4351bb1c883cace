/* data/image_jpeg.c -- JPEG through libjpeg-turbo with its defaults: accurate DCT, smooth chroma. Faster
 * settings and scaling inside the DCT change the pixels and are not used.
 *
 * libjpeg repairs damaged files and warns. Training data should not contain repaired pictures, so every
 * warning is an error, except warnings that do not concern pixels (extra bytes between markers, versions
 * of metadata). A file that ends early is an error.
 *
 * A progressive file may repeat scans without end; it is refused after MOST_SCANS. */
#include "data/image_private.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

enum { MOST_SCANS = 100, ROWS = 8 };

typedef struct Jpeg {
    struct jpeg_decompress_struct d;
    struct jpeg_error_mgr         err;
    struct jpeg_progress_mgr      progress;
    jmp_buf                       out;
    char                          text[JMSG_LENGTH_MAX];
} Jpeg;

static void on_error(j_common_ptr c)
{
    Jpeg *j = c->client_data;
    c->err->format_message(c, j->text);
    longjmp(j->out, 1);
}

static void on_message(j_common_ptr c, int level)
{
    int code = c->err->msg_code;
    if (level >= 0 || code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR ||
        code == JWRN_BOGUS_ICC) return;
    on_error(c);
}

static void on_progress(j_common_ptr c)
{
    Jpeg *j = c->client_data;
    if (j->d.input_scan_number <= MOST_SCANS) return;
    snprintf(j->text, sizeof j->text, "more than %d scans", MOST_SCANS);
    longjmp(j->out, 1);
}

static bool is(const uint8_t *b, size_t len)
{
    return len >= 3 && b[0] == 0xFF && b[1] == 0xD8 && b[2] == 0xFF;
}

/* The first EXIF block and the last XMP block are used, as in the reference. */
static int turn_of(const Jpeg *j)
{
    static const char xmp_mark[] = "http://ns.adobe.com/xap/1.0/";      /* with its NUL */
    int exif = ORIENT_ABSENT, xmp = ORIENT_ABSENT;
    bool seen = false;
    for (jpeg_saved_marker_ptr m = j->d.marker_list; m; m = m->next) {
        if (m->data_length >= 6 && !memcmp(m->data, "Exif\0", 6)) {
            if (!seen) exif = orient_from_exif(m->data, m->data_length);
            seen = true;
        } else if (m->data_length >= sizeof xmp_mark && !memcmp(m->data, xmp_mark, sizeof xmp_mark)) {
            xmp = orient_from_xmp(m->data + sizeof xmp_mark, m->data_length - sizeof xmp_mark);
        }
    }
    return orient_choose(exif, xmp);
}

/* *j was zeroed, so it can be destroyed wherever an error jumps to j->out. */
static void open_and_read_head(Jpeg *j, ImageHead *head, const ImageFile *f)
{
    jpeg_create_decompress(&j->d);
    j->progress.progress_monitor = on_progress;
    j->d.progress = &j->progress;
    jpeg_save_markers(&j->d, JPEG_APP0 + 1, 0xFFFF);
    jpeg_mem_src(&j->d, f->bytes, f->len);
    jpeg_read_header(&j->d, TRUE);
    *head = (ImageHead){ j->d.image_height, j->d.image_width, turn_of(j) };
}

static void prepare(Jpeg *j)
{
    memset(j, 0, sizeof *j);
    j->d.err = jpeg_std_error(&j->err);
    j->d.client_data = j;
    j->err.error_exit = on_error;
    j->err.emit_message = on_message;
}

static Status bad(const Jpeg *j, const ImageFile *f)
{
    return fail(E_DATA, "%s: JPEG: %s", f->what, j->text);
}

static Status head_of(ImageHead *head, const ImageFile *f)
{
    Jpeg j;
    prepare(&j);
    if (setjmp(j.out)) {
        jpeg_destroy_decompress(&j.d);
        return bad(&j, f);
    }
    open_and_read_head(&j, head, f);
    jpeg_destroy_decompress(&j.d);
    return OK;
}

static void read_rgb(Jpeg *j, const Image *im)
{
    JSAMPROW rows[ROWS];
    while (j->d.output_scanline < j->d.output_height) {
        for (JDIMENSION i = 0; i < ROWS; i++) {
            int64_t y = j->d.output_scanline + i;
            rows[i] = im->rgb + (y < im->h ? y : im->h - 1) * im->w * 3;
        }
        jpeg_read_scanlines(&j->d, rows, ROWS);
    }
}

/* Rounded a * b / 255, as the reference rounds it. */
static inline int muldiv(int a, int b)
{
    int t = a * b + 128;
    return (t + (t >> 8)) >> 8;
}

/* CMYK JPEG files store inverted ink, as Adobe does: 255 - sample is the ink, so a sample of K is already the
 * 255 - K of the formula. */
static void read_cmyk(Jpeg *j, const Image *im)
{
    JSAMPARRAY row = j->d.mem->alloc_sarray((j_common_ptr)&j->d, JPOOL_IMAGE, j->d.output_width * 4, 1);
    while (j->d.output_scanline < j->d.output_height) {
        uint8_t *rgb = im->rgb + (int64_t)j->d.output_scanline * im->w * 3;
        jpeg_read_scanlines(&j->d, row, 1);
        for (int64_t x = 0; x < im->w; x++)
            for (int c = 0; c < 3; c++) {
                int light = row[0][x * 4 + 3], ink = 255 - row[0][x * 4 + c];
                rgb[x * 3 + c] = (uint8_t)(light - muldiv(ink, light));
            }
    }
}

static bool four_colours(const Jpeg *j)
{
    return j->d.jpeg_color_space == JCS_CMYK || j->d.jpeg_color_space == JCS_YCCK;
}

static void read_pixels(Jpeg *j, const Image *im)
{
    j->d.out_color_space = four_colours(j) ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&j->d);
    if (four_colours(j)) read_cmyk(j, im);
    else                 read_rgb(j, im);
    jpeg_finish_decompress(&j->d);       /* reads up to the end marker, so that a missing end is an error */
}

static Status read_image(Image *im, ImageHead *head, const ImageFile *f)
{
    Jpeg j;
    prepare(&j);
    if (setjmp(j.out)) {
        jpeg_destroy_decompress(&j.d);
        return bad(&j, f);
    }
    open_and_read_head(&j, head, f);
    Status st = image_reserve_checked(im, head, f);
    if (!st) read_pixels(&j, im);
    jpeg_destroy_decompress(&j.d);
    return st;
}

const ImageFormat image_jpeg = { "JPEG", "image/jpeg", ".jpg,.jpeg", is, head_of, read_image };
