/* nn/vision.h -- the vision tower: patches to visual tokens, with deepstack features on the way.
 *
 * A pre-norm ViT over the flat patch stream: every temporal slice is its own attention segment, learned
 * positions are interpolated from a G x G table, rotary positions are the patch's row and column. Mergers
 * turn each block of merge x merge patches into one token of the decoder's width. */
#ifndef NN_VISION_H
#define NN_VISION_H

#include "nn/layer_kind.h"

typedef struct VisionBlock {
    Param *norm1_w, *norm1_b, *w_qkv, *b_qkv, *w_o, *b_o;            /* (D) (D) (3D, D) (3D) (D, D) (D) */
    Param *norm2_w, *norm2_b, *w_up, *b_up, *w_down, *b_down;        /* (I, D) (I) (D, I) (D) */
} VisionBlock;

typedef struct Merger {
    bool   norm_after;                    /* norm over the merged row (deepstack) or over each patch (main) */
    Param *norm_w, *norm_b;                  /* (m^2 D) or (D) */
    Param *w1, *b1, *w2, *b2;                /* (m^2 D, m^2 D); (O, m^2 D) */
} Merger;

typedef struct Vision {
    int64_t      D, I, H, depth, merge, out, patch_dim;
    int          deepstacks;
    int          after[MAX_DEEPSTACK];       /* block whose output feeds feature i, ascending */
    int          weights[MAX_DEEPSTACK];     /* entry of the merger list that makes feature i */
    Gelu         gelu;
    float        theta;
    int64_t      first_trainable;            /* block below which nothing trains, so there is no backward; -1:
                                                the embedding of patches does; depth: no block */
    Param       *w_patch, *b_patch, *pos;    /* (D, patch_dim) (D) (G^2, D) */
    VisionBlock *block;
    Merger       merger, stack[MAX_DEEPSTACK];
    Tensor       inv, axis;                  /* rotary frequencies and which of (row, col) each one reads */
} Vision;

typedef struct BlockAct {
    Tensor x;                                /* input (P, D) */
    Tensor n1, stat1, qkv, o, lse, h, n2, stat2, up, act;    /* qkv: q and k rotated */
} BlockAct;

typedef struct MergerAct { Tensor x, n, stat, f1, a1; } MergerAct;

typedef struct VisionAct {
    Tensor     pixels, cs;                   /* (P, patch_dim) in the compute type; (P, C) */
    BlockAct  *block;                        /* depth rows, made at start */
    OffloadRecord *offload;                  /* depth rows */
    Tensor     last;                         /* output of the last block */
    MergerAct  merger, stack[MAX_DEEPSTACK];
    Tensor     out, feature[MAX_DEEPSTACK];  /* (N, O) */
} VisionAct;

void vision_describe_stem(Description *d, const VisionShape *v);     /* before the first block */
void vision_describe_block(Description *d, const VisionShape *v);
void vision_describe_merger(Description *d, const VisionShape *v, bool deepstack);

void vision_fwd(const Pass *c, const Vision *v, VisionAct *a);
/* dout and dfeature: gradients of out and feature; absent for a feature that no layer read. */
void vision_bwd(const Pass *c, const Vision *v, VisionAct *a, Tensor dout, const Tensor *dfeature);

#endif
