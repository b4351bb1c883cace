/* tests/test_image.c -- picture files to upright RGB: every format, orientation, limits, damage. */
#include "lab.h"
#include "pictures.h"

#include "base/rng.h"
#include "data/image.h"

#define WHAT "picture"

static const JpegKind jpeg_kinds[] = {
    { JCS_RGB, JCS_YCbCr, 3, JPEG_PLAIN },       { JCS_RGB, JCS_YCbCr, 3, JPEG_PROGRESSIVE },
    { JCS_RGB, JCS_YCbCr, 3, JPEG_FULL_CHROMA }, { JCS_RGB, JCS_YCbCr, 3, JPEG_BY_COMPONENT },
    { JCS_RGB, JCS_RGB, 3, JPEG_PLAIN },         { JCS_GRAYSCALE, JCS_GRAYSCALE, 1, JPEG_PLAIN },
    { JCS_GRAYSCALE, JCS_GRAYSCALE, 1, JPEG_PROGRESSIVE },
};
enum { JPEG_KINDS = sizeof jpeg_kinds / sizeof *jpeg_kinds };

static const PngKind png_kinds[] = {
    { PNG_COLOR_TYPE_GRAY, 1, 0, 0 },        { PNG_COLOR_TYPE_GRAY, 2, 0, 0 },
    { PNG_COLOR_TYPE_GRAY, 4, 0, 0 },        { PNG_COLOR_TYPE_GRAY, 8, 0, 1 },
    { PNG_COLOR_TYPE_GRAY, 16, 0, 1 },       { PNG_COLOR_TYPE_RGB, 8, 0, 1 },
    { PNG_COLOR_TYPE_RGB, 16, 0, 0 },        { PNG_COLOR_TYPE_PALETTE, 1, 0, 0 },
    { PNG_COLOR_TYPE_PALETTE, 2, 0, 1 },     { PNG_COLOR_TYPE_PALETTE, 4, 0, 0 },
    { PNG_COLOR_TYPE_PALETTE, 8, 0, 1 },     { PNG_COLOR_TYPE_GRAY_ALPHA, 8, 0, 0 },
    { PNG_COLOR_TYPE_GRAY_ALPHA, 16, 0, 0 }, { PNG_COLOR_TYPE_RGB_ALPHA, 8, 0, 0 },
    { PNG_COLOR_TYPE_RGB_ALPHA, 16, 0, 0 },
};
enum { PNG_KINDS = sizeof png_kinds / sizeof *png_kinds };

static Status decode(Image *im, Bytes b) { return image_decode(im, b.v, b.n, NULL, WHAT); }

/* ---- formats ---- */

static int worst_difference(const Image *im, const uint8_t *samples, int channels)
{
    int worst = 0;
    for (int64_t i = 0; i < im->h * im->w * 3; i++) {
        int d = abs(im->rgb[i] - samples[channels == 3 ? i : i / 3]);
        if (d > worst) worst = d;
    }
    return worst;
}

static void jpeg_of_every_kind(void)
{
    enum { H = 45, W = 70 };
    for (int i = 0; i < JPEG_KINDS; i++) {
        Image    im = { 0 };
        uint8_t *p = picture_draw(H, W, jpeg_kinds[i].channels);
        Bytes    b = picture_jpeg(p, H, W, jpeg_kinds[i]);
        EXPECT_OK(decode(&im, b));
        EXPECT(im.h == H && im.w == W, "kind %d: %lld x %lld", i, (long long)im.h, (long long)im.w);
        EXPECT(worst_difference(&im, p, jpeg_kinds[i].channels) <= 12, "kind %d: off by %d", i,
               worst_difference(&im, p, jpeg_kinds[i].channels));
        image_close(&im);
        image_close(&im);
        free(p), free(b.v);
    }
}

/* Inverted ink: nk is the sample of K, and R = nk - round((255 - C) * nk / 255) is round(C * nk / 255)
 * except for ties. YCCK stores the same inks in another colour space. */
static void jpeg_of_four_inks(void)
{
    enum { H = 24, W = 40 };
    uint8_t *p = picture_draw(H, W, 4);
    for (int ycck = 0; ycck < 2; ycck++) {
        Image im = { 0 };
        Bytes b =
            picture_jpeg(p, H, W, (JpegKind){ JCS_CMYK, ycck ? JCS_YCCK : JCS_CMYK, 4, JPEG_FULL_CHROMA });
        EXPECT_OK(decode(&im, b));
        int worst = 0;
        for (int i = 0; i < H * W && im.h == H; i++)
            for (int c = 0; c < 3; c++) {
                int d = abs(im.rgb[i * 3 + c] - p[i * 4 + c] * p[i * 4 + 3] / 255);
                if (d > worst) worst = d;
            }
        EXPECT(worst <= 16, "ycck %d: off by %d", ycck, worst);
        image_close(&im);
        free(b.v);
    }
    free(p);
}

/* The DCT does not change a picture of one colour, so the formula is checked bit by bit. */
static void ink_formula_is_exact(void)
{
    static const uint8_t cases[][7] = {              /* samples c m y k as stored, then r g b */
        { 255, 255, 255, 255, 255, 255, 255 }, { 0, 0, 0, 255, 0, 0, 0 },    { 255, 255, 255, 0, 0, 0, 0 },
        { 200, 100, 50, 128, 100, 50, 25 },    { 17, 99, 250, 77, 5, 30, 75 }, { 1, 2, 3, 254, 1, 2, 3 },
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        uint8_t p[64 * 4];
        Image   im = { 0 };
        for (int i = 0; i < 64; i++) memcpy(p + i * 4, cases[n], 4);
        Bytes b = picture_jpeg(p, 8, 8, (JpegKind){ JCS_CMYK, JCS_CMYK, 4, JPEG_FULL_CHROMA });
        EXPECT_OK(decode(&im, b));
        EXPECT(im.rgb && !memcmp(im.rgb, cases[n] + 4, 3), "case %zu: %d %d %d", n, im.rgb[0], im.rgb[1],
               im.rgb[2]);
        image_close(&im);
        free(b.v);
    }
}

/* The samples of a PNG row, decoded independently. */
static void png_expect(uint8_t *rgb, const uint8_t *row, int x, PngKind k)
{
    int n = png_channels(k.type), colours = n < 3 ? 1 : 3;
    for (int c = 0; c < colours; c++) {
        int bit = (x * n + c) * k.depth, v;
        if (k.depth == 16)     v = row[bit / 8];                               /* the high byte */
        else if (k.depth == 8) v = row[bit / 8];
        else                   v = row[bit / 8] >> (8 - k.depth - bit % 8) & ((1 << k.depth) - 1);
        if (k.type == PNG_COLOR_TYPE_PALETTE) {
            png_color t = png_palette_at(v);
            rgb[0] = t.red, rgb[1] = t.green, rgb[2] = t.blue;
            return;
        }
        rgb[c] = (uint8_t)(k.depth < 8 ? v * 255 / ((1 << k.depth) - 1) : v);
    }
    if (colours == 1) rgb[1] = rgb[2] = rgb[0];
}

static void png_of_every_kind(void)
{
    enum { H = 19, W = 37 };
    uint8_t rows[H * W * 8];
    for (size_t i = 0; i < sizeof rows; i++) rows[i] = (uint8_t)rng_u32(3, 0, i);
    for (int i = 0; i < 2 * PNG_KINDS; i++) {
        Image   im = { 0 };
        PngKind k = png_kinds[i / 2];
        k.interlaced = i % 2;
        Bytes b = picture_png(rows, H, W, k);
        EXPECT_OK(decode(&im, b));
        int bad = 0;
        for (int j = 0; j < H * W && im.h == H && im.w == W; j++) {
            uint8_t want[3];
            png_expect(want, rows + j / W * png_stride(W, k), j % W, k);
            bad += memcmp(want, im.rgb + j * 3, 3) != 0;
        }
        EXPECT(im.h == H && im.w == W && bad == 0, "type %d depth %d interlaced %d: %d pixels differ", k.type,
               k.depth, i % 2, bad);
        image_close(&im);
        free(b.v);
    }
}

static void webp_of_every_kind(void)
{
    enum { H = 31, W = 50 };
    for (int i = 0; i < 4; i++) {
        int      channels = i & 1 ? 4 : 3;
        Image    im = { 0 };
        uint8_t *p = picture_draw(H, W, channels);
        for (int j = 0; channels == 4 && j < H * W; j++)
            p[j * 4 + 3] |= 1; /* WebP drops colours under alpha 0 */
        Bytes b = picture_webp(p, H, W, channels, i & 2);
        EXPECT_OK(decode(&im, b));
        int worst = 0;
        for (int j = 0; j < H * W * 3 && im.h == H; j++)
            worst = fmax(worst, abs(im.rgb[j] - p[j / 3 * channels + j % 3]));
        EXPECT(im.h == H && im.w == W && worst <= (i & 2 ? 0 : 24), "case %d: off by %d", i, worst);
        image_close(&im);
        free(p), free(b.v);
    }
}

static void animations_show_their_first_frame(void)
{
    enum { H = 10, W = 14, CH = 20, CW = 30, X = 6, Y = 4 };
    Image    im = { 0 };
    uint8_t *p = picture_draw(H, W, 3);
    Bytes    b = picture_webp_animated(p, H, W, X, Y, CH, CW), outside;
    EXPECT_OK(decode(&im, b));
    int bad = 0;
    for (int y = 0; y < CH && im.h == CH && im.w == CW; y++)
        for (int x = 0; x < CW; x++)
            for (int c = 0; c < 3; c++) {
                bool in = y >= Y && y < Y + H && x >= X && x < X + W;
                bad += im.rgb[(y * CW + x) * 3 + c] != (in ? p[((y - Y) * W + x - X) * 3 + c] : 0);
            }
    EXPECT(im.h == CH && im.w == CW && !bad, "%d differ", bad);
    outside = picture_webp_animated(p, H, W, X + 12, Y, CH, CW);
    EXPECT_FAIL(decode(&im, outside), E_DATA, "outside");
    image_close(&im);
    free(p), free(b.v), free(outside.v);
}

/* ---- orientation ---- */

/* Where the pixel shown at (y, x) is stored, for each of the eight orientations. */
static void shown_at(int turn, int h, int w, int y, int x, int *sy, int *sx)
{
    switch (turn) {
    case 2:  *sy = y, *sx = w - 1 - x; break;
    case 3:  *sy = h - 1 - y, *sx = w - 1 - x; break;
    case 4:  *sy = h - 1 - y, *sx = x; break;
    case 5:  *sy = x, *sx = y; break;
    case 6:  *sy = h - 1 - x, *sx = y; break;
    case 7:  *sy = h - 1 - x, *sx = w - 1 - y; break;
    case 8:  *sy = x, *sx = w - 1 - y; break;
    default: *sy = y, *sx = x;
    }
}

static void turned_check(const Image *stored, Bytes b, int turn, const char *kind)
{
    Image   im = { 0 };
    int64_t h = 0, w = 0;
    int     bad = 0, H = (int)stored->h, W = (int)stored->w;
    EXPECT_OK(decode(&im, b));
    EXPECT_OK(image_size(&h, &w, b.v, b.n, NULL, WHAT));
    bool swap = turn >= 5 && turn <= 8;
    EXPECT(im.h == (swap ? W : H) && im.w == (swap ? H : W) && h == im.h && w == im.w, "%s %d: %lld x %lld",
           kind, turn, (long long)im.h, (long long)im.w);
    for (int i = 0; i < im.h * im.w; i++) {
        int sy, sx;
        shown_at(turn, H, W, i / (int)im.w, i % (int)im.w, &sy, &sx);
        bad += memcmp(im.rgb + i * 3, stored->rgb + (sy * W + sx) * 3, 3) != 0;
    }
    EXPECT(!bad, "%s turned %d: %d pixels differ", kind, turn, bad);
    image_close(&im);
}

typedef Bytes MakeFn(const uint8_t *p, int h, int w);
static Bytes make_jpeg(const uint8_t *p, int h, int w) { return picture_jpeg(p, h, w, jpeg_kinds[0]); }
static Bytes make_png(const uint8_t *p, int h, int w)
{
    return picture_png(p, h, w, (PngKind){ PNG_COLOR_TYPE_RGB, 8, 0, 0 });
}
static Bytes make_webp(const uint8_t *p, int h, int w) { return picture_webp(p, h, w, 3, true); }

static void pictures_stand_upright(void)
{
    enum { H = 41, W = 67 };
    static MakeFn *const make[] = { make_jpeg, make_png, make_webp };
    static void (*const note[])(Bytes *, int, bool) = { jpeg_orient, png_orient, webp_orient };
    static const char *const kind[] = { "jpeg", "png", "webp" };
    uint8_t *p = picture_draw(H, W, 3);
    for (int f = 0; f < 3; f++) {
        Bytes plain = make[f](p, H, W);
        Image stored = { 0 };
        EXPECT_OK(decode(&stored, plain));
        for (int turn = 0; turn <= 9; turn++) {                      /* 0 and 9 are undefined: as stored */
            Bytes b = { 0 };
            bytes_add(&b, plain.v, plain.n);
            note[f](&b, turn, turn % 2);
            turned_check(&stored, b, turn, kind[f]);
            free(b.v);
        }
        image_close(&stored);
        free(plain.v);
    }
    free(p);
}

static void xmp_orientation_is_used_without_exif(void)
{
    uint8_t *p = picture_draw(20, 30, 3);
    int64_t  h, w;
    for (int exif = 0; exif < 2; exif++) {
        Bytes b = make_jpeg(p, 20, 30);
        jpeg_orient_xmp(&b, 6);
        if (exif) jpeg_orient(&b, 1, true);
        EXPECT_OK(image_size(&h, &w, b.v, b.n, NULL, WHAT));
        EXPECT(h == (exif ? 20 : 30) && w == (exif ? 30 : 20), "exif %d: %lld x %lld", exif, (long long)h,
               (long long)w);
        free(b.v);
    }
    free(p);
}

/* ---- limits and damage ---- */

static void limits_come_before_decoding(void)
{
    static MakeFn *const make[] = { make_jpeg, make_png, make_webp };
    uint8_t *p = picture_draw(50, 60, 3);
    int64_t  h, w;
    Image    im = { 0 };
    for (int f = 0; f < 3; f++) {
        Bytes b = make[f](p, 50, 60);
        ImageLimits small = { .max_pixels = 2999 }, exact = { .max_pixels = 3000 },
                    few = { .max_bytes = b.n - 1 };
        EXPECT_FAIL(image_decode(&im, b.v, b.n, &small, WHAT), E_DATA, "2999");
        EXPECT_FAIL(image_size(&h, &w, b.v, b.n, &small, WHAT), E_DATA, "60 x 50");
        EXPECT_FAIL(image_decode(&im, b.v, b.n, &few, WHAT), E_DATA, "bytes");
        EXPECT(!im.rgb && !im.h, "nothing is allocated for a refused picture");
        EXPECT_OK(image_decode(&im, b.v, b.n, &exact, WHAT));
        image_close(&im);
        free(b.v);
    }
    free(p);
}

/* Headers of huge pictures in files of a few bytes. */
static void bombs_are_refused(void)
{
    uint8_t *p = picture_draw(16, 16, 3);
    Bytes    png = make_png(p, 16, 16), jpeg = make_jpeg(p, 16, 16);
    Image    im = { 0 };
    memcpy(png.v + 16, "\x7f\xff\xff\xff\x7f\xff\xff\xff", 8);
    EXPECT_FAIL(decode(&im, png), E_DATA, "2147483647");
    memcpy(png.v + 16, "\0\0\0\0\0\0\0\x10", 8);
    EXPECT_FAIL(decode(&im, png), E_DATA, "no pixels");
    for (size_t i = 0; i + 9 < jpeg.n; i++)
        if (jpeg.v[i] == 0xFF && jpeg.v[i + 1] == 0xC0) memcpy(jpeg.v + i + 5, "\xff\xdc\xff\xdc", 4);
    EXPECT_FAIL(decode(&im, jpeg), E_DATA, "65500 x 65500");
    EXPECT(!im.rgb, "memory was allocated for a refused picture");
    free(p), free(png.v), free(jpeg.v);
}

/* One scan many times: a small file that takes long to decode. */
static void endless_scans_are_refused(void)
{
    uint8_t *p = picture_draw(64, 64, 3);
    Bytes    b = picture_jpeg(p, 64, 64, jpeg_kinds[3]), bomb = { 0 };
    Image    im = { 0 };
    size_t   at = 2, scan = 0, next = 0;
    while (at + 4 < b.n && !next) { /* from the first scan to the next marker */
        if (b.v[at] == 0xFF && b.v[at + 1] == 0xDA) scan = scan ? scan : at;
        if (scan && at > scan + 2 && b.v[at] == 0xFF && b.v[at + 1] >= 0xC0 && b.v[at + 1] != 0xFF) next = at;
        at += scan ? 1 : 2 + (size_t)(b.v[at + 2] << 8 | b.v[at + 3]);
    }
    bytes_add(&bomb, b.v, next);
    for (int i = 0; i < 200; i++) bytes_add(&bomb, b.v + scan, next - scan);
    bytes_add(&bomb, b.v + next, b.n - next);
    EXPECT_OK(decode(&im, b));
    EXPECT_FAIL(decode(&im, bomb), E_DATA, "scans");
    image_close(&im);
    free(p), free(b.v), free(bomb.v);
}

static void truncation_is_an_error(void)
{
    static MakeFn *const make[] = { make_jpeg, make_png, make_webp };
    uint8_t *p = picture_draw(33, 47, 3);
    for (int f = 0; f < 4; f++) {
        Bytes b = f < 3 ? make[f](p, 33, 47) : picture_jpeg(p, 33, 47, jpeg_kinds[1]);
        Image im = { 0 };
        int   passed = 0;
        for (size_t n = 0; n < b.n; n++) {
            uint8_t *cut = malloc(n + !n); /* of exact length, so that a sanitizer sees reads past the end */
            memcpy(cut, b.v, n);
            Status st = image_decode(&im, cut, n, NULL, WHAT);
            passed += st != E_DATA || im.h || !strstr(status_text(), WHAT);
            free(cut);
        }
        EXPECT(!passed, "format %d: %d of %zu truncated files were accepted", f, passed, b.n);
        image_close(&im);
        free(b.v);
    }
    free(p);
}

/* Stray bytes between markers are common and harmless; stray bytes inside the data are not. */
static void warnings_about_pixels_are_errors(void)
{
    uint8_t *p = picture_draw(64, 64, 3);
    Bytes    good = make_jpeg(p, 64, 64), stray = { 0 }, hit = { 0 };
    Image    im = { 0 };
    bytes_add(&stray, good.v, good.n), bytes_add(&hit, good.v, good.n);
    bytes_insert(&stray, stray.n - 2, "\0\0\0", 3);
    EXPECT_OK(decode(&im, stray));
    memcpy(hit.v + hit.n * 3 / 4, "\xFF\xD9", 2);
    EXPECT_FAIL(decode(&im, hit), E_DATA, "premature");
    image_close(&im);
    free(p), free(good.v), free(stray.v), free(hit.v);
}

static void other_formats_are_named(void)
{
    Image im = { 0 };
    EXPECT_FAIL(image_decode(&im, "....ftypheic", 12, NULL, "a.jpg"), E_DATA, "a.jpg: HEIC");
    EXPECT_FAIL(image_decode(&im, "....ftypavif", 12, NULL, "a.jpg"), E_DATA, "AVIF");
    EXPECT_FAIL(image_decode(&im, "<html>", 6, NULL, "a.jpg"), E_DATA, "not a JPEG");
    EXPECT_FAIL(image_decode(&im, "", 0, NULL, "a.jpg"), E_DATA, "not a JPEG");
}

static void corrupt(uint8_t *v, size_t *n, uint64_t round)
{
    uint64_t way = rng_u32(11, round, 0) % 4, times = 1 + rng_u32(11, round, 1) % 8;
    if (way == 0) *n = rng_u64(11, round, 1) % *n;
    for (uint64_t i = 0; i < times && way == 1; i++)
        v[rng_u64(12, round, i) % *n] ^= (uint8_t)(1 << rng_u32(13, round, i) % 8);
    for (uint64_t i = 0; i < times && way == 2; i++)
        v[rng_u64(12, round, i) % *n] = (uint8_t)rng_u32(13, round, i);
    for (size_t i = 12; i < *n && way == 3; i++) v[i] = (uint8_t)rng_u32(13, round, i);
}

static void a_thousand_corrupted_pictures(void)
{
    static MakeFn *const make[] = { make_jpeg, make_png, make_webp };
    enum { ROUNDS = 1200 };
    uint8_t *p = picture_draw(48, 64, 3);
    Bytes    from[5] = { make[0](p, 48, 64), make[1](p, 48, 64), make[2](p, 48, 64) };
    Image    im = { 0 };
    int64_t  h, w;
    int      refused = 0, untold = 0;
    from[3] = picture_jpeg(p, 48, 64, jpeg_kinds[1]), from[4] = picture_webp(p, 48, 64, 3, false);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        Bytes    b = from[round % 5];
        uint8_t *v = malloc(b.n);
        size_t   n = b.n;
        memcpy(v, b.v, n);
        corrupt(v, &n, round);
        uint8_t *exact = malloc(n + !n);
        memcpy(exact, v, n);
        ImageLimits lim = { .max_pixels = 1 << 22 };
        Status sized = image_size(&h, &w, exact, n, &lim, WHAT), st = image_decode(&im, exact, n, &lim, WHAT);
        untold += (st && (st != E_DATA || im.h)) || (!st && (sized || h != im.h || w != im.w));
        refused += st != OK;
        free(v), free(exact);
    }
    EXPECT(refused > ROUNDS / 2 && !untold, "%d refused, %d with the wrong answer", refused, untold);
    image_close(&im);
    free(p);
    for (int i = 0; i < 5; i++) free(from[i].v);
}

/* Codes of a GIF, packed into bytes and sub-blocks. */
typedef struct GifBits {
    uint8_t  out[1 << 17];
    size_t   n;
    uint32_t v;
    int      bits;
} GifBits;

static void gif_code(GifBits *b, int code, int width)
{
    b->v |= (uint32_t)code << b->bits, b->bits += width;
    for (; b->bits >= 8; b->bits -= 8, b->v >>= 8) b->out[b->n++] = (uint8_t)b->v;
}

/* LZW by search in a table of (prefix, last) pairs. */
static void gif_encode(GifBits *b, const uint8_t *p, size_t n, int size)
{
    static int prefix[4096], last[4096];
    int        clear = 1 << size, next = clear + 2, width = size + 1, code = -1;
    gif_code(b, clear, width);
    for (size_t i = 0; i < n; i++) {
        int k = clear + 2;
        while (code >= 0 && k < next && (prefix[k] != code || last[k] != p[i])) k++;
        if (code < 0) {
            code = p[i];
            continue;
        }
        if (k < next) {
            code = k;
            continue;
        }
        gif_code(b, code, width);
        if (next < 4096) {
            prefix[next] = code, last[next] = p[i];
            if (next++ == 1 << width && width < 12) width++;
        } else gif_code(b, clear, width), next = clear + 2, width = size + 1;
        code = p[i];
    }
    gif_code(b, code, width);
    gif_code(b, clear + 1, next == 1 << width && width < 12 ? width + 1 : width);
    gif_code(b, 0, 7);
}

/* A GIF of w x h indices below 2^bits, whose palette entry i is (i, 3 i, 255 - i). */
static size_t gif_write(uint8_t *out, const uint8_t *index, int w, int h, int bits, bool interlaced)
{
    static GifBits b;
    static uint8_t rows[1 << 16];
    const int      first[] = { 0, 4, 2, 1 }, step[] = { 8, 8, 4, 2 };
    size_t         n = 13, row = 0;
    b = (GifBits){ 0 };
    memcpy(out, "GIF89a", 6);
    out[6] = (uint8_t)(w + 1), out[7] = 0, out[8] = (uint8_t)(h + 2), out[9] = 0,
    out[10] = (uint8_t)(0x80 | (bits - 1)), out[11] = out[12] = 0;
    for (int i = 0; i < 1 << bits; i++)
        out[n++] = (uint8_t)i, out[n++] = (uint8_t)(3 * i), out[n++] = (uint8_t)(255 - i);
    memcpy(out + n, "\x21\xf9\x04\x01\0\0\x01\0\x2c\x01\0\x02\0", 13), n += 13;
    out[n++] = (uint8_t)w, out[n++] = 0, out[n++] = (uint8_t)h, out[n++] = 0,
    out[n++] = interlaced ? 0x40 : 0;
    for (int pass = 0; interlaced && pass < 4; pass++)
        for (int y = first[pass]; y < h; y += step[pass])
            memcpy(rows + (size_t)w * row++, index + (size_t)w * (size_t)y, (size_t)w);
    out[n++] = (uint8_t)(bits < 2 ? 2 : bits);
    gif_encode(&b, interlaced ? rows : index, (size_t)w * (size_t)h, bits < 2 ? 2 : bits);
    for (size_t at = 0; at < b.n; at += 255) {
        size_t len = b.n - at < 255 ? b.n - at : 255;
        out[n++]   = (uint8_t)len, memcpy(out + n, b.out + at, len), n += len;
    }
    return out[n++] = 0, out[n++] = 0x3b, n;
}

static void gif_first_frames(void)
{
    static uint8_t file[1 << 18], index[1 << 16];
    Image          im = { 0 };
    for (int round = 0; round < 40; round++) {
        int    w = 1 + (round * 37) % 200, h = 1 + (round * 61) % 180, bits = 1 + round % 8;
        size_t len;
        for (int i = 0; i < w * h; i++)
            index[i] = (uint8_t)(rng_below(7, (uint64_t)round, (uint64_t)(i / (1 + round % 5)),
                                           (uint64_t)1 << bits));
        len = gif_write(file, index, w, h, bits, round % 3 == 0);
        EXPECT_OK(image_decode(&im, file, len, NULL, "a.gif"));
        EXPECT(im.w == w + 1 && im.h == h + 2, "%lld x %lld", (long long)im.w, (long long)im.h);
        int wrong = 0;
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++) wrong += im.rgb[3 * ((y + 2) * im.w + x + 1)] != index[y * w + x];
        EXPECT(!wrong && im.rgb[0] == 1, "round %d: %d pixels, first %d", round, wrong, im.rgb[0]);
        EXPECT_FAIL(image_decode(&im, file, len / 2, NULL, "a.gif"), E_DATA, "GIF");
    }
    image_close(&im);
}

static void bmp_pictures(void)
{
    uint8_t file[54 + 16] = "BM";
    Image   im            = { 0 };
    file[10] = 54, file[14] = 40, file[18] = 2, file[22] = 2, file[26] = 1, file[28] = 24;
    memcpy(file + 54, "\x03\x02\x01\x06\x05\x04\0\0\x09\x08\x07\x0c\x0b\x0a\0\0", 16);
    EXPECT_OK(image_decode(&im, file, sizeof file, NULL, "a.bmp"));
    EXPECT(!memcmp(im.rgb, "\x07\x08\x09\x0a\x0b\x0c\x01\x02\x03\x04\x05\x06", 12),
           "rows are bottom up, blue first");
    EXPECT_FAIL(image_decode(&im, file, sizeof file - 1, NULL, "a.bmp"), E_DATA, "ends early");
    file[30] = 1;
    EXPECT_FAIL(image_decode(&im, file, sizeof file, NULL, "a.bmp"), E_DATA, "compression");
    image_close(&im);
}

int main(void)
{
    RUN(jpeg_of_every_kind);
    RUN(jpeg_of_four_inks);
    RUN(ink_formula_is_exact);
    RUN(png_of_every_kind);
    RUN(webp_of_every_kind);
    RUN(animations_show_their_first_frame);
    RUN(pictures_stand_upright);
    RUN(xmp_orientation_is_used_without_exif);
    RUN(limits_come_before_decoding);
    RUN(bombs_are_refused);
    RUN(endless_scans_are_refused);
    RUN(truncation_is_an_error);
    RUN(warnings_about_pixels_are_errors);
    RUN(other_formats_are_named);
    RUN(a_thousand_corrupted_pictures);
    RUN(gif_first_frames);
    RUN(bmp_pictures);
    return lab_report();
}
