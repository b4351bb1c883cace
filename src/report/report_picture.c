/* report/report_picture.c -- pictures inside the page. Small files go in as they are, large ones as a small
 * JPEG; a file that is no picture, or one picture too many, becomes a line that says so. */
#include "report/report_html.h"

#include "data/image.h"
#include "data/image_encode.h"
#include "data/media.h"
#include "data/media_ref.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    WHOLE_BYTES  = 64 << 10,          /* files up to this size are not touched */
    WHOLE_PIXELS = 4 << 20,
    SMALL_SIDE   = 480,               /* the longer side of a picture made small, twice what a card shows */
    QUALITY      = 82,
    PAGE_BYTES   = 12 << 20           /* of pictures, before base64 */
};

typedef struct Picture { char *bytes; size_t room, n; } Picture;

static Status from_uri(Picture *p, const char *uri)
{
    const char *comma = strchr(uri, ',');
    if (!comma || comma - uri < 7 || strncmp(comma - 7, ";base64", 7))
        return fail(E_DATA, "a data: URI that is not base64");
    size_t len = strlen(comma + 1);
    if (!(p->bytes = malloc(len / 4 * 3 + 3))) return fail(E_FIT, "no memory");
    int64_t n = base64_decode(p->bytes, comma + 1, len);
    p->n = n > 0 ? (size_t)n : 0;
    return n > 0 ? OK : fail(E_DATA, "a data: URI that is not base64");
}

static Status fetch(Picture *p, const char *folder, const char *path)
{
    char file[PATH_MAX];
    if (!strncmp(path, "data:", 5)) return from_uri(p, path);
    TRY(media_path(file, sizeof file, path, folder, ""));
    return media_read(file, &p->bytes, &p->room, &p->n);
}

/* By content; NULL: none that a browser and we both know. */
static const char *media_type(const Picture *p)
{
    if (p->n > 3 && !memcmp(p->bytes, "\xff\xd8\xff", 3)) return "image/jpeg";
    if (p->n > 8 && !memcmp(p->bytes, "\x89PNG\r\n\x1a\n", 8)) return "image/png";
    if (p->n > 12 && !memcmp(p->bytes, "RIFF", 4) && !memcmp(p->bytes + 8, "WEBP", 4)) return "image/webp";
    return NULL;
}

static bool small_enough(const Picture *p)
{
    static const ImageLimits lim = { .max_pixels = WHOLE_PIXELS, .max_bytes = WHOLE_BYTES };
    int64_t h, w;
    return !image_size(&h, &w, p->bytes, p->n, &lim, "picture");
}

static Status make_small(Text *out, const Picture *p)
{
    static const ImageLimits lim = { .max_pixels = 128 << 20, .max_bytes = 128 << 20 };
    Image im = { 0 }, small = { 0 };
    Status st = image_decode(&im, p->bytes, p->n, &lim, "picture");
    int64_t side = im.h > im.w ? im.h : im.w, h = im.h, w = im.w;
    if (side > SMALL_SIDE) h = im.h * SMALL_SIDE / side, w = im.w * SMALL_SIDE / side;
    if (!st) st = image_resize(&small, &im, h > 0 ? h : 1, w > 0 ? w : 1);
    if (!st) st = image_encode_jpeg(out, small.rgb, small.h, small.w, QUALITY);
    image_close(&im);
    image_close(&small);
    return st;
}

static void put_none(Html *h, const char *path, const char *why)
{
    html_put(h, "<span class='none'>");
    html_text(h, strncmp(path, "data:", 5) ? path : "picture");
    html_fmt(h, ": %s</span>", why);
}

static void put_image(Html *h, const char *type, const void *bytes, size_t n, const char *alt)
{
    html_put(h, "<img loading='lazy' decoding='async' alt='"), html_text(h, alt);
    html_fmt(h, "' src='data:%s;base64,", type);
    html_base64(h, bytes, n);
    html_put(h, "'>");
    h->picture_bytes += n;
    h->counts.pictures++;
}

void picture_put(Html *h, const char *folder, const char *path, const char *alt)
{
    Picture p = { 0 };
    Text small = { 0 };
    if (h->picture_bytes > PAGE_BYTES) {
        put_none(h, path, "left out: the page holds many already");
        return;
    }
    const char *type = fetch(&p, folder, path) ? NULL : media_type(&p);
    if (!p.n)                        put_none(h, path, "cannot be read");
    else if (!type)                  put_none(h, path, "not a picture");
    else if (small_enough(&p))       put_image(h, type, p.bytes, p.n, alt);
    else if (make_small(&small, &p)) put_none(h, path, "damaged, or too large");
    else                             put_image(h, "image/jpeg", small.v, small.n, alt);
    text_close(&small);
    free(p.bytes);
}
