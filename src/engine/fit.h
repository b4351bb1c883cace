/* engine/fit.h -- whether a run fits its memory, and which changes of the recipe would make it fit.
 *
 * Each change is planned by the same dry run as a run: the list has the bytes it saves and whether that is
 * enough. It is sorted by cost (rows of fit.def), then by bytes saved. */
#ifndef ENGINE_FIT_H
#define ENGINE_FIT_H

#include "engine/recipe.h"

enum { FIT_ROWS = 64, FIT_SET = 200 };

typedef struct FitRow {
    char        set[FIT_SET];            /* overrides, as a command line takes them */
    const char *price;                   /* the cost of the change, in words */
    int         cost;                    /* class of the cost, cheapest first */
    double      bytes;                   /* of the rank after the change */
} FitRow;

typedef struct FitAdvice { double bytes, available; FitRow row[FIT_ROWS]; int n; } FitAdvice;

typedef struct FitRequest {
    const Config     *recipe;
    const ModelShape *shape;
    int               ranks, per_node;
    double            bytes, available;  /* that the recipe needs; that the device has for it */
    Status          (*plan)(void *self, const Config *c, double *bytes);     /* bytes of the fullest rank */
    void             *self;
} FitRequest;

MUST Status fit_advise(FitAdvice *a, const FitRequest *ask);
bool        fit_row_fits(const FitAdvice *a, int row);
/* In the cheapest class with a change that is enough, the change that saves least; NULL: none is enough. */
const FitRow *fit_cheapest(const FitAdvice *a);
/* "Cheapest change that is enough: memory.recompute=[moe_act] (-6.10 GiB, recomputes …)", or that none is. */
void        fit_cheapest_text(char *out, size_t n, const FitAdvice *a);
/* "6.10 GiB less, 92.20 in all, not enough  memory.recompute=[moe_act]  (recomputes …)" */
void        fit_row_text(char *out, size_t n, const FitAdvice *a, int row);

/* Before memory is mapped, called by all ranks: compares what each rank needs with what its device has free;
 * ranks of a host whose device is the CPU share the host's memory. Where one rank needs too much all of them
 * fail with E_FIT, and the log of rank 0 gets its arenas, labels and the changes that help. */
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
