/* data/codec.c -- see codec.h. */
#include "data/codec.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>
#include <zlib.h>

static Status damaged(const char *name) { return fail(E_DATA, "the %s block is damaged", name); }

/* Copies n bytes from `back` bytes before out; source and target may overlap. */
static void copy_back(uint8_t *out, size_t back, size_t n)
{
    const uint8_t *from = out - back;
    if (back >= n) {
        memcpy(out, from, n);
        return;
    }
    for (size_t i = 0; i < n; i++) out[i] = from[i];
}

static bool read_varint(const uint8_t **p, const uint8_t *end, uint64_t *v)
{
    *v = 0;
    for (int shift = 0; *p < end && shift < 35; shift += 7) {
        *v |= (uint64_t)(**p & 127) << shift;
        if (!(*(*p)++ & 128)) return true;
    }
    return false;
}

static size_t little_endian(const uint8_t *p, int bytes)
{
    size_t v = 0;
    for (int i = 0; i < bytes; i++) v |= (size_t)p[i] << (8 * i);
    return v;
}

/* The element at p: a literal or a copy; false where it leaves the input or the output. */
static bool snappy_element(const uint8_t **p, const uint8_t *end, uint8_t **o, const uint8_t *begin,
                           uint8_t *stop)
{
    uint8_t tag  = *(*p)++;
    int     kind = tag & 3, extra = kind == 0 ? (tag >> 2 >= 60 ? (tag >> 2) - 59 : 0) : kind == 3 ? 4 : kind;
    if (end - *p < extra) return false;
    size_t value = little_endian(*p, extra), n = (size_t)(tag >> 2) + 1, back = value;
    *p += extra;
    if (kind == 0) {
        if (extra) n = value + 1;
        if (n > (size_t)(end - *p) || n > (size_t)(stop - *o)) return false;
        memcpy(*o, *p, n);
        *p += n, *o += n;
        return true;
    }
    if (kind == 1) n = (size_t)(tag >> 2 & 7) + 4, back = value | (size_t)(tag >> 5) << 8;
    if (!back || back > (size_t)(*o - begin) || n > (size_t)(stop - *o)) return false;
    copy_back(*o, back, n);
    *o += n;
    return true;
}

static Status snappy_decode(uint8_t *out, size_t size, const uint8_t *in, size_t len)
{
    const uint8_t *p = in, *end = in + len;
    uint8_t       *o = out;
    uint64_t       n;
    if (!read_varint(&p, end, &n) || n != size) return damaged("Snappy");
    while (p < end)
        if (!snappy_element(&p, end, &o, out, out + size)) return damaged("Snappy");
    return o == out + size ? OK : damaged("Snappy");
}

static bool lz4_length(const uint8_t **p, const uint8_t *end, size_t *n)
{
    uint8_t more = 255;
    if (*n != 15) return true;
    while (more == 255) {
        if (*p >= end || *n > (size_t)1 << 40) return false;
        *n += more = *(*p)++;
    }
    return true;
}

static bool lz4_sequence(const uint8_t **p, const uint8_t *end, uint8_t **o, const uint8_t *begin,
                         uint8_t *stop)
{
    uint8_t token   = *(*p)++;
    size_t  literal = token >> 4, match = token & 15;
    if (!lz4_length(p, end, &literal) || literal > (size_t)(end - *p) || literal > (size_t)(stop - *o))
        return false;
    memcpy(*o, *p, literal);
    *p += literal, *o += literal;
    if (*p == end) return true; /* the last sequence has no match */
    if (end - *p < 2) return false;
    size_t back = little_endian(*p, 2);
    *p += 2;
    if (!lz4_length(p, end, &match)) return false;
    match += 4;
    if (!back || back > (size_t)(*o - begin) || match > (size_t)(stop - *o)) return false;
    copy_back(*o, back, match);
    *o += match;
    return true;
}

static bool lz4_block(uint8_t *out, size_t size, const uint8_t *in, size_t len)
{
    const uint8_t *p = in, *end = in + len;
    uint8_t       *o = out;
    while (p < end)
        if (!lz4_sequence(&p, end, &o, out, out + size)) return false;
    return o == out + size;
}

static size_t big_endian(const uint8_t *p)
{
    return (size_t)p[0] << 24 | (size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3];
}

/* Hadoop's frames: size, compressed size, block. Some writers put a bare block there. */
static Status lz4_hadoop(uint8_t *out, size_t size, const uint8_t *in, size_t len)
{
    size_t done = 0, at = 0;
    while (len - at >= 8 && done < size) {
        size_t raw = big_endian(in + at), n = big_endian(in + at + 4);
        if (raw > size - done || n > len - at - 8 || !lz4_block(out + done, raw, in + at + 8, n)) break;
        done += raw, at += 8 + n;
    }
    if (done == size && at == len) return OK;
    return lz4_block(out, size, in, len) ? OK : damaged("LZ4");
}

static Status gzip_decode(uint8_t *out, size_t size, const uint8_t *in, size_t len)
{
    z_stream z = { .next_in = (Bytef *)in, .avail_in = (uInt)len, .next_out = out, .avail_out = (uInt)size };
    if (len > UINT32_MAX || size > UINT32_MAX) return fail(E_DATA, "a gzip block of more than 4 GiB");
    if (inflateInit2(&z, 15 + 32) != Z_OK) return fail(E_FIT, "no memory for a gzip block");
    int    rc   = inflate(&z, Z_FINISH);
    size_t made = size - z.avail_out;
    inflateEnd(&z);
    return rc == Z_STREAM_END && made == size ? OK : damaged("gzip");
}

/* A function of a library that is loaded when it is first needed; it stays loaded. */
static Status find_function(void *out, const char *library, const char *name, const char *package)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL), *f = handle ? dlsym(handle, name) : NULL;
    memcpy(out, &f, sizeof f);
    return f ? OK
             : fail(E_CONFIG, "the file needs %s, which is not on this machine; install %s", library,
                    package);
}

static Status zstd_decode(uint8_t *out, size_t size, const uint8_t *in, size_t len)
{
    size_t (*decode)(void *, size_t, const void *, size_t);
    TRY(find_function(&decode, "libzstd.so.1", "ZSTD_decompress", "libzstd1"));
    return decode(out, size, in, len) == size ? OK : damaged("Zstandard");
}

static Status brotli_decode(uint8_t *out, size_t size, const uint8_t *in, size_t len)
{
    int (*decode)(size_t, const uint8_t *, size_t *, uint8_t *);
    size_t made = size;
    TRY(find_function(&decode, "libbrotlidec.so.1", "BrotliDecoderDecompress", "libbrotli1"));
    return decode(len, in, &made, out) == 1 && made == size ? OK : damaged("Brotli");
}

Status codec_decode(Codec c, void *out, size_t size, const void *in, size_t len)
{
    switch (c) {
    case CODEC_NONE:
        if (len != size) return damaged("uncompressed");
        return memcpy(out, in, len), OK;
    case CODEC_SNAPPY:
        return snappy_decode(out, size, in, len);
    case CODEC_GZIP:
        return gzip_decode(out, size, in, len);
    case CODEC_BROTLI:
        return brotli_decode(out, size, in, len);
    case CODEC_LZ4_HADOOP:
        return lz4_hadoop(out, size, in, len);
    case CODEC_ZSTD:
        return zstd_decode(out, size, in, len);
    case CODEC_LZ4:
        return lz4_block(out, size, in, len) ? OK : damaged("LZ4");
    }
    return fail(E_DATA, "compression %d is not read", (int)c);
}
