/* report/report_picture.c -- pictures inside the page. Small files are embedded as they are, large ones as a
 * small JPEG; for a file that is no picture, or beyond the limit of a page, a line says so. */
#include "report/report_parts.h"

#include "data/image.h"
#include "data/image_encode.h"
#include "data/media.h"
#include "data/media_ref.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WHOLE_BYTES  = 64 << 10,          /* files up to this size are embedded as they are */
    WHOLE_PIXELS = 4 << 20,
    SMALL_SIDE   = 480,               /* the longer side of a reduced picture, twice its size on the page */
    QUALITY      = 82,
    PAGE_BYTES   = 12 << 20           /* of pictures, before base64 */
};

typedef struct Picture { char *bytes; size_t capacity, n; } Picture;

static Status decode_uri(Picture *p, const char *uri)
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

static Status read_picture(Picture *p, const char *folder, const char *path)
{
    char file[PATH_MAX];
    if (!strncmp(path, "data:", 5)) return decode_uri(p, path);
    TRY(media_path(file, sizeof file, path, folder, ""));
    return media_read(file, &p->bytes, &p->capacity, &p->n);
}

static bool small_enough(const Picture *p)
{
    static const ImageLimits lim = { .max_pixels = WHOLE_PIXELS, .max_bytes = WHOLE_BYTES };
    int64_t h, w;
    return !image_size(&h, &w, p->bytes, p->n, &lim, "picture");
}

static Status reduce(Text *out, const Picture *p)
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

static Json *no_picture(const char *path, const char *why)
{
    char text[PATH_MAX + 80];
    snprintf(text, sizeof text, "%.*s: %s", PATH_MAX, strncmp(path, "data:", 5) ? path : "picture", why);
    return json_pack("{s:o}", "text", page_string(text));
}

static Json *embed(Report *r, const char *type, const void *bytes, size_t n, const char *alt)
{
    r->picture_bytes += n;
    r->counts.pictures++;
    return json_pack("{s:o, s:s}", "src", page_data_uri(type, bytes, n), "text", alt);
}

Json *picture_json(Report *r, const char *folder, const char *path, const char *alt)
{
    Picture p = { 0 };
    Text small = { 0 };
    Json *out;
    if (r->picture_bytes > PAGE_BYTES)
        return no_picture(path, "left out: the page has 12 MiB of pictures already");
    const char *type = read_picture(&p, folder, path) ? NULL : image_mime(p.bytes, p.n);
    if (!p.n)                    out = no_picture(path, "cannot be read");
    else if (!type)              out = no_picture(path, "not a picture");
    else if (small_enough(&p))   out = embed(r, type, p.bytes, p.n, alt);
    else if (reduce(&small, &p)) out = no_picture(path, "damaged, or too large");
    else                         out = embed(r, "image/jpeg", small.v, small.n, alt);
    text_close(&small);
    free(p.bytes);
    return out;
}
