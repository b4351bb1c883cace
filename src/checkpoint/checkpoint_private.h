/* checkpoint/checkpoint_private.h -- how a checkpoint comes to be, in steps that another thread can take.
 *
 * A job has all it needs but the tensors themselves: those are in its copy, or still with the backend. Of the
 * steps checkpoint_save_open and checkpoint_save_prepare are of the run's own thread and may talk to other ranks; checkpoint_save_write and
 * checkpoint_save_finish use the file system alone. */
#ifndef CHECKPOINT_CHECKPOINT_PRIVATE_H
#define CHECKPOINT_CHECKPOINT_PRIVATE_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/shards.h"

typedef struct SaveJob {
    Path       dir;
    int64_t    step, keep;
    bool       best;
    int        rank, ranks;
    Comm      *world;                    /* NULL: nobody to talk to */
    double     patience;
    const int *stop;                     /* NULL, or not 0 any more: other ranks write no more, nor need we */
    LocalShards   list;
    char      *state, *config;           /* texts of files; config NULL: none */
    char      *adapter;                  /* of adapter.json; NULL: no adapters */
    char      *base;                     /* for base_model_name_or_path */
    ModelShape shape;
    bool       frozen[GROUP_N];
    const LoraConf *lora;             /* of the run, which outlives the job; NULL: none */
    DType      dtype;                    /* of the model in HF form */
    bool       hf;
    Json      *hf_config;
    char      *companions;
    int64_t    min_pixels, max_pixels;
} SaveJob;

MUST Status checkpoint_save_open(SaveJob *j, const Snapshot *s);
void        checkpoint_save_close(SaveJob *j);                           /* twice is fine */
MUST Status checkpoint_save_prepare(const SaveJob *j);                   /* the .tmp folder is there for all ranks */
MUST Status checkpoint_save_write(const SaveJob *j, Backend *be, const void *copy);     /* this rank's files */
MUST Status checkpoint_save_finish(const SaveJob *j);                    /* rank 0: all else, up to the links */
MUST Status checkpoint_save_failed(const SaveJob *j, Status st);         /* tells rank 0, or cleans up; st, wrapped */

/* Pieces in files of their own: checkpoint.c, checkpoint_manifest.c, checkpoint_export.c. */
MUST Status checkpoint_tmp_path(Path out, const char *dir, int64_t step);
MUST Status checkpoint_commit(const char *dir, int64_t step, bool best, int64_t keep);
MUST Status checkpoint_manifest_write(const char *folder, int64_t step);
MUST Status checkpoint_export(const char *folder, const SaveJob *j);
MUST Status checkpoint_lora_dump(char **out, const Model *part, const Json *base); /* checkpoint_adapter.c */

/* Parameters out of a state, by checkpoint_weights_fill, which is a ParamFillFn: weights as they were trained, in f32. dtype
 * BF16: rounded as the optimizer did. */
typedef struct CheckpointWeights { Shards s; DType dtype; } CheckpointWeights;
MUST Status checkpoint_weights_fill(void *self, Model *m, Backend *be, int i);

#endif
