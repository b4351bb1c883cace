/* tests/fuzz_bin.c -- hostile packed shards. For any bytes the reader returns an error with a text, or
 * records whose parts lie inside the file. Hashes reject most edits, so each input is run a second time
 * with the hashes of header, table and samples recomputed. */
#include "data/format_bin.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static bool within(const FormatFile *f, const void *at, size_t n)
{
    const char *b = at;
    return b >= f->bytes && b <= f->bytes + f->len && n <= (size_t)(f->bytes + f->len - b);
}

static void record_check(const FormatFile *f, int64_t i)
{
    Record  r;
    DocSize size;
    Status  st = format_read(f, i, &r);
    REQUIRE(f->format->size(f, i, &size) && size.tokens >= 0 && size.patches >= 0, "sizes");
    REQUIRE(r.where[0] && (!st || status_text()[0]), "an error without a place or a text");
    if (st) return;
    size_t tokens = (size_t)r.tokens;
    REQUIRE(within(f, r.ids, 4 * tokens) && within(f, r.targets, 4 * tokens), "tokens outside");
    REQUIRE(within(f, r.slice, (size_t)r.slices * sizeof *r.slice), "slices outside");
    for (int k = 0; k < r.files; k++)
        REQUIRE(within(f, r.file[k].bytes, r.file[k].len), "picture %d outside", k);
    for (int64_t k = 0; k < r.slices; k++)
        REQUIRE(r.slice[k].a < r.files && r.slice[k].b < r.files, "slice %lld", (long long)k);
    record_close(&r);
}

static void shard_check(const uint8_t *bytes, size_t len)
{
    FormatFile f;
    FormatConf conf = { 0 };
    uint8_t   *copy = malloc(len ? len : 1);
    if (len) memcpy(copy, bytes, len);
    Status st = format_open_memory(&f, "bin", copy, len, "fuzz", &conf);
    REQUIRE(!st || (status_text()[0] && !f.self), "an error without text, or half open");
    for (int64_t i = 0; i < f.samples; i++) record_check(&f, i);
    format_close(&f);
    format_close(&f);
    free(copy);
}

static void hashes_fix(uint8_t *b, size_t len)
{
    BinHead h;
    memcpy(&h, b, sizeof h);
    memcpy(h.magic, BIN_MAGIC, 8);
    h.version = BIN_VERSION, h.bytes = sizeof h, h.file_bytes = len;
    for (uint64_t i = 0; h.rows_at < len && i < h.samples && i < (len - h.rows_at) / sizeof(BinRow); i++) {
        BinRow r;
        memcpy(&r, b + h.rows_at + i * sizeof r, sizeof r);
        if (r.at <= len && r.bytes <= len - r.at) r.hash = XXH3_64bits(b + r.at, r.bytes);
        memcpy(b + h.rows_at + i * sizeof r, &r, sizeof r);
    }
    if (h.rows_at <= len && h.samples <= (len - h.rows_at) / sizeof(BinRow))
        h.rows_hash = XXH3_64bits(b + h.rows_at, h.samples * sizeof(BinRow));
    h.hash = XXH3_64bits(&h, sizeof h - sizeof h.hash);
    memcpy(b, &h, sizeof h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    shard_check(data, size);
    if (size < sizeof(BinHead)) return 0;
    uint8_t *fixed = malloc(size);
    memcpy(fixed, data, size);
    hashes_fix(fixed, size);
    shard_check(fixed, size);
    free(fixed);
    return 0;
}

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"

/* A shard of n made-up samples of a few tokens and files. */
static void seed_from(Fuzz *f, int n)
{
    static int32_t     ids[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, targets[8] = { 2, 3, 4, -1, -1, -1, 8, -1 };
    static RecordSlice slices[2] = { { 2, 4, 0, -1 }, { 4, 2, 1, 0 } };
    static Frame       frames[2] = { { .bytes = "picture one", .len = 11 }, { .bytes = "two", .len = 3 } };
    char               path[sizeof f->path + 16];
    BinWriter          w;
    FormatFile         file;
    FormatConf         conf = { 0 };
    Json              *settings = json_pack("{si si}", "patch", 16, "vocabulary", 300);
    snprintf(path, sizeof path, "%s.treb", f->path);
    REQUIRE(!bin_writer_open(&w, path), "%s", status_text());
    for (int i = 0; i < n; i++) {
        Sample s = { .ids     = { ids, 3 + i, 8 },
                     .targets = { targets, 3 + i, 8 },
                     .slice   = slices,
                     .slices  = i % 3,
                     .frame   = frames,
                     .frames  = 2 };
        s.size = (DocSize){ 3 + i, 8 * (i % 3), 3 };
        snprintf(s.record.where, sizeof s.record.where, "x.jsonl:%d", i);
        REQUIRE(!bin_writer_add(&w, &s, NULL, NULL), "%s", status_text());
    }
    REQUIRE(!bin_writer_finish(&w, settings) && !format_open(&file, path, &conf), "%s", status_text());
    fuzz_add(f, file.bytes, file.len);
    format_close(&file);
    json_decref(settings);
    unlink(path);
}

static void fuzz_seeds(Fuzz *f)
{
    for (int n = 0; n < 5; n++) seed_from(f, n);
}
#endif
