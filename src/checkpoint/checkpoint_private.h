/* checkpoint/checkpoint_private.h -- the steps of a save, which another thread can take, and what the files
 * of src/checkpoint share.
 *
 * A SaveJob holds everything but the tensors, which are in a host copy or still in the backend.
 * checkpoint_save_open and checkpoint_save_prepare run on the trainer's thread and may communicate;
 * checkpoint_save_write and checkpoint_save_finish use the file system only. */
#ifndef CHECKPOINT_CHECKPOINT_PRIVATE_H
#define CHECKPOINT_CHECKPOINT_PRIVATE_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/shards.h"

typedef struct SaveJob {
    Path       dir;
    int64_t    step, keep;
    bool       best;
    int        rank, ranks;
    Comm      *world;                    /* NULL: one rank */
    double     patience;
    const int *stop;                     /* not NULL: once *stop is set the save is abandoned */
    LocalShards list;
    char      *state, *config;           /* texts of trainer_state.json and state/config.json (NULL: none) */
    char      *adapter;                  /* text of state/adapter.json; NULL: no adapters */
    char      *base;                     /* for base_model_name_or_path of the PEFT files */
    ModelShape shape;
    bool       frozen[GROUP_N];
    const LoraConf *lora;                /* of the run, which outlives the job; NULL: none */
    DType      dtype;                    /* of the model in HF form */
    bool            hf, files, only_model;    /* see Snapshot */
    Json      *hf_config;
    char      *companions;
    int64_t    min_pixels, max_pixels;
} SaveJob;

MUST Status checkpoint_save_open(SaveJob *j, const Snapshot *s);
void        checkpoint_save_close(SaveJob *j);               /* may be called twice */
/* Collective: afterwards the .tmp folder exists for all ranks. */
MUST Status checkpoint_save_prepare(const SaveJob *j);
/* Writes this rank's files, from copy or, where copy is NULL, from the backend. */
MUST Status checkpoint_save_write(const SaveJob *j, Backend *be, const void *copy);
MUST Status checkpoint_save_finish(const SaveJob *j);        /* rank 0: other files, rename, links */
/* Rank 0 removes the .tmp folder; another rank leaves its error there for rank 0. Returns st with context. */
MUST Status checkpoint_save_failed(const SaveJob *j, Status st);

/* checkpoint.c */
MUST Status checkpoint_tmp_path(Path out, const char *dir, int64_t step);
/* Renames the .tmp folder of the step, moves the links and deletes checkpoints beyond the newest `keep`. */
MUST Status checkpoint_commit(const char *dir, int64_t step, bool best, int64_t keep);
/* checkpoint_manifest.c */
#define CHECKPOINT_MANIFEST "MANIFEST.json"
MUST Status checkpoint_manifest_write(const char *folder, int64_t step);
/* checkpoint_export.c: the model in HF form, or its adapters as PEFT files, from folder/state into folder. */
MUST Status checkpoint_export(const char *folder, const SaveJob *j);
/* Tokenizer files and picture sizes into folder/state: with them any checkpoint can be evaluated. */
MUST Status checkpoint_add_files(const char *folder, const SaveJob *j);
/* checkpoint_lora.c: text of state/adapter.json, for free(). */
MUST Status checkpoint_lora_dump(char **out, const Model *part, const Json *base);

/* A ParamFillFn and its self: weights of an opened state as they were trained, in f32. dtype BF16: rounded as
 * the optimizer rounds them. */
typedef struct CheckpointWeights { Shards s; DType dtype; } CheckpointWeights;
MUST Status checkpoint_weights_fill(void *self, Model *m, Backend *be, int i);

#endif
