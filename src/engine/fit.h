/* engine/fit.h -- whether a run fits the memory there is, and what to turn where it does not.
 *
 * Advice is not guessed: each change is planned as a run would be, and the list says what it saves and
 * whether that is enough. It is sorted by what a change costs (rows of fit.def), then by what it saves. */
#ifndef ENGINE_FIT_H
#define ENGINE_FIT_H

#include "engine/recipe.h"

enum { FIT_ROWS = 64, FIT_SET = 200 };

typedef struct FitRow {
    char        set[FIT_SET];            /* overrides, as a command line takes them */
    const char *price;                   /* what it costs, in words */
    int         cost;                    /* the class of that */
    double      bytes;                   /* of the rank then */
} FitRow;

typedef struct FitAdvice { double bytes, room; FitRow row[FIT_ROWS]; int n; } FitAdvice;

typedef struct FitRequest {
    const Config     *recipe;
    const ModelShape *shape;
    int               ranks, per_node;
    double            bytes, room;       /* wanted by the recipe as it is; there are */
    Status          (*plan)(void *self, const Config *c, double *bytes);     /* of the fullest rank */
    void             *self;
} FitRequest;

MUST Status fit_advise(FitAdvice *a, const FitRequest *ask);
bool        fit_row_fits(const FitAdvice *a, int row);
/* Of the cheapest class that has one, the change that saves just enough; NULL: there is none. */
const FitRow *fit_cheapest(const FitAdvice *a);
/* "6.10 GiB less, 92.20 then, not enough  memory.recompute=[moe_act]  (a cheap pass again)" */
void        fit_row_text(char *out, size_t n, const FitAdvice *a, int row);

/* Before anything is mapped, all ranks together: each says what it wants and what its device has free;
 * ranks of a host whose device is its memory share that. Where one wants too much all of them fail with
 * E_FIT, and log hears by arena, label and knob why and what to do. */
typedef struct FitCheck {
    const Config     *recipe;
    const ModelShape *shape;
    const EngineConf *conf;              /* of this rank */
    Comm             *world;             /* NULL: one rank */
    const Log        *log;
    double            memory, host;      /* bytes of the device and of the host; 0: what they have free */
    const Stream     *full;
} FitCheck;

MUST Status fit_check(const FitCheck *c);

#endif
