/* data/image_private.h -- the interface of a picture format. To add one, write image_<name>.c ending in
 * `const ImageFormat image_<name>` and a row in image.c. */
#ifndef DATA_IMAGE_PRIVATE_H
#define DATA_IMAGE_PRIVATE_H

#include "data/image.h"

/* A file in memory; nothing in it is trusted. `what` names it in messages. */
typedef struct ImageFile { const uint8_t *bytes; size_t len; ImageLimits lim; const char *what; } ImageFile;

/* The size as stored, before the EXIF orientation `turn` (1 to 8) is applied. */
typedef struct ImageHead { int64_t h, w; int turn; } ImageHead;

typedef struct ImageFormat {
    const char *name, *mime, *suffixes;                            /* "JPEG", "image/jpeg", ".jpg,.jpeg" */
    bool   (*is)(const uint8_t *bytes, size_t len);                /* by content */
    Status (*head)(ImageHead *out, const ImageFile *f);            /* decodes no pixels */
    /* calls image_reserve_checked before decoding */
    Status (*read)(Image *im, ImageHead *out, const ImageFile *f);
} ImageFormat;

/* Checks a size against the limits. image_reserve gives the picture memory for a size;
 * image_reserve_checked does both. */
MUST Status image_check_limits(const ImageHead *head, const ImageFile *f);
MUST Status image_reserve_checked(Image *im, const ImageHead *head, const ImageFile *f);
MUST Status image_reserve(Image *im, int64_t h, int64_t w, const char *what);

/* data/orient.c: the orientation of a picture. The readers give ABSENT where none is stored and UPRIGHT
 * for a value without a meaning. */
enum { ORIENT_ABSENT = 0, ORIENT_UPRIGHT = 1 };
int         orient_from_exif(const uint8_t *tiff, size_t len);
int         orient_from_xmp(const uint8_t *xml, size_t len);
int         orient_choose(int exif, int xmp);       /* EXIF first, then XMP, else upright */
static inline bool orient_swaps(int turn) { return turn >= 5; }
MUST Status orient_apply(Image *im, int turn, const char *what);

#endif
