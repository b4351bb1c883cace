/* data/tiff_codec.c -- see tiff_codec.h. */
#include "data/tiff_codec.h"

#include <limits.h>
#include <string.h>
#include <zlib.h>

enum { CLEAR = 256, END = 257, FIRST = 258, CODES = 4096 };

typedef struct Lzw {
    const uint8_t *in, *end;
    uint32_t       bits;
    int            held;                 /* bits that are held */
    int            next, width;          /* the next code that is defined; bits of a code */
    size_t         at[CODES];            /* where the text of a code begins in the output */
    uint16_t       length[CODES];
} Lzw;

static int next_code(Lzw *t)
{
    while (t->held < t->width) {
        if (t->in == t->end) return END;
        t->bits = t->bits << 8 | *t->in++;
        t->held += 8;
    }
    t->held -= t->width;
    return (int)(t->bits >> t->held & ((1u << t->width) - 1));
}

/* The text of a code in the table, which stands in the output already; 0: there is no such code. */
static size_t put_code(const Lzw *t, int code, uint8_t *out, size_t made, size_t n)
{
    if (code < CLEAR) return out[made] = (uint8_t)code, 1;
    if (code < FIRST || code >= t->next) return 0;
    size_t length = t->length[code] < n - made ? t->length[code] : n - made;
    for (size_t i = 0; i < length; i++) out[made + i] = out[t->at[code] + i];
    return length;
}

/* A code is defined by the text of the one before it and the first byte after that, so that its text is the
 * output from there on. Codes grow one code before their width is full. */
bool tiff_lzw(uint8_t *out, size_t n, const uint8_t *in, size_t len)
{
    Lzw    t = { .in = in, .end = in + len, .next = FIRST, .width = 9 };
    size_t made = 0, before = 0, before_length = 0;
    while (made < n) {
        int code = next_code(&t);
        if (code == END) return false;
        if (code == CLEAR) {
            t.next = FIRST, t.width = 9, before_length = 0;
            continue;
        }
        if (before_length && t.next < CODES) {
            t.at[t.next] = before, t.length[t.next] = (uint16_t)(before_length < USHRT_MAX ? before_length + 1
                                                                                           : USHRT_MAX);
            t.next++;
        }
        size_t length = put_code(&t, code, out, made, n);
        if (!length) return false;
        before = made, before_length = length, made += length;
        t.width = t.next >= 2047 ? 12 : t.next >= 1023 ? 11 : t.next >= 511 ? 10 : 9;
    }
    return true;
}

bool tiff_packbits(uint8_t *out, size_t n, const uint8_t *in, size_t len)
{
    size_t made = 0, at = 0;
    while (made < n) {
        if (at >= len) return false;
        int8_t control = (int8_t)in[at++];
        if (control == -128) continue;
        size_t count = control >= 0 ? (size_t)control + 1 : (size_t)-control + 1,
               need  = control >= 0 ? count : 1;
        if (need > len - at) return false;
        if (count > n - made) count = n - made;
        if (control >= 0) memcpy(out + made, in + at, count);
        else              memset(out + made, in[at], count);
        made += count, at += need;
    }
    return true;
}

bool tiff_deflate(uint8_t *out, size_t n, const uint8_t *in, size_t len)
{
    z_stream z = { .next_in = (Bytef *)in, .avail_in = (uInt)len, .next_out = out, .avail_out = (uInt)n };
    if (len > UINT_MAX || n > UINT_MAX || inflateInit(&z) != Z_OK) return false;
    int rc = inflate(&z, Z_SYNC_FLUSH);
    inflateEnd(&z);
    return (rc == Z_OK || rc == Z_STREAM_END || rc == Z_BUF_ERROR) && z.avail_out == 0;
}
