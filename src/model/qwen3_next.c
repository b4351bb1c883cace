/* model/qwen3_next.c -- qwen3_next (Qwen3-Next-80B-A3B). Its files have the input projection of a delta net
 * key head by key head. Layers that predict further tokens are left out, as transformers does. */
#include "model/gdn_shape.h"

static const TextDefaults defaults = { .hidden = 2048, .layers = 48, .heads = 16, .kv_heads = 2,
                                       .head_dim = 256, .ffn = 5632, .expert_ffn = 512, .experts = 512,
                                       .per_token = 10, .renorm = true, .rotary = 0.25,
                                       .mixed_layers = true };

static Status shape(ModelShape *s, const Json *hf)
{
    TRY(qwen3_text(&s->text, hf, &defaults, true, false));
    TRY(shape_gdn(&s->text, hf));
    s->text.gdn.grouped = true;
    s->names = &names_gdn;
    return shape_common(s, hf);
}

const Family family_qwen3_next = { .name = "qwen3_next", .shape = shape, .build = qwen3_build };
