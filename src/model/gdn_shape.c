/* model/gdn_shape.c -- see gdn_shape.h. */
#include "model/gdn_shape.h"

#include "model/layer_types.h"

const ModelNames names_gdn = { .router = "mlp.gate", .shared = "mlp.shared_expert",
                               .shared_gate = "mlp.shared_expert_gate",
                               .expert_part = { "gate_proj", "up_proj", "down_proj" } };

/* The list wins over full_attention_interval. Where every n-th layer is full, n stands for the list; where
 * none is, an n that no layer reaches. */
static Status read_types(TextShape *t, const Json *o)
{
    TRY(layer_types_read(t, o, "linear_attention"));
    t->gdn.every = t->full_count ? t->full_layers[0] + 1 : t->L + 1;
    if (t->gdn.every >= 2 && layer_types_are_every(t, t->gdn.every)) t->full_count = 0;
    if (t->full_count && t->full_count < t->L) t->gdn.every = t->L + 1;
    return OK;
}

static Status layers(TextShape *t, const Json *o)
{
    TRY(shape_dim(o, "full_attention_interval", 4, 4096, &t->gdn.every));
    if (json_has(o, "layer_types")) TRY(read_types(t, o));
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
