/* nn/activation.h -- activations of feed-forwards: rows of one table, named as hidden_act in config.json. A
 * shape has the id of one (nn/shape.h). */
#ifndef NN_ACTIVATION_H
#define NN_ACTIVATION_H

#include "nn/shape.h"

/* Rows, and their e4m3 codes and scales (ops/quantize.c) or, where these are absent, none. */
typedef struct CodedRows { Tensor x, q, scale; } CodedRows;

/* h = activation(gu) * scale. gu (rows, projections x width): the gate columns, then the up columns; h
 * (rows, width); scale (rows, 1) is the router's weight of a row of experts, offsets say how many rows there
 * are; both are absent in a dense feed-forward. */
typedef struct Activation {
    const char *name;                    /* "silu": of a gated feed-forward, SwiGLU */
    int         projections;             /* columns of gu for one of h */
    void (*fwd)(Backend *be, Tensor h, Tensor gu, Tensor scale, Tensor offsets);
    void (*bwd)(Backend *be, Tensor dgu, Tensor dscale, Tensor dh, Tensor gu, Tensor scale);
    /* For experts, fused with their products; NULL: MoE layers with it are refused.
     *   fwd   gu = rows w', h = activation(gu) * scale         bwd   dgu and dscale from dout w */
    void (*grouped_fwd)(Backend *be, Tensor gu, Tensor h, Tensor rows, Tensor w, Tensor offsets, Tensor scale,
                        LoraTerm lora);
    void (*grouped_bwd)(Backend *be, Tensor dgu, Tensor dscale, Tensor dout, Tensor w, Tensor offsets,
                        Tensor gu, Tensor scale, LoraTerm lora);
    /* The same with a weight in codes, see ops/grouped_coded.c. */
    void (*grouped_fwd_coded)(Backend *be, Tensor gu, Tensor h, Tensor rows, WeightCodes w, Tensor panel,
                              Tensor offsets, Tensor scale, LoraTerm lora);
    void (*grouped_bwd_coded)(Backend *be, Tensor dgu, Tensor dscale, Tensor dout, WeightCodes w,
                              Tensor panel, Tensor offsets, Tensor gu, Tensor scale, LoraTerm lora);
    /* For experts in 8 bits; all quantise what they write (h, dgu), and leave h and the dgu of bwd_cols
     * undefined unless `stores_rows`. NULL: made of the others; of bwd_cols: weight gradients are wide.
     *   grouped_fwd_fp8   as grouped_fwd, of quantised rows and w       bwd_fp8   as bwd, without padding
     *   bwd_cols          as bwd_fp8, and the columns of dgu and of h */
    void (*grouped_fwd_fp8)(Backend *be, Tensor gu, CodedRows h, CodedRows rows, Tensor w, Tensor w_scale,
                            Tensor offsets, Tensor scale, bool stores_rows);
    void (*bwd_fp8)(Backend *be, CodedRows dgu, Tensor dscale, Tensor dh, Tensor gu, Tensor scale,
                    Tensor offsets);
    void (*bwd_cols)(Backend *be, CodedRows dgu, ColumnCodes dgu_cols, ColumnCodes h_cols, Tensor dscale,
                     Tensor dh, Tensor gu, Tensor scale, Tensor offsets, bool stores_rows);
} Activation;

extern const Activation activations[ACTIVATIONS];

MUST Status activation_find(ActivationId *id, const char *name);     /* unknown: lists the known ones */

#endif
