/* model/qwen3_shape.c -- reads text_config and vision_config of the Qwen3 families. Files of the hub differ:
 * rope keys in two spellings, experts under two names, nulls that stand for defaults. */
#include "model/qwen3_shape.h"

#include "model/layer_types.h"
#include "nn/activation.h"

#include <math.h>
#include <string.h>

/* ---- numbers ---- */

static Status positive(const char *key, int64_t v, int64_t most)
{
    if (v >= 1 && v <= most) return OK;
    return fail(E_DATA, "%s = %lld: must be between 1 and %lld", key, (long long)v, (long long)most);
}

Status shape_dim(const Json *o, const char *key, int64_t def, int64_t most, int64_t *out)
{
    TRY(json_int(o, key, def, out));
    return positive(key, *out, most);
}

static Status int_list(const Json *o, const char *key, int64_t *out, int most, int *n)
{
    const Json *a = json_object_get(o, key);
    *n = 0;
    if (!a || json_is_null(a)) return OK;
    if (!json_is_array(a) || json_array_size(a) > (size_t)most)
        return fail(E_DATA, "%s: must be a list of at most %d numbers", key, most);
    for (size_t i = 0; i < json_array_size(a); i++) {
        const Json *e = json_array_get(a, i);
        if (!json_is_integer(e)) return fail(E_DATA, "%s[%zu]: must be a whole number", key, i);
        out[(*n)++] = json_integer_value(e);
    }
    return OK;
}

/* Components of a head that rotate. A value inside the rope object wins. */
static Status partial(TextShape *t, const Json *o, const Json *r, const TextDefaults *d)
{
    double share;
    TRY(json_num(o, "partial_rotary_factor", d->rotary > 0 ? d->rotary : 1, &share));
    TRY(json_num(r, "partial_rotary_factor", share, &share));
    if (!(d->rotary > 0) && share != 1)
        return fail(E_DATA, "partial_rotary_factor = %g: heads of this family rotate as a whole", share);
    t->rotary = (int64_t)((double)t->C * share);
    if (t->rotary < 2 || t->rotary > t->C || t->rotary % 2)
        return fail(E_DATA, "partial_rotary_factor = %g: of heads of %lld an even number must rotate", share,
                    (long long)t->C);
    if (t->rotary == t->C) t->rotary = 0;
    return OK;
}

static double yarn_scale(double factor, double m) { return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1; }

/* docs/families.md has the formulas of this and of model_constants. */
static Status yarn(YarnShape *y, const Json *o, const Json *r)
{
    int64_t most;
    double m, all;
    TRY(json_int(o, "max_position_embeddings", 0, &most));
    TRY(json_num(r, "original_max_position_embeddings", (double)most, &y->original));
    TRY(json_num(r, "factor", y->original > 0 ? (double)most / y->original : 0, &y->factor));
    TRY(json_num(r, "beta_fast", 32, &y->fast));
    TRY(json_num(r, "beta_slow", 1, &y->slow));
    TRY(json_flag(r, "truncate", true, &y->truncate));
    TRY(json_num(r, "mscale", 0, &m));
    TRY(json_num(r, "mscale_all_dim", 0, &all));
    y->scale = m && all ? yarn_scale(y->factor, m) / yarn_scale(y->factor, all) : yarn_scale(y->factor, 1);
    y->score_scale = all ? pow(yarn_scale(y->factor, all), 2) : 1;
    TRY(json_num(r, "attention_factor", y->scale, &y->scale));
    if (!(y->factor >= 1) || !(y->original >= 1) || !(y->fast > 0) || !(y->slow > 0) || !(y->scale > 0))
        return fail(E_DATA, "rope_scaling of type yarn: factor, original_max_position_embeddings, beta_fast "
                    "and beta_slow must be positive");
    return OK;
}

static Status smooth(SmoothShape *s, const Json *r)
{
    TRY(json_num(r, "factor", 8, &s->factor));
    TRY(json_num(r, "low_freq_factor", 1, &s->low));
    TRY(json_num(r, "high_freq_factor", 4, &s->high));
    TRY(json_num(r, "original_max_position_embeddings", 8192, &s->original));
    if (!(s->factor >= 1) || !(s->low > 0) || !(s->high > s->low) || !(s->original >= 1))
        return fail(E_DATA, "rope_scaling of type llama3: factor, low_freq_factor, high_freq_factor (above "
                    "it) and original_max_position_embeddings must be positive");
    return OK;
}

/* Every frequency is divided: none turns often enough to stay. */
static Status divide_all(SmoothShape *s, const Json *r)
{
    *s = (SmoothShape){ .low = 1e30, .high = 2e30, .original = 1 };
    TRY(json_num(r, "factor", 0, &s->factor));
    return s->factor >= 1 ? OK : fail(E_DATA, "rope_scaling of type linear: factor must be at least 1");
}

/* rope_parameters (files saved by 5.x) or rope_scaling with rope_theta beside it (hub files). A value inside
 * the object wins over its sibling. rope_theta has a default in few families: the classes of transformers
 * disagree between versions, so the file must have it. */
static Status rope(TextShape *t, const Json *o, const TextDefaults *d, bool multimodal)
{
    const Json *r = json_object_get(o, json_has(o, "rope_parameters") ? "rope_parameters" : "rope_scaling");
    const char *type;
    int n = 3;
    if (r && !json_is_object(r) && !json_is_null(r)) return fail(E_DATA, "rope_scaling: must be an object");
    TRY(json_str(r, "type", "default", &type));
    TRY(json_str(r, "rope_type", type, &type));
    if (!strcmp(type, "yarn")) {
        TRY(yarn(&t->yarn, o, r));
    } else if (!strcmp(type, "llama3")) {
        TRY(smooth(&t->smooth, r));
    } else if (!strcmp(type, "linear")) {
        TRY(divide_all(&t->smooth, r));
    } else if (strcmp(type, "default") && !(multimodal && !strcmp(type, "mrope"))) {
        return fail(E_DATA, "rope_type = %s: default, linear, llama3 and yarn are known", type);
    }
    TRY(json_num(o, "rope_theta", d->theta, &t->theta));
    TRY(json_num(r, "rope_theta", t->theta, &t->theta));
    if (!(t->theta > 1.0))
        return fail(E_DATA, "rope_theta is missing (or not above 1): add it to the config");
    TRY(partial(t, o, r, d));
    if (!multimodal) return OK;
    static const int64_t usual[3] = { 24, 20, 20 };
    memcpy(t->mrope, d->mrope[0] ? d->mrope : usual, sizeof usual);
    if (json_has(r, "mrope_section")) TRY(int_list(r, "mrope_section", t->mrope, 3, &n));
    bool each = n == 3;
    for (int i = 0; i < n; i++) each = each && t->mrope[i] >= 0 && t->mrope[i] <= t->C;
    if (!each || t->mrope[0] + t->mrope[1] + t->mrope[2] != shape_rotary(t) / 2)
        return fail(
            E_DATA,
            "mrope_section = [%lld, %lld, %lld]: must be three numbers that sum to head_dim / 2 = %lld",
            (long long)t->mrope[0], (long long)t->mrope[1], (long long)t->mrope[2],
            (long long)(shape_rotary(t) / 2));
    return OK;
}

static Status heads(TextShape *t, const Json *o, const TextDefaults *d)
{
    int64_t kv =
        json_object_get(o, "num_key_value_heads") ? 0 : d->kv_heads; /* explicit null: as many as heads */
    TRY(shape_dim(o, "num_attention_heads", d->heads, 4096, &t->H));
    TRY(shape_dim(o, "num_key_value_heads", kv ? kv : t->H, 4096, &t->G));
    TRY(shape_dim(o, "head_dim", d->head_dim ? d->head_dim : t->D / t->H, 1024, &t->C));
    if (t->H % t->G)
        return fail(E_DATA, "num_attention_heads = %lld is not a multiple of num_key_value_heads = %lld",
                    (long long)t->H, (long long)t->G);
    if (t->C % 2) return fail(E_DATA, "head_dim = %lld: must be even for rotary positions", (long long)t->C);
    return OK;
}

/* Files saved by 5.17 call the number of experts num_local_experts. */
static Status experts(TextShape *t, const Json *o, const TextDefaults *d)
{
    TRY(json_int(o, "num_local_experts", d->experts, &t->E));
    TRY(json_int(o, "num_experts", t->E, &t->E));
    TRY(shape_dim(o, "moe_intermediate_size", d->expert_ffn, 1 << 24, &t->F));
    TRY(shape_dim(o, "num_experts_per_tok", d->per_token, 4096, &t->K));
    TRY(shape_dim(o, "decoder_sparse_step", 1, 1 << 20, &t->sparse_step));
    TRY(int_list(o, "mlp_only_layers", t->dense_only, 128, &t->dense_onlys));
    TRY(json_flag(o, "norm_topk_prob", d->renorm, &t->renorm));
    TRY(json_num(o, "router_aux_loss_coef", d->aux_coef > 0 ? d->aux_coef : 0.001, &t->aux_coef));
    if (t->E < 0 || t->E > 4096)
        return fail(E_DATA, "num_experts = %lld: must be between 0 and 4096", (long long)t->E);
    if (t->E && t->K > t->E)
        return fail(E_DATA, "num_experts_per_tok = %lld is more than num_experts = %lld", (long long)t->K,
                    (long long)t->E);
    return OK;
}

/* Windows of attention: in every layer, or all layers see all tokens before. */
static Status windows(TextShape *t, const Json *o, const TextDefaults *d)
{
    bool    window;
    int64_t keys;
    TRY(json_flag(o, "use_sliding_window", false, &window));
    TRY(json_int(o, "sliding_window", json_object_get(o, "sliding_window") ? 0 : d->window, &keys));
    if (window)
        return fail(E_DATA, "use_sliding_window = true: windows of this family are not supported; if no "
                    "document is longer than the window, set it to false");
    if (keys < 0 || keys > 1 << 24)
        return fail(E_DATA, "sliding_window = %lld: must be positive, or null", (long long)keys);
    if (d->window_always && keys) t->window = keys, t->window_all = true;
    if (d->mixed_layers) return OK;
    return layer_types_refuse(o, t->window_all ? "sliding_attention" : "full_attention");
}

Status qwen3_text(TextShape *t, const Json *o, const TextDefaults *d, bool sparse, bool multimodal)
{
    const char *act;
    *t = (TextShape){ .sparse_step = 1, .qk_norm = !d->no_qk_norm };
    TRY(shape_refuse(o));
    TRY(shape_dim(o, "vocab_size", d->vocab ? d->vocab : 151936, 1 << 30, &t->V));
    TRY(shape_dim(o, "hidden_size", d->hidden, 1 << 20, &t->D));
    TRY(shape_dim(o, "num_hidden_layers", d->layers, 4096, &t->L));
    TRY(shape_dim(o, "intermediate_size", d->ffn, 1 << 24, &t->I));
    TRY(heads(t, o, d));
    if (sparse) TRY(experts(t, o, d));
    TRY(rope(t, o, d, multimodal));
    TRY(json_num(o, "rms_norm_eps", d->eps > 0 ? d->eps : 1e-6, &t->eps));
    TRY(json_num(o, "initializer_range", 0.02, &t->init_std));
    TRY(json_flag(o, "attention_bias", false, &t->bias));
    TRY(json_int(o, "pad_token_id", -1, &t->pad_id));
    TRY(json_str(o, "hidden_act", "silu", &act));
    TRY(activation_find(&t->act, act));
    TRY(windows(t, o, d));
    if (!(t->eps > 0 && t->eps < 1))
        return fail(E_DATA, "rms_norm_eps = %g: must be between 0 and 1", t->eps);
    return OK;
}

static Status vision_sizes(VisionShape *v, const Json *o)
{
    int64_t table;
    TRY(shape_dim(o, "depth", 27, 1024, &v->depth));
    TRY(shape_dim(o, "hidden_size", 1152, 1 << 20, &v->D));
    TRY(shape_dim(o, "intermediate_size", 4304, 1 << 24, &v->I));
    TRY(shape_dim(o, "num_heads", 16, 4096, &v->H));
    TRY(shape_dim(o, "in_channels", 3, 64, &v->channels));
    TRY(shape_dim(o, "patch_size", 16, 1024, &v->patch));
    TRY(shape_dim(o, "temporal_patch_size", 2, 64, &v->frames));
    TRY(shape_dim(o, "spatial_merge_size", 2, 16, &v->merge));
    TRY(shape_dim(o, "out_hidden_size", 3584, 1 << 20, &v->out));
    TRY(shape_dim(o, "num_position_embeddings", 2304, 1 << 24, &table));
    v->grid = (int64_t)floor(sqrt((double)table) + 0.5);
    if (v->grid * v->grid != table)
        return fail(E_DATA, "num_position_embeddings = %lld: must be a square", (long long)table);
    if (v->D % v->H || v->D / v->H % 4)
        return fail(E_DATA,
                    "vision hidden_size = %lld over num_heads = %lld: the head width must be a multiple of 4",
                    (long long)v->D, (long long)v->H);
    return OK;
}

static Status deepstack(VisionShape *v, const Json *o, bool has)
{
    static const int64_t usual[3] = { 8, 16, 24 };
    memcpy(v->deepstack, usual, sizeof usual), v->deepstacks = has ? 3 : 0;
    if (json_has(o, "deepstack_visual_indexes"))
        TRY(int_list(o, "deepstack_visual_indexes", v->deepstack, MAX_DEEPSTACK, &v->deepstacks));
    for (int i = 0; i < v->deepstacks; i++) {
        if (v->deepstack[i] < 0 || v->deepstack[i] >= v->depth)
            return fail(E_DATA, "deepstack_visual_indexes names block %lld of %lld",
                        (long long)v->deepstack[i], (long long)v->depth);
        for (int j = 0; j < i; j++)
            if (v->deepstack[i] == v->deepstack[j])
                return fail(E_DATA, "deepstack_visual_indexes names block %lld twice",
                            (long long)v->deepstack[i]);
    }
    return OK;
}

Status qwen3_vision(VisionShape *v, const Json *o, bool has_deepstack)
{
    const char *act, *type;
    *v = (VisionShape){ 0 };
    TRY(vision_sizes(v, o));
    TRY(deepstack(v, o, has_deepstack));
    TRY(json_str(o, "hidden_act", "gelu_pytorch_tanh", &act));
    if (!strcmp(act, "gelu_pytorch_tanh")) v->gelu = GELU_TANH;
    else if (!strcmp(act, "gelu"))         v->gelu = GELU_ERF;
    else return fail(E_DATA, "vision hidden_act = %s: gelu_pytorch_tanh or gelu are known", act);
    const Json *r = json_object_get(o, "rope_parameters"); /* hub files have none: rows and columns, 10000 */
    TRY(json_str(r, "rope_type", "axial", &type));
    if (strcmp(type, "axial") && strcmp(type, "default"))
        return fail(E_DATA, "vision rope_type = %s: only axial is known", type);
    TRY(json_num(r, "rope_theta", 10000.0, &v->theta));
    return OK;
}

Status qwen3_dtype(DType *d, const Json *top, const Json *text)
{
    const char *name;
    TRY(json_str(text, "torch_dtype", "float32", &name));
    TRY(json_str(text, "dtype", name, &name));
    TRY(json_str(top, "torch_dtype", name, &name));
    TRY(json_str(top, "dtype", name, &name));
    return dtype_parse(d, name);
}
