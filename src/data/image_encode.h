/* data/image_encode.h -- 8-bit RGB to PNG, JPEG and BMP, in memory or as files, for pictures that this tree
 * draws or stores.
 *
 * A file appears under its name when it is complete. It is not synced to the disk. */
#ifndef DATA_IMAGE_ENCODE_H
#define DATA_IMAGE_ENCODE_H

#include "base/status.h"
#include "data/ids.h"

#include <stdint.h>

/* rgb (h, w, 3). Appends the whole file to out; on failure nothing is appended. */
MUST Status image_encode_png(Text *out, const uint8_t *rgb, int64_t h, int64_t w);
/* 1 … 100 */
MUST Status image_encode_jpeg(Text *out, const uint8_t *rgb, int64_t h, int64_t w, int quality);
/* 24 bits, not compressed. */
MUST Status image_encode_bmp(Text *out, const uint8_t *rgb, int64_t h, int64_t w);

MUST Status image_encode_png_file(const char *path, const uint8_t *rgb, int64_t h, int64_t w);
MUST Status image_encode_jpeg_file(const char *path, const uint8_t *rgb, int64_t h, int64_t w, int quality);

#endif
