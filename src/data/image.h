/* data/image.h -- pictures: bytes of a file to 8-bit RGB to patches, as the reference's processor does it.
 *
 * What a file is is told by its content, never by its name. Sizes are checked before anything is decoded. */
#ifndef DATA_IMAGE_H
#define DATA_IMAGE_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* (h, w, 3); the room is reused from one picture to the next. A zeroed one is empty and ready. */
typedef struct Image { int64_t h, w; uint8_t *rgb; size_t cap; } Image;

/* Of a file, before resizing; bombs stop here. 0, or no limits given, means the defaults. */
typedef struct ImageLimits { int64_t max_pixels; size_t max_bytes; } ImageLimits;

#define IMAGE_MAX_PIXELS ((int64_t)178956970)      /* where the reference's loader refuses */
#define IMAGE_MAX_BYTES  ((size_t)256 << 20)

/* How pixels become patches; patch is at most 64, channels are 3. */
typedef struct PatchShape { int64_t patch, frames, merge, channels, min_pixels, max_pixels; } PatchShape;

/* Height and width as shown (after EXIF rotation), without decoding. bytes is the whole file: PNG and WebP
 * may note their orientation at its end. */
MUST Status image_size(int64_t *h, int64_t *w, const void *bytes, size_t len, const ImageLimits *lim,
                       const char *what);
MUST Status image_decode(Image *im, const void *bytes, size_t len, const ImageLimits *lim, const char *what);
void        image_close(Image *im);                                  /* twice is fine */

/* Size after smart resizing: multiples of patch * merge, area within the bounds. E_DATA for extreme
 * aspects. */
MUST Status image_fit(int64_t *h, int64_t *w, const PatchShape *p);
/* Antialiased bicubic in two integer passes; dst is (h, w, 3), made by the call (reuses room). */
MUST Status image_resize(Image *dst, const Image *src, int64_t h, int64_t w);
/* (h/patch * w/patch, channels * frames * patch^2) in merge-block order, 8-bit levels or normalised floats;
 * the picture is its own every frame. second: the other frame of a pair, or NULL. */
void        image_patches(void *out, bool bytes, const Image *im, const Image *second, const PatchShape *p);

#endif
