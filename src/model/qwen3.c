/* model/qwen3.c -- the text-only families: qwen3 (dense) and qwen3_moe. One flat config, ordinary RoPE. */
#include "model/qwen3_shape.h"

static const TextDefaults dense  = { .hidden = 4096, .layers = 32, .heads = 32, .kv_heads = 32,
                                     .head_dim = 128, .ffn = 22016 };
static const TextDefaults sparse = { .hidden = 2048, .layers = 24, .heads = 32, .kv_heads = 4, .ffn = 6144,
                                     .expert_ffn = 768, .experts = 128, .per_token = 8, .renorm = false };

Status shape_common(ModelShape *s, const Json *hf)
{
    s->text_prefix = "model.";
    s->image_token = s->video_token = -1;
    TRY(json_flag(hf, "tie_word_embeddings", false, &s->text.tied));
    return qwen3_dtype(&s->dtype, hf, NULL);
}

static Status shape_dense(ModelShape *s, const Json *hf)
{
    TRY(qwen3_text(&s->text, hf, &dense, false, false));
    return shape_common(s, hf);
}

static Status shape_sparse(ModelShape *s, const Json *hf)
{
    TRY(qwen3_text(&s->text, hf, &sparse, true, false));
    return shape_common(s, hf);
}

const Family family_qwen3     = { .name = "qwen3",     .shape = shape_dense,  .build = qwen3_build };
const Family family_qwen3_moe = { .name = "qwen3_moe", .shape = shape_sparse, .build = qwen3_build };
