/* data/inflate.h -- dataset files that are compressed as a whole (.gz, .zst): decompressed as a stream to a
 * file without a name in TMPDIR, which is then read as any other. Memory is bounded; the disk holds the text
 * while it is open. */
#ifndef DATA_INFLATE_H
#define DATA_INFLATE_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>

/* Bytes of path without its .gz or .zst; 0: it has neither. */
size_t      inflate_stem(const char *path);
MUST Status inflate_open(int *fd, size_t *len, const char *path); /* the caller closes fd */

#endif
