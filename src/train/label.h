/* train/label.h -- what the numbers of a run may be taken for: training-equivalent, or benchmark-only with
 * reasons (label.def). The trainer labels each line of metrics by what it knows before the first step; the
 * report of a run adds what its metrics show (report/contract.h). */
#ifndef TRAIN_LABEL_H
#define TRAIN_LABEL_H

#include <stdbool.h>

typedef struct LabelFacts {
#define REASON(fact, text) bool fact;
#include "train/label.def"
#undef REASON
} LabelFacts;

enum { LABEL_REASONS = sizeof(LabelFacts) / sizeof(bool) };

int         label_reasons(const char *list[LABEL_REASONS], const LabelFacts *f);
const char *label_word(const LabelFacts *f);             /* "training-equivalent" or "benchmark-only" */

#endif
