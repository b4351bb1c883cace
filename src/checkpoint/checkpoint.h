/* checkpoint/checkpoint.h -- a training run's state on disk: either complete or absent.
 *
 *   DIR/checkpoint-N/    state/ (safetensors: master weights, moments; config.json and tokenizer files),
 *                        trainer_state.json, on request the model in HF form, MANIFEST.json (sizes and
 *                        hashes; written last); with checkpoint.save_only_model no state/;
 *                        a run with adapters has state/adapter.json (below) and PEFT files as its HF form
 *   DIR/last, DIR/best   links to the newest checkpoint and to the one with the best evaluation
 *
 * A checkpoint is written to checkpoint-N.tmp, each file synced, then the manifest; then the folder is
 * renamed, then `last` moves. A process killed at any moment leaves links to complete checkpoints and at most
 * a .tmp folder, which the next start removes. A checkpoint that is deleted is renamed to .tmp first.
 *
 * With several ranks each rank writes the elements it is responsible for into its own folder below state/,
 * with a description (checkpoint/shards.h) by which a run of any other layout finds its elements, and a
 * manifest of these files. Rank 0 writes all other files once the manifests of the other ranks exist. All
 * ranks must see the same file system.
 *
 * With adapters the state holds the adapters and the modules of lora.modules_to_save. It does not hold the
 * base model: a resumed run loads that from its source, and adapter.json records which model it was
 * (checkpoint/base_model.h) and which modules have adapters. */
#ifndef CHECKPOINT_CHECKPOINT_H
#define CHECKPOINT_CHECKPOINT_H

#include "base/folder.h"
#include "base/json.h"
#include "base/mem_pool.h"
#include "base/log.h"
#include "base/meter.h"
#include "model/model.h"

/* What goes beside the weights when a checkpoint includes the model in HF form. */
typedef struct HfExport {
    const Json *config;                  /* config.json */
    const char *companions;              /* folder with the tokenizer files and the like */
    int64_t     min_pixels, max_pixels;  /* for preprocessor_config.json; 0: a text-only model */
} HfExport;

typedef struct Snapshot {
    const char   *dir;                   /* folder of the run */
    int64_t       step;
    const Model  *model;
    Backend      *be;
    const Mesh   *mesh;                  /* NULL: one rank. The fields below are equal on all ranks */
    const Json   *state;                 /* becomes trainer_state.json; read on rank 0 only */
    const Json   *config;                /* of the model, saved as state/config.json; NULL: not saved */
    const Json   *base;                  /* with adapters: their base model; read on rank 0 only */
    const HfExport *hf;                  /* NULL: no HF form */
    const HfExport *files;               /* tokenizer files for state/ without an HF form; NULL: none */
    bool            only_model;          /* the HF form without state/, from which no run resumes */
    bool          best;                  /* move the link `best` too */
    int64_t       keep;                  /* newest checkpoints that stay, besides `best`; 0: all */
    /* Seconds that another rank's files may not grow; 0: ten minutes. Less than what the watchdog gives a
     * slow disk (ten times comm.timeout), since the message here names the files. */
    double        patience;
} Snapshot;

/* Synchronous: every rank returns once the checkpoint is complete, or with the error of whichever rank
 * failed. */
MUST Status checkpoint_save(const Snapshot *s);

/* After a run was resumed from `step`: a `best` of a later step becomes that of step `best`; -1: none. */
void checkpoint_rewind_best(const char *dir, int64_t step, int64_t best);

/* Removes what a killed process left in the run's folder. */
void        checkpoint_remove_tmp(const char *dir);

/* The checkpoint to resume from: the target of `last`, else the newest. Damaged ones are skipped with a
 * warning. path is "" if there is none. */
MUST Status checkpoint_find(Path path, const char *dir, const Log *log);

/* How many checkpoints a run's folder has, damaged ones included. */
int         checkpoint_count(const char *dir);

/* Compares sizes and hashes of all files with the manifest; E_DATA names the file that differs. */
MUST Status checkpoint_verify(const char *path);

/* Reads trainer_state.json; the caller releases *state with json_decref. */
MUST Status checkpoint_read_state(const char *path, Json **state);
/* E_CONFIG unless the checkpoint is of a run with adapters (true) or without (false). */
MUST Status checkpoint_check_kind(const char *path, bool adapters);
/* Whether a run of this model, with these frozen groups and adapters on this base model (see base_model.h;
 * NULL without adapters), can resume from the checkpoint. Compares names and shapes; reads no weights. */
MUST Status checkpoint_check_resume(const char *path, const ModelShape *s, const bool *frozen,
                                    const LoraConf *lora, const Json *base);
/* Loads weights and moments, bit for bit, into this rank's part of the model. No communication. */
MUST Status checkpoint_load(const char *path, Model *m, Backend *be);
/* Loads the weights alone of a run without adapters, for inference or as the start of another run. */
MUST Status checkpoint_load_weights(const char *path, Model *m, Backend *be);
/* Writes the model of a checkpoint of any layout in HF form into folder dir. m: whole, not bound. be: the
 * CPU. */
MUST Status checkpoint_assemble(const char *path, Model *m, Backend *be, const char *dir, DType dtype,
                                int64_t max_shard, Meter *meter);
/* Writes the same checkpoint into a new folder, in the form that a single rank would have written. */
MUST Status checkpoint_consolidate(const char *from, const char *to);
bool        checkpoint_is(const char *path);                  /* whether it has state/ */
/* E_CONFIG if path is the folder of a run, which holds checkpoints but is none. */
MUST Status checkpoint_refuse_run_folder(const char *path);

/* Contents of state/adapter.json. Must not be moved: conf points into it. */
typedef struct CheckpointLora {
    LoraConf    conf;                    /* its modules are listed in `exact` */
    const Json *base;
    WordList    save;
    MemPool        keep;
    Json       *file;
} CheckpointLora;

bool        checkpoint_has_lora(const char *path);            /* whether it has state/adapter.json */
MUST Status checkpoint_lora_open(CheckpointLora *a, const char *path);   /* on failure nothing stays open */
void        checkpoint_lora_close(CheckpointLora *a);         /* may be called twice */
/* E_CONFIG if the recipe by which the whole model was opened gives adapters to other modules, or adapters of
 * another rank or scale, than the checkpoint has. */
MUST Status checkpoint_lora_check(const CheckpointLora *a, const Model *whole);
/* Whether the checkpoint has the weights of all adapters of a whole model opened with
 * conf, in their shapes. */
MUST Status checkpoint_lora_check_shapes(const char *path, const Model *whole);
/* Loads only the adapters' weights into this rank's part of a model opened with conf. */
MUST Status checkpoint_lora_load(const char *path, Model *m, Backend *be);

#endif
