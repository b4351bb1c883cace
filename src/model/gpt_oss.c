/* model/gpt_oss.c -- gpt_oss: sinks, windows in every second layer, YaRN, biases everywhere, a clamped
 * GLU. Gate and up of experts alternate in its files, column by column, and so do the rows of w_gu here. */
#include "model/qwen3_shape.h"

#include <string.h>

static const TextDefaults defaults = { .vocab = 201088, .hidden = 2880, .layers = 36, .heads = 64,
                                       .kv_heads = 8,
                                       .head_dim = 64, .ffn = 2880, .experts = 128, .per_token = 4,
                                       .expert_ffn = 2880, .renorm = true, .eps = 1e-5, .theta = 150000,
                                       .aux_coef = 0.9, .no_qk_norm = true, .mixed_layers = true };

static const ModelNames names = { .router = "mlp.router",
                                  .expert_part = { "gate_proj", "up_proj", "down_proj" } };

/* Absent, or alternating from a window on. */
static Status check_layers(const TextShape *t, const Json *hf)
{
    const Json *types = json_object_get(hf, "layer_types");
    for (int64_t l = 0; types && !json_is_null(types) && l < t->L; l++) {
        const char *type = json_string_value(json_array_get(types, (size_t)l));
        if (!type || strcmp(type, l % 2 ? "full_attention" : "sliding_attention"))
            return fail(E_DATA,
                        "layer_types[%lld] = %s: windows must be in every second layer, from the first",
                        (long long)l, type ? type : "?");
    }
    return OK;
}

static Status shape(ModelShape *s, const Json *hf)
{
    double limit, alpha;
    TRY(json_num(hf, "swiglu_limit", 7, &limit));
    TRY(json_num(hf, "swiglu_alpha", 1.702, &alpha));
    if (limit != 7) return fail(E_DATA, "swiglu_limit = %g: only 7 is known", limit);
    if (alpha != 1.702) return fail(E_DATA, "swiglu_alpha = %g: only 1.702 is known", alpha);
    TRY(qwen3_text(&s->text, hf, &defaults, true, false));
    TRY(json_flag(hf, "attention_bias", true, &s->text.bias));
    TRY(shape_dim(hf, "sliding_window", 128, 1 << 24, &s->text.window));
    TRY(check_layers(&s->text, hf));
    s->text.F = s->text.I, s->text.renorm = true, s->text.act = ACTIVATION_CLAMPED_GLU;
    s->text.sinks = s->text.router_bias = s->text.expert_bias = true;
    s->names = &names, s->fused_experts = s->input_major = true;
    return shape_common(s, hf);
}

const Family family_gpt_oss = { .name = "gpt_oss", .shape = shape, .build = qwen3_build };
