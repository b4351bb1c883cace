/* model/qwen3_5.c -- qwen3_5_moe (Qwen3.5-35B-A3B and larger, Qwen3.6) with its vision tower, and its text
 * form qwen3_5_moe_text. Layers that predict further tokens are left out, as transformers does. */
#include "model/gdn_shape.h"

/* Every layer is MoE, and the weights of a token's experts always sum to 1: no file has keys for these. */
static const TextDefaults defaults = { .vocab = 248320, .hidden = 2048, .layers = 40, .heads = 16,
                                       .kv_heads = 2, .head_dim = 256, .ffn = 512, .expert_ffn = 512,
                                       .experts = 256, .per_token = 8, .renorm = true, .rotary = 0.25,
                                       .mrope = { 11, 11, 10 }, .mixed_layers = true };

static Status text(ModelShape *s, const Json *o, bool multimodal)
{
    TRY(qwen3_text(&s->text, o, &defaults, true, multimodal));
    TRY(shape_gdn(&s->text, o));
    s->text.renorm = true, s->text.sparse_step = 1, s->text.dense_onlys = 0;
    s->names = &names_gdn;
    return OK;
}

static Status shape_text(ModelShape *s, const Json *hf)
{
    TRY(text(s, hf, false));
    return shape_common(s, hf);
}

static Status shape(ModelShape *s, const Json *hf)
{
    const Json *o;
    TRY(qwen3_text_config(hf, &o));
    TRY_CTX(text(s, o, true), "text_config");
    s->output_major = true;
    return qwen3_visual(s, hf, &(VisualDefaults){ 248056, 248057, false });
}

const Family family_qwen3_5_moe = { .name = "qwen3_5_moe", .shape = shape, .build = qwen3_build };
const Family family_qwen3_5_moe_text = { .name = "qwen3_5_moe_text", .shape = shape_text,
                                         .build = qwen3_build };
