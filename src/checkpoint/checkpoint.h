/* checkpoint/checkpoint.h -- a run's state on disk: whole, or not there.
 *
 *   DIR/checkpoint-N/    state/ (safetensors: master weights, moments), trainer_state.json,
 *                        the model in HF form when asked for, MANIFEST.json (sizes and hashes; written last)
 *                        with adapters: state/adapter.json (below), and the HF form is theirs, PEFT's
 *   DIR/last, DIR/best   links to the newest one and to the one with the best evaluation
 *
 * A checkpoint is written to checkpoint-N.tmp and synced file by file, then the manifest, then the folder
 * takes its name, then `last` moves. A process killed at any moment leaves the links on whole checkpoints,
 * and at most a .tmp folder, which the next start sweeps away. One that is not wanted any more becomes a .tmp
 * first.
 *
 * Of several ranks each writes what it keeps into a folder of its own below state/, with a description
 * (checkpoint/shards.h) from which a run of any other layout finds its elements, and a manifest of them. Rank 0
 * does all the rest when the manifests of the others are there. Ranks must see one file system.
 *
 * With adapters the state is theirs and that of modules trained beside them. The base is not in it, be it as
 * large as it may: a run goes on from where that came from, and adapter.json says what it was
 * (checkpoint/base_model.h) beside the modules that have pairs. */
#ifndef CHECKPOINT_CHECKPOINT_H
#define CHECKPOINT_CHECKPOINT_H

#include "base/folder.h"
#include "base/json.h"
#include "base/keep.h"
#include "base/log.h"
#include "model/model.h"

/* The model as others load it. */
typedef struct HfExport {
    const Json *config;                  /* config.json */
    const char *companions;              /* folder with tokenizer files and the like */
    int64_t     min_pixels, max_pixels;  /* into preprocessor_config.json; 0: the model sees no pictures */
} HfExport;

typedef struct Snapshot {
    const char   *dir;                   /* of the run */
    int64_t       step;
    const Model  *model;
    Backend      *be;
    const Mesh   *mesh;                  /* NULL: one rank. The rest is of the same value on all of them */
    const Json   *state;                 /* becomes trainer_state.json; of rank 0 */
    const Json   *config;                /* of the model, kept beside the state; NULL: it is not */
    const Json   *base;                  /* of a model with adapters: what they were trained on; of rank 0 */
    const HfExport *hf;                    /* NULL: our own files only */
    bool          best;                  /* move the link best too */
    int64_t       keep;                  /* newest ones that stay, and the best; 0: all */
    double        patience;              /* seconds without news of another rank's files; 0: ten minutes */
} Snapshot;

/* At once: every rank returns when the checkpoint has its name, or with what went wrong on one of them. */
MUST Status checkpoint_save(const Snapshot *s);

/* What a killed process left in the run's folder goes away. */
void        checkpoint_remove_tmp(const char *dir);

/* The checkpoint to go on from: what `last` names, else the newest; damaged ones are passed over with a
 * warning. path is "" when there is none. */
MUST Status checkpoint_find(Path path, const char *dir, const Log *log);

/* Sizes and hashes of all files against the manifest; E_DATA says which one differs. */
MUST Status checkpoint_verify(const char *path);

MUST Status checkpoint_read_state(const char *path, Json **state);        /* trainer_state.json, for json_decref */
/* E_CONFIG unless it is of a run with adapters, or without, as is asked for. */
MUST Status checkpoint_check_kind(const char *path, bool adapters);
/* Whether a run of this model, frozen and adapted so, beside this base (of adapters; see base_model.h), can
 * go on from it: by what its files say of themselves. No weight is read. */
MUST Status checkpoint_check_resume(const char *path, const ModelShape *s, const bool *frozen,
                             const LoraConf *lora, const Json *base);
/* Weights and moments, to the bit, into whatever part of the model this rank has. Every rank on its own. */
MUST Status checkpoint_load(const char *path, Model *m, Backend *be);
/* The model of a checkpoint of any layout in HF form, into folder dir. m: whole, not bound. be: the CPU. */
MUST Status checkpoint_assemble(const char *path, Model *m, Backend *be, const char *dir, DType dtype,
                                int64_t max_shard);
/* As one rank would have written it, into a new folder. */
MUST Status checkpoint_consolidate(const char *from, const char *to);
bool        checkpoint_is(const char *path);                  /* a checkpoint of ours, by its looks */
/* The folder of a run holds checkpoints and is none: whoever names it is told how one of them is named. */
MUST Status checkpoint_refuse_run_folder(const char *path);

/* What adapter.json says. It must not be moved: conf points into it. */
typedef struct CheckpointLora {
    LoraConf conf;                    /* modules are `exact` */
    const Json *base;
    WordList    save;
    Keep        keep;
    Json       *file;
} CheckpointLora;

bool        checkpoint_has_lora(const char *path);               /* a checkpoint with adapters, by its looks */
MUST Status checkpoint_lora_open(CheckpointLora *a, const char *path);       /* on failure it is closed */
void        checkpoint_lora_close(CheckpointLora *a);             /* twice is fine */
/* E_CONFIG where a recipe's words, by which the whole model was opened, would have other modules of them, or
 * them be of another rank or scale, than they were trained with. */
MUST Status checkpoint_lora_check(const CheckpointLora *a, const Model *whole);
/* Whether it has all weights of a whole model that was opened with conf, of that shape. */
MUST Status checkpoint_lora_check_shapes(const char *path, const Model *whole);
/* Their weights alone, into whatever part this rank has of a model that was opened with conf. */
MUST Status checkpoint_lora_load(const char *path, Model *m, Backend *be);

#endif
