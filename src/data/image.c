/* data/image.c -- from the bytes of a file to upright 8-bit RGB, and the table of picture formats.
 *
 * Limits are checked first: the length of the file before it is parsed, its pixels before they are
 * decoded. Pixels equal those of the reference loader: alpha is dropped without compositing, ICC profiles
 * and gamma are ignored. An animation gives its first frame. */
#include "data/image_private.h"

#include "base/str.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SLACK = 16 };                 /* vector stores may write past the last pixel */

/* Every picture format there is; row x is `const ImageFormat image_x`. Suffixes, MIME types and messages
 * derive from it. */
#define FORMAT_TABLE(ROW) ROW(jpeg) ROW(png) ROW(webp) ROW(gif) ROW(bmp) ROW(tiff)

#define ROW(x) extern const ImageFormat image_##x;
FORMAT_TABLE(ROW)
#undef ROW
#define ROW(x) &image_##x,
static const ImageFormat *const formats[] = { FORMAT_TABLE(ROW) };
#undef ROW

enum { FORMATS = sizeof formats / sizeof *formats };

/* Common formats that are not read, so that the error can name them. */
static const struct { const char *name; size_t at; const char *mark;
} refused[] = {
    { "AVIF", 4, "ftypavif" },
    { "HEIC", 4, "ftyphei" }, { "HEIC", 4, "ftypmif1" }, { "SVG", 0, "<svg" },
};

/* "JPEG, PNG or WebP" */
static const char *format_names(char out[64])
{
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < FORMATS && n < 64; i++)
        n += (size_t)snprintf(out + n, 64 - n, "%s%s", !i ? "" : i + 1 < FORMATS ? ", " : " or ",
                              formats[i]->name);
    return out;
}

static const ImageFormat *format_of(const void *bytes, size_t len)
{
    for (int i = 0; i < FORMATS; i++)
        if (formats[i]->is(bytes, len)) return formats[i];
    return NULL;
}

const char *image_mime(const void *bytes, size_t len)
{
    const ImageFormat *format = format_of(bytes, len);
    return format ? format->mime : NULL;
}

bool image_has_suffix(const char *name, size_t len)
{
    for (int i = 0; i < FORMATS; i++) {
        size_t      n;
        const char *rest = formats[i]->suffixes;
        for (const char *s; (s = str_item(&rest, ',', &n));)
            if (len > n && !strncasecmp(name + len - n, s, n)) return true;
    }
    return false;
}

static Status fail_unknown(const ImageFile *f)
{
    char names[64];
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        size_t n = strlen(refused[i].mark);
        if (f->len >= refused[i].at + n && !memcmp(f->bytes + refused[i].at, refused[i].mark, n))
            return fail(E_DATA, "%s: %s is not read; convert it to %s", f->what, refused[i].name,
                        format_names(names));
    }
    return fail(E_DATA, "%s: not a %s picture", f->what, format_names(names));
}

static Status file_open(ImageFile *f, const ImageFormat **format, const void *bytes, size_t len,
                        const ImageLimits *lim, const char *what)
{
    *format = NULL;
    *f = (ImageFile){ bytes, len, lim ? *lim : (ImageLimits){ 0 }, what };
    if (f->lim.max_pixels <= 0) f->lim.max_pixels = IMAGE_MAX_PIXELS;
    if (!f->lim.max_bytes) f->lim.max_bytes = IMAGE_MAX_BYTES;
    if (len > f->lim.max_bytes)
        return fail(E_DATA, "%s: the file has %zu bytes; the limit is %zu", what, len, f->lim.max_bytes);
    *format = format_of(bytes, len);
    return *format ? OK : fail_unknown(f);
}

Status image_check_limits(const ImageHead *head, const ImageFile *f)
{
    if (head->h < 1 || head->w < 1) return fail(E_DATA, "%s: the picture has no pixels", f->what);
    if (head->h > f->lim.max_pixels / head->w)
        return fail(E_DATA, "%s: %lld x %lld pixels; the limit is %lld", f->what, (long long)head->w,
                    (long long)head->h, (long long)f->lim.max_pixels);
    return OK;
}

Status image_reserve(Image *im, int64_t h, int64_t w, const char *what)
{
    size_t need = (size_t)h * (size_t)w * 3 + SLACK;
    if (im->cap < need) {
        image_close(im);             /* not realloc: the old pixels need no copy */
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
    ImageFile          f = { 0 };
    ImageHead          head = { 0 };
    const ImageFormat *format = NULL;
    TRY(file_open(&f, &format, bytes, len, lim, what));
    TRY(format->head(&head, &f));
    TRY(image_check_limits(&head, &f));
    *h = orient_swaps(head.turn) ? head.w : head.h;
    *w = orient_swaps(head.turn) ? head.h : head.w;
    return OK;
}

Status image_decode(Image *im, const void *bytes, size_t len, const ImageLimits *lim, const char *what)
{
    ImageFile          f = { 0 };
    ImageHead          head = { 0 };
    const ImageFormat *format = NULL;
    im->h = im->w = 0;
    Status st = file_open(&f, &format, bytes, len, lim, what);
    if (!st) st = format->read(im, &head, &f);
    if (!st) st = orient_apply(im, head.turn, what);
    if (st) im->h = im->w = 0;       /* no partial picture; the buffer stays */
    return st;
}
