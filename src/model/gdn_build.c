/* model/gdn_build.c -- the parameters of gated delta nets under the names of Qwen3-Next and of Qwen3.5. */
#include "model/build.h"

#define AT "%slayers.%d.linear_attn."

static Param *build_in(ParamSet *s, const TextShape *t, const char *at, int l)
{
    const GdnShape *g = &t->gdn;
    int64_t K = g->key_heads * g->key_dim, V = g->value_heads * g->value_dim, H = g->value_heads;
    if (g->grouped) {
        Param *p = param_matrix(s, G_LLM, 2 * K + 2 * V, t->D, AT "in_proj_qkvz.weight", at, l);
        param_piece(p, 2 * H, AT "in_proj_ba.weight", at, l);
        return p;
    }
    Param *p = param_matrix(s, G_LLM, 2 * K + V, t->D, AT "in_proj_qkv.weight", at, l);
    param_sections(p, 3, (int64_t[]){ K, K, V });
    param_piece(p, V, AT "in_proj_z.weight", at, l);
    param_piece(p, H, AT "in_proj_b.weight", at, l);
    param_piece(p, H, AT "in_proj_a.weight", at, l);
    return p;
}

static Param *build_conv(ParamSet *s, const GdnShape *g, const char *at, int l)
{
    int64_t K = g->key_heads * g->key_dim, V = g->value_heads * g->value_dim;
    Param *p = param_matrix(s, G_LLM, 2 * K + V, g->conv, AT "conv1d.weight", at, l);
    Piece *q = &p->piece[0];
    q->rank = 3, q->shape[1] = 1, q->shape[2] = g->conv;
    param_sections(p, 3, (int64_t[]){ K, K, V });
    return p;
}

/* The norm of the output is the only one that is not centred at zero. */
void build_gdn(ParamSet *s, Gdn *m, const TextShape *t, const char *at, int l)
{
    const GdnShape *g = &t->gdn;
    *m = (Gdn){ .shape = *g, .eps = (float)t->eps, .index = (int)attention_gdn.layers_below(t, l) };
    m->norm     = build_norm(s, t, t->D, "%slayers.%d.input_layernorm.weight", at, l);
    m->w_in     = build_in(s, t, at, l);
    m->conv     = build_conv(s, g, at, l);
    m->decay    = param_vector(s, G_LLM, INIT_DECAY, g->value_heads, AT "A_log", at, l);
    m->shift    = param_vector(s, G_LLM, INIT_ONE, g->value_heads, AT "dt_bias", at, l);
    m->out_norm = param_vector(s, G_LLM, INIT_ONE, g->value_dim, AT "norm.weight", at, l);
    m->w_o      = param_matrix(s, G_LLM, t->D, g->value_heads * g->value_dim, AT "out_proj.weight", at, l);
}
