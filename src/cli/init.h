/* cli/init.h -- the parts of `treb init`: what the data is like, what fits, the recipe as text. */
#ifndef CLI_INIT_H
#define CLI_INIT_H

#include "cli/data_look.h"
#include "cli/options.h"
#include "plan/auto.h"

typedef struct InitRun {
    const char *out, *run, *hardware;
    OptionList  eval;
    int64_t     gpus, rank; /* rank: of adapters; -1: adapters where full training does not fit */
    PlainArgs   plain;      /* MODEL DATA... [section.key=value ...] */
    DataSetup   setup;      /* its recipe gets what is chosen */
    DataLook    data;
    Hardware    hw;
    bool        elsewhere; /* --hardware: not this machine's */
    int         ranks;
    double      available, peak, step; /* bytes of a rank; planned bytes, predicted seconds */
    int64_t     params, steps;         /* of the model; of the run */
    AutoChoice  choice;
} InitRun;

/* E_DATA where no sample is good, or none has a supervised token. */
MUST Status init_measure(InitRun *x);
/* Sets budgets, adapters and layout: the largest micro-batch that fits. E_FIT: nothing does. */
MUST Status init_choose(InitRun *x);
/* The recipe with its comments, for free(). */
MUST Status init_write(char **text, const InitRun *x);

#endif
