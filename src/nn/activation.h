/* nn/activation.h -- activations of feed-forwards: rows of one table, named as hidden_act in config.json. A
 * shape has the id of one (nn/shape.h). */
#ifndef NN_ACTIVATION_H
#define NN_ACTIVATION_H

#include "nn/shape.h"

typedef struct Activation {
    const char *name;                    /* "silu": of a gated feed-forward, SwiGLU */
    int         projections;             /* columns that it reads for one that it makes: 2, gate and up */
    /* h = activation(up) * gate. up (rows, projections F), h (rows, F); gate (rows, 1) may be absent. */
    void (*fwd)(Backend *be, Tensor h, Tensor up, Tensor gate);
    void (*bwd)(Backend *be, Tensor dup, Tensor dgate, Tensor dh, Tensor up, Tensor gate);
    bool        grouped;                 /* nn/moe.c has products of experts that end in it */
} Activation;

extern const Activation activations[ACTIVATIONS];

MUST Status activation_find(ActivationId *id, const char *name);     /* unknown: lists the known ones */

#endif
