/* engine/decode.h -- generates token by token with a KV cache: one pass over the prompts, then a row a
 * document.
 *
 * The engine must have been opened with capacity for it (EngineConf.decode): the KV cache lies in the
 * activation arena, which no training step uses at that time. decode_open allocates on the host only, later
 * calls nothing. */
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
    Batch     batch;                /* of the current pass */
    ArenaMark mark;                 /* of the arena below each pass */
    int64_t   n;                    /* documents */
    int32_t  *slot, *len, *next;    /* (docs) first cache row, tokens so far, next position */
    int32_t  *host;                 /* document offsets and rows of a pass, to upload */
    float    *logits;               /* (docs, V) of the latest pass, row i for its i-th document */
} Decode;

MUST Status decode_open(Decode *d, Engine *e);
void        decode_close(Decode *d);                       /* twice is fine */

/* Starts with the documents of s as prompts; s has the engine's budget and at most EngineConf.decode.docs
 * documents. Row i of the logits is for the token after document i. With `tokens` only the first tokens[i] of
 * document i are its prompt; the rest is for decode_loss. */
MUST Status decode_prompts(Decode *d, const Stream *s, const int32_t *tokens);

/* Right after decode_prompts: cross entropy summed over the n supervised rows of s from row `from` of its
 * list. */
MUST Status decode_loss(Decode *d, int64_t from, int64_t n, double *ce);

/* Appends id[i] to document doc[i], ascending and at most as often as EngineConf.decode.tokens says. */
MUST Status decode_step(Decode *d, int64_t n, const int32_t *doc, const int32_t *id);

/* For engine_plan: prompts, loss and a step at their largest, over the batch uploaded last. */
void        decode_plan(Engine *e);

static inline const float *decode_logits(const Decode *d, int64_t i)
{
    return d->logits + i * d->e->model.head.V;
}

#endif
