/* train/trainer.h -- a run: model, data and optimizer from a recipe, steps, evaluations, checkpoints.
 *
 *   Trainer t;
 *   TRY(trainer_open(&t, &conf));       checks the recipe, opens everything, resumes; says what will happen
 *   Status st = trainer_run(&t);        to the last step, or to a signal, saving on the way
 *   trainer_close(&t);
 *
 * On one rank equal recipes give equal bits, and a run that was stopped and resumed equals one that was
 * not: the checkpoint has everything that decides the next step. A step allocates no memory, except in the
 * loader's threads. */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include "data/loader.h"
#include "checkpoint/lora_source.h"
#include "train/lr.h"
#include "train/label.h"
#include "train/progress.h"
#include "train/save_space.h"
#include "checkpoint/run_folder.h"
#include "checkpoint/checkpoint_async.h"
#include "checkpoint/model_source.h"
#include "train/zero_grad.h"
#include "train/trainable.h"
#include "train/trainer_eval.h"

typedef struct Trainer Trainer;

/* Generates answers to the held-out questions (train/trainer_answers.h): called by all ranks at each
 * evaluation after the loss. It may use the engine, which was opened with this capacity for decoding.
 * accuracy: the share of exact matches; NAN: there was no question. */
typedef struct Answers {
    Status (*run)(void *self, Trainer *t, double *accuracy);             /* NULL: no answers */
    void   *self;
    int64_t docs, tokens;                /* EngineConf.decode */
} Answers;

enum { TRAINER_NOTES = 16 };

typedef struct TrainerConf {
    const Config *recipe;                /* outlives the trainer */
    double        started;               /* clock_now() when the program began; 0: now */
    const Json   *env;                   /* the machine, for env.json; NULL: no such file is written */
    LogLevel      least;                 /* lower levels are not logged */
    Answers       answers;
    Comm         *world;                 /* NULL: one rank; outlives the trainer */
    double        memory;                /* bytes of the device, for tests; 0: what is free */
    const char   *notes[TRAINER_NOTES];  /* logged, and comments of the run's recipe; NULL: no more */
} TrainerConf;

/* A step that was begun and has not ended. */
typedef struct StepInFlight {
    LoaderStep in;
    StepReport r;
    float      lr[GROUP_N];              /* of the groups of parameters */
    int        slot;                     /* of the engine's results */
    bool       shown;                    /* the step ends a line: choices of experts are counted */
    double     gap;                      /* seconds from the end of the step before to the begin of this one;
                                            negative: that one had not ended */
} StepInFlight;

typedef struct Evaluation { double loss, accuracy, seconds; int64_t tokens, supervised, docs; } Evaluation;

struct Trainer {
    TrainerConf   conf;
    Config        resolved;              /* conf.recipe with the model's sizes of pictures */
    const Config *recipe;                /* &resolved */
    RunFolder     folder;
    Log           log;
    Metrics       metrics;
    TensorBoard   board;
    Mlflow       *mlflow;
    bool          failed;
    ModelSource   source;
    LoraSource    lora;                  /* the adapter at lora.path, or in the checkpoint that is resumed */
    Json         *base_model;            /* of a run with adapters, on rank 0: see base_model.h */
    Ranks         ranks;
    Mesh          place;                 /* this rank's coordinates */
    bool          first;                 /* rank 0, which writes the files of the run */
    bool          data_leader;           /* the one rank that logs about the data it shares with tp, cp, pp */
    EngineConf    engine_conf;           /* of the recipe; conf.lora points into recipe and lora */
    Engine        engine;
    LoaderConf    data;                  /* of training; evaluation's differs in a few fields */
    Loader       *loader, *eval_loader;  /* training data; held-out data, or NULL */
    Lr            lr;
    Guard         guard;
    ZeroGradCheck zero_grad;
    TrainableSummary trainable;
    ExpertCounts  expert_counts;
    CodeLosses    code_losses;
    SourceLoss    source_loss;
    EvalSources   eval_sources;
    Progress      progress;
    CommTime      comm_time[LEDGER_GROUPS];   /* of this rank since the line before */
    AsyncCheckpointer checkpointer;
    SaveSpace         save_space;
    bool          late;                  /* a step is read while the device computes the next one */
    StepInFlight  flight[2];             /* the oldest first */
    int           begun;                 /* steps in flight */
    int64_t       steps, step;           /* of the run; done */
    LoaderSteps   counted;               /* of train.num_train_epochs; an estimate is what the rate follows */
    int64_t       updates;               /* steps that changed the weights */
    int64_t       tokens;                /* trained on so far */
    int64_t       saved, evaluated;      /* step of the last save, of the last evaluation; -1: none yet */
    double        epoch;
    double        eval_loss;             /* of the last evaluation */
    double        best;                  /* loss of the best evaluation that was saved; NAN: none */
    int64_t       best_step;
    Status        deferred;              /* error of this rank alone; agreed on before the next step */
    char          deferred_text[512];
    bool          failure_agreed;        /* all ranks know of the failure that ends the run */
    int64_t           folder_lost; /* step after which the run's folder was found missing; -1: never */
    double        open_ended, step_ended; /* clock_now() after trainer_open; after the last step */
};

MUST Status trainer_open(Trainer *t, const TrainerConf *conf);
void        trainer_close(Trainer *t);                                   /* twice is fine */

MUST Status trainer_run(Trainer *t);

/* The parts of trainer_run. A step begins when its work is queued, and ends when its results are known; where
 * t->late, one more may begin in between. A bad step (train/guard.h) is computed once more when it ends, and
 * then the step begun after it, which has not changed any weight. */
MUST Status trainer_begin_step(Trainer *t);
MUST Status trainer_end_step(Trainer *t, StepReport *r);     /* the oldest; t->step == r->step if it ended */
MUST Status trainer_step(Trainer *t, StepReport *r);         /* both */
MUST Status trainer_evaluate(Trainer *t, Evaluation *e);
MUST Status trainer_save(Trainer *t, bool last);             /* last: checkpoint.hf = final exports it */
bool        trainer_has_eval(const Trainer *t);

/* Between the files of the trainer: trainer_intro.c, trainer.c, trainer_step.c, trainer_files.c,
 * trainer_folder.c, trainer_state.c. */
void        trainer_log_setup(const Trainer *t);
bool        trainer_can_generate(const Trainer *t);
MUST Status trainer_agree_status(const Trainer *t, Status mine);         /* equal on all ranks: comm_agree */
/* The same in a run: all ranks end when one has failed, rather than wait for a rank that is gone, which would
 * lose the checkpoint being saved. Without a failure it costs one small message. */
MUST Status trainer_agree_or_end(Trainer *t, Status mine);
MUST Status trainer_write_plan(const Trainer *t, const Flops *step);     /* plan.json, after the first step */
/* memory.json: the peak of every rank and its plan; called by all ranks. */
MUST Status trainer_write_memory(Trainer *t);
MUST Status trainer_write_expert_load(Trainer *t);           /* expert_load.json: counts since the last one */
/* Rank 0: makes the run's folder again if it was removed; the line at the end of such a run. */
MUST Status trainer_keep_folder(Trainer *t);
void        trainer_log_lost_folder(const Trainer *t);
MUST Status trainer_state_save(Trainer *t, Json **out);
MUST Status trainer_state_load(Trainer *t, const Json *state);

#endif
