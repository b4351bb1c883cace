/* model/build.h -- between the files that declare the parameters of layers. */
#ifndef MODEL_BUILD_H
#define MODEL_BUILD_H

#include "model/model.h"

/* A norm of n; fmt has a place for the prefix of names and one for the layer's number. */
__attribute__((format(printf, 4, 0)))
Param *build_norm(ParamSet *s, const TextShape *t, int64_t n, const char *fmt, const char *at, int l);

/* Decoder layer l in a unit of its own. moe: which MoE layer of the whole model it is, should it be one. */
void build_layer(ParamSet *s, Decoder *d, const ModelShape *x, int l, int moe);
/* A table (V, D), cut by tp. */
Param *build_table(Model *m, const char *name);
/* After the head: the layer behind the last and what predicts further tokens with it (model/mtp_build.c).
 * embed: the name of the embedding. */
void build_mtp(Model *m, int moe, const char *embed);

/* Latent attention of layer l (model/mla_build.c). */
void build_mla(ParamSet *s, Mla *m, const TextShape *t, const char *at, int l);

/* The gated delta net of layer l (model/gdn_build.c). */
void build_gdn(ParamSet *s, Gdn *m, const TextShape *t, const char *at, int l);

#endif
