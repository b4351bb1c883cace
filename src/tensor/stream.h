/* tensor/stream.h -- one micro-batch on the host: a packed stream of tokens and one of patches, with segment
 * starts.
 *
 * There is no batch dimension and no padding inside a stream. The budgets are fixed for a run; rows behind
 * the last document are padding: they belong to no segment, are masked everywhere and read as zero. A stream
 * is allocated once, then cleared and filled for every micro-batch; nn/batch.h uploads it. */
#ifndef TENSOR_STREAM_H
#define TENSOR_STREAM_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
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

/* Properties of the model that the stream depends on. */
typedef struct StreamShape {
    int64_t image_token, video_token;     /* -1 where the model has none */
    int64_t merge;                        /* patches per side of one visual token */
    int64_t patch_dim;                    /* pixels in a patch: channels x frames x side x side */
    bool    bytes;                   /* pixels are u8, as decoded; else floats, -1 … 1 */
} StreamShape;

/* One temporal slice of an image or video: its grid in patches and its pixels (h * w rows of patch_dim, u8 or
 * f32 by StreamShape.bytes) in merge-block order. Slices are in the order of the document's visual tokens. */
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
    void       *memory;                   /* of all arrays, whole pages: page-locked as one (Device.pin) */
    size_t      bytes;
    int64_t     fills;                    /* number of stream_clear calls: identifies the contents */
    int64_t     tokens, patches, docs, slices, visual, supervised;      /* filled so far */
    double      pairs, vpairs;            /* attending (query, key) pairs, text and vision */
    int64_t     longest, vlongest;
    int32_t    *ids, *pos, *group, *start;                  /* (T) (3, T) (T) (docs + 1)   */
    float      *group_len;                                  /* (docs) or (1)               */
    int32_t    *sup_row, *sup_label;                        /* (supervised), -1 behind them */
    void       *pixels;                                     /* (P, patch_dim) u8 or f32: shape.bytes */
    int32_t    *cell, *vpos, *vstart, *visual_row;          /* (P, 4) (2, P) (P/merge^2 + 1) (P/merge^2) */
} Stream;

/* The counts of a stream that fills its budgets, without arrays, for the planner. */
Stream      stream_full(const StreamShape *shape, const Budget *b);

MUST Status stream_open(Stream *s, const StreamShape *shape, const Budget *b);
void        stream_close(Stream *s);
void        stream_clear(Stream *s);
void       *stream_patch(const Stream *s, int64_t patch);   /* the address of that patch's pixels */
MUST Status stream_add(Stream *s, const Document *d); /* E_FIT: a budget is full; E_DATA: d is invalid */

/* For a layer that predicts one token further: the id after each token in its document, 0 after the last
 * (tokens); and for each supervised row the row before it in its document with its label, or -1 and -1
 * (supervised). Both arrays have the budget's length. */
void        stream_shift(const Stream *s, int32_t *ids, int32_t *row, int32_t *label);
int64_t     stream_shifted_targets(const Stream *s);        /* labels of these; without arrays: all */

/* Splits the slices into `parts` contiguous ranges of about equal patches: part `part` is slices first … last
 * - 1. No part exceeds the average by more than the largest slice. */
void        stream_share(const Stream *s, int parts, int part, int64_t *first, int64_t *last);

/* Fills the budgets with fully supervised documents of `doc_tokens`, each beginning with its share of
 * `slices` slices of grid h x w, whose visual tokens are not supervised; for plans and benchmarks. */
MUST Status stream_synthetic(Stream *s, int64_t doc_tokens, int64_t slices, int64_t h, int64_t w,
                             int64_t vocab, uint64_t seed);

/* Fills the stream with n documents of one image each, about 640 x 480 in patches of 16 and all of different
 * sizes, and a short supervised text. stream_photos_budget: the budget that they fill. */
MUST Status stream_photos(Stream *s, int64_t n, int64_t vocab, uint64_t seed);
Budget      stream_photos_budget(const StreamShape *shape, int64_t n, uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
