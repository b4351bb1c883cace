/* tests/fuzz_tar.c -- hostile archives. For any bytes indexing ends; samples lie inside the file and are
 * read or refused with a text. Header checksums reject most edits, so each input is run a second time with
 * the checksums of all headers corrected. */
#include "data/format.h"

#include <stdlib.h>
#include <string.h>

static void record_check(const FormatFile *f, int64_t i)
{
    Record r;
    Status st = format_read(f, i, &r);
    REQUIRE(r.where[0] && (!st || status_text()[0]), "an error without a place or a text");
    REQUIRE(st || (r.text >= f->bytes && r.text + r.len <= f->bytes + f->len), "text outside");
    for (int k = 0; !st && k < r.files; k++) {
        const char *b = r.file[k].bytes;
        REQUIRE(b >= f->bytes && b + r.file[k].len <= f->bytes + f->len, "member %d outside", k);
        REQUIRE(memchr(r.file[k].name, '.', r.file[k].name_len), "a name without an ending");
        (void)record_file_is_picture(&r.file[k]);
    }
    record_close(&r);
}

/* A copy of exactly the right size lets the sanitizer see a read beyond its end. */
static void archive_check(const uint8_t *bytes, size_t len)
{
    FormatFile f;
    FormatConf conf = { 0 };
    uint8_t   *copy = malloc(len ? len : 1);
    if (len) memcpy(copy, bytes, len);
    Status st = format_open_memory(&f, "tar", copy, len, "fuzz", &conf);
    REQUIRE(!st, "%s", status_text());
    for (int64_t i = 0; i < f.samples; i++) record_check(&f, i);
    format_close(&f);
    format_close(&f);
    free(copy);
}

static void sums_fix(uint8_t *b, size_t len)
{
    for (size_t at = 0; at + 512 <= len; at += 512) {
        unsigned sum = 0;
        char     text[8];
        memset(b + at + 148, ' ', 8);
        for (int i = 0; i < 512; i++) sum += b[at + (size_t)i];
        snprintf(text, sizeof text, "%06o", sum);
        memcpy(b + at + 148, text, 7);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    archive_check(data, size);
    uint8_t *fixed = malloc(size + 1);
    memcpy(fixed, data, size);
    sums_fix(fixed, size);
    archive_check(fixed, size);
    free(fixed);
    return 0;
}

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"
#include "tarlab.h"

static void fuzz_seeds(Fuzz *f)
{
    for (int kind = 0; kind < 5; kind++) {
        Bytes b = { 0 };
        if (kind != 1) tar_member(&b, "a/000.json", "{\"messages\":[]}", 15);
        if (kind != 2) tar_gnu(&b, "a/some-long-name/000.png", "png", 3);
        if (kind != 3) tar_pax(&b, "b/001.txt", "words", 5);
        if (kind != 4) tar_prefixed(&b, "prefix", "001.jpg", "jpg", 3);
        tar_end(&b);
        fuzz_add(f, b.v, b.n);
        free(b.v);
    }
}
#endif
