/* data/image_webp.c -- WebP, lossy and lossless, through libwebp. Alpha is dropped. An animation gives its
 * first frame on a black canvas, as in the reference loader. */
#include "data/image_private.h"

#include <string.h>

#include <webp/decode.h>

enum { RIFF_HEAD = 12, CHUNK_HEAD = 8, FRAME_HEAD = 16, HAS_XMP = 4, HAS_EXIF = 8 };

typedef struct WebpChunk { const uint8_t *data; size_t len; } WebpChunk;

static bool is(const uint8_t *b, size_t len)
{
    return len >= RIFF_HEAD && !memcmp(b, "RIFF", 4) && !memcmp(b + 8, "WEBP", 4);
}

static uint32_t le24(const uint8_t *b) { return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16; }

/* The first chunk of this type; data is NULL when there is none or it is cut off. */
static WebpChunk chunk_find(const uint8_t *b, size_t len, const char *type)
{
    size_t at = 0;
    while (len - at >= CHUNK_HEAD) {
        size_t n = le24(b + at + 4) | (size_t)b[at + 7] << 24;
        if (n > len - at - CHUNK_HEAD) break;
        if (!memcmp(b + at, type, 4)) return (WebpChunk){ b + at + CHUNK_HEAD, n };
        n += n & 1;                                              /* padded to even */
        if (n > len - at - CHUNK_HEAD) break;
        at += CHUNK_HEAD + n;
    }
    return (WebpChunk){ 0 };
}

static WebpChunk file_chunk(const ImageFile *f, const char *type)
{
    return chunk_find(f->bytes + RIFF_HEAD, f->len - RIFF_HEAD, type);
}

static const char *reason(VP8StatusCode code)
{
    switch (code) {
    case VP8_STATUS_OUT_OF_MEMORY:       return "no memory";
    case VP8_STATUS_BITSTREAM_ERROR:     return "damaged data";
    case VP8_STATUS_UNSUPPORTED_FEATURE: return "an unknown feature";
    case VP8_STATUS_SUSPENDED:
    case VP8_STATUS_NOT_ENOUGH_DATA:     return "the file ends early";
    default:                             return "cannot be decoded";
    }
}

static Status bad(const ImageFile *f, const char *why) { return fail(E_DATA, "%s: WebP: %s", f->what, why); }

/* EXIF and XMP are read where the flags of the extended header announce them. */
static int turn_of(const ImageFile *f)
{
    WebpChunk wide = file_chunk(f, "VP8X"), exif = { 0 }, xmp = { 0 };
    if (wide.len && wide.data[0] & HAS_EXIF) exif = file_chunk(f, "EXIF");
    if (wide.len && wide.data[0] & HAS_XMP) xmp = file_chunk(f, "XMP ");
    return orient_choose(exif.data ? orient_from_exif(exif.data, exif.len) : ORIENT_ABSENT,
                         xmp.data ? orient_from_xmp(xmp.data, xmp.len) : ORIENT_ABSENT);
}

static Status features(WebPBitstreamFeatures *out, ImageHead *head, const ImageFile *f)
{
    VP8StatusCode code = WebPGetFeatures(f->bytes, f->len, out);
    if (code) return bad(f, reason(code));
    *head = (ImageHead){ out->height, out->width, turn_of(f) };
    return OK;
}

static Status head_of(ImageHead *head, const ImageFile *f)
{
    WebPBitstreamFeatures info;
    return features(&info, head, f);
}

/* Decodes bytes of exactly h x w pixels to rgb, rows im->w pixels apart. */
static Status decode_at(const Image *im, uint8_t *rgb, int64_t h, int64_t w, const uint8_t *b, size_t len,
                        const ImageFile *f)
{
    WebPDecoderConfig c;
    if (!WebPInitDecoderConfig(&c)) return bad(f, "another version of libwebp");
    c.output.colorspace = MODE_RGB;
    c.output.is_external_memory = 1;
    c.output.u.RGBA.rgba = rgb;
    c.output.u.RGBA.stride = (int)im->w * 3;
    c.output.u.RGBA.size = (size_t)((h - 1) * im->w + w) * 3;
    VP8StatusCode code = WebPGetFeatures(b, len, &c.input);
    if (!code && (c.input.height != h || c.input.width != w))
        return bad(f, "the sizes in its headers do not agree");
    if (!code) code = WebPDecode(b, len, &c);
    WebPFreeDecBuffer(&c.output);
    return code ? bad(f, reason(code)) : OK;
}

/* A frame is its offset in units of two pixels, its size, its duration, then chunks like those of a file. */
static Status first_frame(const Image *im, const ImageFile *f)
{
    WebpChunk frame = file_chunk(f, "ANMF");
    if (frame.len < FRAME_HEAD) return bad(f, "an animation without frames");
    const uint8_t *b = frame.data;
    int64_t x = 2 * (int64_t)le24(b), y = 2 * (int64_t)le24(b + 3), w = le24(b + 6) + 1, h = le24(b + 9) + 1;
    if (x + w > im->w || y + h > im->h) return bad(f, "a frame outside of its canvas");
    WebpChunk data = chunk_find(b + FRAME_HEAD, frame.len - FRAME_HEAD, "VP8 ");
    if (!data.data) data = chunk_find(b + FRAME_HEAD, frame.len - FRAME_HEAD, "VP8L");
    if (!data.data) return bad(f, "a frame without pixels");
    memset(im->rgb, 0, (size_t)im->h * (size_t)im->w * 3);
    uint8_t *at = im->rgb + (y * im->w + x) * 3;
    return decode_at(im, at, h, w, data.data - CHUNK_HEAD, data.len + CHUNK_HEAD, f);
}

static Status read_image(Image *im, ImageHead *head, const ImageFile *f)
{
    WebPBitstreamFeatures info;
    TRY(features(&info, head, f));
    TRY(image_reserve_checked(im, head, f));
    if (info.has_animation) return first_frame(im, f);
    return decode_at(im, im->rgb, im->h, im->w, f->bytes, f->len, f);
}

const ImageFormat image_webp = { "WebP", "image/webp", ".webp", is, head_of, read_image };
