/* nn/attention_gdn.h -- gated delta nets (Qwen3-Next): linear attention.
 *
 *   in = w_in norm(x): queries and keys of Hk heads, values, their gates z and two numbers b, a of Hv heads
 *   q, k, v = conv(in)       q, k to length 1       g, beta = gates(a, b)
 *   y = w_o (out_norm(delta(q, k, v, g, beta)) silu(z))
 *
 * The convolution (ops/short_conv.c) and the states (ops/delta_rule.c) stay within documents; positions play
 * no part. cp passes states between ranks (nn/gdn_context.h). tp cuts by key heads, with their value heads.
 * In files of qwen3_next the rows of w_in lie key head by key head (`grouped`), in those of qwen3_5 section
 * by section; memory has them as the files. */
#ifndef NN_ATTENTION_GDN_H
#define NN_ATTENTION_GDN_H

#include "nn/gdn_context.h"
#include "nn/layer_kind.h"

typedef struct Gdn {
    GdnShape shape;
    float    eps;
    int      index;                      /* which delta net this is: its rows of a cache */
    Param   *norm;                       /* (D) */
    Param   *w_in;                       /* (2 K + 2 V + 2 Hv, D), K = Hk dk, V = Hv dv */
    Param   *conv;                       /* (2 K + V, width): of q, of k, of v */
    Param   *decay, *shift;              /* (Hv): A_log, dt_bias */
    Param   *out_norm;                   /* (dv), of every head */
    Param   *w_o;                        /* (D, V) */
} Gdn;

typedef struct GdnAct {                  /* heads of this rank */
    Tensor n, rstd;                      /* (T, D); (T, 1) */
    Tensor in;                           /* (Ta, 2 K + 2 V + 2 Hv) */
    Tensor g, beta;                      /* (Ta, Hv) */
    Tensor qkv, qk_rstd;                 /* (Ta, 2 K + V); (Ta, 2 Hk) */
    Tensor o;                            /* (Ta, V) */
    Tensor before;                       /* under cp (2 (width - 1), 2 K + V): rows before the chunks */
    GdnStates states;                    /* under cp */
} GdnAct;

#endif
