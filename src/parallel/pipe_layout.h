/* parallel/pipe_layout.h -- which layers sit on which stage of the pipeline.
 *
 * Four ways to say it, of which one is used:
 *   even             layers divide by stages * chunks
 *   counted          the embedding and the loss count as a layer each, where asked: the ends get one less
 *   first and last   their numbers of layers are given, the stages between share the rest evenly
 *   a string         E embedding, t decoder layer, L final norm and loss, | border of a piece, , ignored;
 *                    (…)*n repeats a part (not nested), then x*n a single sign: Et*3|(tt|)*29t|L
 * Piece i is chunk i / stages of stage i % stages; layers are consecutive in that order. A piece may be
 * empty. The vision tower goes with the embedding. */
#ifndef PARALLEL_PIPE_LAYOUT_H
#define PARALLEL_PIPE_LAYOUT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct PipeLayoutSpec {
    int         layers, stages, chunks;  /* of the model; PP; VPP (1 leaves it to a string) */
    const char *string;                  /* NULL or "": none */
    int         first, last;             /* layers of the first and the last stage; 0: not said */
    bool        count_embedding, count_loss;
} PipeLayoutSpec;

typedef struct PipeLayoutChunk {
    int  from, to;                       /* layers [from, to) */
    bool embedding, loss;
} PipeLayoutChunk;

typedef struct PipeLayout {
    int          layers, stages, chunks;
    PipeLayoutChunk *piece;                  /* stages * chunks */
    int          rule;                   /* after a failure: which rule is broken (rules.def) */
} PipeLayout;

MUST Status pipe_layout_open(PipeLayout *l, const PipeLayoutSpec *ask);
void        pipe_layout_close(PipeLayout *l);                           /* twice is fine */

static inline const PipeLayoutChunk *pipe_layout_at(const PipeLayout *l, int stage, int chunk)
{
    return &l->piece[chunk * l->stages + stage];
}

/* A string that cuts any number of layers into stages * chunks pieces, the middle ones a layer longer. */
void        pipe_layout_suggest(char *text, size_t size, int layers, int stages, int chunks);
/* Lines for a person: a row per stage, a column per chunk. */
void        pipe_layout_print(FILE *out, const PipeLayout *l);

#endif
