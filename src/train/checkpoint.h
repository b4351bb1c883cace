/* train/checkpoint.h -- a run's state on disk: whole, or not there.
 *
 *   DIR/checkpoint-N/    state/ (safetensors: master weights, moments), trainer_state.json,
 *                        the model in HF form when asked for, MANIFEST.json (sizes and hashes; written last)
 *   DIR/last, DIR/best   links to the newest one and to the one with the best evaluation
 *
 * A checkpoint is written to checkpoint-N.tmp and synced file by file, then the manifest, then the folder
 * takes its name, then `last` moves. A process killed at any moment leaves the links on whole checkpoints,
 * and at most a .tmp folder, which the next start sweeps away. One that is not wanted any more becomes a .tmp
 * first. */
#ifndef TRAIN_CHECKPOINT_H
#define TRAIN_CHECKPOINT_H

#include "base/folder.h"
#include "base/json.h"
#include "base/log.h"
#include "model/model.h"

/* The model as others load it. */
typedef struct Export {
    const Json *config;                  /* config.json */
    const char *companions;              /* folder with tokenizer files and the like */
    int64_t     min_pixels, max_pixels;  /* into preprocessor_config.json; 0: the model sees no pictures */
} Export;

typedef struct Snapshot {
    const char   *dir;                   /* of the run */
    int64_t       step;
    const Model  *model;
    Backend      *be;
    const Json   *state;                 /* becomes trainer_state.json */
    const Export *hf;                    /* NULL: our own files only */
    bool          best;                  /* move the link best too */
    int64_t       keep;                  /* newest ones that stay, and the best; 0: all */
} Snapshot;

MUST Status checkpoint_save(const Snapshot *s);

/* What a killed process left in the run's folder goes away. */
void        checkpoint_sweep(const char *dir);

/* The checkpoint to go on from: what `last` names, else the newest; damaged ones are passed over with a
 * warning. path is "" when there is none. */
MUST Status checkpoint_find(Path path, const char *dir, const Log *log);

/* Sizes and hashes of all files against the manifest; E_DATA says which one differs. */
MUST Status checkpoint_check(const char *path);

MUST Status checkpoint_state(const char *path, Json **state);        /* trainer_state.json, for json_decref */
MUST Status checkpoint_load(const char *path, Model *m, Backend *be);    /* weights and moments, to the bit */

/* Pieces, each in a file of its own: checkpoint_state.c, _manifest.c, _export.c. */
MUST Status state_save(const char *folder, const Model *m, Backend *be);
MUST Status manifest_write(const char *folder, int64_t step);
MUST Status export_save(const char *folder, const Export *x, const Model *m, Backend *be);

#endif
