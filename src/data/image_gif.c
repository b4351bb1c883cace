/* data/image_gif.c -- GIF: the first frame, as the reference loader gives it. What the frame leaves of the
 * screen has its transparent colour, or colour 0 of its palette; transparency itself is dropped. */
#include "data/image_private.h"

#include <stdlib.h>
#include <string.h>

typedef struct Gif {
    const ImageFile *f;
    size_t           at;
    int              screen_w, screen_h, left, top, w, h, transparent, code_size;
    bool             interlaced;
    const uint8_t   *palette; /* NULL: indices are grey levels */
    int              colours;
} Gif;

static bool is(const uint8_t *b, size_t len)
{
    return len >= 6 && (!memcmp(b, "GIF87a", 6) || !memcmp(b, "GIF89a", 6));
}

static Status damaged(const ImageFile *f)
{
    return fail(E_DATA, "%s: GIF: the file is damaged or ends early", f->what);
}

static bool has(const Gif *g, size_t n) { return g->f->len - g->at >= n; }
static int  le16(const uint8_t *b) { return b[0] | b[1] << 8; }

static bool read_palette(Gif *g, uint8_t flags)
{
    if (!(flags & 0x80)) return true;
    int colours = 2 << (flags & 7);
    if (!has(g, (size_t)colours * 3)) return false;
    g->palette = g->f->bytes + g->at, g->colours = colours;
    return g->at += (size_t)colours * 3, true;
}

static bool skip_blocks(Gif *g)
{
    while (has(g, 1)) {
        size_t n = g->f->bytes[g->at++];
        if (!n) return true;
        if (!has(g, n)) return false;
        g->at += n;
    }
    return false;
}

/* A graphic control extension names the transparent colour of the frame after it. */
static bool read_extension(Gif *g)
{
    if (!has(g, 2)) return false;
    const uint8_t *b       = g->f->bytes + g->at;
    bool           control = b[0] == 0xf9 && b[1] == 4 && has(g, 6);
    if (control) g->transparent = b[2] & 1 ? b[5] : -1;
    return g->at++, skip_blocks(g);
}

static bool read_frame(Gif *g)
{
    if (!has(g, 9)) return false;
    const uint8_t *b = g->f->bytes + g->at;
    g->left = le16(b), g->top = le16(b + 2), g->w = le16(b + 4), g->h = le16(b + 6);
    g->interlaced = b[8] & 0x40;
    g->at += 9;
    if (!read_palette(g, b[8]) || !has(g, 1)) return false;
    g->code_size = g->f->bytes[g->at++];
    return g->code_size >= 1 && g->code_size <= 11 && g->w && g->h;
}

/* Everything before the pixels of the first frame. */
static Status gif_open(Gif *g, const ImageFile *f)
{
    *g = (Gif){ .f = f, .at = 13, .transparent = -1 };
    if (f->len < 13) return damaged(f);
    g->screen_w = le16(f->bytes + 6), g->screen_h = le16(f->bytes + 8);
    if (!read_palette(g, f->bytes[10])) return damaged(f);
    while (has(g, 1)) {
        uint8_t mark = f->bytes[g->at++];
        if (mark == 0x2c) return read_frame(g) ? OK : damaged(f);
        if (mark == 0x3b || (mark == 0x21 && !read_extension(g))) break;
    }
    return damaged(f);
}

static ImageHead size_of(const Gif *g)
{
    int w = g->left + g->w, h = g->top + g->h;
    return (ImageHead){ h > g->screen_h ? h : g->screen_h, w > g->screen_w ? w : g->screen_w,
                        ORIENT_UPRIGHT };
}

static Status head_of(ImageHead *head, const ImageFile *f)
{
    Gif g;
    TRY(gif_open(&g, f));
    *head = size_of(&g);
    return OK;
}

/* The bits of the sub-blocks, lowest first. */
typedef struct Bits {
    Gif     *g;
    size_t   block;
    uint32_t v;
    int      n;
} Bits;

static int next_code(Bits *b, int width)
{
    while (b->n < width) {
        if (!b->block) {
            if (!has(b->g, 1) || !(b->block = b->g->f->bytes[b->g->at++])) return -1;
        }
        if (!has(b->g, 1)) return -1;
        b->v |= (uint32_t)b->g->f->bytes[b->g->at++] << b->n;
        b->n += 8, b->block--;
    }
    int code = (int)(b->v & ((1u << width) - 1));
    b->v >>= width, b->n -= width;
    return code;
}

enum { CODES = 4096 };
typedef struct Lzw {
    uint16_t prefix[CODES];
    uint8_t  last[CODES], first[CODES];
    uint16_t length[CODES];
    int      next, width;
} Lzw;

static void lzw_reset(Lzw *t, int clear)
{
    t->next = clear + 2, t->width = 32 - __builtin_clz((unsigned)clear * 2 - 1);
}

/* Writes the text of a code that ends at out[at + length - 1]. */
static void put_code(const Lzw *t, int code, int clear, uint8_t *out, size_t at, size_t cap)
{
    for (size_t i = code < clear ? 1 : t->length[code]; i--; code = t->prefix[code]) {
        if (at + i < cap) out[at + i] = code < clear ? (uint8_t)code : t->last[code];
        if (code < clear) return;
    }
}

static void add_code(Lzw *t, int before, uint8_t last, int clear)
{
    if (t->next >= CODES) return;
    t->prefix[t->next] = (uint16_t)before, t->last[t->next] = last;
    t->first[t->next]  = before < clear ? (uint8_t)before : t->first[before];
    t->length[t->next] = (uint16_t)((before < clear ? 1 : t->length[before]) + 1);
    if (++t->next == 1 << t->width && t->width < 12) t->width++;
}

/* Indices of n pixels; a file that ends early leaves the rest as it is, and none at all is damage. */
static Status lzw_decode(Gif *g, uint8_t *out, size_t n)
{
    Lzw   *t     = calloc(1, sizeof *t);
    Bits   b     = { .g = g };
    int    clear = 1 << g->code_size, before = -1, code;
    size_t at = 0;
    if (!t) return fail(E_FIT, "%s: no memory to decode it", g->f->what);
    lzw_reset(t, clear);
    while (at < n && (code = next_code(&b, t->width)) >= 0 && code != clear + 1) {
        if (code == clear) {
            lzw_reset(t, clear), before = -1;
            continue;
        }
        if (code > t->next || (code == t->next && before < 0) ||
            (code > clear && code >= t->next && before < 0))
            break;
        int     known = code < t->next ? code : before;
        uint8_t first = known < clear ? (uint8_t)known : t->first[known];
        if (before >= 0) add_code(t, before, first, clear);
        if (code >= t->next) break;
        put_code(t, code, clear, out, at, n);
        at += code < clear ? 1 : t->length[code];
        before = code;
    }
    free(t);
    return at >= n ? OK : damaged(g->f);
}

/* The row of the picture that row i of the data is. */
static int row_of(const Gif *g, int i)
{
    static const int first[] = { 0, 4, 2, 1 }, step[] = { 8, 8, 4, 2 };
    for (int pass = 0; g->interlaced && pass < 4; pass++) {
        int rows = (g->h - first[pass] + step[pass] - 1) / step[pass];
        if (rows < 0) rows = 0;
        if (i < rows) return first[pass] + i * step[pass];
        i -= rows;
    }
    return i;
}

static void put_pixel(const Gif *g, uint8_t *rgb, int index)
{
    static const uint8_t black[3];
    if (!g->palette) {
        memset(rgb, index, 3);
        return;
    }
    memcpy(rgb, index < g->colours ? g->palette + 3 * (size_t)index : black, 3);
}

static Status read_image(Image *im, ImageHead *head, const ImageFile *f)
{
    Gif g;
    TRY(gif_open(&g, f));
    *head = size_of(&g);
    TRY(image_reserve_checked(im, head, f));
    size_t   n     = (size_t)g.w * (size_t)g.h;
    uint8_t *index = malloc(n);
    if (!index) return fail(E_FIT, "%s: no memory for %zu pixels", f->what, n);
    Status st = lzw_decode(&g, index, n);
    for (int64_t i = 0; !st && i < im->h * im->w; i++)
        put_pixel(&g, im->rgb + 3 * i, g.transparent < 0 ? 0 : g.transparent);
    for (int y = 0; !st && y < g.h; y++)
        for (int x = 0; x < g.w; x++)
            put_pixel(&g, im->rgb + 3 * ((g.top + row_of(&g, y)) * im->w + g.left + x),
                      index[(size_t)y * (size_t)g.w + (size_t)x]);
    free(index);
    return st;
}

const ImageFormat image_gif = { "GIF", "image/gif", ".gif", is, head_of, read_image };
