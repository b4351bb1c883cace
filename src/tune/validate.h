/* tune/validate.h -- whether a recipe may be used for training: 50 steps that are finite, complete, as good
 * as the baseline, resumable, within the memory plan, and that really used what the recipe asks for.
 *
 * Three runs: the recipe for 50 steps with a checkpoint after 25; steps 26 to 50 resumed from it; the
 * baseline for 50 steps. Files in the folder: contract.json, steps.csv, summary.json and recipe.yaml, and
 * the runs. */
#ifndef TUNE_VALIDATE_H
#define TUNE_VALIDATE_H

#include "base/status.h"

#include <stdbool.h>

typedef struct ValidateAsk {
    const char  *recipe;
    char *const *override;
    int          overrides;
    const char  *baseline;               /* recipe; NULL: the recipe in bf16, without graphs and overlap */
    const char  *folder;                 /* NULL: the run's folder with -validate behind it */
    int          ranks;
    bool         training;               /* a run that is benchmark-only is refused */
    double       tolerance;              /* relative difference of mean losses of steps 41 to 50 */
} ValidateAsk;

/* E_CHECK: a check failed; all of them are printed. */
MUST Status validate_run(const ValidateAsk *ask);

#endif
