/* data/image_tiff.c -- the first picture of a TIFF file: grey, palette, RGB and CMYK of 1 to 16 bits in
 * strips or tiles, uncompressed, LZW, deflate or PackBits. JPEG and fax compression, YCbCr, floats and
 * BigTIFF are refused by name. One strip or tile is decompressed at a time. */
#include "data/image_private.h"
#include "data/tiff_codec.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ENTRIES = 4096, MAX_SAMPLES = 8 };
enum { WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE, CMYK = 5 };

/* A field of the directory: n values of 1, 2 or 4 bytes at `at`. */
typedef struct Field { size_t at; uint32_t n; int bytes; } Field;

typedef struct Tiff {
    const ImageFile *f;
    bool     big;                        /* big-endian */
    uint32_t w, h, bits, compression, photometric, samples, planar, predictor, turn, extra;
    uint32_t chunk_w, chunk_h;           /* of a strip or tile */
    Field    offsets, lengths, colours;
    bool     tiled;
    uint8_t *chunk;                      /* decompressed */
    size_t   chunk_row, chunk_bytes;     /* bytes of its rows; of all */
} Tiff;

static Status bad(const ImageFile *f, const char *what)
{
    return fail(E_DATA, "%s: TIFF: %s", f->what, what);
}

static bool is(const uint8_t *b, size_t len)
{
    return len >= 8 && (!memcmp(b, "II*\0", 4) || !memcmp(b, "MM\0*", 4) || !memcmp(b, "II+\0", 4) ||
                        !memcmp(b, "MM\0+", 4));
}

static uint32_t number(const Tiff *t, size_t at, int bytes)
{
    uint32_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint32_t)t->f->bytes[at + (size_t)i] << 8 * (t->big ? bytes - 1 - i : i);
    return v;
}

static uint32_t field_at(const Tiff *t, const Field *x, uint32_t i)
{
    return number(t, x->at + (size_t)i * (size_t)x->bytes, x->bytes);
}

/* ---- the directory ---- */

/* Values of at most four bytes stand in the entry itself. */
static bool field_read(const Tiff *t, Field *out, size_t entry)
{
    static const int sizes[] = { 0, 1, 1, 2, 4 };          /* bytes, text, short, long */
    uint32_t kind = number(t, entry + 2, 2), n = number(t, entry + 4, 4);
    if (kind < 1 || kind > 4 || !n) return false;
    size_t bytes = (size_t)sizes[kind], at = (size_t)n * bytes <= 4 ? entry + 8 : number(t, entry + 8, 4);
    if (at > t->f->len || n > (t->f->len - at) / bytes) return false;
    *out = (Field){ at, n, sizes[kind] };
    return true;
}

/* All samples of a pixel have the same number of bits. */
static bool bits_read(Tiff *t, const Field *x)
{
    t->bits = field_at(t, x, 0);
    for (uint32_t i = 1; i < x->n && i < MAX_SAMPLES; i++)
        if (field_at(t, x, i) != t->bits) return false;
    return true;
}

static bool entry_take(Tiff *t, uint32_t tag, const Field *x)
{
    uint32_t v = field_at(t, x, 0);
    switch (tag) {
    case 256: t->w = v; break;
    case 257: t->h = v; break;
    case 258: return bits_read(t, x);
    case 259: t->compression = v; break;
    case 262: t->photometric = v; break;
    case 266: return v == 1;                               /* the order of bits in a byte */
    case 273: case 324: t->offsets = *x; break;
    case 274: t->turn = v; break;
    case 277: t->samples = v; break;
    case 278: t->chunk_h = v; break;
    case 279: case 325: t->lengths = *x; break;
    case 284: t->planar = v; break;
    case 317: t->predictor = v; break;
    case 320: t->colours = *x; break;
    case 322: t->chunk_w = v, t->tiled = true; break;
    case 323: t->chunk_h = v, t->tiled = true; break;
    case 338: t->extra = v; break;
    case 339: return v == 1;                               /* whole numbers without a sign */
    default: break;
    }
    return true;
}

static Status directory_read(Tiff *t)
{
    const ImageFile *f = t->f;
    size_t           at = number(t, 4, 4);
    if (at > f->len || f->len - at < 2) return bad(f, "the directory is missing");
    uint32_t n = number(t, at, 2);
    if (n > MAX_ENTRIES || n > (f->len - at - 2) / 12) return bad(f, "the directory is damaged");
    for (uint32_t i = 0; i < n; i++) {
        Field  x;
        size_t entry = at + 2 + 12 * (size_t)i;
        if (field_read(t, &x, entry) && !entry_take(t, number(t, entry, 2), &x))
            return bad(f, "its kind of samples is not read; convert it to PNG");
    }
    return OK;
}

/* ---- what is read ---- */

static const char *unread_compression(uint32_t c)
{
    switch (c) {
    case 1: case 5: case 8: case 32773: case 32946: return NULL;
    case 2: case 3: case 4: return "fax compression (CCITT) is not read; convert it to PNG";
    case 6: case 7: return "JPEG compression inside TIFF is not read; convert it to JPEG or PNG";
    default: return "its compression is not read; convert it to PNG";
    }
}

static bool samples_fit(const Tiff *t)
{
    uint32_t need = t->photometric == RGB ? 3 : t->photometric == CMYK ? 4 : 1;
    bool     byte = t->bits == 8, small = t->bits == 1 || t->bits == 2 || t->bits == 4;
    if (t->samples < need || t->samples > MAX_SAMPLES) return false;
    if (need == 1 && small) return t->samples == 1;
    return byte || (t->bits == 16 && t->photometric == RGB);
}

static Status check_kind(const Tiff *t)
{
    const char *words = unread_compression(t->compression);
    if (words) return bad(t->f, words);
    if (t->photometric > PALETTE && t->photometric != CMYK)
        return bad(t->f, "its colours (YCbCr, Lab or others) are not read; convert it to PNG");
    if (!samples_fit(t)) return bad(t->f, "its number or depth of samples is not read; convert it to PNG");
    if (t->photometric == PALETTE && (t->colours.bytes != 2 || t->colours.n < 3u << t->bits))
        return bad(t->f, "the palette is damaged");
    if (t->predictor > 2 || t->predictor < 1 || t->planar < 1 || t->planar > 2)
        return bad(t->f, "its layout is not read; convert it to PNG");
    return OK;
}

/* Strips are tiles as wide as the picture. */
static Status check_chunks(Tiff *t, const ImageHead *head)
{
    TRY(image_check_limits(head, t->f));
    if (!t->tiled) {
        t->chunk_w = t->w;
        if (!t->chunk_h || t->chunk_h > t->h) t->chunk_h = t->h;
    }
    if (!t->chunk_w || !t->chunk_h || t->chunk_h > t->f->lim.max_pixels / t->chunk_w)
        return bad(t->f, "the size of its tiles is damaged");
    uint64_t planes = t->planar == 2 ? t->samples : 1, across = (t->w + t->chunk_w - 1) / t->chunk_w;
    uint64_t down = (t->h + (uint64_t)t->chunk_h - 1) / t->chunk_h, n = across * down * planes;
    if (t->offsets.n < n || t->lengths.n < n) return bad(t->f, "strips or tiles are missing");
    t->chunk_row   = ((size_t)t->chunk_w * t->bits * (t->planar == 2 ? 1 : t->samples) + 7) / 8;
    t->chunk_bytes = t->chunk_row * t->chunk_h;
    return OK;
}

static Status tiff_open(Tiff *t, ImageHead *head, const ImageFile *f)
{
    *t = (Tiff){ .f = f, .big = f->bytes[0] == 'M', .bits = 1, .compression = 1, .samples = 1, .planar = 1,
                 .predictor = 1, .turn = 1, .photometric = 99 };
    if (f->bytes[t->big ? 3 : 2] == '+') return bad(f, "BigTIFF is not read; convert it to PNG");
    TRY(directory_read(t));
    *head = (ImageHead){ t->h, t->w, t->turn >= 1 && t->turn <= 8 ? (int)t->turn : ORIENT_UPRIGHT };
    TRY(check_kind(t));
    return check_chunks(t, head);
}

static Status head_of(ImageHead *head, const ImageFile *f)
{
    Tiff t;
    return tiff_open(&t, head, f);
}

/* ---- pixels ---- */

/* Samples of 8 or 16 bits hold the difference to the pixel before. */
static void undo_predictor(const Tiff *t)
{
    size_t step = t->planar == 2 ? 1 : t->samples, n = (size_t)t->chunk_w * step;
    for (uint32_t y = 0; y < t->chunk_h; y++) {
        uint8_t *row = t->chunk + (size_t)y * t->chunk_row;
        for (size_t i = step; i < n && t->bits == 8; i++) row[i] = (uint8_t)(row[i] + row[i - step]);
        for (size_t i = step; i < n && t->bits == 16; i++) {
            int      high = t->big ? 0 : 1;
            uint8_t *p = row + 2 * i, *q = row + 2 * (i - step);
            unsigned v = ((unsigned)p[high] << 8 | p[1 - high]) + ((unsigned)q[high] << 8 | q[1 - high]);
            p[high] = (uint8_t)(v >> 8), p[1 - high] = (uint8_t)v;
        }
    }
}

/* The last strip may have fewer rows. */
static Status chunk_decode(const Tiff *t, uint32_t i, uint32_t rows)
{
    size_t at = field_at(t, &t->offsets, i), len = field_at(t, &t->lengths, i), n = t->chunk_row * rows;
    if (at > t->f->len || len > t->f->len - at) return bad(t->f, "the file ends early");
    const uint8_t *in = t->f->bytes + at;
    bool           whole = len >= n;
    switch (t->compression) {
    case 1: if (whole) memcpy(t->chunk, in, n); break;
    case 5: whole = tiff_lzw(t->chunk, n, in, len); break;
    case 32773: whole = tiff_packbits(t->chunk, n, in, len); break;
    default: whole = tiff_deflate(t->chunk, n, in, len);
    }
    if (!whole) return bad(t->f, "a strip or tile is damaged");
    if (t->predictor == 2) undo_predictor(t);
    return OK;
}

/* A sample of a pixel of the chunk; of 16 bits the higher 8. */
static unsigned sample_at(const Tiff *t, uint32_t x, uint32_t y, uint32_t s)
{
    const uint8_t *row = t->chunk + (size_t)y * t->chunk_row;
    size_t         i = t->planar == 2 ? x : (size_t)x * t->samples + s;
    if (t->bits == 8) return row[i];
    if (t->bits == 16) return row[2 * i + (t->big ? 0 : 1)];
    size_t bit = i * t->bits;
    return row[bit / 8] >> (8 - t->bits - bit % 8) & ((1u << t->bits) - 1);
}

static uint8_t times(unsigned a, unsigned b)                 /* a * b / 255, rounded as in the reference */
{
    unsigned v = a * b + 128;
    return (uint8_t)(((v >> 8) + v) >> 8);
}

static void put_grey(const Tiff *t, uint8_t *rgb, unsigned v)
{
    unsigned most = (1u << t->bits) - 1, level = v * 255 / most;
    if (t->photometric == WHITE_IS_ZERO) level = 255 - level;
    rgb[0] = rgb[1] = rgb[2] = (uint8_t)level;
}

static void put_colour(const Tiff *t, uint8_t *rgb, unsigned v)
{
    for (uint32_t i = 0; i < 3; i++) rgb[i] = (uint8_t)(field_at(t, &t->colours, (i << t->bits) + v) >> 8);
}

/* Colours that were multiplied by their alpha. */
static void divide_by_alpha(uint8_t *rgb, unsigned alpha)
{
    for (int i = 0; i < 3 && alpha < 255; i++) {
        unsigned v = alpha ? 255u * rgb[i] / alpha : 0;
        rgb[i] = (uint8_t)(v > 255 ? 255 : v);
    }
}

static void put_pixel(const Tiff *t, uint8_t *rgb, uint32_t x, uint32_t y)
{
    if (t->photometric < RGB) { put_grey(t, rgb, sample_at(t, x, y, 0)); return; }
    if (t->photometric == PALETTE) { put_colour(t, rgb, sample_at(t, x, y, 0)); return; }
    for (uint32_t i = 0; i < 3; i++) rgb[i] = (uint8_t)sample_at(t, x, y, i);
    if (t->photometric == CMYK) {
        unsigned light = 255 - sample_at(t, x, y, 3);
        for (int i = 0; i < 3; i++) rgb[i] = (uint8_t)(light - times(rgb[i], light));
    } else if (t->samples == 4 && t->extra == 1) divide_by_alpha(rgb, sample_at(t, x, y, 3));
}

/* Planes are written one after the other: a sample of each pixel at a time. */
static void chunk_put(const Tiff *t, Image *im, uint32_t x0, uint32_t y0, int plane)
{
    for (uint32_t y = 0; y < t->chunk_h && y0 + y < t->h; y++)
        for (uint32_t x = 0; x < t->chunk_w && x0 + x < t->w; x++) {
            uint8_t *rgb = im->rgb + 3 * ((size_t)(y0 + y) * t->w + x0 + x);
            if (plane < 0) put_pixel(t, rgb, x, y);
            else           rgb[plane] = (uint8_t)sample_at(t, x, y, 0);
        }
}

static Status plane_read(const Tiff *t, Image *im, uint32_t first, int plane)
{
    uint32_t i = first;
    for (uint64_t y = 0; y < t->h; y += t->chunk_h)
        for (uint64_t x = 0; x < t->w; x += t->chunk_w) {
            uint32_t rows = t->tiled || t->h - y > t->chunk_h ? t->chunk_h : (uint32_t)(t->h - y);
            TRY(chunk_decode(t, i++, rows));
            chunk_put(t, im, (uint32_t)x, (uint32_t)y, plane);
        }
    return OK;
}

static Status planes_read(const Tiff *t, Image *im)
{
    uint32_t across = (t->w + t->chunk_w - 1) / t->chunk_w, down = (t->h - 1) / t->chunk_h + 1;
    if (t->planar == 1 || t->samples == 1) return plane_read(t, im, 0, -1);
    if (t->photometric != RGB) return bad(t->f, "planes of these colours are not read; convert it to PNG");
    for (uint32_t s = 0; s < 3; s++) TRY(plane_read(t, im, s * across * down, (int)s));
    return OK;
}

static Status read_image(Image *im, ImageHead *head, const ImageFile *f)
{
    Tiff t;
    TRY(tiff_open(&t, head, f));
    TRY(image_reserve_checked(im, head, f));
    t.chunk = malloc(t.chunk_bytes + 1);
    if (!t.chunk) return fail(E_FIT, "%s: no memory for a strip of %zu bytes", f->what, t.chunk_bytes);
    Status st = planes_read(&t, im);
    free(t.chunk);
    return st;
}

const ImageFormat image_tiff = { "TIFF", "image/tiff", ".tif,.tiff", is, head_of, read_image };
