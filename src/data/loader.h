/* data/loader.h -- hands out the packed micro-batches of a step; it never waits on a device.
 *
 * Worker threads read, tokenise, decode and resize ahead of the step. Order, mixture and packing are a pure
 * function of (seed, position), so a state saved with a checkpoint continues with exactly the next sample. */
#ifndef DATA_LOADER_H
#define DATA_LOADER_H

#include "base/config.h"
#include "base/json.h"
#include "base/log.h"
#include "data/image.h"
#include "data/tokenizer.h"
#include "tensor/stream.h"

typedef struct LoaderConf {
    const SourceList *sources;           /* of the recipe: data.train or data.eval (base/config.h) */
    const Config    *recipe;             /* data.*, image.*, video.*, train.seed */
    const Tokenizer *tokenizer;
    StreamShape      shape;
    PatchShape       patch;
    Budget           budget;             /* of one micro-batch */
    int              micro;              /* micro-batches of one step on this rank */
    int              rank, ranks;        /* of data parallelism */
    int              workers;            /* 0: as many as cores, less one */
    bool             once;               /* evaluation: one pass in file order, no shuffling; the end is reported */
    const char      *quarantine;         /* path of quarantine.jsonl, or NULL */
    const Log       *log;
} LoaderConf;

typedef struct LoaderStep {
    Stream **micro;                      /* `micro` of them, full and ready; NULL at the end of one pass */
    int64_t  tokens, supervised, patches, samples;      /* over all of them */
    int64_t  skipped;                    /* bad samples so far */
    double   epoch, waited;              /* fraction of passes done; seconds the caller waited */
} LoaderStep;

typedef struct Loader Loader;

/* state: what loader_state gave, or NULL for the beginning. */
MUST Status loader_open(Loader **l, const LoaderConf *conf, const Json *state);
void        loader_close(Loader *l);                                /* NULL is fine */

/* The next step's micro-batches; the previous ones are free for refilling from here on. */
MUST Status loader_next(Loader *l, LoaderStep *out);
MUST Status loader_state(Loader *l, Json **out);                    /* after what was handed out last */
int64_t     loader_samples(const Loader *l);                        /* in one pass over the mixture */
MUST Status loader_steps_per_epoch(Loader *l, int64_t *steps);      /* by packing lengths, without pixels */

#endif
