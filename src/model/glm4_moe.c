/* model/glm4_moe.c -- glm4_moe (GLM-4.5): dense first layers, a sigmoid router with a bias, shared
 * experts, half of a head rotates, biases of q, k and v, a layer that predicts further tokens. */
#include "model/moe_shape.h"

static const TextDefaults defaults = { .vocab = 151552, .hidden = 4096, .layers = 46, .heads = 96,
                                       .kv_heads = 8,
                                       .ffn = 10944, .experts = 128, .per_token = 8, .expert_ffn = 1408,
                                       .renorm = true, .eps = 1e-5, .rotary = 0.5 };

static Status shape(ModelShape *s, const Json *hf)
{
    TRY(qwen3_text(&s->text, hf, &defaults, true, false));
    TRY(json_flag(hf, "use_qk_norm", false, &s->text.qk_norm));
    TRY(shape_sigmoid_router(&s->text, hf, &(RouterDefaults){ .dense_first = 1, .groups = 1, .scale = 1 }));
    s->text.no_o_bias = true;
    return shape_common(s, hf);
}

const Family family_glm4_moe = { .name = "glm4_moe", .shape = shape, .build = qwen3_build };
