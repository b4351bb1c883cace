/* model/qwen3_vl.c -- the vision-language families: qwen3_vl (dense) and qwen3_vl_moe. */
#include "model/qwen3_shape.h"

static const TextDefaults dense  = { .hidden = 4096, .layers = 32, .heads = 32, .kv_heads = 32,
                                     .head_dim = 128, .ffn = 22016 };
static const TextDefaults sparse = { .hidden = 2048, .layers = 24, .heads = 16, .kv_heads = 16, .ffn = 5632,
                                     .expert_ffn = 1408, .experts = 60, .per_token = 4, .renorm = true };

Status qwen3_text_config(const Json *hf, const Json **text)
{
    *text = json_object_get(hf, "text_config");
    return json_is_object(*text) && json_is_object(json_object_get(hf, "vision_config"))
               ? OK : fail(E_DATA, "text_config and vision_config must both be objects");
}

Status qwen3_visual(ModelShape *s, const Json *hf, const VisualDefaults *d)
{
    s->text_prefix   = "model.language_model.";
    s->fused_experts = true;
    TRY_CTX(qwen3_vision(&s->vision, json_object_get(hf, "vision_config"), d->deepstack), "vision_config");
    s->text.renorm = true;         /* these families' routers always do; the key in the file is not read */
    /* The top-level flag alone decides: the copy in text_config may carry its class's default. */
    TRY(json_flag(hf, "tie_word_embeddings", false, &s->text.tied));
    TRY(json_int(hf, "image_token_id", d->image_token, &s->image_token));
    TRY(json_int(hf, "video_token_id", d->video_token, &s->video_token));
    if (s->vision.out != s->text.D)
        return fail(E_DATA, "vision out_hidden_size = %lld must equal the text hidden_size = %lld",
                    (long long)s->vision.out, (long long)s->text.D);
    return qwen3_dtype(&s->dtype, hf, json_object_get(hf, "text_config"));
}

static Status shape(ModelShape *s, const Json *hf, const TextDefaults *d, bool moe)
{
    const Json *text;
    TRY(qwen3_text_config(hf, &text));
    TRY_CTX(qwen3_text(&s->text, text, d, moe, true), "text_config");
    return qwen3_visual(s, hf, &(VisualDefaults){ 151655, 151656, true });
}

static Status shape_dense(ModelShape *s, const Json *hf)  { return shape(s, hf, &dense, false); }
static Status shape_sparse(ModelShape *s, const Json *hf) { return shape(s, hf, &sparse, true); }

const Family family_qwen3_vl     = { .name = "qwen3_vl",     .shape = shape_dense,  .build = qwen3_build };
const Family family_qwen3_vl_moe = { .name = "qwen3_vl_moe", .shape = shape_sparse, .build = qwen3_build };
