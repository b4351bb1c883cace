/* data/cache_file.h -- tables of a dataset between starts: files index/NAME of the user's cache folder
 * (folder_cache). A file has a version and a hash; one that is not there, is older or is damaged is not read.
 * The files that were used last stay, the others are removed. Nothing is written beside the data. */
#ifndef DATA_CACHE_FILE_H
#define DATA_CACHE_FILE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct CachePart { const void *bytes; size_t n; } CachePart;

/* The content of `n` bytes or less; the caller frees it. false: there is none. */
bool        cache_file_load(char **bytes, size_t *n, const char *name, size_t most);
MUST Status cache_file_save(const char *name, const CachePart *part, int parts);

/* Adds to a hash (XXH3_state_t) which file this is: path, size, number and times of change. E_IO: it cannot
 * be looked at. */
MUST Status cache_key_add_file(void *xxh3, const char *path);

enum { CACHE_KEY = 33 };
void        cache_key_text(char key[CACHE_KEY], void *xxh3);                  /* frees the state */

#endif
