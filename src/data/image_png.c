/* data/image_png.c -- PNG of every kind through libpng: 1 to 16 bits, grey, colour, palette, interlaced.
 *
 * 16-bit samples keep their high byte; alpha and transparent colours are dropped; gamma and profiles are
 * ignored. Wrong checksums and a missing end chunk are errors. Orientation is read from eXIf and from
 * uncompressed XMP text anywhere in the file. */
#include "data/image_private.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <png.h>

enum { SIGNATURE = 8, CHUNK = 12, HEAD_END = 33, COMPRESSION_FLAG = 18 }; /* CHUNK: length, type, checksum */

static bool is(const uint8_t *b, size_t len) { return len >= SIGNATURE && !png_sig_cmp(b, 0, SIGNATURE); }

static uint32_t be32(const uint8_t *b)
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static int turn_from_text(const uint8_t *data, size_t len)
{
    static const char key[] = "XML:com.adobe.xmp";      /* with its NUL; then a flag: 0 is not compressed */
    if (len <= sizeof key || memcmp(data, key, sizeof key) || data[COMPRESSION_FLAG]) return ORIENT_ABSENT;
    return orient_from_xmp(data + sizeof key, len - sizeof key);
}

/* Walks the chunks without decoding and stops at a chunk that is cut off. */
static int turn_of(const ImageFile *f)
{
    int    exif = ORIENT_ABSENT, xmp = ORIENT_ABSENT, text;
    size_t at = SIGNATURE;
    while (f->len - at >= CHUNK) {
        const uint8_t *b = f->bytes + at;
        size_t         n = be32(b);
        if (n > f->len - at - CHUNK) break;
        if (!memcmp(b + 4, "eXIf", 4)) exif = orient_from_exif(b + 8, n);
        if (!memcmp(b + 4, "iTXt", 4) && (text = turn_from_text(b + 8, n))) xmp = text;
        at += n + CHUNK;
    }
    return orient_choose(exif, xmp);
}

static Status head_of(ImageHead *head, const ImageFile *f)
{
    if (f->len < HEAD_END || memcmp(f->bytes + 12, "IHDR", 4))
        return fail(E_DATA, "%s: PNG: the header is missing", f->what);
    *head = (ImageHead){ be32(f->bytes + 20), be32(f->bytes + 16), turn_of(f) };
    return OK;
}

typedef struct Png {
    png_structp      p;
    png_infop        info;
    const ImageFile *f;
    size_t           at;
    jmp_buf          out;
    char             text[128];
} Png;

static void on_error(png_structp p, png_const_charp text)
{
    Png *g = png_get_error_ptr(p);
    snprintf(g->text, sizeof g->text, "%s", text);
    longjmp(g->out, 1);
}

static void on_warning(png_structp p, png_const_charp text) {}

static void on_read(png_structp p, png_bytep to, size_t n)
{
    Png *g = png_get_io_ptr(p);
    if (n > g->f->len - g->at) png_error(p, "the file ends early");
    memcpy(to, g->f->bytes + g->at, n);
    g->at += n;
}

/* Chunks that cannot change the pixels are not parsed. */
static void open_and_set(Png *g)
{
    png_set_read_fn(g->p, g, on_read);
    png_set_keep_unknown_chunks(g->p, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_read_info(g->p, g->info);
    png_set_strip_16(g->p);
    png_set_packing(g->p);
    png_set_expand(g->p);
    png_set_strip_alpha(g->p);
    png_set_gray_to_rgb(g->p);
}

static void read_pixels(Png *g, const Image *im)
{
    int passes = png_set_interlace_handling(g->p);
    png_read_update_info(g->p, g->info);
    if (png_get_rowbytes(g->p, g->info) != (size_t)im->w * 3) png_error(g->p, "not RGB after conversion");
    for (int pass = 0; pass < passes; pass++)
        for (int64_t y = 0; y < im->h; y++) png_read_row(g->p, im->rgb + y * im->w * 3, NULL);
    png_read_end(g->p, NULL);
}

static void png_leave(Png *g) { png_destroy_read_struct(&g->p, &g->info, NULL); }

static Status read_image(Image *im, ImageHead *head, const ImageFile *f)
{
    Png g = { .f = f };
    TRY(head_of(head, f));
    TRY(image_reserve_checked(im, head, f));
    if (setjmp(g.out)) {
        png_leave(&g);
        return fail(E_DATA, "%s: PNG: %s", f->what, g.text);
    }
    g.p = png_create_read_struct(PNG_LIBPNG_VER_STRING, &g, on_error, on_warning);
    if (g.p) g.info = png_create_info_struct(g.p);
    if (!g.info) return png_leave(&g), fail(E_FIT, "%s: no memory for libpng", f->what);
    open_and_set(&g);
    if (png_get_image_height(g.p, g.info) != (uint64_t)im->h ||
        png_get_image_width(g.p, g.info) != (uint64_t)im->w)
        png_error(g.p, "two headers");
    read_pixels(&g, im);
    png_leave(&g);
    return OK;
}

const ImageFormat image_png = { "PNG", "image/png", ".png", is, head_of, read_image };
