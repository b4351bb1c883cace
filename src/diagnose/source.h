/* diagnose/source.h -- what is diagnosed: a recipe, the folder of a run, or a profile.json. */
#ifndef DIAGNOSE_SOURCE_H
#define DIAGNOSE_SOURCE_H

#include "diagnose/diagnose.h"

typedef struct SourceAsk {
    const char *path;                    /* recipe.yaml, a folder, or a file that ends in .json */
    char      **overrides;               /* of a recipe */
    int         n;
    const char *hardware;                /* NULL: `this`, or the row of the run's GPU */
    int64_t     ranks, per_node;         /* 0: those of the run, or the least of the layout */
} SourceAsk;

typedef struct DiagnoseSource {
    Config      recipe;
    StepProfile measured;
    BatchContent content;                /* of the profiled steps, or by the caller */
    DiagnoseAsk ask;                     /* for diagnose_open; points into this struct */
    MemPool     keep;
} DiagnoseSource;

MUST Status source_open(DiagnoseSource *s, const SourceAsk *ask);
void        source_close(DiagnoseSource *s);                         /* twice is fine */

/* run_step.c: the step that the metrics of a run show. */
struct ReportRun;
MUST Status step_of_metrics(StepProfile *s, const struct ReportRun *run);

#endif
