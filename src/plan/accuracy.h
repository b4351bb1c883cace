/* plan/accuracy.h -- what is known about the error of a predicted time: rows of accuracy.def. */
#ifndef PLAN_ACCURACY_H
#define PLAN_ACCURACY_H

#include "plan/analytic.h"

typedef struct AccuracyRow {
    bool   blackwell, several;
    int    runs;
    double low, high;
} AccuracyRow;

const AccuracyRow *accuracy_at(int i); /* NULL past the last */
const AccuracyRow *accuracy_of(const Hardware *hw, int gpus);
/* "measured on one H200: within 15 %", or which published runs are known and how far they were off. */
void               accuracy_text(char *text, size_t n, const Hardware *hw, int gpus, const EngineRow *engine);

#endif
