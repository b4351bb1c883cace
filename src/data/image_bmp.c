/* data/image_bmp.c -- BMP: 1, 4 and 8 bits with a palette, the last two also in runs; 16, 24 and 32 bits. */
#include "data/image_private.h"

#include <string.h>

typedef struct Bmp {
    int64_t        w, h;
    bool           top_down, runs;       /* runs: pixels are run-length compressed */
    int            bits, entry, colours; /* entry: bytes of a palette's row */
    uint32_t       mask[3];              /* of red, green and blue; 0: whole bytes */
    const uint8_t *palette, *pixels;
    size_t         stride;
} Bmp;

static bool     is(const uint8_t *b, size_t len) { return len >= 26 && !memcmp(b, "BM", 2); }
static uint32_t le32(const uint8_t *b)
{
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}
static uint32_t le16(const uint8_t *b) { return (uint32_t)b[0] | (uint32_t)b[1] << 8; }

static Status bad(const ImageFile *f, const char *what) { return fail(E_DATA, "%s: BMP: %s", f->what, what); }

/* Sizes and masks of the header, which is 12 bytes or at least 40 after the first 14. */
static Status read_header(Bmp *b, const ImageFile *f, uint32_t *size)
{
    const uint8_t *h           = f->bytes + 14;
    uint32_t       compression = 0;
    *b                         = (Bmp){ .entry = 4 };
    *size                      = le32(h);
    if (*size == 12) b->w = le16(h + 4), b->h = le16(h + 6), b->bits = (int)le16(h + 10), b->entry = 3;
    else if (*size < 40 || *size > 1024 || f->len < 54) return bad(f, "the header is damaged");
    else {
        b->w = (int32_t)le32(h + 4), b->h = (int32_t)le32(h + 8), b->bits = (int)le16(h + 14);
        compression = le32(h + 16), b->colours = (int)(le32(h + 32) > 256 ? 256 : le32(h + 32));
    }
    b->top_down = b->h < 0;
    if (b->h < 0) b->h = -b->h;
    if (compression == 3 || compression == 6) {
        if (f->len < 14 + 40 + 12) return bad(f, "the header is damaged");
        for (int i = 0; i < 3; i++) b->mask[i] = le32(h + 40 + 4 * i);
    } else if ((compression == 1 && b->bits == 8) || (compression == 2 && b->bits == 4)) b->runs = true;
    else if (compression) return bad(f, "its compression is not read; convert it to PNG");
    if (b->bits == 16 && !compression) b->mask[0] = 0x7c00, b->mask[1] = 0x3e0, b->mask[2] = 0x1f;
    bool known =
        b->bits == 1 || b->bits == 4 || b->bits == 8 || b->bits == 16 || b->bits == 24 || b->bits == 32;
    return known && b->w > 0 && b->h > 0 ? OK : bad(f, "the header is damaged");
}

static Status bmp_open(Bmp *b, ImageHead *head, const ImageFile *f)
{
    uint32_t size;
    TRY(read_header(b, f, &size));
    size_t at = le32(f->bytes + 10), table = 14 + size;
    *head = (ImageHead){ b->h, b->w, ORIENT_UPRIGHT };
    if (at > f->len || table > f->len) return bad(f, "the file ends early");
    b->palette = f->bytes + table, b->pixels = f->bytes + at;
    int room =
        at > table ? (int)((at - table) / (size_t)b->entry > 256 ? 256 : (at - table) / (size_t)b->entry) : 0;
    if (!b->colours || b->colours > room) b->colours = room;
    if (b->bits <= 8 && !b->colours) return bad(f, "the palette is missing");
    b->stride = ((size_t)b->w * (size_t)b->bits + 31) / 32 * 4;
    return OK;
}

static Status head_of(ImageHead *head, const ImageFile *f)
{
    Bmp b;
    return bmp_open(&b, head, f);
}

static uint8_t masked(uint32_t v, uint32_t mask)
{
    if (!mask) return 0;
    int      shift = __builtin_ctz(mask);
    uint64_t most  = mask >> shift;
    return (uint8_t)((uint64_t)((v & mask) >> shift) * 255 / most);
}

static void put_pixel(const Bmp *b, const uint8_t *row, int64_t x, uint8_t *rgb)
{
    if (b->bits <= 8) {
        size_t         bit   = (size_t)x * (size_t)b->bits;
        int            index = row[bit / 8] >> (8 - b->bits - (int)(bit % 8)) & ((1 << b->bits) - 1);
        const uint8_t *c     = b->palette + (size_t)(index < b->colours ? index : 0) * (size_t)b->entry;
        rgb[0] = c[2], rgb[1] = c[1], rgb[2] = c[0];
        return;
    }
    const uint8_t *p = row + (size_t)x * (size_t)(b->bits / 8);
    uint32_t       v = b->bits == 16 ? le16(p) : b->bits == 32 ? le32(p) : 0;
    if (b->mask[0] | b->mask[1] | b->mask[2])
        for (int i = 0; i < 3; i++) rgb[i] = masked(v, b->mask[i]);
    else rgb[0] = p[2], rgb[1] = p[1], rgb[2] = p[0];
}

/* ---- runs ---- */

typedef struct Runs { const Bmp *b; const uint8_t *p, *end; Image *im; int64_t x, y; } Runs;

static void put_index(Runs *r, int index)
{
    const Bmp *b = r->b;
    if (r->x >= b->w || r->y >= b->h) return;
    const uint8_t *c = b->palette + (size_t)(index < b->colours ? index : 0) * (size_t)b->entry;
    uint8_t       *rgb = r->im->rgb + 3 * ((b->top_down ? r->y : b->h - 1 - r->y) * b->w + r->x++);
    rgb[0] = c[2], rgb[1] = c[1], rgb[2] = c[0];
}

static int half(const Bmp *b, uint8_t v, int i) { return b->bits == 8 ? v : i % 2 ? v & 15 : v >> 4; }

/* n pixels written out, padded to two bytes. */
static bool put_plain(Runs *r, int n)
{
    int bytes = r->b->bits == 8 ? n : (n + 1) / 2;
    if (r->end - r->p < bytes) return false;
    for (int i = 0; i < n; i++) put_index(r, half(r->b, r->p[r->b->bits == 8 ? i : i / 2], i));
    r->p += bytes + (bytes % 2 && r->end - r->p > bytes);
    return true;
}

/* One step of the decoder; false at the end of the picture or of the file. */
static bool next_run(Runs *r)
{
    if (r->end - r->p < 2) return false;
    int n = r->p[0], v = r->p[1];
    r->p += 2;
    for (int i = 0; i < n; i++) put_index(r, half(r->b, (uint8_t)v, i));
    if (n) return true;
    if (v > 2) return put_plain(r, v);
    if (v == 0) r->x = 0, r->y++;
    if (v == 2 && r->end - r->p >= 2) r->x += r->p[0], r->y += r->p[1], r->p += 2;
    return v != 1 && r->y < r->b->h;
}

/* Pixels that no run names have the first colour. */
static Status read_runs(const Bmp *b, Image *im, const ImageFile *f)
{
    Runs r = { .b = b, .p = b->pixels, .end = f->bytes + f->len, .im = im };
    for (r.y = 0; r.y < b->h; r.y++, r.x = 0)
        while (r.x < b->w) put_index(&r, 0);
    r.x = r.y = 0;
    while (next_run(&r)) {}
    return OK;
}

static Status read_image(Image *im, ImageHead *head, const ImageFile *f)
{
    Bmp b;
    TRY(bmp_open(&b, head, f));
    TRY(image_reserve_checked(im, head, f));
    if (b.runs) return read_runs(&b, im, f);
    if ((size_t)b.h > (f->len - (size_t)(b.pixels - f->bytes)) / b.stride)
        return bad(f, "the file ends early");
    for (int64_t y = 0; y < b.h; y++) {
        const uint8_t *row = b.pixels + (size_t)(b.top_down ? y : b.h - 1 - y) * b.stride;
        for (int64_t x = 0; x < b.w; x++) put_pixel(&b, row, x, im->rgb + 3 * (y * b.w + x));
    }
    return OK;
}

const ImageFormat image_bmp = { "BMP", "image/bmp", ".bmp", is, head_of, read_image };
