/* model/olmoe.c -- olmoe: queries and keys are normed over all heads of a token together; the weights of a
 * token's experts do not sum to 1 unless norm_topk_prob says so; intermediate_size is the width of an
 * expert. */
#include "model/qwen3_shape.h"

static const TextDefaults defaults = { .vocab = 50304, .hidden = 2048, .layers = 16, .heads = 16, .ffn = 2048,
                                       .experts = 64, .per_token = 8, .expert_ffn = 2048, .eps = 1e-5,
                                       .aux_coef = 0.01 };

static Status shape(ModelShape *s, const Json *hf)
{
    TRY(qwen3_text(&s->text, hf, &defaults, true, false));
    s->text.F = s->text.I, s->text.qk_norm_wide = true;
    if (!json_object_get(hf, "pad_token_id")) s->text.pad_id = 1;
    return shape_common(s, hf);
}

const Family family_olmoe = { .name = "olmoe", .shape = shape, .build = qwen3_build };
