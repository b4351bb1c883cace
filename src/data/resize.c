/* data/resize.c -- antialiased bicubic resize in integers, bit-equal to the reference.
 *
 * Two passes of one dimension: horizontal first, rounded and clamped to 8 bits, then vertical. A dimension
 * that keeps its size is skipped. Weights come from the Keys kernel (a = -0.5), widened when reducing, in
 * double, then as int16 with as many fraction bits as the largest weight of the dimension allows. They are
 * not renormalised to sum to one: renormalising, another number of bits, or floats between the passes
 * would change pixels.
 *
 * Rows of the first pass go to a ring just deep enough for the second, so the work stays in cache. Vectors
 * are 128 bits wide, two taps of a pixel or of 16 columns at a time; resizing is then much faster than
 * decoding. */
#include "base/hot.h"
#include "data/image_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BITS = 22, PAD = 16, LANES = 4 };    /* PAD: bytes read past a row; LANES: rows at a time */

typedef uint8_t  U8x16 __attribute__((vector_size(16)));
typedef int16_t  I16x8 __attribute__((vector_size(16)));
typedef int32_t  I32x4 __attribute__((vector_size(16)));
typedef int64_t  I64x2 __attribute__((vector_size(16)));

/* One dimension: output i is the sum over k < taps of weight[i * taps + k] * input[first[i] + k]. taps is
 * even and the same for all outputs; the weights added for that are 0, and their input may lie past the
 * end. */
typedef struct ResizeAxis { int64_t in, out, taps; int bits; int32_t *first; int16_t *weight; } ResizeAxis;

static double keys(double t)
{
    const double a = -0.5;
    t = fabs(t);
    if (t < 1.0) return ((a + 2.0) * t - (a + 3.0)) * t * t + 1.0;
    if (t < 2.0) return (((t - 5.0) * t + 8.0) * t - 4.0) * a;
    return 0.0;
}

static void axis_close(ResizeAxis *a)
{
    free(a->first), free(a->weight);
    *a = (ResizeAxis){ 0 };
}

/* The inputs of output i: [x0, x1). */
typedef struct InputSpan { int64_t x0, x1; double centre; } InputSpan;

static InputSpan span_of(int64_t i, int64_t in, double scale, double widen)
{
    double centre = ((double)i + 0.5) * scale, support = 2.0 * widen;
    InputSpan   s = { (int64_t)(centre - support + 0.5), (int64_t)(centre + support + 0.5), centre };
    if (s.x0 < 0) s.x0 = 0;
    if (s.x1 > in) s.x1 = in;
    return s;
}

/* Writes the normalised weights of one output to real[]; returns the largest. */
static double weigh(double *real, InputSpan s, double widen)
{
    double sum = 0.0, most = 0.0;
    for (int64_t x = s.x0; x < s.x1; x++)
        sum += real[x - s.x0] = keys(((double)x - s.centre + 0.5) / widen);
    for (int64_t x = s.x0; x < s.x1; x++) {
        if (sum != 0.0) real[x - s.x0] /= sum;
        if (real[x - s.x0] > most) most = real[x - s.x0];
    }
    return most;
}

static int bits_for(double most)
{
    int p = 0;
    while (p < MOST_BITS && (int64_t)(most * (double)((int64_t)1 << (p + 1)) + 0.5) < 32768) p++;
    return p;
}

static int16_t fixed(double w, int bits)
{
    return (int16_t)(w * (double)((int64_t)1 << bits) + (w < 0.0 ? -0.5 : 0.5));
}

static void axis_fill(ResizeAxis *a, double *real, double scale, double widen)
{
    double most = 0.0;
    for (int64_t i = 0; i < a->out; i++) {
        InputSpan s = span_of(i, a->in, scale, widen);
        most = fmax(most, weigh(real + i * a->taps, s, widen));
    }
    a->bits = bits_for(most);
    for (int64_t i = 0; i < a->out; i++) {
        InputSpan    s = span_of(i, a->in, scale, widen);
        int64_t first = a->in < a->taps ? 0 : s.x0 + a->taps > a->in ? a->in - a->taps : s.x0;
        int16_t *w = a->weight + i * a->taps + (s.x0 - first);
        a->first[i] = (int32_t)first;
        for (int64_t x = s.x0; x < s.x1; x++) w[x - s.x0] = fixed(real[i * a->taps + x - s.x0], a->bits);
    }
}

static Status axis_open(ResizeAxis *a, int64_t in, int64_t out)
{
    double scale = (double)in / (double)out, widen = scale > 1.0 ? scale : 1.0;
    *a = (ResizeAxis){ .in = in, .out = out, .taps = 2 };
    for (int64_t i = 0; i < out; i++) {
        InputSpan s = span_of(i, in, scale, widen);
        if (s.x1 - s.x0 > a->taps) a->taps = (s.x1 - s.x0 + 1) & ~(int64_t)1;
    }
    size_t all = (size_t)out * (size_t)a->taps;
    a->first = malloc((size_t)out * sizeof *a->first);
    a->weight = calloc(all, sizeof *a->weight);
    double *real = malloc(all * sizeof *real);
    bool    got = a->first && a->weight && real;
    if (got) axis_fill(a, real, scale, widen);
    else     axis_close(a);
    free(real);
    return got ? OK : fail(E_FIT, "no memory for %zu weights of a resize", all);
}

/* a[0] b[0] + a[1] b[1], a[2] b[2] + a[3] b[3], … */
INLINE I32x4 pairs(I16x8 a, I16x8 b)
{
#ifdef __SSE2__
    return __builtin_ia32_pmaddwd128(a, b);
#else
    I32x4 r;
    for (int i = 0; i < 4; i++) r[i] = a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
    return r;
#endif
}

/* Clamps to 0 … 255, as bytes. */
INLINE U8x16 clamped(I32x4 a, I32x4 b, I32x4 c, I32x4 d)
{
#ifdef __SSE2__
    I16x8 lo = __builtin_ia32_packssdw128(a, b), hi = __builtin_ia32_packssdw128(c, d);
    return (U8x16)__builtin_ia32_packuswb128(lo, hi);
#else
    U8x16 r;
    for (int i = 0; i < 16; i++) {
        int v = i < 4 ? a[i] : i < 8 ? b[i - 4] : i < 12 ? c[i - 8] : d[i - 12];
        r[i] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
    }
    return r;
#endif
}

INLINE U8x16 load8(const uint8_t *p) { int64_t v; memcpy(&v, p, 8); return (U8x16)(I64x2){ v, 0 }; }
INLINE U8x16 load16(const uint8_t *p) { U8x16 r; memcpy(&r, p, 16); return r; }

/* Interleaves the bytes of a and b, of the lower and of the upper half; with zeros for b this widens to 16
 * bits. */
INLINE I16x8 zip_low(U8x16 a, U8x16 b)
{
    return (I16x8)__builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
INLINE I16x8 zip_high(U8x16 a, U8x16 b)
{
    return (I16x8)__builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/* Two weights, repeated. */
INLINE I16x8 weights(const int16_t *w)
{
    int32_t both;
    memcpy(&both, w, 4);
    return (I16x8)(I32x4){ both, both, both, both };
}

/* One output pixel of each of LANES rows, from byte 3 * at on: 4 bytes a row, of which 3 are used. */
INLINE U8x16 pixels_across(const uint8_t *const *src, int64_t at, const int16_t *w, int64_t taps, int bits)
{
    int32_t half = 1 << (bits - 1);
    I32x4   s[LANES];
    for (int j = 0; j < LANES; j++) s[j] = (I32x4){ half, half, half, half };
    for (int64_t k = 0; k < taps; k += 2) {
        I16x8 both = weights(w + k);
        for (int j = 0; j < LANES; j++) {
            I16x8 two = zip_low(load8(src[j] + (at + k) * 3), (U8x16){ 0 }); /* r g b r' g' b' . . */
            s[j] += pairs(__builtin_shufflevector(two, two, 0, 3, 1, 4, 2, 5, 6, 7), both);
        }
    }
    for (int j = 0; j < LANES; j++) s[j] >>= bits;
    return clamped(s[0], s[1], s[2], s[3]);
}

INLINE void rows_across_by(uint8_t *const *dst, const uint8_t *const *src, const ResizeAxis *a, int64_t taps)
{
    uint8_t *to[LANES];
    const uint8_t *from[LANES];
    const int16_t *weight = a->weight;
    const int32_t *first = a->first;
    int64_t last = a->out - 1;
    int bits = a->bits;
    for (int j = 0; j < LANES; j++) to[j] = dst[j], from[j] = src[j];
    for (int64_t i = 0; i < last; i++) {
        I32x4 rgb = (I32x4)pixels_across(from, first[i], weight + i * taps, taps, bits);
        for (int j = 0; j < LANES; j++) memcpy(to[j] + i * 3, &(int32_t){ rgb[j] }, 4);
    }
    U8x16 rgb = pixels_across(from, first[last], weight + last * taps, taps, bits);
    for (int j = 0; j < LANES; j++)
        /* the bytes after the row belong to the next row */
        for (int c = 0; c < 3; c++) to[j][last * 3 + c] = rgb[4 * j + c];
}

/* LANES rows of RGB. Small numbers of taps, which mild changes of size have, get unrolled loops. */
HOT static void rows_across(uint8_t *const *dst, const uint8_t *const *src, const ResizeAxis *a)
{
    switch (a->taps) {
    case 4:  rows_across_by(dst, src, a, 4); break;
    case 6:  rows_across_by(dst, src, a, 6); break;
    case 8:  rows_across_by(dst, src, a, 8); break;
    default: rows_across_by(dst, src, a, a->taps);
    }
}

/* n bytes of one output row from `taps` rows; reads and writes round n up to 16. */
HOT static void rows_down(uint8_t *dst, const uint8_t *const *rows, const int16_t *w, int64_t taps, int bits,
                          int64_t n)
{
    int32_t half = 1 << (bits - 1);
    for (int64_t x = 0; x < n; x += 16) {
        I32x4 s[4];
        for (int j = 0; j < 4; j++) s[j] = (I32x4){ half, half, half, half };
        for (int64_t k = 0; k < taps; k += 2) {
            U8x16 a = load16(rows[k] + x), b = load16(rows[k + 1] + x), zero = { 0 };
            U8x16 lo = (U8x16)zip_low(a, b), hi = (U8x16)zip_high(a, b);
            I16x8 both = weights(w + k);
            s[0] += pairs(zip_low(lo, zero), both), s[1] += pairs(zip_high(lo, zero), both);
            s[2] += pairs(zip_low(hi, zero), both), s[3] += pairs(zip_high(hi, zero), both);
        }
        for (int j = 0; j < 4; j++) s[j] >>= bits;
        U8x16 out = clamped(s[0], s[1], s[2], s[3]);
        memcpy(dst + x, &out, 16);
    }
}

/* Rows after the first pass, computed in order and kept while the second pass needs them. */
typedef struct Ring {
    const Image    *src;
    const ResizeAxis     *across;              /* NULL: the width does not change */
    int64_t         stride, slots, made; /* rows [made - slots, made) are in the ring */
    int64_t         reach;               /* bytes that may be read past a source row */
    /* edge: copies of LANES source rows, padded so that vectors may read past them */
    uint8_t        *bytes, *edge;
    const uint8_t **rows;                /* inputs of the output row that is computed */
} Ring;

static void ring_close(Ring *r)
{
    free(r->bytes), free(r->edge), free(r->rows);
    *r = (Ring){ 0 };
}

static Status ring_open(Ring *r, const Image *src, const ResizeAxis *across, int64_t w, int64_t taps)
{
    int64_t over = across && across->taps > src->w ? (across->taps - src->w) * 3 : 0;
    *r = (Ring){ .src = src, .across = across, .stride = w * 3 + PAD, .slots = taps + LANES };
    r->reach = over + PAD;
    r->bytes = calloc((size_t)r->slots, (size_t)r->stride);
    r->edge = calloc(LANES, (size_t)(src->w * 3 + r->reach));
    r->rows = malloc((size_t)taps * sizeof *r->rows);
    if (r->bytes && r->edge && r->rows) return OK;
    ring_close(r);
    return fail(E_FIT, "no memory to resize a picture %lld wide", (long long)src->w);
}

/* Copies the row first where a vector could read past the end of the picture. */
static const uint8_t *source_row(const Ring *r, int64_t y, int lane)
{
    int64_t        bytes = r->src->w * 3;
    const uint8_t *row = r->src->rgb + y * bytes;
    if ((r->src->h - 1 - y) * bytes >= r->reach) return row;
    return memcpy(r->edge + lane * (bytes + r->reach), row, (size_t)bytes);
}

static uint8_t *ring_slot(const Ring *r, int64_t y) { return r->bytes + y % r->slots * r->stride; }

/* LANES rows from y on; past the last row the last row is repeated. */
static void across_from(const Ring *r, uint8_t *const *to, int64_t y)
{
    const uint8_t *from[LANES];
    for (int j = 0; j < LANES; j++) from[j] = y + j < r->src->h ? source_row(r, y + j, j) : from[j - 1];
    rows_across(to, from, r->across);
}

static void ring_advance(Ring *r, int64_t until)
{
    while (r->made < until) {
        int64_t  left = r->src->h - r->made, n = left < LANES ? left : LANES;
        uint8_t *to[LANES];
        for (int j = 0; j < LANES; j++) to[j] = ring_slot(r, r->made + (j < n ? j : n - 1));
        if (r->across) across_from(r, to, r->made);
        else
            for (int j = 0; j < n; j++)
                memcpy(to[j], r->src->rgb + (r->made + j) * r->src->w * 3, (size_t)r->src->w * 3);
        r->made += n;
    }
}

static void resize_down(Image *dst, Ring *r, const ResizeAxis *down)
{
    for (int64_t y = 0; y < dst->h; y++) {
        int64_t first = down->first[y], end = first + down->taps < down->in ? first + down->taps : down->in;
        ring_advance(r, end);
        for (int64_t k = 0; k < down->taps; k++)
            r->rows[k] = ring_slot(r, first + k < end ? first + k : first);
        rows_down(dst->rgb + y * dst->w * 3, r->rows, down->weight + y * down->taps, down->taps, down->bits,
                  dst->w * 3);
    }
}

static void resize_across(const Image *dst, const Ring *r)
{
    for (int64_t y = 0; y < dst->h; y += LANES) {
        uint8_t *to[LANES];
        for (int j = 0; j < LANES; j++) to[j] = dst->rgb + (y + j < dst->h ? y + j : dst->h - 1) * dst->w * 3;
        across_from(r, to, y);
    }
}

Status image_resize(Image *dst, const Image *src, int64_t h, int64_t w)
{
    ResizeAxis   across = { 0 }, down = { 0 };
    Ring   ring = { 0 };
    REQUIRE(dst != src && h > 0 && w > 0 && src->h > 0 && src->w > 0, "resize %lld x %lld to %lld x %lld",
            (long long)src->h, (long long)src->w, (long long)h, (long long)w);
    Status st = image_reserve(dst, h, w, "resize");
    if (!st && w != src->w) st = axis_open(&across, src->w, w);
    if (!st && h != src->h) st = axis_open(&down, src->h, h);
    if (!st) st = ring_open(&ring, src, across.weight ? &across : NULL, w, down.weight ? down.taps : 1);
    if (st)                 dst->h = dst->w = 0;
    else if (down.weight)   resize_down(dst, &ring, &down);
    else if (across.weight) resize_across(dst, &ring);
    else                    memcpy(dst->rgb, src->rgb, (size_t)h * (size_t)w * 3);
    axis_close(&across), axis_close(&down), ring_close(&ring);
    return st;
}
