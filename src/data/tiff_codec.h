/* data/tiff_codec.h -- the compressions of TIFF's strips and tiles that are read. */
#ifndef DATA_TIFF_CODEC_H
#define DATA_TIFF_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Fills out with exactly n bytes; false where the data is damaged or ends early. What follows is ignored. */
bool tiff_lzw(uint8_t *out, size_t n, const uint8_t *in, size_t len);
bool tiff_packbits(uint8_t *out, size_t n, const uint8_t *in, size_t len);
bool tiff_deflate(uint8_t *out, size_t n, const uint8_t *in, size_t len);

#endif
