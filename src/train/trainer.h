/* train/trainer.h -- a run: model, data and optimizer from a recipe, steps, evaluations, checkpoints.
 *
 *   Trainer t;
 *   TRY(trainer_open(&t, &conf));       checks the recipe, opens everything, resumes; says what will happen
 *   Status st = trainer_run(&t);        to the last step, or to a signal, saving on the way
 *   trainer_close(&t);
 *
 * On one rank runs are equal to the bit, and so is a run that was stopped and resumed: everything that
 * decides the next step is in the checkpoint. A step allocates nothing; the loader's threads are outside of
 * that. */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include "data/loader.h"
#include "checkpoint/lora_source.h"
#include "train/lr.h"
#include "train/progress.h"
#include "checkpoint/run_folder.h"
#include "checkpoint/checkpoint_async.h"
#include "checkpoint/model_source.h"
#include "train/zero_grad.h"
#include "train/trainable.h"

typedef struct Trainer Trainer;

/* Answers to held-out questions, from whoever can generate: called at each evaluation after the loss. It may
 * use the engine, which was opened with this room for decoding. accuracy: of exact matches; NAN: none was
 * asked. */
typedef struct Answers {
    Status (*run)(void *self, Trainer *t, double *accuracy);             /* NULL: no answers */
    void   *self;
    int64_t docs, tokens;                /* EngineConf.decode */
} Answers;

typedef struct TrainerConf {
    const Config *recipe;                /* outlives the trainer */
    double        started;               /* clock_now() when the program began; 0: now */
    const Json   *env;                   /* becomes env.json; NULL: none is written */
    LogLevel      least;                 /* lines below it are not written */
    Answers       answers;
    Comm         *world;                 /* NULL: one rank; outlives the trainer */
    double        memory;                /* bytes of the device, for tests; 0: what it has free */
} TrainerConf;

typedef struct Evaluation { double loss, accuracy, seconds; int64_t tokens, supervised, docs; } Evaluation;

struct Trainer {
    TrainerConf   conf;
    const Config *recipe;
    RunFolder     folder;
    Log           log;
    Metrics       metrics;
    TensorBoard   board;
    ModelSource   source;
    LoraSource    lora;                  /* of lora.path, or of the run's own checkpoint when it is resumed */
    Json         *base;                  /* of a run with adapters, on the first rank: see base_model.h */
    Ranks         ranks;
    Mesh          place;                 /* this rank's coordinates */
    bool          first;                 /* of all ranks: it writes what one of them writes */
    bool          leads;                 /* the ranks that have the same data: it speaks of that */
    Engine        engine;
    LoaderConf    data;                  /* of training; evaluation's differs in a few fields */
    Loader       *loader, *held;         /* of training; of what is held out, or NULL */
    Lr            lr;
    Guard         guard;
    ZeroGradCheck zero_grad;
    TrainableSummary        trains;
    ExpertCounts       routing;
    SourceLoss      by;
    Progress      progress;
    AsyncCheckpointer        saving;
    int64_t       steps, step;           /* of the run; done */
    int64_t       updates;               /* steps that changed the weights */
    int64_t       tokens;                /* seen */
    int64_t       saved, evaluated;      /* the step at which that last happened; -1: never */
    double        epoch;
    double        eval_loss;             /* of the last evaluation */
    double        best;                  /* loss of the best evaluation that was saved; NAN: none */
    int64_t       best_step;
    Status        trouble;               /* of what this rank alone writes; told before the next step */
    char          why[512];
    bool          together;              /* the failure that ends the run ends it on all ranks here */
    double        opened, paused;        /* clock when open was done; when the last step ended */
};

MUST Status trainer_open(Trainer *t, const TrainerConf *conf);
void        trainer_close(Trainer *t);                                   /* twice is fine */

MUST Status trainer_run(Trainer *t);

/* The pieces of a run. */
MUST Status trainer_step(Trainer *t, StepReport *r);
MUST Status trainer_evaluate(Trainer *t, Evaluation *e);
MUST Status trainer_save(Trainer *t, bool last);                      /* last: the one that hf: final means */
bool        trainer_has_eval(const Trainer *t);

/* Between the files of the trainer: what will happen, said at the start; files that reports read
 * (trainer_files.c); state in and out (trainer_state.c). */
void        trainer_log_setup(const Trainer *t);
bool        trainer_can_generate(const Trainer *t);
MUST Status trainer_agree_status(const Trainer *t, Status mine);    /* the worst of all ranks', see comm_agree */
MUST Status trainer_write_plan(const Trainer *t, const Flops *step);     /* plan.json, after a step */
MUST Status trainer_write_expert_load(Trainer *t);                         /* expert_load.json, since the last one */
MUST Status trainer_state_save(Trainer *t, Json **out);
MUST Status trainer_state_load(Trainer *t, const Json *state);

#endif
