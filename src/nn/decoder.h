/* nn/decoder.h -- one decoder layer: the grain of recompute, pipeline and sharding.
 *
 *   h = x + attention(norm(x))        y = h + feed_forward(norm(h)),  dense or mixture of experts */
#ifndef NN_DECODER_H
#define NN_DECODER_H

#include "nn/attention.h"
#include "nn/mlp.h"
#include "nn/moe.h"

typedef struct Decoder {
    Attention attn;
    Param    *norm;                      /* before the feed-forward (D) */
    bool      sparse;
    Moe       moe;
    Mlp       mlp;
} Decoder;

typedef struct DecoderAct {
    AttentionAct attn;
    Tensor       h, n, rstd;             /* (T, D) (T, D) (T, 1) */
    MoeAct       moe;
    MlpAct       mlp;
} DecoderAct;

/* cs: cosines and sines of all positions (T, C). y absent: only what backward will read. */
void decoder_fwd(const Pass *c, const Decoder *m, DecoderAct *a, Tensor y, Tensor x, Tensor cs);
/* Before decoder_bwd: what the policy dropped, in scratch, and y where it is wanted again. */
void decoder_replay(const Pass *c, const Decoder *m, DecoderAct *a, Tensor y, Tensor x, Tensor cs);
/* dx may alias dy; absent where nothing below trains. */
void decoder_bwd(const Pass *c, const Decoder *m, DecoderAct *a, Tensor dx, Tensor dy, Tensor x, Tensor cs);

#endif
