/* base/folder.h -- files and folders on disk that are complete or absent: written, synced, removed.
 *
 * file_write returns once the bytes have reached the disk; folder_sync does the same for names. Removal
 * reports no errors, since it mostly cleans up after another failure. */
#ifndef BASE_FOLDER_H
#define BASE_FOLDER_H

#include "base/status.h"
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef char Path[PATH_MAX];

/* One '/' between them, also where folder ends with it; name "": the folder. E_IO when the path becomes too
 * long. */
MUST Status path_join(Path out, const char *folder, const char *name);
MUST Status folder_make(const char *path);                                  /* parents too; if absent */
MUST Status folder_is_empty(const char *path, bool *empty);               /* a missing folder is empty */
bool        folder_is(const char *path);                                 /* there is a folder of that name */
bool        folder_remove(const char *path);                             /* with all in it; follows no link */
void        folder_sync(const char *path);
/* The cache of what is measured once per machine: $TREB_CACHE_DIR, else ~/.cache/treb. It need not exist. */
MUST Status folder_cache(Path out);

/* Opens a regular file for reading; a pipe, a device or a folder is refused without waiting for it. */
MUST Status file_open_regular(int *fd, size_t *len, const char *path);
/* The bytes of a regular file of at most `most`, and a NUL after them; the caller frees them. */
MUST Status file_load(char **bytes, size_t *len, const char *path, size_t most);
MUST Status file_write(const char *path, const void *bytes, size_t n);      /* new or replaced, synced */
/* Writes folder/.name.tmp and renames it to folder/name: a reader sees the old file or the new one, whole. */
MUST Status file_write_atomic(const char *folder, const char *name, const void *bytes, size_t n);
/* The bytes under their name by way of path.part: whole or not there. Not synced. */
MUST Status file_replace(const char *path, const void *bytes, size_t n);
/* Opens a file to write at its end, and creates it. A symbolic link of that name is refused: files of a run
 * folder are never written through one. */
MUST Status file_append(FILE **out, const char *path);
/* Lets an open file go on in another one, at its end. Other threads may be writing to it. */
MUST Status file_redirect(FILE *f, const char *path);
MUST Status file_copy(const char *from, const char *to);                    /* new or replaced, synced */
MUST Status file_sync(const char *path);
/* The same of a pipe or device as well; of more than `most` bytes the first most + 1. */
MUST Status file_read(const char *path, size_t most, char **text, size_t *len);
/* read and fsync; the watchdog knows that they may take long. */
ssize_t     file_read_fd(int fd, void *buf, size_t n);
int         file_sync_fd(int fd);
enum { FILE_CHUNK = 16 << 20 };                 /* bytes of one write: progress is marked after each */
bool        folder_has(const char *folder, const char *name);            /* a file or folder of that name */
bool        file_is(const char *path); /* a file or folder of that name exists */

#ifdef __cplusplus
}
#endif
#endif
