/* data/orient.c -- reads the orientation of a picture from EXIF or XMP and rotates the pixels.
 *
 * Cameras store the rows of the sensor and record the orientation in EXIF. Read are tag 0x0112 of the
 * first EXIF directory and, where that is absent, tiff:Orientation of XMP, as in the reference. A
 * directory that reaches outside its block is ignored. */
#define _GNU_SOURCE                                              /* memmem */
#include "data/image_private.h"

#include "base/num.h"

#include <stdlib.h>
#include <string.h>

enum { TAG_ORIENTATION = 0x0112, TYPE_SHORT = 3, TYPE_LONG = 4, ENTRY = 12, TILE = 32 };

static uint32_t number(const uint8_t *b, int bytes, bool little)
{
    uint32_t v = 0;
    for (int i = 0; i < bytes; i++) v = v << 8 | b[little ? bytes - 1 - i : i];
    return v;
}

static int checked(uint32_t v) { return v >= 1 && v <= 8 ? (int)v : ORIENT_UPRIGHT; }

int orient_from_exif(const uint8_t *b, size_t len)
{
    while (len >= 6 && !memcmp(b, "Exif\0", 6)) b += 6, len -= 6;       /* some programs write it twice */
    if (len < 8 || (memcmp(b, "II*\0", 4) && memcmp(b, "MM\0*", 4))) return ORIENT_ABSENT;
    bool   little = b[0] == 'I';
    size_t at = number(b + 4, 4, little);
    if (at > len - 2) return ORIENT_ABSENT;
    size_t entries = number(b + at, 2, little);
    for (at += 2; entries > 0 && len - at >= ENTRY; entries--, at += ENTRY) {
        const uint8_t *e = b + at;
        uint32_t       type = number(e + 2, 2, little);
        if (number(e, 2, little) != TAG_ORIENTATION || number(e + 4, 4, little) != 1) continue;
        if (type == TYPE_SHORT) return checked(number(e + 8, 2, little));
        if (type == TYPE_LONG)  return checked(number(e + 8, 4, little));
    }
    return ORIENT_ABSENT;
}

int orient_from_xmp(const uint8_t *xml, size_t len)
{
    static const char key[] = "tiff:Orientation";
    const uint8_t    *end = xml + len, *at = xml;
    while ((at = memmem(at, (size_t)(end - at), key, sizeof key - 1))) {
        at += sizeof key - 1;
        size_t skip = end - at > 2 && !memcmp(at, "=\"", 2) ? 2 : end - at > 1 && *at == '>' ? 1 : 0;
        if (skip && at[skip] >= '0' && at[skip] <= '9') return checked((uint32_t)(at[skip] - '0'));
    }
    return ORIENT_ABSENT;
}

int orient_choose(int exif, int xmp)
{
    return exif != ORIENT_ABSENT ? exif : xmp != ORIENT_ABSENT ? xmp : ORIENT_UPRIGHT;
}

/* dst[y, x] is the pixel at `from` + y * down + x * right, in bytes. Tiled, because one of the two
 * pictures is read or written across rows. */
static void gather(uint8_t *dst, int64_t h, int64_t w, const uint8_t *from, int64_t down, int64_t right)
{
    for (int64_t y0 = 0; y0 < h; y0 += TILE)
        for (int64_t x0 = 0; x0 < w; x0 += TILE) {
            int64_t y1 = min_i64(y0 + TILE, h), n = min_i64(TILE, w - x0);
            for (int64_t y = y0; y < y1; y++) {
                uint8_t       *to = dst + (y * w + x0) * 3;
                const uint8_t *at = from + y * down + x0 * right;
                for (int64_t x = 0; x < n; x++, to += 3, at += right) memcpy(to, at, 3);
            }
        }
}

/* Orientations 2 to 4 mirror or rotate by 180 degrees; 5 to 8 also exchange rows and columns. In the
 * source, the upper left pixel of the result is in the last column for 2, 3, 7, 8 and in the last row for
 * 3, 4, 6, 7. */
Status orient_apply(Image *im, int turn, const char *what)
{
    if (turn <= ORIENT_UPRIGHT) return OK;
    Image   out = { 0 };
    bool    swap = orient_swaps(turn), flip_x = turn == 2 || turn == 3 || turn == 7 || turn == 8;
    bool    flip_y = turn == 3 || turn == 4 || turn == 6 || turn == 7;
    int64_t row = im->w * 3, right = flip_x ? -3 : 3, down = flip_y ? -row : row;
    TRY(image_reserve(&out, swap ? im->w : im->h, swap ? im->h : im->w, what));
    const uint8_t *from = im->rgb + (flip_x ? row - 3 : 0) + (flip_y ? (im->h - 1) * row : 0);
    gather(out.rgb, out.h, out.w, from, swap ? right : down, swap ? down : right);
    image_close(im);
    *im = out;
    return OK;
}
