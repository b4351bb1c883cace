/* model/qwen3_build.c -- the parameters of the Qwen3 families under the names that transformers holds in
 * memory. What a mesh cuts of them is in the descriptions of the layer kinds; the vocabulary is cut by tp,
 * the tower is whole on every rank that has it. A stage of a pipeline declares the layers of its chunks; the
 * others stay zeroed. */
#include "model/model.h"
#include "model/build.h"
#include "model/qwen3_shape.h"

#include <stdlib.h>

Param *build_norm(ParamSet *s, const TextShape *t, int64_t n, const char *fmt, const char *at, int l)
{
    char name[120];
    snprintf(name, sizeof name, fmt, at, l);
    Param *p = param_vector(s, G_LLM, t->zero_centred ? INIT_ZERO : INIT_ONE, n, "%s", name);
    p->zero_centred = t->zero_centred;
    return p;
}

static void build_biases(ParamSet *s, Attention *a, const TextShape *t, const char *at, int l)
{
    int64_t q = t->H * t->C * (t->gated ? 2 : 1), kv = t->G * t->C;
    a->b_qkv = param_vector(s, G_LLM, INIT_ZERO, q, "%slayers.%d.self_attn.q_proj.bias", at, l);
    param_piece(a->b_qkv, kv, "%slayers.%d.self_attn.k_proj.bias", at, l);
    param_piece(a->b_qkv, kv, "%slayers.%d.self_attn.v_proj.bias", at, l);
    if (!t->no_o_bias)
        a->b_o = param_vector(s, G_LLM, INIT_ZERO, t->D, "%slayers.%d.self_attn.o_proj.bias", at, l);
}

static void build_attention(ParamSet *s, Attention *a, const TextShape *t, const char *at, int l)
{
    const AttentionKind *kind = attention_kinds[layer_kinds(t, l).attention];
    int64_t q = t->H * t->C, kv = t->G * t->C;
    bool wide = t->qk_norm_wide;
    *a = (Attention){ .H = t->H, .G = t->G, .C = t->C, .R = shape_rotary(t), .eps = (float)t->eps,
                      .wide = wide,
                      .gated = t->gated, .index = (int)kind->layers_below(t, l) };
    a->norm  = build_norm(s, t, t->D, "%slayers.%d.input_layernorm.weight", at, l);
    a->w_qkv = param_matrix(s, G_LLM, t->gated ? 2 * q : q, t->D, "%slayers.%d.self_attn.q_proj.weight", at,
                            l);
    param_piece(a->w_qkv, kv, "%slayers.%d.self_attn.k_proj.weight", at, l);
    param_piece(a->w_qkv, kv, "%slayers.%d.self_attn.v_proj.weight", at, l);
    if (t->qk_norm) {
        a->q_norm = build_norm(s, t, wide ? q : t->C, "%slayers.%d.self_attn.q_norm.weight", at, l);
        a->k_norm = build_norm(s, t, wide ? kv : t->C, "%slayers.%d.self_attn.k_norm.weight", at, l);
    }
    a->w_o = param_matrix(s, G_LLM, t->D, q, "%slayers.%d.self_attn.o_proj.weight", at, l);
    if (t->sinks) a->sinks = param_vector(s, G_LLM, INIT_NORMAL, t->H, "%slayers.%d.self_attn.sinks", at, l);
    if (t->bias) build_biases(s, a, t, at, l);
}

static void build_router(ParamSet *s, Moe *m, const ModelShape *x, int l)
{
    const TextShape *t = &x->text;
    const char *at = x->text_prefix, *name = shape_names(x)->router;
    m->w_router = param_matrix(s, G_LLM, t->E, t->D, "%slayers.%d.%s.weight", at, l, name);
    if (t->router_bias)
        m->b_router = param_vector(s, G_LLM, INIT_ZERO, t->E, "%slayers.%d.%s.bias", at, l, name);
    if (!t->score_bias) return;
    m->score_bias = param_vector(s, G_LLM, INIT_ZERO, t->E, "%slayers.%d.%s.e_score_correction_bias", at, l,
                                 name);
    m->score_bias->buffer = true;
}

static void build_shared(ParamSet *s, Moe *m, const ModelShape *x, int l)
{
    const TextShape *t = &x->text;
    const char *at = x->text_prefix, *name = shape_names(x)->shared, *gate = shape_names(x)->shared_gate;
    m->shared = (Mlp){ .I = t->shared, .act = t->act, .is_shared = true };
    if (!t->shared) return;
    m->shared.w_gu = param_matrix(s, G_LLM, t->shared, t->D, "%slayers.%d.%s.gate_proj.weight", at, l, name);
    param_piece(m->shared.w_gu, t->shared, "%slayers.%d.%s.up_proj.weight", at, l, name);
    m->shared.w_d = param_matrix(s, G_LLM, t->D, t->shared, "%slayers.%d.%s.down_proj.weight", at, l, name);
    if (gate) m->w_shared_gate = param_matrix(s, G_LLM, 1, t->D, "%slayers.%d.%s.weight", at, l, gate);
}

static void build_experts(ParamSet *s, Moe *m, const TextShape *t, const char *at, int l)
{
    m->w_gu = param_experts(s, FORM_EXPERT_GATE_UP, t->E, 2 * t->F, t->D,
                            "%slayers.%d.mlp.experts.gate_up_proj", at, l);
    m->w_d  = param_experts(s, FORM_EXPERT_DOWN, t->E, t->D, t->F,
                            "%slayers.%d.mlp.experts.down_proj", at, l);
    if (!t->expert_bias) return;
    m->b_gu = param_matrix(s, G_LLM, t->E, 2 * t->F, "%slayers.%d.mlp.experts.gate_up_proj_bias", at, l);
    m->b_d  = param_matrix(s, G_LLM, t->E, t->D, "%slayers.%d.mlp.experts.down_proj_bias", at, l);
    m->b_gu->init = m->b_d->init = INIT_ZERO;
}

static void build_mlp(ParamSet *s, Mlp *m, const TextShape *t, const char *at, int l)
{
    m->w_gu = param_matrix(s, G_LLM, t->I, t->D, "%slayers.%d.mlp.gate_proj.weight", at, l);
    param_piece(m->w_gu, t->I, "%slayers.%d.mlp.up_proj.weight", at, l);
    m->w_d = param_matrix(s, G_LLM, t->D, t->I, "%slayers.%d.mlp.down_proj.weight", at, l);
}

/* What the mesh cuts of a layer, and which of its weights take adapters, is in the descriptions of its
 * kinds. */
static void cut_layer(const ParamSet *s, Decoder *d, const TextShape *t)
{
    Description layer;
    void *modules[MAX_MODULES];
    decoder_describe(&layer, t, d->kinds);
    decoder_modules(d, modules);
    describe_params(&layer, modules, s, t->C);
}

static void build_moe(ParamSet *s, Moe *m, const ModelShape *x, int l, int moe)
{
    const TextShape *t = &x->text;
    *m = (Moe){ .E = t->E, .K = t->K, .F = t->F, .act = t->act, .renorm = t->renorm, .router = t->router,
                .groups = { (int)t->groups, (int)t->top_groups },
                .scale = t->route_scale > 0 ? (float)t->route_scale : 1.0f, .index = moe };
    build_router(s, m, x, l);
    build_experts(s, m, t, x->text_prefix, l);
    build_shared(s, m, x, l);
}

void build_layer(ParamSet *s, Decoder *d, const ModelShape *x, int l, int moe)
{
    const TextShape *t = &x->text;
    const char *at = x->text_prefix;
    Status st = decoder_open(d, layer_kinds(t, l));
    REQUIRE(!st, "%s", status_text());
    params_unit(s);
    if (decoder_mla(d))      build_mla(s, decoder_mla(d), t, at, l);
    else if (decoder_gdn(d)) build_gdn(s, decoder_gdn(d), t, at, l);
    else                     build_attention(s, decoder_gqa(d), t, at, l);
    d->eps  = (float)t->eps, d->index = l;
    if (d->kinds.attention == ATTENTION_WINDOW) decoder_gqa(d)->window = t->window;
    d->norm = build_norm(s, t, t->D, "%slayers.%d.post_attention_layernorm.weight", at, l);
    if (decoder_moe(d)) {
        build_moe(s, decoder_moe(d), x, l, moe);
    } else {
        *decoder_mlp(d) = (Mlp){ .I = t->I, .act = t->act };
        build_mlp(s, decoder_mlp(d), t, at, l);
    }
    cut_layer(s, d, t);
}

#define VIS "model.visual."

static void build_block(ParamSet *s, VisionBlock *b, const VisionShape *v, int i)
{
    params_unit(s);
    b->norm1_w = param_vector(s, G_VIT, INIT_ONE,  v->D, VIS "blocks.%d.norm1.weight", i);
    b->norm1_b = param_vector(s, G_VIT, INIT_ZERO, v->D, VIS "blocks.%d.norm1.bias", i);
    b->w_qkv   = param_matrix(s, G_VIT, 3 * v->D, v->D,  VIS "blocks.%d.attn.qkv.weight", i);
    b->b_qkv   = param_vector(s, G_VIT, INIT_ZERO, 3 * v->D, VIS "blocks.%d.attn.qkv.bias", i);
    b->w_o     = param_matrix(s, G_VIT, v->D, v->D,      VIS "blocks.%d.attn.proj.weight", i);
    b->b_o     = param_vector(s, G_VIT, INIT_ZERO, v->D, VIS "blocks.%d.attn.proj.bias", i);
    b->norm2_w = param_vector(s, G_VIT, INIT_ONE,  v->D, VIS "blocks.%d.norm2.weight", i);
    b->norm2_b = param_vector(s, G_VIT, INIT_ZERO, v->D, VIS "blocks.%d.norm2.bias", i);
    b->w_up    = param_matrix(s, G_VIT, v->I, v->D,      VIS "blocks.%d.mlp.linear_fc1.weight", i);
    b->b_up    = param_vector(s, G_VIT, INIT_ZERO, v->I, VIS "blocks.%d.mlp.linear_fc1.bias", i);
    b->w_down  = param_matrix(s, G_VIT, v->D, v->I,      VIS "blocks.%d.mlp.linear_fc2.weight", i);
    b->b_down  = param_vector(s, G_VIT, INIT_ZERO, v->D, VIS "blocks.%d.mlp.linear_fc2.bias", i);
    Description block;
    describe_begin(&block);
    vision_describe_block(&block, v);
    describe_params(&block, (void *[MAX_MODULES]){ b }, s, 0);
}

static void build_merger(ParamSet *s, Merger *m, const VisionShape *v, bool norm_after, const char *at)
{
    int64_t wide = v->D * v->merge * v->merge, norm = norm_after ? wide : v->D;
    params_unit(s);
    m->norm_after = norm_after;
    m->norm_w = param_vector(s, G_ALIGNER, INIT_ONE,  norm, VIS "%s.norm.weight", at);
    m->norm_b = param_vector(s, G_ALIGNER, INIT_ZERO, norm, VIS "%s.norm.bias", at);
    m->w1     = param_matrix(s, G_ALIGNER, wide, wide,      VIS "%s.linear_fc1.weight", at);
    m->b1     = param_vector(s, G_ALIGNER, INIT_ZERO, wide, VIS "%s.linear_fc1.bias", at);
    m->w2     = param_matrix(s, G_ALIGNER, v->out, wide,    VIS "%s.linear_fc2.weight", at);
    m->b2     = param_vector(s, G_ALIGNER, INIT_ZERO, v->out, VIS "%s.linear_fc2.bias", at);
    Description merger;
    describe_begin(&merger);
    vision_describe_merger(&merger, v, norm_after);
    describe_params(&merger, (void *[MAX_MODULES]){ m }, s, 0);
}

/* Features leave the tower in block order; each one's merger is the list entry that names its block. */
static void order_deepstack(Vision *v, const VisionShape *s)
{
    for (int64_t b = 0; b < s->depth; b++)
        for (int i = 0; i < s->deepstacks; i++)
            if (s->deepstack[i] == b) v->after[v->deepstacks] = (int)b, v->weights[v->deepstacks++] = i;
}

/* Feature i joins after decoder layer i; where there is no such layer, it is unused. */
static void idle_merger(Merger *m)
{
    m->norm_w->unused = m->norm_b->unused = true;
    m->w1->unused = m->b1->unused = m->w2->unused = m->b2->unused = true;
}

static void build_vision(Model *m, const VisionShape *s)
{
    Vision *v = &m->vision;
    ParamSet *p = &m->params;
    int64_t pixels = vision_patch_dim(s);
    *v = (Vision){ .D = s->D, .I = s->I, .H = s->H, .depth = s->depth, .merge = s->merge, .out = s->out,
                   .patch_dim = pixels, .gelu = s->gelu, .theta = (float)s->theta,
                   .first_trainable = m->frozen[G_VIT] ? s->depth : -1,
                   .block = calloc((size_t)s->depth, sizeof *v->block) };
    REQUIRE(v->block, "no memory for %lld vision blocks", (long long)s->depth);
    order_deepstack(v, s);
    params_unit(p);
    v->w_patch = param_matrix(p, G_VIT, s->D, pixels, VIS "patch_embed.proj.weight");
    Piece *conv = &v->w_patch->piece[0];                      /* a convolution whose stride is its kernel */
    conv->rank = 5, conv->shape[1] = s->channels, conv->shape[2] = s->frames;
    conv->shape[3] = conv->shape[4] = s->patch;
    v->b_patch = param_vector(p, G_VIT, INIT_ZERO, s->D, VIS "patch_embed.proj.bias");
    v->pos     = param_matrix(p, G_VIT, s->grid * s->grid, s->D, VIS "pos_embed.weight");
    v->pos->init = INIT_POSITION;
    for (int i = 0; i < s->depth; i++) build_block(p, &v->block[i], s, i);
    build_merger(p, &v->merger, s, false, "merger");
    for (int i = 0; i < s->deepstacks; i++) {
        char at[40];
        snprintf(at, sizeof at, "deepstack_merger_list.%d", i);
        build_merger(p, &v->stack[i], s, true, at);
    }
    for (int64_t i = m->shape.text.L; i < v->deepstacks; i++) idle_merger(&v->stack[v->weights[i]]);
}

typedef struct Owns { bool embeds, heads; } Owns;

static Owns ends_of(const Model *m)
{
    Owns o = { !m->chunks, !m->chunks };
    for (int i = 0; i < m->chunks; i++) o.embeds |= m->chunk[i].embeds, o.heads |= m->chunk[i].heads;
    return o;
}

static bool owns_layer(const Model *m, int64_t l)
{
    bool here = !m->chunks;
    for (int i = 0; i < m->chunks; i++) here |= l >= m->chunk[i].from && l < m->chunk[i].to;
    return here;
}

Param *build_table(Model *m, const char *name)
{
    const TextShape *t = &m->shape.text;
    Param *p = param_matrix(&m->params, G_LLM, t->V, t->D, "%s", name);
    param_cut(&m->params, p, AX_TP, 0);
    return p;
}

/* A tied head on another stage than the embedding has a table of its own; the embedding's counts for it. */
static void build_head(Model *m, const char *embed)
{
    const TextShape *t = &m->shape.text;
    params_unit(&m->params);
    m->head.norm = param_vector(&m->params, G_LLM, t->zero_centred ? INIT_ZERO : INIT_ONE, t->D,
                                "%snorm.weight", m->shape.text_prefix);
    m->head.norm->zero_centred = t->zero_centred;
    m->head.w    = !t->tied ? build_table(m, "lm_head.weight") : m->embed ? m->embed : build_table(m, embed);
    if (!t->tied) m->head.w->linear = LINEAR_HEAD;
    if (!t->tied || m->embed) return;
    m->head.w->tied_copy = true, m->head.w->shard.unique = 0;
}

void qwen3_build(Model *m)
{
    const TextShape *t = &m->shape.text;
    const char *at = m->shape.text_prefix;
    char embed[sizeof m->params.p[0]->piece[0].name];
    Owns owns = ends_of(m);
    int moe = 0;
    snprintf(embed, sizeof embed, "%sembed_tokens.weight", at);
    if (m->shape.vision.depth && owns.embeds) build_vision(m, &m->shape.vision);
    if (owns.embeds) params_unit(&m->params), m->embed = build_table(m, embed);
    m->layer = calloc((size_t)shape_layers(t), sizeof *m->layer);
    REQUIRE(m->layer, "no memory for %lld layers", (long long)t->L);
    for (int l = 0; l < t->L; l++) {
        if (owns_layer(m, l)) build_layer(&m->params, &m->layer[l], &m->shape, l, moe);
        moe += shape_is_sparse(t, l);
    }
    m->head = (Head){ .eps = (float)t->eps, .V = t->V,
                      .chunk = head_chunk_rows(t->V, backend_traits("cpu").logits) };
    if (owns.heads) build_head(m, embed);
    if (owns.heads && t->mtp) build_mtp(m, moe, embed);
}
