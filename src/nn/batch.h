/* nn/batch.h -- one micro-batch on the device: the part of a Stream (tensor/stream.h) that a rank computes.
 *
 * Ranks of one replica of the model hold the same stream on the host and take their share of it:
 *
 *   cp    the stream is cut in 2 CP equal chunks; rank c takes chunk c and chunk 2 CP - 1 - c, in this order,
 *         so that all have the same number of (query, key) pairs of a long document
 *   tp    of these rows tp rank t keeps the t-th part between layers; attention, embedding and head see all
 *   tp_cp images are dealt out whole, in runs; their rows go to the rank that has the token (nn/visual.h) */
#ifndef NN_BATCH_H
#define NN_BATCH_H

#include "nn/context_batch.h"
#include "ops/ops.h"
#include "tensor/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Span { int64_t at, n; } Span;      /* rows of the stream */

/* The stream rows that a rank has, in its order: one span, or two where cp cuts. */
typedef struct Spans { Span span[2]; int n; } Spans;

/* Visual rows go from the rank that encodes them to the rank that has their tokens. */
typedef struct VisualRoutes {
    int64_t  made, wanted;                /* rows this rank makes; receives */
    Tensor   order;   /* (made) i32: sent row i, sorted by member, is encoded row order[i] */
    int64_t *give_at, *give_n, *get_at, *get_n;   /* (members of tp_cp) */
} VisualRoutes;

/* What changes from step to step while the ops of a micro-batch stay the same; on the device, where ops read
 * it (CUDA graphs). */
typedef struct MicroScalars {
    float    ce, aux;                     /* factors of the cross entropy and of the balance loss */
    float    mtp;                         /* factor of the cross entropy of further tokens */
    float    z;                           /* factor of the z-loss of one token */
    float    part;                        /* Aux.part */
    uint64_t dropout_seed;
} MicroScalars;

typedef struct Batch {
    int64_t  T, P, N;                     /* tokens, patches, visual rows (P / merge^2) */
    int64_t  Ta;                          /* tokens that attention, embedding and head see: of all tp ranks */
    int64_t  M, all;                      /* most visual rows among the T; of a whole micro-batch */
    int64_t  groups, supervised, real;    /* real: tokens of the whole micro-batch without its tail */
    bool     has_media;                   /* this rank has images to encode */
    bool     media;                       /* some rank of the micro-batch has images */
    bool     pictures;                    /* some rank of the stage has images in this round: all take part */
    Tensor   ids, pos, group, group_len;
    Tensor   sup_row, sup_label;
    int64_t  next_targets;                /* labels of further tokens in the whole micro-batch */
    int64_t  next_supervised;             /* where the batch serves a layer that predicts further tokens: */
    Tensor   next_ids;                    /* (Ta): the id after each token in its document, or 0 */
    Tensor   next_row, next_label;        /* rows before supervised ones in their documents, and their
                                             labels */
    const MicroScalars *scalars;          /* device address */
    Tensor   pixels, cell, vpos, visual_row;
    Tensor   starts, vstarts;             /* segment borders, as many as the fullest stream has */
    Segments seg, vseg;
    ContextBatch context;                 /* in place of seg where cp cuts */
    VisualRoutes routes;
    bool     buckets;                     /* see BatchConf */
    const Mesh *mesh;                     /* NULL: one rank */
    int32_t *next_host;                   /* next_ids, next_row, next_label before their upload, or NULL */
    int32_t *host;                        /* shares that are not a run of the stream, before their upload */
} Batch;

typedef struct BatchConf {
    StreamShape shape;
    Budget      budget;                   /* of the whole stream */
    const Mesh *mesh;                     /* NULL: one rank */
    ContextKind context;
    bool        tower;                    /* this rank encodes images */
    bool        further;                  /* it predicts further tokens */
    bool        buckets;                  /* round supervised rows and segments up, so that a run has few
                                             shapes: bucket_rows, bucket_segments */
} BatchConf;

/* Supervised rows of a batch with so many: at most an eighth more, and `most`. Rows behind the last have no
 * label, no loss and no gradient. */
int64_t     bucket_rows(int64_t n, int64_t most);
/* The number of segments and their length at most, rounded up to 2^i and to 2^i or 3 2^i; `rows` is the
 * length of the stream. Segments of one length that fill it stay as they are. */
bool        segments_even(const Segments *s, int64_t rows);    /* of one length, and fill so many rows */
Segments    bucket_segments(Segments s, int64_t rows, int64_t most);

/* Tensors for one stream of this budget, from an arena of the backend. */
MUST Status batch_open(Batch *b, Arena *a, const BatchConf *conf);
void        batch_close(Batch *b);                    /* frees host arrays; twice is fine */
void        batch_upload(Batch *b, Backend *be, const Stream *s);
/* Sets b->scalars for the passes that follow. */
void        batch_put_scalars(const Batch *b, Backend *be, const MicroScalars *s);
/* The uploaded batch without its tail, for passes that need no fixed shapes: its first `rows` tokens,
 * s->tokens or more. A batch that tp or cp cuts stays whole. */
Batch       batch_trim(const Batch *b, const Stream *s, int64_t rows);

/* Rows of a stream of T tokens that a rank has between layers (residual), or else in attention. */
Spans       batch_rows(const Mesh *m, int64_t T, bool residual);
int64_t     spans_find(Spans s, int64_t t);           /* the index of stream row t in s; -1: not there */
/* The visual slices (images, frames) that this rank encodes: first … last - 1. */
void        batch_slices(const Mesh *m, const Stream *s, int64_t *first, int64_t *last);

#ifdef __cplusplus
}
#endif
#endif
