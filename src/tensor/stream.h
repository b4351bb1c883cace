/* tensor/stream.h -- one micro-batch on the host: a flat stream of tokens and one of patches, borders kept.
 *
 * There is no batch dimension and no padding inside a stream. The budgets are fixed for a run; what documents
 * leave over at the end belongs to no segment, is masked everywhere and reads as zero rows. A stream is made
 * once, then cleared and filled with documents again and again; nn/batch.h puts it on the device. */
#ifndef TENSOR_STREAM_H
#define TENSOR_STREAM_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

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
    bool    bytes;                   /* pixels are 8-bit levels, as pictures have them; else floats, -1 … 1 */
} StreamShape;

/* One temporal slice of a picture or video: its grid in patches and its pixels (h * w rows of patch_dim, of
 * the stream's kind) in merge-block order. Slices stand in the order in which the document's visual runs name
 * them. */
typedef struct VisualSlice { int64_t h, w; const void *pixels; } VisualSlice;

typedef struct Document {
    int64_t        n;                     /* tokens */
    const int32_t *ids;
    const int32_t *targets;               /* targets[i]: id that row i must predict, or -1 */
    int64_t        slices;
    const VisualSlice   *slice;
} Document;

typedef struct Stream {
    StreamShape shape;
    Budget      budget;
    int64_t     fills;                    /* times it was cleared: tells one filling from the next */
    int64_t     tokens, patches, docs, slices, visual, supervised;      /* filled so far */
    double      pairs, vpairs;            /* attending (query, key) pairs, text and vision */
    int64_t     longest, vlongest;
    int32_t    *ids, *pos, *group, *start;                  /* (T) (3, T) (T) (docs + 1)   */
    float      *group_len;                                  /* (docs) or (1)               */
    int32_t    *sup_row, *sup_label;                        /* (supervised)                */
    void       *pixels;                                     /* (P, patch_dim) u8 or f32: shape.bytes */
    int32_t    *cell, *vpos, *vstart, *visual_row;          /* (P, 4) (2, P) (P/merge^2 + 1) (P/merge^2) */
} Stream;

/* The counts of a stream that fills its budgets, with no arrays behind them: what a plan needs to know. */
Stream      stream_full(const StreamShape *shape, const Budget *b);

MUST Status stream_open(Stream *s, const StreamShape *shape, const Budget *b);
void        stream_close(Stream *s);
void        stream_clear(Stream *s);
void       *stream_patch(const Stream *s, int64_t patch);   /* where that patch's pixels go */
MUST Status stream_add(Stream *s, const Document *d);       /* E_FIT: a budget is full; E_DATA: it is wrong */

/* Slices first … last - 1 are part `part` of `parts`: runs of about as many patches, none above its even part
 * by more than the largest slice. */
void        stream_share(const Stream *s, int parts, int part, int64_t *first, int64_t *last);

/* Fill the budgets with documents of `doc_tokens` that are all supervised, each beginning with its share of
 * `slices` slices of grid h x w, whose own tokens predict nothing; for plans and benchmarks. */
MUST Status stream_synthetic(Stream *s, int64_t doc_tokens, int64_t slices, int64_t h, int64_t w,
                             int64_t vocab, uint64_t seed);

/* Fill the stream with n documents of one photograph, about 640 x 480 in patches of 16 and no two of the same
 * size, and a short text that is supervised; budget: the room they take. */
MUST Status stream_photos(Stream *s, int64_t n, int64_t vocab, uint64_t seed);
Budget      stream_photos_budget(const StreamShape *shape, int64_t n, uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
