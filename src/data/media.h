/* data/media.h -- the bytes behind a picture's name: where the file lies, its header by mapping, all of it
 * by reading.
 *
 * Only plain files are opened. Headers are looked at through a mapping, so that measuring a picture
 * touches a page or two of it; pixels come from a copy, which nobody can cut short while a decoder runs
 * over it. */
#ifndef DATA_MEDIA_H
#define DATA_MEDIA_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct MediaMap { const void *bytes; size_t len; } MediaMap;

/* path as it stands when absolute; else below media_dir, or when that is "" beside the file `beside`. */
MUST Status media_path(char *out, size_t cap, const char *path, const char *media_dir, const char *beside);

MUST Status media_map(MediaMap *m, const char *file);
void        media_unmap(MediaMap *m);                                          /* twice is fine */
/* The whole file into *buf, which grows as needed. */
MUST Status media_read(const char *file, char **buf, size_t *cap, size_t *len);

#endif
