/* train/label.c -- see label.h. */
#include "train/label.h"

int label_reasons(const char *list[LABEL_REASONS], const LabelFacts *f)
{
    int n = 0;
#define REASON(fact, text) if (f->fact) list[n++] = text;
#include "train/label.def"
#undef REASON
    return n;
}

const char *label_word(const LabelFacts *f)
{
    const char *list[LABEL_REASONS];
    return label_reasons(list, f) ? "benchmark-only" : "training-equivalent";
}
