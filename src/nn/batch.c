/* nn/batch.c -- a stream onto the device. */
#include "nn/batch.h"

void batch_layout(Batch *b, Arena *a, const StreamShape *shape, const Budget *bud)
{
    int64_t T = bud->tokens, P = bud->patches, N = P / (shape->merge * shape->merge),
            G = bud->by_document ? bud->docs : 1;
    *b = (Batch){ .T = T, .P = P, .N = N, .groups = G };
    b->ids        = t1(a, "ids", I32, T);
    b->pos        = t2(a, "positions", I32, 3, T);
    b->group      = t1(a, "groups", I32, T);
    b->group_len  = t1(a, "groups", F32, G);
    b->sup_row    = t1(a, "labels", I32, bud->supervised);
    b->sup_label  = t1(a, "labels", I32, bud->supervised);
    b->starts     = t1(a, "segments", I32, bud->docs + 1);
    if (!P) return;
    b->pixels      = t2(a, "pixels", shape->bytes ? U8 : F32, P, shape->patch_dim);
    b->cell        = t2(a, "cells", I32, P, 4);
    b->vpos        = t2(a, "positions", I32, 2, P);
    b->visual_row  = t1(a, "rows", I32, N);
    b->vstarts     = t1(a, "segments", I32, N + 1);
}

static Tensor head(Tensor t, int64_t n) { return t_rows(t, 0, n); }

void batch_upload(Batch *b, Backend *be, const Stream *s)
{
    backend_upload(be, b->ids, s->ids);
    backend_upload(be, b->pos, s->pos);
    backend_upload(be, b->group, s->group);
    backend_upload(be, b->group_len, s->group_len);
    backend_upload(be, head(b->sup_row, s->supervised), s->sup_row);
    backend_upload(be, head(b->sup_label, s->supervised), s->sup_label);
    b->seg = (Segments){ .starts = head(b->starts, s->docs + 1), .n = s->docs, .longest = s->longest,
                         .pairs = s->pairs, .causal = true };
    backend_upload(be, b->seg.starts, s->start);
    b->supervised = s->supervised, b->real = s->tokens, b->has_media = s->patches > 0;
    if (!b->has_media) return;
    backend_upload(be, b->pixels, s->pixels);
    backend_upload(be, b->cell, s->cell);
    backend_upload(be, b->vpos, s->vpos);
    backend_upload(be, b->visual_row, s->visual_row);
    b->vseg = (Segments){ .starts = head(b->vstarts, s->slices + 1), .n = s->slices, .longest = s->vlongest,
                          .pairs = s->vpairs };
    backend_upload(be, b->vseg.starts, s->vstart);
}

Batch batch_trim(const Batch *full, const Stream *s)
{
    Batch b = *full;
    b.T = s->tokens, b.P = s->patches, b.N = s->visual;
    b.ids   = head(b.ids, b.T);
    b.pos   = t_cols(b.pos, 0, b.T);
    b.group = head(b.group, b.T);
    if (!b.has_media) return b;
    b.pixels     = head(b.pixels, b.P);
    b.cell       = head(b.cell, b.P);
    b.vpos       = t_cols(b.vpos, 0, b.P);
    b.visual_row = head(b.visual_row, b.N);
    return b;
}
