/* data/image_private.h -- what the picture formats share; one is a file image_<name>.c and a row in
 * image.c. */
#ifndef DATA_IMAGE_PRIVATE_H
#define DATA_IMAGE_PRIVATE_H

#include "data/image.h"

/* A file in memory; nothing in it is trusted. */
typedef struct ImageFile { const uint8_t *bytes; size_t len; ImageLimits lim; const char *what; } ImageFile;

/* As stored: turn is the EXIF orientation, 1 to 8, still to be applied. */
typedef struct ImageHead { int64_t h, w; int turn; } ImageHead;

typedef struct ImageFormat {
    const char *name;
    bool   (*is)(const uint8_t *bytes, size_t len);
    Status (*head)(ImageHead *out, const ImageFile *f);
    Status (*read)(Image *im, ImageHead *out, const ImageFile *f); /* calls image_reserve_checked before any pixel */
} ImageFormat;

extern const ImageFormat image_jpeg, image_png, image_webp;

/* Holds the size against the limits; image_reserve_checked also makes the room for it. */
MUST Status image_check_limits(const ImageHead *head, const ImageFile *f);
MUST Status image_reserve_checked(Image *im, const ImageHead *head, const ImageFile *f);
MUST Status image_reserve(Image *im, int64_t h, int64_t w, const char *what);

/* data/orient.c: which way up. The readers give 0 where nothing is said, 1 for a value that means nothing. */
enum { ORIENT_ABSENT = 0, ORIENT_UPRIGHT = 1 };
int         orient_from_exif(const uint8_t *tiff, size_t len);
int         orient_from_xmp(const uint8_t *xml, size_t len);
int         orient_choose(int exif, int xmp);       /* EXIF first, then XMP, else upright */
static inline bool orient_swaps(int turn) { return turn >= 5; }
MUST Status orient_apply(Image *im, int turn, const char *what);

#endif
