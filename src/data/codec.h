/* data/codec.h -- decompression of blocks whose size is known: Snappy, LZ4, gzip, Zstandard, Brotli.
 *
 * Snappy and LZ4 are decoded here, gzip by zlib. The libraries of Zstandard and Brotli are loaded when a file
 * needs them, so that the build needs neither. Input is not trusted: nothing is read or written outside. */
#ifndef DATA_CODEC_H
#define DATA_CODEC_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

/* The numbers are those of Parquet's CompressionCodec. */
typedef enum {
    CODEC_NONE       = 0,
    CODEC_SNAPPY     = 1,
    CODEC_GZIP       = 2,
    CODEC_BROTLI     = 4,
    CODEC_LZ4_HADOOP = 5,
    CODEC_ZSTD       = 6,
    CODEC_LZ4        = 7,
} Codec;

/* Exactly `size` bytes to out; E_DATA where the block holds another number or is damaged. */
MUST Status codec_decode(Codec c, void *out, size_t size, const void *in, size_t len);

#endif
