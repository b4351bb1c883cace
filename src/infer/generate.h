/* infer/generate.h -- sampling: prompts in, ids out, a token a document a step.
 *
 * Random numbers are a function of (seed, document, token): what a document gets does not depend on which
 * others are decoded beside it. */
#ifndef INFER_GENERATE_H
#define INFER_GENERATE_H

#include "data/ids.h"
#include "engine/decode.h"

enum { MAX_STOPS = 8 };

typedef struct GenerateConf {
    double   temperature, top_p;          /* temperature 0: the likeliest token; top_p 1: any token */
    uint64_t seed;
    int64_t  max_new;                     /* tokens a document; at most one over EngineConf.decode.tokens */
    int64_t  first;                       /* number of the first document, for its random numbers */
    int64_t  vocab;                       /* only ids below it; 0: all that the model has */
    int32_t  stop[MAX_STOPS];             /* ids that end a document; they are not part of its text */
    int      stops;
    void   (*see)(void *self, int64_t doc, int32_t id);      /* every token as it is chosen, or NULL */
    void    *self;
} GenerateConf;

typedef struct TokenCandidate { float p; int32_t id; } TokenCandidate;

typedef struct Generator {
    Decode   decode;
    int32_t *doc, *id;                    /* (docs) documents that go on and their latest tokens */
    TokenCandidate  *choice;                      /* (V) candidates of a draw */
    int64_t  tokens;                      /* chosen since opening */
} Generator;

MUST Status generator_open(Generator *g, Engine *e);
void        generator_close(Generator *g);                 /* twice is fine */

/* Continues document i of the prompts (see decode_prompts) and appends what it got to out[i]. The second
 * does so after the caller's own decode_prompts, for n documents, ascending; doc NULL: the first n. */
MUST Status generate(Generator *g, const Stream *prompts, const GenerateConf *conf, Ids *out);
MUST Status generate_answers(Generator *g, const GenerateConf *conf, int64_t n, const int32_t *doc, Ids *out);

/* The token that logits z (V) lead to; choice has room for V. Number `at` of stream `doc` decides. */
MUST Status generate_pick_token(const GenerateConf *conf, TokenCandidate *choice, const float *z, int64_t V, int64_t doc,
                         int64_t at, int32_t *id);

#endif
