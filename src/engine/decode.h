/* engine/decode.h -- generates token by token with a KV cache: one pass over the prompts, then a row a
 * document.
 *
 * The engine must have been opened with capacity for it (EngineConf.decode): the KV cache lies in the
 * activation arena, which no training step uses at that time. decode_open allocates on the host only, later
 * calls nothing.
 *
 * Ranks of one replica of the model (tp, pp) pass the same documents and make the same calls: a tp rank has
 * the keys and values of its heads, a stage those of its layers, and the last stage the logits. Replicas (dp)
 * have documents of their own. Where a replica needs experts (ep, etp) or weights (ZeRO-3) of another, all of
 * them make the same calls too, one that has no document left with n = 0. cp is not supported. */
#ifndef ENGINE_DECODE_H
#define ENGINE_DECODE_H

#include "engine/engine.h"

typedef struct Decode {
    Engine   *e;
    Cache     cache;
    Batch     row;                  /* one token a document: ids (rows), pos (3, rows) */
    Tensor    last;                 /* (docs) i32: rows whose logits are wanted */
    Tensor    loss, row_loss;       /* (1) F64; (supervised, 1) F32 */
    Pass      pass;                 /* an evaluation with this cache */
    Batch     batch;                /* of the current pass */
    ArenaMark mark;                 /* of the arena below each pass */
    int64_t   n;                    /* documents */
    bool      finished;             /* the latest step found no document left on any rank */
    int32_t  *slot, *len, *next;    /* (docs) first cache row, tokens so far, next position */
    int32_t  *window_slot;          /* (docs + 1) first row where layers have a window, and the end */
    int32_t  *host;                 /* document offsets and rows of a pass, to upload */
    float    *logits;               /* (docs, V) of the latest pass, row i for its i-th document; NULL:
                                       another pipeline stage has them */
    void     *stages;               /* what each stage sent, see decode_share; NULL: one stage */
} Decode;

MUST Status decode_open(Decode *d, Engine *e);
void        decode_close(Decode *d);                       /* twice is fine */

/* Starts with the documents of s as prompts; s has the engine's budget and at most EngineConf.decode.docs
 * documents. Row i of the logits is for the token after document i. With `tokens` only the first tokens[i] of
 * document i are its prompt; the rest is for decode_row_losses. */
MUST Status decode_prompts(Decode *d, const Stream *s, const int32_t *tokens);

/* Right after decode_prompts: the cross entropy of each supervised row of s, on all ranks of the replica. */
MUST Status decode_row_losses(Decode *d, float *loss);

/* Appends id[i] to document doc[i], ascending and at most as often as EngineConf.decode.tokens says. */
MUST Status decode_step(Decode *d, int64_t n, const int32_t *doc, const int32_t *id);

/* Gives `bytes` of data, at most 4 a document or supervised row, from the rank with decode_draws to all ranks
 * of its replica. */
MUST Status decode_share(Decode *d, void *data, size_t bytes);
bool        decode_draws(const Decode *d);                 /* the one rank of a replica that samples tokens */

/* Whether replicas make the same passes, because one needs experts or weights of another. */
bool        decode_in_lockstep(const Engine *e);

/* For engine_plan: prompts, loss and a step at their largest, over the batch uploaded last. */
void        decode_plan(Engine *e);

/* Of keys, values, latents and states on this rank, from the first decode_prompts on. */
size_t      decode_cache_bytes(const Decode *d);

static inline const float *decode_logits(const Decode *d, int64_t i)
{
    return d->logits + i * d->e->model.head.V;
}

#endif
