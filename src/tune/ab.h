/* tune/ab.h -- matched comparison of recipes: the base A against candidates B, C … in the order A B C C B A,
 * so that a drift of the machine cancels. The first A is the last run of the base, if there is one. Each
 * number is the mean of the medians of two runs; the difference of the two runs of A is the noise. Where the
 * noise is known, a candidate whose first run differs from the base's by many times of it is not run again,
 * and if all of them do, the base is not either: A B. Runs whose measurement contracts differ in more than
 * the declared keys are refused. */
#ifndef TUNE_AB_H
#define TUNE_AB_H

#include "tune/trial.h"

enum { AB_CANDIDATES = 6, AB_KEYS = 8, AB_SET = 256 };

typedef struct AbCandidate {
    char   set[AB_SET];                  /* overrides of the base */
    char   why[200];                     /* where it comes from */
    double predicted;                    /* gain of throughput; NAN: not known */
    double gain;                         /* measured; NAN: it did not run */
    double spread;                       /* of its two runs; NAN: there is one */
    int    runs;
    Trial  run[2];
} AbCandidate;

typedef struct AbRound {
    AbCandidate base, candidate[AB_CANDIDATES];
    int         n;
    double      clear;                   /* difference that needs no second run; 0: every one does */
    double      noise;                   /* relative difference of the runs of the base; NAN: there is one */
    const char *label;                   /* of the base: training-equivalent or benchmark-only */
} AbRound;

/* Runs all of them; r->base may have its first run. number: of the next run, for its name. */
MUST Status ab_run(AbRound *r, const TrialConf *conf, const Config *base, int *number);
/* The candidate with the largest gain, if it is above the noise of both; -1: the base stays. */
int         ab_winner(const AbRound *r, double noise);
/* The keys of a set, for a contract: returns how many; words into `keep`. */
int         ab_keys(const char *key[AB_KEYS], char keep[AB_SET], const char *set);

#endif
