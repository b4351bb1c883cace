/* model/deepseek_v3.c -- deepseek_v3 (DeepSeek-V3, R1, Moonlight) and kimi_k2, which is the same: latent
 * attention with YaRN, dense first layers, a sigmoid router with a bias and groups, shared experts, a layer
 * that predicts further tokens. */
#include "model/moe_shape.h"

static const TextDefaults defaults = { .vocab = 129280, .hidden = 7168, .layers = 61, .heads = 128,
                                       .kv_heads = 128, .head_dim = 64, .ffn = 18432,
                                       .experts = 256, .per_token = 8, .expert_ffn = 2048,
                                       .renorm = true, .no_qk_norm = true };

static Status latent(TextShape *t, const Json *o)
{
    MlaShape *m = &t->mla;
    m->q_rank = 0;
    if (!json_is_null(json_object_get(o, "q_lora_rank"))) TRY(json_int(o, "q_lora_rank", 1536, &m->q_rank));
    TRY(shape_dim(o, "kv_lora_rank", 512, 1 << 20, &m->kv_rank));
    TRY(shape_dim(o, "qk_nope_head_dim", 128, 1024, &m->nope));
    TRY(shape_dim(o, "qk_rope_head_dim", 64, 1024, &m->rope));
    TRY(shape_dim(o, "v_head_dim", 128, 1024, &m->v));
    TRY(json_flag(o, "rope_interleave", true, &m->pairs));
    if (m->q_rank < 0 || m->rope % 2 || m->v > m->nope + m->rope)
        return fail(E_DATA, "q_lora_rank, qk_rope_head_dim or v_head_dim: no latent attention has such sizes "
                    "(v_head_dim must not exceed qk_nope_head_dim + qk_rope_head_dim)");
    t->C = m->v, t->G = t->H, t->rotary = 0;
    return OK;
}

static Status shape(ModelShape *s, const Json *hf)
{
    RouterDefaults router = { .dense_first = 3, .groups = 8, .top_groups = 4, .scale = 2.5 };
    TRY(qwen3_text(&s->text, hf, &defaults, true, false));
    TRY(latent(&s->text, hf));
    TRY(shape_sigmoid_router(&s->text, hf, &router));
    return shape_common(s, hf);
}

const Family family_deepseek_v3 = { .name = "deepseek_v3", .shape = shape, .build = qwen3_build };
const Family family_kimi_k2     = { .name = "kimi_k2",     .shape = shape, .build = qwen3_build };
