/* nn/shape.h -- the numbers of a model: of its decoder layers and of its vision tower.
 *
 * The trainer fills a shape from a config.json (model/family.h), the planner from plan/models.def; layer
 * kinds (nn/layer_kind.h) describe themselves from it. Letters are those of docs/glossary.md. */
#ifndef NN_SHAPE_H
#define NN_SHAPE_H

#include "ops/ops.h"

#define MAX_DEEPSTACK 8

typedef enum { ACTIVATION_SWIGLU, ACTIVATION_CLAMPED_GLU, ACTIVATIONS } ActivationId;
    /* nn/activation.h */

/* Multi-head latent attention (DeepSeek-V2): queries and keys go through low-rank projections. */
typedef struct MlaShape {
    int64_t q_rank, kv_rank;             /* kv_rank 0: no layer has it; q_rank 0: queries in one product */
    int64_t nope, rope, v;               /* head dims: without and with rotary positions; of values */
    bool    pairs;                       /* neighbours rotate together, not halves */
} MlaShape;

/* Gated delta nets (Qwen3-Next): linear attention in all but every `every`-th layer. */
typedef struct GdnShape {
    int64_t every;                       /* 0: no layer has it */
    int64_t key_heads, key_dim, value_heads, value_dim;
    int64_t conv;                        /* width of the depthwise convolution */
    bool    grouped;                     /* files have its input projection key head by key head */
} GdnShape;

/* Rotary positions stretched to longer contexts (YaRN): slow frequencies are divided by `factor`. */
typedef struct YarnShape {
    double factor;                       /* 0: plain rotary positions */
    double original;                     /* context that the frequencies were trained for */
    double fast, slow;                   /* turns in that context: frequencies above `fast` stay, below `slow`
                                            are divided, those between are mixed */
    double scale;                        /* of cosines and sines */
    double score_scale;                  /* of latent attention's scores */
    bool   truncate;                     /* the borders of the mixture are rounded outwards */
} YarnShape;

/* Rotary positions stretched as in Llama 3.1: frequencies that turn less than `low` times in the trained
 * context are divided by `factor`, those above `high` stay, those between are mixed. */
typedef struct SmoothShape { double factor, low, high, original; } SmoothShape;      /* factor 0: plain */

typedef enum { ROUTER_SOFTMAX, ROUTER_SIGMOID } RouterForm;

typedef struct TextShape {
    int64_t  V, D, L;                    /* vocabulary, hidden size, layers */
    int64_t  H, G, C;                    /* query heads, key/value heads, head dim */
    int64_t  I;                          /* width of dense FFNs */
    int64_t  E, K, F;                    /* experts, experts per token, expert width; E = 0: no MoE layer */
    int64_t  shared;                     /* width of the experts that all tokens share; 0: none */
    int64_t  groups, top_groups;         /* experts of a token lie in top_groups of these; 0: anywhere */
    RouterForm router;
    double   route_scale;                /* of the weights of a token's experts; 0: 1 */
    bool     router_bias;                /* its logits have a bias */
    bool     expert_bias;                /* experts' products have biases */
    bool     score_bias;                 /* a bias that selects experts and is not trained by the loss */
    int64_t  dense_first, sparse_step;   /* the first are dense; of the others every sparse_step-th is MoE */
    int64_t  dense_only[128];            /* further dense layers */
    int      dense_onlys;
    MlaShape mla;
    GdnShape gdn;
    int64_t  window;                     /* of attention in every second layer; 0: no window */
    bool     window_all;                 /* … in every layer */
    int64_t  full_layers[128];           /* layers that attend to all tokens, where these have no pattern */
    int      full_count;                 /* 0: gdn.every, window and window_all say which */
    int64_t  mtp;                        /* layers behind the L that predict further tokens (MTP) */
    int64_t  mtp_in_file;                /* those of its files: they may be left out */
    ActivationId act;                    /* of feed-forwards */
    bool     qk_norm;                    /* queries and keys are normed head by head */
    bool     qk_norm_wide;               /* … all heads of a token at once */
    int64_t  rotary;                     /* components of a head that rotate, the first ones; 0: all */
    YarnShape yarn;
    SmoothShape smooth;
    bool     sinks;                      /* a score of each head that has no value */
    bool     zero_centred;               /* norms of rows and heads multiply by 1 + their weight */
    bool     gated;                      /* the attention output and the shared expert have a gate */
    bool     renorm, bias, tied;
    bool     no_o_bias;                  /* `bias` is of q, k and v alone */
    double   eps, theta, init_std, aux_coef;
    int64_t  mrope[3];                   /* frequencies per axis (time, row, column); 0 0 0: plain RoPE */
    int64_t  pad_id;                     /* embedding row without gradient, or -1 */
} TextShape;

/* Decoder layers, with those that predict further tokens. */
static inline int64_t shape_layers(const TextShape *t) { return t->L + t->mtp; }

/* Width of the rotation: of the table of cosines and sines. */
static inline int64_t shape_rotary(const TextShape *t)
{
    return t->mla.kv_rank ? t->mla.rope : t->rotary ? t->rotary : t->C;
}

typedef struct VisionShape {
    int64_t depth, D, I, H;              /* blocks, hidden size, FFN width, heads; depth 0: no tower */
    int64_t channels, patch, frames, merge;
    int64_t grid, out;                   /* side of the position table; width of the mergers' output */
    int     deepstacks;
    int64_t deepstack[MAX_DEEPSTACK];
    Gelu    gelu;
    double  theta;
} VisionShape;

static inline int64_t vision_patch_dim(const VisionShape *v)      /* values of a patch */
{
    return v->channels * v->frames * v->patch * v->patch;
}

#endif
