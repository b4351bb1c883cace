/* plan/published.h -- what others measured, beside what the formulas say of it. Rows are in published.def. */
#ifndef PLAN_PUBLISHED_H
#define PLAN_PUBLISHED_H

#include "plan/analytic.h"

#include <stdio.h>

/* One run that somebody made, as far as its card says. */
typedef struct PublishedRun {
    const char *model, *hw;
    int         mtp;                     /* -1: as the model has */
    int         gpus;
    int64_t     seq, gbs;
    Precision   precision;
    int         grad, moment;            /* bytes; where a card does not say: 2 and 4 */
    double      imbalance, launch;
    bool        keep_fc2, keep_master, fp8_stash, fused;         /* fused: logits a part at a time */
    Candidate   c;
} PublishedRun;

typedef enum { SCOPE_ALLOC, SCOPE_STATE } PublishedScope;        /* all but the context; between two steps */

/* Memory in GB, measured from `low` to `high`; a run that fits and whose peak nobody said has low 0. */
typedef struct PublishedMemory {
    const char    *id, *what;
    PublishedRun   run;
    PublishedScope scope;
    double         low, high;
    const char    *note;                 /* "": within a tenth; else why it need not be */
} PublishedMemory;

/* Tokens and TFLOPS a second and card. exact: the one follows from the other by our count of work. */
typedef struct PublishedSpeed {
    const char  *id, *what;
    PublishedRun run;
    double       tokens, tflops;
    bool         exact;
    const char  *note;
} PublishedSpeed;

/* A change of one thing: seconds a token after over before. */
typedef struct PublishedPair {
    const char  *id, *what;
    PublishedRun before, after;
    double       ratio;
    const char  *note;                   /* "": the same way, and within a sixth; else why not */
} PublishedPair;

/* A recipe of long sequences: what it takes, by formula alone. */
typedef struct PublishedLong {
    const char  *id, *what;
    PublishedRun run;
    double       tflops;                 /* of a card, published; 0: nobody measured it */
    const char  *note;
} PublishedLong;

const PublishedMemory *published_memory(int i);              /* NULL past the last, as below */
const PublishedSpeed  *published_speed(int i);
const PublishedPair   *published_pair(int i);
const PublishedLong   *published_long(int i);
int                    published_least(const PublishedLong *p);      /* cards that its layout takes */

/* `room` keeps the row of the model that the task points to. */
MUST Status published_task(Task *t, ModelRow *room, const PublishedRun *r);
MUST Status published_bytes(double *gb, int *stage, const PublishedMemory *m);
MUST Status published_time(StepTime *s, const PublishedRun *r);
MUST Status published_ratio(double *ratio, const PublishedPair *p);
/* All tables in Markdown. */
MUST Status published_print(FILE *out);

#endif
