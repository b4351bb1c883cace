/* base/precisions.c -- see precisions.h. */
#include "base/precisions.h"

#include <string.h>

typedef struct Row { const char *word, *plan; int group; } Row;

static const Row rows[PRECISION_N] = {
#define PRECISION(id, word, plan, group, help) [PREC_##id] = { word, plan, group },
    PRECISIONS(PRECISION)
#undef PRECISION
};

const char *precision_word(Precision p)      { return rows[p].word; }
const char *precision_plan_word(Precision p) { return rows[p].plan; }
int         precision_group(Precision p)     { return rows[p].group; }

Precision precision_find(const char *word)
{
    int i = 0;
    while (i < PRECISION_N && strcmp(rows[i].word, word)) i++;
    return (Precision)i;
}

Precision precision_find_plan(const char *word)
{
    int i = 0;
    while (i < PRECISION_N && strcmp(rows[i].plan, word)) i++;
    return (Precision)i;
}
