/* data/media.h -- finds and reads the file of a picture.
 *
 * Only regular files are opened. Headers are read through a mapping, so that measuring a picture reads a
 * page or two of it. Pixels are decoded from a copy, because a mapped file that is truncated during
 * decoding would end the process. */
#ifndef DATA_MEDIA_H
#define DATA_MEDIA_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct MediaMap { const void *bytes; size_t len; } MediaMap;

/* An absolute path is kept; another is taken below media_dir or, when that is "", below the folder of
 * `beside`. */
MUST Status media_path(char *out, size_t cap, const char *path, const char *media_dir, const char *beside);

/* A regular file of 1 to `most` bytes. */
MUST Status media_open(int *fd, size_t *len, const char *file, uint64_t most);
MUST Status media_map(MediaMap *m, const char *file);
void        media_unmap(MediaMap *m);                                          /* twice is fine */
/* The whole file into *buf, which grows as needed. */
MUST Status media_read(const char *file, char **buf, size_t *cap, size_t *len);

#endif
