/* data/image.h -- pictures: bytes of a file to 8-bit RGB to patches, with the pixels of the reference
 * processor.
 *
 * The format of a file follows from its content, never from its name. Sizes are checked before decoding. */
#ifndef DATA_IMAGE_H
#define DATA_IMAGE_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Pixels (h, w, 3) in a buffer of `cap` bytes that is reused from picture to picture. Zeroed: empty. */
typedef struct Image { int64_t h, w; uint8_t *rgb; size_t cap; } Image;

/* Limits of a file before resizing, against decompression bombs. 0, or NULL for both, means the defaults. */
typedef struct ImageLimits { int64_t max_pixels; size_t max_bytes; } ImageLimits;

#define IMAGE_MAX_PIXELS ((int64_t)178956970)      /* the limit of the reference loader */
#define IMAGE_MAX_BYTES  ((size_t)256 << 20)

/* How pixels become patches; patch is at most 64, channels are 3. */
typedef struct PatchShape { int64_t patch, frames, merge, channels, min_pixels, max_pixels; } PatchShape;

/* Height and width after EXIF rotation, without decoding pixels. bytes is the whole file: PNG and WebP may
 * store their orientation at its end. */
MUST Status image_size(int64_t *h, int64_t *w, const void *bytes, size_t len, const ImageLimits *lim,
                       const char *what);
MUST Status image_decode(Image *im, const void *bytes, size_t len, const ImageLimits *lim, const char *what);
const char *image_mime(const void *bytes, size_t len);  /* "image/jpeg", by content; NULL: not read here */
bool        image_has_suffix(const char *name, size_t len);          /* of one of the formats read here */
void        image_close(Image *im);                                  /* twice is fine */

/* Size after smart resizing: multiples of patch * merge, area within the bounds. E_DATA for extreme
 * aspects. */
MUST Status image_fit(int64_t *h, int64_t *w, const PatchShape *p);
/* Antialiased bicubic in two integer passes; dst is (h, w, 3), made by the call (reuses its buffer). */
MUST Status image_resize(Image *dst, const Image *src, int64_t h, int64_t w);
/* (h/patch * w/patch, channels * frames * patch^2) in merge-block order, 8-bit levels or normalised floats.
 * second: the second frame of a slice of a video; NULL: the picture is every frame. */
void        image_patches(void *out, bool bytes, const Image *im, const Image *second, const PatchShape *p);

#endif
