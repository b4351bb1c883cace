/* tests/fuzz_inflate.c -- hostile files that are compressed as a whole (.gz, .zst), and compressed blocks of
 * every codec: an error with a text, or as many bytes as were asked for. */
#include "data/codec.h"
#include "data/inflate.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 4096 };

static void read_file(const char *suffix, const uint8_t *data, size_t size)
{
    const char *tmp = getenv("TMPDIR");
    char        path[512];
    int         fd;
    size_t      len;
    snprintf(path, sizeof path, "%s/treb-fuzz-%ld%s", tmp && *tmp ? tmp : "/tmp", (long)getpid(), suffix);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    REQUIRE(fd >= 0 && write(fd, data, size) == (ssize_t)size, "cannot write %s", path);
    close(fd);
    if (inflate_open(&fd, &len, path)) REQUIRE(status_text()[0], "a refusal without text");
    else {
        REQUIRE(lseek(fd, 0, SEEK_END) == (off_t)len, "not the length of its text");
        close(fd);
    }
    unlink(path);
}

/* Copies of exactly the right sizes let the sanitizer see reads and writes beyond their ends. */
static void read_block(Codec codec, const uint8_t *data, size_t size, size_t want)
{
    uint8_t *in = malloc(size ? size : 1), *out = malloc(want ? want : 1);
    if (size) memcpy(in, data, size);
    if (codec_decode(codec, out, want, in, size)) REQUIRE(status_text()[0], "a refusal without text");
    free(in), free(out);
}

/* The last byte of an input chooses the codec, the one before it the size that is asked for. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const Codec codecs[] = { CODEC_SNAPPY, CODEC_LZ4, CODEC_LZ4_HADOOP, CODEC_GZIP, CODEC_ZSTD,
                                    CODEC_BROTLI };
    if (size < 2) return 0;
    uint8_t kind = data[size - 1] % 8, blocks = data[size - 2];
    if (kind < 6) read_block(codecs[kind], data, size - 2, (size_t)blocks * BLOCK / 255);
    else read_file(kind == 6 ? ".gz" : ".zst", data, size - 2);
    return 0;
}

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"
#include <zlib.h>

static void add_seed(Fuzz *f, const void *bytes, size_t n, uint8_t size, uint8_t kind)
{
    uint8_t *all = malloc(n + 2);
    memcpy(all, bytes, n);
    all[n] = size, all[n + 1] = kind;
    fuzz_add(f, all, n + 2);
    free(all);
}

static size_t deflate_text(uint8_t *out, size_t room, const char *text, size_t n)
{
    z_stream z = { .next_in = (Bytef *)text, .avail_in = (uInt)n, .next_out = out, .avail_out = (uInt)room };
    REQUIRE(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, 0) == Z_OK, "zlib");
    deflate(&z, Z_FINISH);
    deflateEnd(&z);
    return z.total_out;
}

/* A raw and a run-length block make a Zstandard frame without its library. */
static void fuzz_seeds(Fuzz *f)
{
    static const uint8_t zstd[]   = { 0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x08, 0x20, 0, 0,
                                      'a', 'b', 'c', 'd', 0x23, 0, 0, 'x' };
    static const uint8_t brotli[] = { 0x0b, 0x01, 0x80, 'a', 'b', 'c', 'd', 0x03 };
    static const uint8_t snappy[] = { 16, 3 << 2, 'a', 'b', 'c', 'd', 11 << 2 | 2, 4, 0 };
    static const uint8_t lz4[]    = { 0x44, 'a', 'b', 'c', 'd', 4, 0, 0x40, 'e', 'f', 'g', 'h' };
    static const uint8_t hadoop[] = { 0, 0, 0, 16, 0, 0, 0, 12, 0x44,
                                      'a', 'b', 'c', 'd', 4, 0, 0x40, 'e', 'f', 'g', 'h' };
    char                 text[600];
    uint8_t              packed[1024];
    for (size_t i = 0; i < sizeof text; i++) text[i] = "{\"text\": \"a\"}\n"[i * i % 14];
    size_t n = deflate_text(packed, sizeof packed, text, sizeof text);
    add_seed(f, packed, n, 0, 6), add_seed(f, packed, n, 38, 3);
    add_seed(f, zstd, sizeof zstd, 0, 7), add_seed(f, zstd, sizeof zstd, 1, 4);
    add_seed(f, snappy, sizeof snappy, 1, 0), add_seed(f, lz4, sizeof lz4, 1, 1);
    add_seed(f, hadoop, sizeof hadoop, 1, 2), add_seed(f, brotli, sizeof brotli, 1, 5);
}
#endif
