/* model/mixtral.c -- mixtral: every layer is MoE, intermediate_size is the width of an expert, the weights
 * of a token's experts always sum to 1. Its files call the layer block_sparse_moe and experts' weights w1,
 * w3, w2. */
#include "model/qwen3_shape.h"

static const TextDefaults defaults = { .vocab = 32000, .hidden = 4096, .layers = 32, .heads = 32,
                                       .kv_heads = 8,
                                       .ffn = 14336, .experts = 8, .per_token = 2, .expert_ffn = 14336,
                                       .renorm = true, .eps = 1e-5, .no_qk_norm = true,
                                       .window_always = true };

static const ModelNames names = { .router = "mlp.gate", .in_memory = ".mlp.",
                                  .in_files = ".block_sparse_moe.",
                                  .expert_part = { "w1", "w3", "w2" } };

static Status shape(ModelShape *s, const Json *hf)
{
    TRY(qwen3_text(&s->text, hf, &defaults, true, false));
    s->text.F = s->text.I, s->text.renorm = true, s->names = &names;
    return shape_common(s, hf);
}

const Family family_mixtral = { .name = "mixtral", .shape = shape, .build = qwen3_build };
