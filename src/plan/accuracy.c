/* plan/accuracy.c -- see accuracy.h. */
#include "plan/accuracy.h"

#include <stdio.h>
#include <string.h>

static const AccuracyRow rows[] = {
#define ACCURACY(...) { __VA_ARGS__ },
#include "plan/accuracy.def"
#undef ACCURACY
};
enum { ROWS = sizeof rows / sizeof *rows };

const AccuracyRow *accuracy_at(int i) { return i >= 0 && i < ROWS ? &rows[i] : NULL; }

const AccuracyRow *accuracy_of(const Hardware *hw, int gpus)
{
    bool blackwell = hw->fp4 > 0, several = gpus > hw->domain;
    for (int i = 0; i < ROWS; i++)
        if (rows[i].blackwell == blackwell && rows[i].several == several) return &rows[i];
    return rows;
}

void accuracy_text(char *text, size_t n, const Hardware *hw, int gpus, const EngineRow *engine)
{
    const AccuracyRow *a    = accuracy_of(hw, gpus);
    bool               ours = !engine || engine == engine_row_at(0);
    char               known[160];
    snprintf(known, sizeof known,
             "%d published runs on %s%s, by other trainers, took %.2g to %.2g times the prediction "
             "for them",
             a->runs, a->blackwell ? "Blackwell" : "Hopper and older",
             a->several ? " over several nodes" : " in one NVLink domain", a->low, a->high);
    if (!ours) snprintf(text, n, "%s (nine of ten)", known);
    else if (gpus == 1 && hw->error < 0.25)
        snprintf(text, n, "steps of this trainer on one such GPU were measured: within %.0f %%",
                 100 * hw->error);
    else if (!strcmp(hw->backend, "cpu"))
        snprintf(text, n, "not measured with this trainer, and no published run is known");
    else snprintf(text, n, "not measured with this trainer; %s", known);
}
