/* data/image.c -- from the bytes of a file to upright 8-bit RGB.
 *
 * The table below is tried in order by content. Limits come first: the length of the file before it is
 * looked at, its pixels before any is decoded. Pixels are what the reference's loader makes of the same
 * file: alpha is dropped without compositing, ICC profiles and gamma are ignored. Moving pictures give their
 * first frame. */
#include "data/image_private.h"

#include <stdlib.h>
#include <string.h>

enum { SLACK = 16 };                 /* vector stores may run over the last pixel */

static const ImageFormat *const formats[] = { &image_jpeg, &image_png, &image_webp };

enum { FORMATS = sizeof formats / sizeof *formats };

/* Formats people bring that we refuse; a name is a better answer than "not a picture". */
static const struct { const char *name; size_t at; const char *mark; } refused[] = {
    { "GIF", 0, "GIF8" },    { "BMP", 0, "BM" },        { "TIFF", 0, "II*" },        { "TIFF", 0, "MM" },
    { "AVIF", 4, "ftypavif" }, { "HEIC", 4, "ftyphei" }, { "HEIC", 4, "ftypmif1" }, { "SVG", 0, "<svg" },
};

static Status unknown(const ImageFile *f)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        size_t n = strlen(refused[i].mark);
        if (f->len >= refused[i].at + n && !memcmp(f->bytes + refused[i].at, refused[i].mark, n))
            return fail(E_DATA, "%s: %s is not read; convert it to JPEG, PNG or WebP", f->what,
                        refused[i].name);
    }
    return fail(E_DATA, "%s: not a JPEG, PNG or WebP picture", f->what);
}

static Status file_open(ImageFile *f, const ImageFormat **format, const void *bytes, size_t len,
                        const ImageLimits *lim, const char *what)
{
    *f = (ImageFile){ bytes, len, lim ? *lim : (ImageLimits){ 0 }, what };
    if (f->lim.max_pixels <= 0) f->lim.max_pixels = IMAGE_MAX_PIXELS;
    if (!f->lim.max_bytes) f->lim.max_bytes = IMAGE_MAX_BYTES;
    if (len > f->lim.max_bytes)
        return fail(E_DATA, "%s: a file of %zu bytes; pictures may have %zu", what, len, f->lim.max_bytes);
    for (int i = 0; i < FORMATS; i++)
        if (formats[i]->is(bytes, len)) return *format = formats[i], OK;
    return unknown(f);
}

Status image_check_limits(const ImageHead *head, const ImageFile *f)
{
    if (head->h < 1 || head->w < 1) return fail(E_DATA, "%s: an empty picture", f->what);
    if (head->h > f->lim.max_pixels / head->w)
        return fail(E_DATA, "%s: %lld x %lld pixels; pictures may have %lld", f->what, (long long)head->w,
                    (long long)head->h, (long long)f->lim.max_pixels);
    return OK;
}

Status image_reserve(Image *im, int64_t h, int64_t w, const char *what)
{
    size_t need = (size_t)h * (size_t)w * 3 + SLACK;
    if (im->cap < need) {
        image_close(im);             /* the old pixels are not wanted: no copy */
        if (!(im->rgb = malloc(need)))
            return fail(E_FIT, "%s: no memory for %zu bytes of pixels", what, need);
        im->cap = need;
    }
    im->h = h, im->w = w;
    return OK;
}

Status image_reserve_checked(Image *im, const ImageHead *head, const ImageFile *f)
{
    TRY(image_check_limits(head, f));
    return image_reserve(im, head->h, head->w, f->what);
}

void image_close(Image *im)
{
    free(im->rgb);
    *im = (Image){ 0 };
}

Status image_size(int64_t *h, int64_t *w, const void *bytes, size_t len, const ImageLimits *lim,
                  const char *what)
{
    ImageFile          f;
    ImageHead          head = { 0 };
    const ImageFormat *format;
    TRY(file_open(&f, &format, bytes, len, lim, what));
    TRY(format->head(&head, &f));
    TRY(image_check_limits(&head, &f));
    *h = orient_swaps(head.turn) ? head.w : head.h;
    *w = orient_swaps(head.turn) ? head.h : head.w;
    return OK;
}

Status image_decode(Image *im, const void *bytes, size_t len, const ImageLimits *lim, const char *what)
{
    ImageFile          f;
    ImageHead          head = { 0 };
    const ImageFormat *format;
    im->h = im->w = 0;
    Status st = file_open(&f, &format, bytes, len, lim, what);
    if (!st) st = format->read(im, &head, &f);
    if (!st) st = orient_apply(im, head.turn, what);
    if (st) im->h = im->w = 0;       /* half a picture is none; the room is kept */
    return st;
}
