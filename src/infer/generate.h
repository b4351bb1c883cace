/* infer/generate.h -- batched token generation: each decode step samples one token per document.
 *
 * Random numbers are a function of (seed, document, position), so the tokens of a document do not depend on
 * the other documents of the batch. Of the ranks of a replica one draws the tokens and gives them to the
 * others (engine/decode.h). */
#ifndef INFER_GENERATE_H
#define INFER_GENERATE_H

#include "data/ids.h"
#include "engine/decode.h"

#include <signal.h>

enum { MAX_STOPS = 8 };

typedef struct GenerateConf {
    double   temperature, top_p;          /* temperature 0: greedy; top_p 1: all tokens are candidates */
    uint64_t seed;
    int64_t  max_new;                     /* per document; at most EngineConf.decode.tokens + 1 */
    int64_t  first;                       /* index of the first document, for its random numbers */
    int64_t  vocab;                       /* only ids below it are sampled; 0: all of the model */
    int32_t  stop[MAX_STOPS];             /* ids that end a document; they are not appended */
    int      stops;
    void   (*on_token)(void *self, int64_t doc, int32_t id); /* called with every token; or NULL */
    void    *self;
    const volatile sig_atomic_t *stop_now; /* not NULL: *stop_now ends all documents; for one rank */
} GenerateConf;

typedef struct TokenCandidate { float p; int32_t id; } TokenCandidate;

typedef struct Generator {
    Decode   decode;
    int32_t *doc, *id;                    /* (docs) unfinished documents and their latest tokens */
    TokenCandidate *candidate;            /* (V) scratch of generate_pick_token */
    int64_t  tokens;                      /* generated since opening */
    bool     not_finite;                  /* some logits of the latest call are not */
} Generator;

MUST Status generator_open(Generator *g, Engine *e);
void        generator_close(Generator *g);                 /* may be called twice */

/* Runs the prompts (see decode_prompts) and appends the tokens generated for document i to out[i]. */
MUST Status generate(Generator *g, const Stream *prompts, const GenerateConf *conf, Ids *out);
/* The same after the caller's own decode_prompts, for n documents in ascending order;
 * doc NULL: the first n. */
MUST Status generate_answers(Generator *g, const GenerateConf *conf, int64_t n, const int32_t *doc, Ids *out);

/* Samples a token from logits z (V) with random number `at` of document `doc`. candidate: scratch for V. */
MUST Status generate_pick_token(const GenerateConf *conf, TokenCandidate *candidate, const float *z,
                                int64_t V, int64_t doc, int64_t at, int32_t *id);

#endif
