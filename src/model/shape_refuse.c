/* model/shape_refuse.c -- keys of a config.json that change what a model computes and that no family here
 * computes. Transformers reads some of them for some model types; ignored in silence, each would train
 * another model. */
#include "model/qwen3_shape.h"

/* Keys that may be absent, null, false, 0 or empty: what each stands for then is what is computed. */
static const char *const must_be_off[] = {
    "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "mlp_bias", "clip_qkv",
    "router_jitter_noise", "attn_logit_softcapping", "final_logit_softcapping", "attention_chunk_size",
    "no_rope_layers", "no_rope_layer_interval",
};
enum { OFF = sizeof must_be_off / sizeof *must_be_off };

static bool is_off(const Json *v)
{
    return !v || json_is_null(v) || json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0) ||
           ((json_is_array(v) || json_is_object(v)) && !json_array_size(v) && !json_object_size(v));
}

/* Frequencies of each kind of layer have objects of their own in rope_parameters. */
static Status refuse_layered_rope(const Json *o, const char *key)
{
    const char *kind;
    Json *each;
    json_object_foreach(json_object_get(o, key), kind, each)
        if (json_is_object(each))
            return fail(E_DATA, "%s.%s: rotary positions that differ by layer are not supported", key, kind);
    return OK;
}

Status shape_refuse(const Json *o)
{
    int64_t every;
    for (int i = 0; i < OFF; i++)
        if (!is_off(json_object_get(o, must_be_off[i])))
            return fail(E_DATA, "%s is set: no family here computes it; if the model was trained without, "
                        "set it to null", must_be_off[i]);
    TRY(json_int(o, "moe_layer_freq", 1, &every));
    if (every != 1)
        return fail(E_DATA, "moe_layer_freq = %lld: MoE layers follow first_k_dense_replace alone, so only 1 "
                    "is known", (long long)every);
    TRY(refuse_layered_rope(o, "rope_parameters"));
    return refuse_layered_rope(o, "rope_scaling");
}
