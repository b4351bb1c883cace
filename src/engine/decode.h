/* engine/decode.h -- documents continued token by token: one pass over the prompts, then a row a document.
 *
 * Decoding lives inside an engine that was opened with room for it (EngineConf.decode): keys and values lie
 * in the activation arena, which a training step does not need at that time. Nothing is allocated after
 * decode_open, and that allocates on the host alone. */
#ifndef ENGINE_DECODE_H
#define ENGINE_DECODE_H

#include "engine/engine.h"

typedef struct Decode {
    Engine   *e;
    Cache     cache;
    Batch     row;                  /* one token a document: ids (docs), pos (3, docs) */
    Tensor    last;                 /* (docs) i32: rows whose logits are wanted */
    Tensor    loss;                 /* (1) F64 */
    Pass      pass;                 /* an evaluation with this cache */
    Batch     batch;                /* of the pass now */
    ArenaMark mark;                 /* what passes push lies above it */
    int64_t   n;                    /* documents now */
    int32_t  *slot, *len, *next;    /* (docs) first row, tokens so far, next position */
    int32_t  *host;                 /* borders of a pass, ready to upload */
    float    *logits;               /* (docs, V) of the latest pass, row i for its i-th document */
} Decode;

MUST Status decode_open(Decode *d, Engine *e);
void        decode_close(Decode *d);                       /* twice is fine */

/* Begins with the documents of s as prompts; s has the engine's budget and no more documents than decoding
 * has room for. Logits row i is for the token that follows document i. With `tokens` the prompt of document
 * i is only its first tokens[i]; what comes after is for decode_loss alone. */
MUST Status decode_prompts(Decode *d, const Stream *s, const int32_t *tokens);

/* Right after decode_prompts: cross entropy summed over the n supervised rows of s from row `from` of its
 * list. */
MUST Status decode_loss(Decode *d, int64_t from, int64_t n, double *ce);

/* Appends id[i] to document doc[i], ascending and at most as often as EngineConf.decode.tokens says. */
MUST Status decode_step(Decode *d, int64_t n, const int32_t *doc, const int32_t *id);

/* For the engine's plan: all of it at its largest over the batch last uploaded. */
void        decode_plan(Engine *e);

static inline const float *decode_logits(const Decode *d, int64_t i)
{
    return d->logits + i * d->e->model.head.V;
}

#endif
