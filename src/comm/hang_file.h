/* comm/hang_file.h -- the record that a rank leaves when a run ends by its watchdog: what the rank was doing,
 * its groups and its last calls, as <run>/hang/rank-00003.json. `treb report` shows the files of all ranks
 * side by side. Where the host has started many calls that the device has not reached, the calls are those
 * around the oldest one that is not done.
 *
 * The main thread may hold any lock, malloc's too: the writer uses write and memory on its stack alone. */
#ifndef COMM_HANG_FILE_H
#define COMM_HANG_FILE_H

#include "comm/watch.h"

#define HANG_FOLDER  "hang"
#define HANG_VERSION 1

enum { HANG_CALLS = 64 };

/* `folder` is that of the run; nothing is written if it is empty or does not exist. why: as the rank says
 * when it exits. */
void hang_file_write(const char *folder, int rank, int ranks, const Watch *w, const char *why);
/* Removes the records of an earlier run in the folder: the run has gone on. */
void hang_files_remove(const char *folder);

#endif
