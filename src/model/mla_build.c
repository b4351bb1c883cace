/* model/mla_build.c -- the parameters of latent attention under DeepSeek's names. */
#include "model/build.h"

#include <math.h>

static void build_queries(ParamSet *s, Mla *m, const TextShape *t, const char *at, int l)
{
    int64_t rank = m->shape.q_rank, rows = m->H * (m->shape.nope + m->shape.rope);
    if (!rank) {
        m->w_up_q = param_matrix(s, G_LLM, rows, t->D, "%slayers.%d.self_attn.q_proj.weight", at, l);
        return;
    }
    m->w_down_q = param_matrix(s, G_LLM, rank, t->D, "%slayers.%d.self_attn.q_a_proj.weight", at, l);
    if (t->bias) m->b_down_q = param_vector(s, G_LLM, INIT_ZERO, rank, "%slayers.%d.self_attn.q_a_proj.bias",
                                            at, l);
    m->q_norm = build_norm(s, t, rank, "%slayers.%d.self_attn.q_a_layernorm.weight", at, l);
    m->w_up_q = param_matrix(s, G_LLM, rows, rank, "%slayers.%d.self_attn.q_b_proj.weight", at, l);
}

static void build_keys(ParamSet *s, Mla *m, const TextShape *t, const char *at, int l)
{
    int64_t rank = m->shape.kv_rank, down = rank + m->shape.rope, rows = m->H * (m->shape.nope + m->shape.v);
    m->w_down_kv = param_matrix(s, G_LLM, down, t->D, "%slayers.%d.self_attn.kv_a_proj_with_mqa.weight", at,
                                l);
    if (t->bias)
        m->b_down_kv = param_vector(s, G_LLM, INIT_ZERO, down,
                                    "%slayers.%d.self_attn.kv_a_proj_with_mqa.bias",
                                    at, l);
    m->kv_norm = build_norm(s, t, rank, "%slayers.%d.self_attn.kv_a_layernorm.weight", at, l);
    m->w_up_kv = param_matrix(s, G_LLM, rows, rank, "%slayers.%d.self_attn.kv_b_proj.weight", at, l);
}

/* The norms of latents have a constant eps, whatever the file says of the others. */
void build_mla(ParamSet *s, Mla *m, const TextShape *t, const char *at, int l)
{
    double scale = 1 / sqrt((double)(t->mla.nope + t->mla.rope));
    if (t->yarn.factor > 0) scale *= t->yarn.score_scale;
    *m = (Mla){ .shape = t->mla, .H = t->H, .eps = (float)t->eps, .latent_eps = 1e-6f, .scale = (float)scale,
                .pairs = t->mla.pairs, .index = l };
    m->norm = build_norm(s, t, t->D, "%slayers.%d.input_layernorm.weight", at, l);
    build_queries(s, m, t, at, l);
    build_keys(s, m, t, at, l);
    m->w_o = param_matrix(s, G_LLM, t->D, t->H * t->mla.v, "%slayers.%d.self_attn.o_proj.weight", at, l);
    if (t->bias) m->b_o = param_vector(s, G_LLM, INIT_ZERO, t->D, "%slayers.%d.self_attn.o_proj.bias", at, l);
}
