/* model/build.h -- between the files that declare the parameters of layers. */
#ifndef MODEL_BUILD_H
#define MODEL_BUILD_H

#include "model/model.h"

/* A norm of n; fmt has a place for the prefix of names and one for the layer's number. */
__attribute__((format(printf, 4, 0)))
Param *build_norm(ParamSet *s, const TextShape *t, int64_t n, const char *fmt, const char *at, int l);

/* Latent attention of layer l (model/mla_build.c). */
void build_mla(ParamSet *s, Mla *m, const TextShape *t, const char *at, int l);

#endif
