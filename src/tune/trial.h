/* tune/trial.h -- one measured run of a recipe, as a child process: `treb train` of a derived recipe, under
 * `treb launch` where there are several ranks. A run that does not fit, or fails, is a result, and not the
 * end of the program that asked for it. */
#ifndef TUNE_TRIAL_H
#define TUNE_TRIAL_H

#include "base/config.h"
#include "base/folder.h"

enum { TRIAL_STEPS = 128, TRIAL_WHY = 300 };

typedef struct TrialConf {
    const char *folder;                  /* of all runs */
    int         ranks;
    int         warmup, window;          /* steps that are discarded; that are measured after them */
    double      limit;                   /* seconds after which a run is stopped; 0: none */
} TrialConf;

typedef enum { TRIAL_OK, TRIAL_DOES_NOT_FIT, TRIAL_FAILED, TRIAL_TOO_LONG } TrialEnd;

typedef struct Trial {
    Path     run;                        /* folder of the run */
    TrialEnd end;
    int      code;                       /* exit code */
    double   seconds;                    /* of the whole process */
    double   step, rate;                 /* medians of the window: seconds; useful tokens/s of a rank */
    double   range;                      /* of rates in the window: most less least, over the median */
    double   loss, peak, planned;        /* of the last step; GiB of the fullest rank */
    char     why[TRIAL_WHY];             /* the last line, where it failed */
} Trial;

/* Runs the recipe in folder/name, which must not exist. An error: the run could not be started or read. */
MUST Status trial_run(Trial *t, const TrialConf *conf, const Config *recipe, const char *name);
const char *trial_word(TrialEnd e);                                  /* "ran", "does not fit" … */

/* Starts `treb train FILE overrides…` on so many ranks, output into log; code: as a shell counts. */
MUST Status trial_train(int *code, int ranks, const char *file, const char *log, double limit);
/* Writes every key of the recipe, with the folder of the run; comment: above them, or NULL. */
MUST Status trial_write(const char *file, const Config *recipe, const char *comment);

#endif
