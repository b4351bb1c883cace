/* data/image_write.h -- 8-bit RGB to PNG and JPEG files, for pictures that are made here.
 *
 * A file appears under its name when it is whole. It is not forced to the disk: what is drawn can be drawn
 * again. */
#ifndef DATA_IMAGE_WRITE_H
#define DATA_IMAGE_WRITE_H

#include "base/status.h"
#include "data/ids.h"

#include <stdint.h>

/* rgb (h, w, 3). Appends the whole file to out; on failure nothing is appended. */
MUST Status png_encode(Text *out, const uint8_t *rgb, int64_t h, int64_t w);
MUST Status jpeg_encode(Text *out, const uint8_t *rgb, int64_t h, int64_t w, int quality);       /* 1 … 100 */

MUST Status png_write(const char *path, const uint8_t *rgb, int64_t h, int64_t w);
MUST Status jpeg_write(const char *path, const uint8_t *rgb, int64_t h, int64_t w, int quality);

/* The bytes under their name, by way of path.part: whole or not there. */
MUST Status file_put(const char *path, const void *bytes, size_t n);

#endif
