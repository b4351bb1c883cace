/* nn/batch.h -- one micro-batch: a flat stream of tokens and a flat stream of patches, borders kept.
 *
 * There is no batch dimension and no padding inside a stream. T and P are budgets; what documents leave
 * over at the end belongs to no segment, is masked everywhere and reads as zero rows. The host builds a
 * Stream from documents, batch_upload puts it on the device as a Batch, which is all that modules see. */
#ifndef NN_BATCH_H
#define NN_BATCH_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Budget {
    int64_t tokens, patches;      /* extents of the two streams */
    int64_t docs;                 /* most documents a stream may hold */
    int64_t supervised;           /* most rows that predict something */
    bool    by_document;          /* auxiliary-loss statistics per document instead of one pool */
} Budget;

/* What the stream builder must know of a model. */
typedef struct StreamShape {
    int64_t image_token, video_token;     /* -1 where the model has none */
    int64_t merge;                        /* patches per side of one visual token */
    int64_t patch_dim;                    /* pixels in a patch: channels x frames x side x side */
} StreamShape;

/* One temporal slice of a picture or video: its grid in patches and its pixels (h * w rows of patch_dim)
 * in merge-block order. Slices stand in the order in which the document's visual runs name them. */
typedef struct Slice { int64_t h, w; const float *pixels; } Slice;

typedef struct Document {
    int64_t        n;                     /* tokens */
    const int32_t *ids;
    const int32_t *targets;               /* targets[i]: id that row i must predict, or -1 */
    int64_t        slices;
    const Slice   *slice;
} Document;

typedef struct Stream {
    StreamShape shape;
    Budget      budget;
    int64_t     tokens, patches, docs, slices, visual, supervised;      /* filled so far */
    double      pairs, vpairs;            /* attending (query, key) pairs, text and vision */
    int64_t     longest, vlongest;
    int32_t    *ids, *pos, *group, *start;                  /* (T) (3, T) (T) (docs + 1)   */
    float      *group_len;                                  /* (docs) or (1)               */
    int32_t    *sup_row, *sup_label;                        /* (supervised)                */
    float      *pixels;                                     /* (P, patch_dim)              */
    int32_t    *cell, *vpos, *vstart, *visual_row;          /* (P, 4) (2, P) (P/merge^2 + 1) (P/merge^2) */
} Stream;

MUST Status stream_open(Stream *s, const StreamShape *shape, const Budget *b);
void        stream_close(Stream *s);
void        stream_clear(Stream *s);
MUST Status stream_add(Stream *s, const Document *d);       /* E_FIT when a budget is full, E_DATA when wrong */

/* Fill the budgets with documents of `doc_tokens` that are all supervised, each beginning with its share of
 * `slices` slices of grid h x w; for plans and benchmarks. */
MUST Status stream_synthetic(Stream *s, int64_t doc_tokens, int64_t slices, int64_t h, int64_t w, int64_t vocab,
                             uint64_t seed);

typedef struct Batch {
    int64_t  T, P, N;                     /* tokens, patches, visual rows (P / merge^2) */
    int64_t  groups, supervised, real;    /* real: tokens that are not tail             */
    bool     has_media;
    Tensor   ids, pos, group, group_len;
    Tensor   sup_row, sup_label;
    Tensor   pixels, cell, vpos, visual_row;
    Tensor   starts, vstarts;             /* room for the borders of the fullest stream */
    Segments seg, vseg;
} Batch;

/* Tensors for one stream of this budget, from an arena of the backend. */
void batch_layout(Batch *b, Arena *a, const StreamShape *shape, const Budget *budget);
void batch_upload(Batch *b, Backend *be, const Stream *s);

#ifdef __cplusplus
}
#endif
#endif
