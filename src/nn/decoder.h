/* nn/decoder.h -- one decoder layer: the grain of recompute, pipeline and sharding.
 *
 *   h = x + attention(norm(x))        y = h + ffn(norm(h))
 *
 * Its attention and its feed-forward (FFN) are modules of the kinds that the model's shape gives the layer
 * (nn/layer_kind.h). */
#ifndef NN_DECODER_H
#define NN_DECODER_H

#include "nn/attention.h"
#include "nn/attention_gdn.h"
#include "nn/attention_mla.h"
#include "nn/mlp.h"
#include "nn/moe.h"

typedef struct Decoder {
    LayerKinds kinds;
    void      *attention, *ffn;          /* modules of these kinds; NULL: another stage has the layer */
    Param     *norm;                     /* before the FFN (D) */
    float      eps;
    int        index;                    /* which layer of the model it is */
} Decoder;

typedef struct DecoderAct {
    void  *attention, *ffn;              /* what the modules keep */
    Tensor h, n, rstd;                   /* (T, D) (T, D) (T, 1) */
} DecoderAct;

MUST Status decoder_open(Decoder *m, LayerKinds k);          /* its modules, zeroed */
void        decoder_close(Decoder *m);
MUST Status decoder_act_open(DecoderAct *a, LayerKinds k);
void        decoder_act_close(DecoderAct *a);

/* The modules of kinds that have a forward; NULL: the layer is of another kind. */
static inline Attention *decoder_gqa(const Decoder *m)
{
    bool is = m->kinds.attention == ATTENTION_GQA || m->kinds.attention == ATTENTION_WINDOW;
    return is ? m->attention : NULL;
}
static inline Mla *decoder_mla(const Decoder *m)
{
    return m->kinds.attention == ATTENTION_MLA ? m->attention : NULL;
}
static inline Gdn *decoder_gdn(const Decoder *m)
{
    return m->kinds.attention == ATTENTION_GDN ? m->attention : NULL;
}
static inline Mlp *decoder_mlp(const Decoder *m) { return m->kinds.ffn == FFN_DENSE ? m->ffn : NULL; }
static inline Moe *decoder_moe(const Decoder *m) { return m->kinds.ffn == FFN_MOE ? m->ffn : NULL; }

/* Describes a layer of these kinds: module 0 is its attention, 1 the layer itself, 2 its FFN. */
void decoder_describe(Description *d, const TextShape *t, LayerKinds k);
void decoder_modules(const Decoder *m, void *modules[MAX_MODULES]);

/* cs: cosines and sines of all positions (T, C). y absent: only what backward will read. */
void decoder_fwd(const Pass *c, const Decoder *m, DecoderAct *a, Tensor y, Tensor x, Tensor cs);
/* Before decoder_bwd: recomputes what the policy dropped, in scratch, and y where it is wanted. */
void decoder_replay(const Pass *c, const Decoder *m, DecoderAct *a, Tensor y, Tensor x, Tensor cs);
/* dx may alias dy; absent where nothing below trains. */
void decoder_bwd(const Pass *c, const Decoder *m, DecoderAct *a, Tensor dx, Tensor dy, Tensor x, Tensor cs);

#endif
