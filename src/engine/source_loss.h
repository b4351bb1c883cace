/* engine/source_loss.h -- the training loss by channel of the data (data.train[].channel). Sums add up until
 * they are cleared; their memory is allocated at the start. */
#ifndef ENGINE_SOURCE_LOSS_H
#define ENGINE_SOURCE_LOSS_H

#include "data/loader.h"
#include "engine/engine.h"

/* Summed loss and supervised tokens by channel. Sources with the same channel share a row. */
typedef struct SourceLoss {
    int          channels, sources;      /* 0: not wanted */
    const char **name;                   /* of channels; belong to the loader */
    int         *row;                    /* the channel of each source */
    double      *loss;
    int64_t     *tokens;
} SourceLoss;

MUST Status source_loss_open(SourceLoss *b, const Loader *l, int sources);
void        source_loss_close(SourceLoss *b);                            /* twice is fine */

/* Adds the losses of a micro-batch's supervised rows on this rank; doc: its documents. The engine was
 * opened with conf.per_row_loss. */
void        source_loss_add(SourceLoss *b, const Engine *e, const Stream *s, const LoaderDoc *doc,
                            const float *row_loss);
void        source_loss_sum_ranks(SourceLoss *b, const Engine *e);
void        source_loss_clear(SourceLoss *b);

#endif
