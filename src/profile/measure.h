/* profile/measure.h -- measures the steps of a recipe: unprofiled windows, a profiled one between them, and
 * on several ranks all of them at once. */
#ifndef PROFILE_MEASURE_H
#define PROFILE_MEASURE_H

#include "profile/profile.h"

typedef struct MeasureConf {
    const Config *recipe;        /* its output folder is used for the run; nothing is saved there */
    Comm         *world;         /* NULL or of size 1: one rank */
    int           steps, warmup; /* profiled; before anything is measured */
    const char   *folder;        /* for trace.json; NULL: none is written */
} MeasureConf;

/* Called by all ranks; p gets what was measured, on rank 0 with the profiles of all. On failure p is
 * closed. */
MUST Status profile_measure(Profile *p, const MeasureConf *conf);

/* The recipe that is measured: as many steps as the windows need, and the output folder `folder`. The strings
 * belong to the two. */
Config measure_recipe(const Config *recipe, const char *folder, int steps, int warmup);

#endif
