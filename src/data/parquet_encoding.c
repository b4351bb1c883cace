/* data/parquet_encoding.c -- encodings of Parquet's values: plain, dictionary, runs, deltas, split bytes. */
#include "data/parquet.h"

#include <string.h>

enum {
    PLAIN            = 0,
    PLAIN_DICTIONARY = 2,
    RLE              = 3,
    DELTA            = 5,
    DELTA_LENGTH     = 6,
    DELTA_BYTES      = 7,
    RLE_DICTIONARY   = 8,
    BYTE_SPLIT       = 9
};

static size_t left(const PageBytes *b) { return (size_t)(b->end - b->at); }

static bool varint(PageBytes *b, uint64_t *v)
{
    *v = 0;
    for (int shift = 0; b->at < b->end && shift < 64; shift += 7) {
        *v |= (uint64_t)(*b->at & 127) << shift;
        if (!(*b->at++ & 128)) return true;
    }
    return false;
}

static int64_t zigzag(uint64_t v) { return (int64_t)(v >> 1) ^ -(int64_t)(v & 1); }

/* Number i of a row of `width`-bit numbers, lowest bit first. */
static uint64_t unpack(const uint8_t *p, int width, size_t i)
{
    uint64_t v   = 0;
    size_t   bit = i * (size_t)width;
    for (int got = 0; got < width;) {
        int take = 8 - (int)(bit % 8);
        if (take > width - got) take = width - got;
        v |= (uint64_t)(p[bit / 8] >> bit % 8 & ((1 << take) - 1)) << got;
        got += take, bit += (size_t)take;
    }
    return v;
}

static bool run_packed(PageBytes *b, int width, uint64_t groups, uint32_t *out, int64_t n, int64_t *done)
{
    if (groups > (uint64_t)1 << 40) return false;
    uint64_t bytes = groups * (uint64_t)width, count = groups * 8;
    if (bytes > left(b)) { /* the last group may be cut short */
        bytes = left(b);
        if (width && count > bytes * 8 / (uint64_t)width) count = bytes * 8 / (uint64_t)width;
    }
    for (uint64_t i = 0; i < count && *done < n; i++) out[(*done)++] = (uint32_t)unpack(b->at, width, i);
    return b->at += bytes, count > 0;
}

bool parquet_runs(PageBytes *b, int width, uint32_t *out, int64_t n)
{
    uint64_t head;
    size_t   bytes = (size_t)(width + 7) / 8;
    for (int64_t done = 0; done < n;) {
        if (!varint(b, &head)) return false;
        if (head & 1) {
            if (!run_packed(b, width, head >> 1, out, n, &done)) return false;
            continue;
        }
        uint32_t v = 0;
        if (bytes > left(b) || !(head >> 1)) return false;
        for (size_t i = 0; i < bytes; i++) v |= (uint32_t)*b->at++ << (8 * i);
        for (uint64_t i = head >> 1; i && done < n; i--) out[done++] = v;
    }
    return true;
}

/* One block of deltas: a minimum, the widths of its miniblocks, and their bits. */
static bool delta_block(PageBytes *b, uint64_t minis, uint64_t size, int64_t *last, int64_t *out, int64_t n,
                        int64_t *done)
{
    uint64_t lowest;
    if (!varint(b, &lowest) || minis > left(b)) return false;
    const uint8_t *width = b->at;
    b->at += minis;
    for (uint64_t m = 0; m < minis && *done < n; m++) {
        uint64_t bytes = size * width[m] / 8;
        if (width[m] > 64) return false;
        uint64_t count = bytes <= left(b) ? size : width[m] ? left(b) * 8 / width[m] : size;
        for (uint64_t i = 0; i < count && *done < n; i++) {
            uint64_t step  = (uint64_t)zigzag(lowest) + unpack(b->at, width[m], i);
            out[(*done)++] = *last = (int64_t)((uint64_t)*last + step);
        }
        if (count < size && *done < n) return false;
        b->at += bytes <= left(b) ? bytes : left(b);
    }
    return true;
}

bool parquet_delta(PageBytes *b, int64_t *out, int64_t n)
{
    uint64_t block, minis, total, first;
    int64_t  done = 0, last;
    if (!varint(b, &block) || !varint(b, &minis) || !varint(b, &total) || !varint(b, &first)) return false;
    if (!minis || block > 1 << 20 || minis > 1 << 16 || block % minis || block / minis % 8 ||
        (int64_t)total < n)
        return n == 0;
    last = zigzag(first);
    if (n > 0) out[done++] = last;
    while (done < n)
        if (!delta_block(b, minis, block / minis, &last, out, n, &done)) return false;
    return true;
}

static bool plain_bytes(PageBytes *b, ParquetCell *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t len;
        if (left(b) < 4) return false;
        memcpy(&len, b->at, 4);
        b->at += 4;
        if (len > left(b)) return false;
        out[i].n = len, out[i].v = b->at;
        b->at += len;
    }
    return true;
}

static size_t type_bytes(const ParquetNode *leaf)
{
    switch (leaf->type) {
    case PQ_INT32:
    case PQ_FLOAT:
        return 4;
    case PQ_INT64:
    case PQ_DOUBLE:
        return 8;
    case PQ_INT96:
        return 12;
    case PQ_FIXED:
        return (size_t)leaf->type_length;
    default:
        return 0;
    }
}

/* The number that the bytes of a fixed-size type hold. */
static void set_fixed(const ParquetNode *leaf, const uint8_t *p, ParquetCell *out)
{
    float   f;
    int32_t i;
    if (leaf->type == PQ_INT32) memcpy(&i, p, 4), out->i = i;
    else if (leaf->type == PQ_INT64) memcpy(&out->i, p, 8);
    else if (leaf->type == PQ_FLOAT) memcpy(&f, p, 4), out->f = (double)f;
    else if (leaf->type == PQ_DOUBLE) memcpy(&out->f, p, 8);
    else out->v = p, out->n = (uint32_t)type_bytes(leaf);
}

static bool plain(const ParquetNode *leaf, PageBytes *b, ParquetCell *out, int64_t n)
{
    size_t size = type_bytes(leaf);
    if (leaf->type == PQ_BYTES) return plain_bytes(b, out, n);
    if (leaf->type == PQ_BOOLEAN) {
        if ((uint64_t)n > left(b) * 8) return false;
        for (int64_t i = 0; i < n; i++) out[i].i = (int64_t)unpack(b->at, 1, (size_t)i);
        return true;
    }
    if (!size || (uint64_t)n > left(b) / size) return n == 0;
    for (int64_t i = 0; i < n; i++) set_fixed(leaf, b->at + (size_t)i * size, &out[i]);
    return true;
}

static bool dictionary(PageBytes *b, const ParquetCells *dict, ParquetCell *out, int64_t n, MemPool *keep)
{
    uint32_t *index = mem_pool_alloc(keep, (size_t)n * sizeof *index + 1);
    if (!n) return true;
    if (b->at >= b->end || *b->at > 32 || !dict->n) return false;
    int width = *b->at++;
    if (!parquet_runs(b, width, index, n)) return false;
    for (int64_t i = 0; i < n; i++) {
        if (index[i] >= (uint64_t)dict->n) return false;
        out[i].n = dict->cell[index[i]].n, out[i].i = dict->cell[index[i]].i;
    }
    return true;
}

/* Writers of 32-bit numbers let differences wrap at 32 bits. */
static bool delta_numbers(PageBytes *b, ParquetType type, ParquetCell *out, int64_t n, MemPool *keep)
{
    int64_t *v = mem_pool_alloc(keep, (size_t)n * sizeof *v + 1);
    if (!parquet_delta(b, v, n)) return false;
    for (int64_t i = 0; i < n; i++) out[i].i = type == PQ_INT32 ? (int32_t)(uint32_t)(uint64_t)v[i] : v[i];
    return true;
}

static bool delta_lengths(PageBytes *b, ParquetCell *out, int64_t n, MemPool *keep)
{
    int64_t *v = mem_pool_alloc(keep, (size_t)n * sizeof *v + 1);
    if (!parquet_delta(b, v, n)) return false;
    for (int64_t i = 0; i < n; i++) {
        if (v[i] < 0 || (uint64_t)v[i] > left(b)) return false;
        out[i].n = (uint32_t)v[i], out[i].v = b->at;
        b->at += v[i];
    }
    return true;
}

/* Each text begins with a prefix of the one before it. The page limit bounds the sum of all of them. */
static bool delta_bytes(PageBytes *b, ParquetCell *out, int64_t n, MemPool *keep)
{
    int64_t *prefix = mem_pool_alloc(keep, (size_t)n * sizeof *prefix + 1);
    uint64_t sum    = 0;
    if (!parquet_delta(b, prefix, n) || !delta_lengths(b, out, n, keep)) return false;
    for (int64_t i = 0; i < n; i++) {
        size_t before = i ? out[i - 1].n : 0;
        if (prefix[i] < 0 || (uint64_t)prefix[i] > before) return false;
        if (!prefix[i]) continue;
        size_t all = (size_t)prefix[i] + out[i].n;
        if ((sum += all) > PARQUET_PAGE_MAX) return false;
        uint8_t *text = mem_pool_alloc(keep, all);
        memcpy(text, out[i - 1].v, (size_t)prefix[i]);
        memcpy(text + prefix[i], out[i].v, out[i].n);
        out[i].v = text, out[i].n = (uint32_t)all;
    }
    return true;
}

/* Values of a fixed size have it, whatever lengths the page says. */
static bool delta_fixed(const ParquetNode *leaf, PageBytes *b, ParquetCell *out, int64_t n, MemPool *keep)
{
    if (!delta_bytes(b, out, n, keep)) return false;
    for (int64_t i = 0; i < n; i++)
        if (out[i].n != type_bytes(leaf)) return false;
    return true;
}

static bool split_bytes(const ParquetNode *leaf, PageBytes *b, ParquetCell *out, int64_t n, MemPool *keep)
{
    size_t size = type_bytes(leaf);
    if (!size || size > 64 || (uint64_t)n > left(b) / size) return n == 0;
    uint8_t *whole = mem_pool_alloc(keep, (size_t)n * size + 1);
    for (int64_t i = 0; i < n; i++) {
        for (size_t k = 0; k < size; k++) whole[(size_t)i * size + k] = b->at[k * (size_t)n + (size_t)i];
        set_fixed(leaf, whole + (size_t)i * size, &out[i]);
    }
    return true;
}

static bool runs_of_booleans(PageBytes *b, ParquetCell *out, int64_t n, MemPool *keep)
{
    uint32_t *v = mem_pool_alloc(keep, (size_t)n * sizeof *v + 1);
    if (left(b) < 4) return n == 0;
    b->at += 4; /* a length, which the page's end replaces */
    if (!parquet_runs(b, 1, v, n)) return false;
    for (int64_t i = 0; i < n; i++) out[i].i = v[i];
    return true;
}

static bool decode(const ParquetNode *leaf, int encoding, PageBytes *b, const ParquetCells *dict,
                   ParquetCell *out, int64_t n, MemPool *keep)
{
    bool bytes = leaf->type == PQ_BYTES;
    bool ints = leaf->type == PQ_INT32 || leaf->type == PQ_INT64;
    switch (encoding) {
    case PLAIN:
        return plain(leaf, b, out, n);
    case PLAIN_DICTIONARY:
    case RLE_DICTIONARY:
        return dictionary(b, dict, out, n, keep);
    case RLE:
        return leaf->type == PQ_BOOLEAN && runs_of_booleans(b, out, n, keep);
    case DELTA:
        return ints && delta_numbers(b, leaf->type, out, n, keep);
    case DELTA_LENGTH:
        return bytes && delta_lengths(b, out, n, keep);
    case DELTA_BYTES:
        if (leaf->type == PQ_FIXED) return delta_fixed(leaf, b, out, n, keep);
        return bytes && delta_bytes(b, out, n, keep);
    case BYTE_SPLIT:
        return split_bytes(leaf, b, out, n, keep);
    default:
        return false;
    }
}

Status parquet_values(const ParquetNode *leaf, int encoding, PageBytes b, const ParquetCells *dict,
                      ParquetCell *out, int64_t n, MemPool *keep)
{
    if (decode(leaf, encoding, &b, dict, out, n, keep)) return OK;
    return fail(E_DATA, "column %s: a page of encoding %d is damaged or not read", leaf->name, encoding);
}
