/* data/loader.h -- hands out the packed micro-batches of a step; it never waits on a device.
 *
 * Worker threads read, tokenise, decode and resize ahead of the step. Order, mixture and packing are a
 * pure function of (seed, position), so a state saved with a checkpoint continues with exactly the next
 * sample, and neither the number of workers nor their timing changes a bit of any stream.
 *
 * A sample is loaded (read and tokenised) once in a pass: a sample that was loaded to learn its size is kept
 * until it is packed, in at most 64 MiB. Beyond that it is loaded a second time.
 *
 * A pass ends on a step. Its last step may have few documents: they are spread over all ranks and
 * micro-batches, and only where there are fewer documents than micro-batches a stream is empty (docs 0,
 * tokens 0).
 *
 * A sample that cannot be used ends the run or is left out, as data.bad_sample says. A sample left out is
 * listed in quarantine.jsonl and counted with the step it would have been in; the run ends when more than one
 * sample and more than data.bad_share of a pass are left out. */
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
    const Config    *recipe;             /* data.*, image.*, video.*, eval.split, train.seed */
    const Tokenizer *tokenizer;
    StreamShape      shape;
    PatchShape       patch;              /* its pixel bounds are taken from the recipe */
    Budget           budget;             /* of one micro-batch */
    int              micro;              /* micro-batches of one step on this rank */
    int              rank, ranks;        /* of data parallelism */
    int              part, parts;        /* of the pictures of a micro-batch (stream_share) this rank decodes;
                                            parts 0: all; part == parts: none. With data.bad_sample: skip
                                            all are decoded, since ranks must agree on what is bad */
    int              workers;            /* 0: as many as cores, less one */
    bool             once;               /* evaluation: one pass in file order, then an end */
    bool             held_out;           /* read the share that eval.split holds out, not the rest */
    const char      *quarantine;         /* path of quarantine.jsonl, or NULL */
    const Log       *log;
    void           (*pin)(void *p, size_t bytes, bool on);   /* page-locks memory to copy from; or NULL */
} LoaderConf;

/* Where a document of a stream comes from: id of the sample, row of the source list. */
typedef struct LoaderDoc { int64_t sample; int source; } LoaderDoc;

typedef struct LoaderStep {
    Stream **micro;                      /* conf.micro of them; NULL at the end of one pass */
    const LoaderDoc *const *doc;         /* doc[k][d]: document d of micro[k] */
    int64_t  tokens, supervised, patches, samples;      /* over all of them */
    int64_t  skipped;                    /* bad samples so far */
    double   epoch, waited;              /* fraction of passes done; seconds the caller waited */
} LoaderStep;

typedef struct Loader Loader;

/* state: what loader_state gave, or NULL for the beginning. */
MUST Status loader_open(Loader **l, const LoaderConf *conf, const Json *state);
void        loader_close(Loader *l);                                /* NULL is fine */

/* The next step's micro-batches. Those of the step before stay as they are until the next call: a device may
 * still read them. */
MUST Status loader_next(Loader *l, LoaderStep *out);
const Stream *loader_peek(Loader *l, bool wait);  /* first stream of the next step; NULL: not ready */
MUST Status loader_state(Loader *l, Json **out);                    /* after the step handed out last */
MUST Status loader_rewind(Loader *l);                               /* to the beginning */
int64_t     loader_samples(const Loader *l);                        /* in one pass over the mixture */
const char *loader_channel(const Loader *l, int source);            /* its name, or its path */
Json       *loader_fingerprint(const Loader *l);                    /* see fingerprint_dataset */
/* How many steps `epochs` passes have. Exact, by measuring and packing every sample; or, where a pass has
 * more than four times data.measure_samples, estimated from that many samples: the first of the first pass,
 * which its order draws at random. The estimate depends on the data and the settings alone, so every rank and
 * every start has the same; `within` is two standard errors of it as a share. An estimated run ends where
 * LoaderStep.epoch reaches `epochs`. */
typedef struct LoaderSteps { int64_t steps; bool estimated; double within; } LoaderSteps;
MUST Status loader_steps(Loader *l, double epochs, LoaderSteps *out);

#endif
