/* plan/models_file.c -- a model from its config.json, whether a family here trains it or not: the numbers
 * that the analytic model needs, under the names that Hugging Face's families use for them. */
#include "base/folder.h"
#include "base/json.h"
#include "model/family.h"
#include "plan/analytic.h"
#include "plan/lora_cost.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 1 << 24, MOST_EXPERTS = 1 << 16, MOST_HEADS = 1 << 12, MOST_HEAD_DIM = 1 << 14, MOST_MTP = 8 };

static Status between(const char *key, int64_t value, int64_t least, int64_t most)
{
    if (value >= least && value <= most) return OK;
    return fail(E_DATA, "%s = %lld: must be between %lld and %lld", key, (long long)value, (long long)least,
                (long long)most);
}

/* The first of the names (commas between) that the object has, from 0 to MOST, or `absent`. */
static Status number(const Json *o, const char *names, int64_t absent, int64_t *out)
{
    char list[128], *save = NULL;
    snprintf(list, sizeof list, "%s", names);
    for (char *key = strtok_r(list, ",", &save); key; key = strtok_r(NULL, ",", &save))
        if (json_has(o, key)) {
            TRY(json_int(o, key, absent, out));
            return between(key, *out, 0, MOST);
        }
    return *out = absent, OK;
}

static Status read_experts(TextShape *t, const Json *o)
{
    int64_t shared = 0;
    TRY(number(o, "num_experts,num_local_experts,n_routed_experts", 0, &t->E));
    if (!t->E) return OK;
    TRY(number(o, "num_experts_per_tok,num_experts_per_token,moe_topk", 1, &t->K));
    TRY(number(o, "moe_intermediate_size", t->I, &t->F));
    TRY(number(o, "n_shared_experts,num_shared_experts", 0, &shared));
    TRY(number(o, "shared_expert_intermediate_size,shared_intermediate_size", shared * t->F, &t->shared));
    TRY(number(o, "first_k_dense_replace", 0, &t->dense_first));
    TRY(number(o, "n_group", 0, &t->groups));
    TRY(number(o, "topk_group", 0, &t->top_groups));
    if (t->groups <= 1) t->groups = t->top_groups = 0;
    return OK;
}

static Status read_attention(TextShape *t, const Json *o)
{
    MlaShape *m = &t->mla;
    GdnShape *g = &t->gdn;
    bool      tied;
    TRY(number(o, "num_attention_heads,n_head", 0, &t->H));
    TRY(number(o, "num_key_value_heads", t->H, &t->G));
    TRY(number(o, "head_dim", t->H ? t->D / t->H : 0, &t->C));
    TRY(number(o, "kv_lora_rank", 0, &m->kv_rank));
    TRY(number(o, "q_lora_rank", 0, &m->q_rank));
    TRY(number(o, "qk_nope_head_dim", 0, &m->nope));
    TRY(number(o, "qk_rope_head_dim", 0, &m->rope));
    TRY(number(o, "v_head_dim", 0, &m->v));
    if (m->kv_rank) t->C = m->v, t->G = t->H;
    TRY(number(o, "linear_num_key_heads", 0, &g->key_heads));
    TRY(number(o, "linear_key_head_dim", 0, &g->key_dim));
    TRY(number(o, "linear_num_value_heads", 0, &g->value_heads));
    TRY(number(o, "linear_value_head_dim", 0, &g->value_dim));
    TRY(number(o, "linear_conv_kernel_dim", 4, &g->conv));
    TRY(number(o, "full_attention_interval", g->key_heads ? 4 : 0, &g->every));
    t->gated = g->key_heads > 0;
    TRY(json_flag(o, "tie_word_embeddings", false, &tied));
    t->tied = tied;
    return OK;
}

static Status check_experts(const TextShape *t)
{
    if (!t->E) return OK;
    TRY(between("the number of experts", t->E, 1, MOST_EXPERTS));
    TRY(between("the experts of a token", t->K, 1, t->E));
    TRY(between("moe_intermediate_size", t->F, 1, MOST));
    TRY(between("first_k_dense_replace", t->dense_first, 0, t->L));
    if (!t->groups) return OK;
    TRY(between("topk_group", t->top_groups, 1, t->groups));
    return between("the experts of a token", t->K, 1, t->E * t->top_groups / t->groups);
}

static Status check_attention(const TextShape *t)
{
    const MlaShape *m = &t->mla;
    const GdnShape *g = &t->gdn;
    TRY(between("num_attention_heads", t->H, 1, MOST_HEADS));
    TRY(between("num_key_value_heads", t->G, 1, t->H));
    TRY(between("the head dim", t->C, 1, MOST_HEAD_DIM));
    if (m->kv_rank) TRY(between("qk_nope_head_dim + qk_rope_head_dim", m->nope + m->rope, 1, MOST));
    if (!g->key_heads) return OK;
    TRY(between("linear_key_head_dim", g->key_dim, 1, MOST));
    TRY(between("linear_num_value_heads", g->value_heads, 1, MOST));
    TRY(between("linear_value_head_dim", g->value_dim, 1, MOST));
    TRY(between("linear_conv_kernel_dim", g->conv, 1, MOST));
    return between("full_attention_interval", g->every, 1, MOST);
}

static Status read_text(TextShape *t, const Json *o)
{
    TRY(number(o, "num_hidden_layers,n_layer", 0, &t->L));
    TRY(number(o, "hidden_size,n_embd", 0, &t->D));
    TRY(number(o, "vocab_size", 0, &t->V));
    TRY(number(o, "intermediate_size,n_inner", 4 * t->D, &t->I));
    TRY(number(o, "num_nextn_predict_layers", 0, &t->mtp));
    TRY(read_attention(t, o));
    TRY(read_experts(t, o));
    if (t->L < 1 || t->D < 1 || t->V < 1 || t->H < 1 || t->G < 1 || t->C < 1 || t->I < 1)
        return fail(E_DATA, "num_hidden_layers, hidden_size, intermediate_size, vocab_size or the numbers of "
                    "heads are missing or 0: it is no decoder that can be planned");
    TRY(between("num_nextn_predict_layers", t->mtp, 0, MOST_MTP));
    TRY(check_attention(t));
    return check_experts(t);
}

static Status read_other(ModelRow *m, const char *path)
{
    Json *o = NULL;
    TRY(json_load(&o, path));
    const Json *text = json_object_get(o, "text_config");
    Status      st   = read_text(&m->text, text ? text : o);
    m->vision_unread = json_has(o, "vision_config");
    json_decref(o);
    TRY_CTX(st, "%s", path);
    return OK;
}

/* The path of config.json itself, or of a folder that has one. */
static Status config_path(char *out, size_t n, const char *path)
{
    int k = folder_is(path) ? snprintf(out, n, "%s/config.json", path) : snprintf(out, n, "%s", path);
    if (k >= (int)n) return fail(E_CONFIG, "--model: the path is too long");
    return file_is(out) ? OK : fail(E_CONFIG, "--model %s: has no config.json", path);
}

Status model_row_load(ModelRow *m, const char *path)
{
    ModelShape shape;
    Path       file;
    *m = (ModelRow){ .name = path, .also = "" };
    TRY(config_path(file, sizeof file, path));
    if (!shape_load(&shape, file)) {
        m->text = shape.text, m->vision = shape.vision, m->path = path;
    } else {
        TRY(read_other(m, file));
    }
    TRY_CTX(between("num_hidden_layers", m->text.L, 1, MOST_LAYERS), "%s", file);
    return OK;
}
