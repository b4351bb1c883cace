/* tune/tune.h -- finds a faster recipe by measured steps: one change at a time, each measured against the
 * recipe so far in matched runs (tune/ab.h).
 *
 * Changes come from --set, or from diagnose (the fixes of the wall that the last run shows), and then from
 * a sweep over micro-batch, recompute, CUDA graphs and offload, ranked by dry runs. After a change of
 * dispatcher or precision recompute and graphs are tested again. It ends when no change is predicted to
 * give more than the noise, or when the budget is spent. Files in the folder: tune.jsonl (a line for each
 * change that was tried: predicted and measured gain), tune.html, best.yaml and the runs. */
#ifndef TUNE_TUNE_H
#define TUNE_TUNE_H

#include "tune/ab.h"
#include "tune/machine.h"

enum { TUNE_SETS = 32, TUNE_TRIED = 256 };

typedef struct TuneAsk {
    const char  *recipe;                 /* file */
    char *const *override;
    int          overrides;
    const char  *set[TUNE_SETS];         /* KEY=A|B|C; none: diagnose and sweeps */
    int          sets;
    const char  *folder;                 /* NULL: the run's folder with -tune behind it */
    int          ranks;
    int          warmup, window;
    double       budget;                 /* seconds; 0: no limit */
} TuneAsk;

/* What a round decided about one candidate. */
typedef struct TuneEntry {
    int    round;
    char   set[AB_SET], why[200];
    double predicted, gain, noise;       /* NAN: not known */
    double base_step, step, peak;        /* medians; GiB */
    TrialEnd end;
    bool   kept;
    const char *label;
    char   failure[TRIAL_WHY];
} TuneEntry;

typedef struct Tune {
    const TuneAsk *ask;
    Config    base;                      /* the best so far; sections of `auto` are filled */
    Machine   machine;
    TrialConf conf;
    Path      folder, runs;
    double    started, cost;             /* clock_now(); mean seconds of a run so far */
    int       number, rounds;            /* of runs; of rounds */
    double    noise, worst;              /* relative; mean and most of all pairs of equal runs so far */
    int       pairs;
    double    first_rate, first_step;    /* of the recipe as given */
    double    rate, step;                /* of the base */
    Trial     last;                      /* run of the base */
    bool      tower;                     /* the model has a vision tower */
    bool      retest;                    /* recompute and graphs are to be tested again */
    char      tried[TUNE_TRIED][40];     /* hashes of recipes */
    int       n_tried;
    TuneEntry entry[TUNE_TRIED];
    int       entries;
    char      end[200];                  /* why it ended */
} Tune;

MUST Status tune_run(const TuneAsk *ask);
MUST Status tune_seconds(double *seconds, const char *text);         /* "90s", "30m", "2h" */

/* ---- parts in other files ---- */

/* candidates.c: each fills r with changes that were not tried; none: r->n is 0. */
MUST Status candidates_of_set(AbRound *r, Tune *t, const char *set);
MUST Status candidates_of_diagnose(AbRound *r, Tune *t);
MUST Status candidates_of_sweep(AbRound *r, Tune *t);
/* tune_plan.c: seconds and bytes of the base with a change by a dry run; an error: it is not legal. */
MUST Status tune_plan(const Tune *t, const char *set, double *step, double *bytes);
bool        tune_is_tried(Tune *t, const char *set, bool mark);      /* or equals the base */
/* tune_files.c */
MUST Status tune_write_entry(const Tune *t, const TuneEntry *e);
MUST Status tune_write_best(const Tune *t);
MUST Status tune_write_page(const Tune *t);

#endif
