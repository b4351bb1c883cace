/* model/families.c -- the table of families, and reading a config.json by it. */
#include "model/family.h"
#include "nn/layer_kind.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const Family *const families[] = {
    &family_qwen3,
    &family_qwen3_moe,
    &family_qwen3_vl,
    &family_qwen3_vl_moe,
    &family_llama,
    &family_mistral,
    &family_mixtral,
    &family_olmoe,
    &family_glm4_moe,
    &family_deepseek_v3,
    &family_kimi_k2,
    &family_gpt_oss,
    &family_qwen3_next,
    &family_qwen3_5_moe,
    &family_qwen3_5_moe_text,
};
enum { FAMILIES = sizeof families / sizeof *families };

Status family_find(const Family **f, const char *name)
{
    char known[256] = "";
    *f = NULL;
    for (int i = 0; i < FAMILIES; i++) {
        if (!strcmp(families[i]->name, name)) *f = families[i];
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", families[i]->name);
    }
    return *f ? OK : fail(E_CONFIG, "model_type %s: no such family here; there are %s", name, known);
}

const ModelNames names_usual = { .router = "mlp.gate", .shared = "mlp.shared_experts",
                                 .expert_part = { "gate_proj", "up_proj", "down_proj" } };

const ModelNames *shape_names(const ModelShape *s) { return s->names ? s->names : &names_usual; }

bool shape_is_empty_shared(const ModelShape *s, const char *tensor)
{
    const char *shared = shape_names(s)->shared;
    return shared && !s->text.shared && s->text.E && strstr(tensor, shared);
}

bool shape_is_sparse(const TextShape *t, int64_t layer)
{
    return ffn_moe.layers_below(t, layer + 1) > ffn_moe.layers_below(t, layer);
}

int64_t shape_sparse_layers(const TextShape *t) { return ffn_moe.layers_below(t, t->L); }

int64_t shape_routers(const TextShape *t) { return ffn_moe.layers_below(t, shape_layers(t)); }

StreamShape shape_stream(const ModelShape *s)
{
    const VisionShape *v = &s->vision;
    if (!v->depth) return (StreamShape){ .image_token = -1, .video_token = -1, .merge = 1, .patch_dim = 1 };
    return (StreamShape){ .image_token = s->image_token, .video_token = s->video_token, .merge = v->merge,
                          .patch_dim = vision_patch_dim(v) };
}

Status shape_read(ModelShape *s, const Json *hf, const char *what)
{
    const Family *f;
    const char *type;
    if (!json_is_object(hf)) return fail(E_DATA, "%s: not a JSON object", what);
    TRY_CTX(json_str(hf, "model_type", NULL, &type), "%s", what);
    if (!type) return fail(E_DATA, "%s: model_type is missing; is this a model's config.json?", what);
    TRY_CTX(family_find(&f, type), "%s", what);
    *s = (ModelShape){ .family = f->name };
    TRY_CTX(f->shape(s, hf), "%s", what);
    return OK;
}

Status shape_load(ModelShape *s, const char *path)
{
    char file[4096];
    struct stat st;
    Json *hf;
    bool folder = !stat(path, &st) && S_ISDIR(st.st_mode);
    snprintf(file, sizeof file, "%s%s", path, folder ? "/config.json" : "");
    TRY(json_load(&hf, file));
    Status r = shape_read(s, hf, file);
    json_decref(hf);
    return r;
}
