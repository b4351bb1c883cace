/* checkpoint/run_folder.h -- the folder of a run: who may write to it, and where it goes on.
 *
 * A folder that is not empty is refused unless the recipe resumes. While a run uses it the folder is locked,
 * so that two runs never mix. */
#ifndef CHECKPOINT_RUN_FOLDER_H
#define CHECKPOINT_RUN_FOLDER_H

#include "base/config.h"
#include "base/folder.h"
#include "base/json.h"
#include "base/log.h"

typedef struct RunFolder {
    Path dir;
    Path resume;                         /* checkpoint to go on from, checked; "": from the beginning */
    int  lock;                           /* open on the folder; 0: not open */
    Path log, metrics, quarantine;       /* files in it */
} RunFolder;

/* Refuses the folder, or locks it where it exists, and finds the checkpoint, which must be of a run with
 * adapters, or without, as this one is. Nothing is made or changed yet, so that a mistake which shows in what
 * was found leaves no folder that the next try would find used. */
MUST Status run_folder_open(RunFolder *r, const struct cfg_checkpoint *c, bool adapters);
/* Makes it where it does not exist; sweeps what a killed run left. */
MUST Status run_folder_make(RunFolder *r);
void        run_folder_close(RunFolder *r);                  /* twice is fine */

MUST Status run_folder_write_recipe(const RunFolder *r, const Config *c);      /* recipe.yaml: every key */
MUST Status run_folder_write_json(const RunFolder *r, const char *name, const Json *o);   /* replaced in one move */

/* Takes lines of steps beyond `step` out of metrics.jsonl: the run is about to write them again. */
MUST Status run_folder_rewind_metrics(const RunFolder *r, int64_t step);

#endif
