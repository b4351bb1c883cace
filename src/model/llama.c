/* model/llama.c -- the dense families llama (Llama 2 and 3) and mistral: no norm of queries and
 * keys. Files of Llama 2 have no rope_theta. */
#include "model/qwen3_shape.h"

static const TextDefaults llama   = { .vocab = 32000, .hidden = 4096, .layers = 32, .heads = 32, .ffn = 11008,
                                      .theta = 10000, .no_qk_norm = true };
static const TextDefaults mistral = { .vocab = 32000, .hidden = 4096, .layers = 32, .heads = 32,
                                      .kv_heads = 8,
                                      .ffn = 14336, .no_qk_norm = true, .window_always = true,
                                      .window = 4096 };

static Status shape_llama(ModelShape *s, const Json *hf)
{
    TRY(qwen3_text(&s->text, hf, &llama, false, false));
    return shape_common(s, hf);
}

static Status shape_mistral(ModelShape *s, const Json *hf)
{
    TRY(qwen3_text(&s->text, hf, &mistral, false, false));
    return shape_common(s, hf);
}

const Family family_llama   = { .name = "llama",   .shape = shape_llama,   .build = qwen3_build };
const Family family_mistral = { .name = "mistral", .shape = shape_mistral, .build = qwen3_build };
