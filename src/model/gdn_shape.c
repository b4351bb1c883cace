/* model/gdn_shape.c -- see gdn_shape.h. */
#include "model/gdn_shape.h"

#include <string.h>

const ModelNames names_gdn = { .router = "mlp.gate", .shared = "mlp.shared_expert",
                               .shared_gate = "mlp.shared_expert_gate",
                               .expert_part = { "gate_proj", "up_proj", "down_proj" } };

static Status layer_type(const Json *list, int64_t i, bool *full)
{
    const Json *e = json_array_get(list, (size_t)i);
    const char *type = json_is_string(e) ? json_string_value(e) : "";
    *full = !strcmp(type, "full_attention");
    if (*full || !strcmp(type, "linear_attention")) return OK;
    return fail(E_DATA, "layer_types[%lld]: must be linear_attention or full_attention", (long long)i);
}

/* The list wins over full_attention_interval: the first full layer gives the interval, which the others must
 * have too. */
static Status check_types(TextShape *t, const Json *list)
{
    bool full;
    if (!json_is_array(list) || json_array_size(list) != (size_t)t->L)
        return fail(E_DATA, "layer_types: must be a list of num_hidden_layers = %lld names", (long long)t->L);
    t->gdn.every = t->L + 1;
    for (int64_t i = 0; i < t->L; i++) {
        TRY(layer_type(list, i, &full));
        if (full && t->gdn.every > t->L) t->gdn.every = i + 1;
        if (full != ((i + 1) % t->gdn.every == 0))
            return fail(E_DATA, "layer_types[%lld]: full_attention must be every n-th layer, the last of "
                        "each n, and the first such layer says n = %lld", (long long)i,
                        (long long)t->gdn.every);
    }
    return OK;
}

static Status layers(TextShape *t, const Json *o)
{
    const Json *types = json_object_get(o, "layer_types");
    TRY(shape_dim(o, "full_attention_interval", 4, 4096, &t->gdn.every));
    if (types && !json_is_null(types)) TRY(check_types(t, types));
    if (t->gdn.every < 2)
        return fail(E_DATA, "full_attention in every layer: such a model has no gated delta net");
    return OK;
}

static Status heads(GdnShape *g, const Json *o)
{
    TRY(shape_dim(o, "linear_num_key_heads", 16, 4096, &g->key_heads));
    TRY(shape_dim(o, "linear_num_value_heads", 32, 4096, &g->value_heads));
    TRY(shape_dim(o, "linear_key_head_dim", 128, 256, &g->key_dim));
    TRY(shape_dim(o, "linear_value_head_dim", 128, 256, &g->value_dim));
    TRY(shape_dim(o, "linear_conv_kernel_dim", 4, 16, &g->conv));
    if (g->value_heads % g->key_heads)
        return fail(E_DATA, "linear_num_value_heads = %lld is not a multiple of linear_num_key_heads = %lld",
                    (long long)g->value_heads, (long long)g->key_heads);
    return OK;
}

Status shape_gdn(TextShape *t, const Json *o)
{
    bool gate;
    TRY(layers(t, o));
    TRY(heads(&t->gdn, o));
    TRY(json_int(o, "shared_expert_intermediate_size", 512, &t->shared));
    if (t->shared < 0 || t->shared > 1 << 24)
        return fail(E_DATA, "shared_expert_intermediate_size = %lld: must be positive, or 0: no "
                    "shared expert", (long long)t->shared);
    TRY(json_flag(o, "attn_output_gate", true, &gate));
    if (!gate) return fail(E_DATA, "attn_output_gate = false: attention of this family has a gate");
    t->gated = t->zero_centred = true;
    return OK;
}
