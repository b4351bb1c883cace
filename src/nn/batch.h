/* nn/batch.h -- one micro-batch on the device: what modules see of a Stream (tensor/stream.h). */
#ifndef NN_BATCH_H
#define NN_BATCH_H

#include "ops/ops.h"
#include "tensor/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

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
/* The uploaded batch without its tail, for passes that need no fixed shapes. */
Batch batch_trim(const Batch *b, const Stream *s);

#ifdef __cplusplus
}
#endif
#endif
