/* checkpoint/run_folder.h -- the output folder of a training run: its lock, its files, its resume checkpoint.
 *
 * A folder that is not empty is refused unless the recipe resumes. One in which a run ended before its first
 * step counts as empty: the next run removes its files. While a run uses the folder it holds a
 * lock on it, so that two runs never write to the same folder. */
#ifndef CHECKPOINT_RUN_FOLDER_H
#define CHECKPOINT_RUN_FOLDER_H

#include "base/config.h"
#include "base/folder.h"
#include "base/json.h"
#include "base/log.h"

typedef struct RunFolder {
    Path dir;
    Path resume;                         /* verified checkpoint to resume from; "": a new run */
    int  lock;                           /* file descriptor of the folder; 0: not open */
    Path log, metrics, quarantine;       /* files in it */
} RunFolder;

/* Refuses the folder or, where it exists, locks it, and finds the checkpoint, which must be of a run with or
 * without adapters as this one is. Creates and changes nothing, so that an error found afterwards does not
 * leave a folder that the next attempt would refuse as not empty. */
MUST Status run_folder_open(RunFolder *r, const struct cfg_checkpoint *c, bool adapters);
/* Creates the folder if it does not exist; removes what a killed run left. */
MUST Status run_folder_make(RunFolder *r);
/* Whether the folder was removed, renamed or replaced since it was locked. */
bool        run_folder_is_lost(const RunFolder *r);
MUST Status run_folder_make_again(RunFolder *r);
void        run_folder_close(RunFolder *r);                  /* may be called twice */

/* recipe.yaml: every key, below notes as comments; a NULL ends them, too. */
MUST Status run_folder_write_recipe(const RunFolder *r, const Config *c, const char *const *notes,
                                    int n_notes);
/* Replaces the file atomically. */
MUST Status run_folder_write_json(const RunFolder *r, const char *name, const Json *o);

/* Removes lines of steps beyond `step` from metrics.jsonl: the resumed run will write them again. */
MUST Status run_folder_rewind_metrics(const RunFolder *r, int64_t step);

#endif
