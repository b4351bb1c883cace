/* model/gpt_oss.c -- gpt_oss: sinks, windows in some layers, YaRN, biases everywhere, a clamped GLU. Gate and
 * up of experts alternate in its files, column by column, and so do the rows of w_gu here. */
#include "model/layer_types.h"
#include "model/qwen3_shape.h"

static const TextDefaults defaults = { .vocab = 201088, .hidden = 2880, .layers = 36, .heads = 64,
                                       .kv_heads = 8,
                                       .head_dim = 64, .ffn = 2880, .experts = 128, .per_token = 4,
                                       .expert_ffn = 2880, .renorm = true, .eps = 1e-5, .theta = 150000,
                                       .aux_coef = 0.9, .no_qk_norm = true, .mixed_layers = true };

static const ModelNames names = { .router = "mlp.router",
                                  .expert_part = { "gate_proj", "up_proj", "down_proj" } };

/* Without a list layers alternate, from a window on. */
static Status read_layers(TextShape *t, const Json *hf)
{
    if (!json_has(hf, "layer_types")) return OK;
    TRY(layer_types_read(t, hf, "sliding_attention"));
    if (t->full_count == t->L)                  t->window = 0;
    else if (!t->full_count)                    t->window_all = true;
    if (!t->window || layer_types_are_every(t, 2)) t->full_count = 0;
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
    TRY(read_layers(&s->text, hf));
    s->text.F = s->text.I, s->text.renorm = true, s->text.act = ACTIVATION_CLAMPED_GLU;
    s->text.sinks = s->text.router_bias = s->text.expert_bias = true;
    s->names = &names, s->fused_experts = s->input_major = true;
    return shape_common(s, hf);
}

const Family family_gpt_oss = { .name = "gpt_oss", .shape = shape, .build = qwen3_build };
