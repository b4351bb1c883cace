/* nn/attention_mla.h -- multi-head latent attention (DeepSeek-V2).
 *
 *   q = up_q(norm(down_q(n)))      k, v = up_kv(norm(down_kv(n)))      n = norm(x)
 *
 * A head of q and k has `nope` components without positions, then `rope` that rotate; down_kv makes the
 * latent of keys and values, then the rotary part of the keys, which all heads share. The down projections
 * are whole on every rank of tp and run on its own T rows, the up projections are cut by heads. Without
 * down_q (q_rank 0) up_q reads n. */
#ifndef NN_ATTENTION_MLA_H
#define NN_ATTENTION_MLA_H

#include "nn/layer_kind.h"

typedef struct Mla {
    MlaShape shape;
    int64_t  H;                          /* heads of the whole layer */
    float    eps, latent_eps;            /* of the layer's norm; of the norms of latents */
    float    scale;                      /* of scores */
    bool     pairs;                      /* neighbours rotate together, not halves */
    int      index;                      /* which layer this is: its rows of a cache */
    Param   *norm;                       /* (D) */
    Param   *w_down_q, *b_down_q, *q_norm;       /* (q_rank, D); NULL without it; (q_rank) */
    Param   *w_up_q;                     /* (H (nope + rope), q_rank or D), by heads */
    Param   *w_down_kv, *b_down_kv, *kv_norm;    /* (kv_rank + rope, D); (kv_rank) */
    Param   *w_up_kv;                    /* (H (nope + v), kv_rank): of a head its keys, then its values */
    Param   *w_o, *b_o;                  /* (D, H v) */
} Mla;

typedef struct MlaAct {                  /* H: heads of this rank */
    Tensor n, rstd;                      /* (T, D); (T, 1) */
    Tensor down_q, latent_q, q_rstd;     /* (T, q_rank) before and after the norm; (T, 1) */
    Tensor down_kv, latent_kv, kv_rstd;  /* (T, kv_rank + rope); (T, kv_rank); (T, 1) */
    Tensor q, k, v;                      /* (Ta, H (nope + rope)) rotated, the same, (Ta, H v) */
    Tensor o, lse;                       /* (Ta, H v); (H, Ta) */
} MlaAct;

typedef struct MlaShare { int64_t H, qk, nope, rope, v; } MlaShare;          /* of this rank */
MlaShare mla_share(const Pass *c, const Mla *m);
/* Of rows of heads: their components from `from` on. */
Tensor   mla_parts(Tensor t, int64_t heads, int64_t from, int64_t n);
/* The rotary part of the keys of all rows, (Ta, 1, rope), before its rotation. */
Tensor   mla_shared_keys(const Pass *c, const Mla *m, const MlaAct *a);

/* With a cache of latents (nn/attention_mla_decode.c). Writes the latents of the pass and gives those of the
 * layer; a->o from them, for a pass over further tokens, which needs no keys and values. */
Tensor   mla_cache_latents(const Pass *c, const Mla *m, const MlaAct *a, Tensor cs);
void     mla_attend_latents(const Pass *c, const Mla *m, MlaAct *a, Tensor latents);

#endif
