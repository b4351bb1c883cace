/* parallel/pipe_layout.h -- which layers run on which stage of the pipeline.
 *
 * There are four ways to specify it, of which one is used:
 *   even             the layers are a multiple of stages * chunks
 *   counted          embedding and loss count as a layer each: the first and the last chunk get one less
 *   first and last   the layers of the first and the last stage are given, the stages between share the rest
 *   a string         E embedding, t decoder layer, L final norm and loss, | ends a chunk, commas are ignored;
 *                    (…)*n repeats a part (not nested), then x*n a single letter: Et*3|(tt|)*29t|L
 * Chunks are numbered through the model: number i is chunk i / stages of stage i % stages, and layers are
 * consecutive in that order. A chunk may be empty. The vision tower goes with the embedding. */
#ifndef PARALLEL_PIPE_LAYOUT_H
#define PARALLEL_PIPE_LAYOUT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct PipeLayoutSpec {
    int         layers, stages, chunks;  /* of the model; PP; VPP (with 1 a string decides) */
    const char *string;                  /* NULL or "": none */
    int         first, last;             /* layers of the first and the last stage; 0: not set */
    bool        count_embedding, count_loss;
} PipeLayoutSpec;

typedef struct PipeLayoutChunk {
    int  from, to;                       /* layers [from, to) */
    bool embedding, loss;
} PipeLayoutChunk;

typedef struct PipeLayout {
    int          layers, stages, chunks;
    PipeLayoutChunk *piece;                  /* stages * chunks */
    int          rule;                   /* after a failure: the rule that is violated (rules.def) */
} PipeLayout;

MUST Status pipe_layout_open(PipeLayout *l, const PipeLayoutSpec *ask);
void        pipe_layout_close(PipeLayout *l);                           /* may be called twice */

static inline const PipeLayoutChunk *pipe_layout_at(const PipeLayout *l, int stage, int chunk)
{
    return &l->piece[chunk * l->stages + stage];
}

/* Writes a string that cuts any number of layers into stages * chunks, the middle ones a layer longer. */
void        pipe_layout_suggest(char *text, size_t size, int layers, int stages, int chunks);
/* Prints a row per stage and a column per chunk. */
void        pipe_layout_print(FILE *out, const PipeLayout *l);

#endif
