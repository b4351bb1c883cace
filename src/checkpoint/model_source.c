/* checkpoint/model_source.c -- see model_source.h. */
#include "checkpoint/model_source.h"

#include "checkpoint/checkpoint.h"
#include "checkpoint/hub_cache.h"
#include "model/peft.h"
#include "model/presets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>


static Status read_config(Json **hf, const char *folder)
{
    Path path;
    TRY(path_join(path, folder, "config.json"));
    return json_load(hf, path);
}

static Status set_folder(ModelSource *s, const char *path)
{
    int n = snprintf(s->folder, sizeof s->folder, "%s", path);
    return n < (int)sizeof s->folder ? OK : fail(E_IO, "%.200s: the path is too long", path);
}

/* path: a folder, or its config.json. */
static Status open_preset_folder(ModelSource *s, const char *path)
{
    struct stat st;
    TRY(set_folder(s, path));
    char *slash = strrchr(s->folder, '/');
    if (!stat(path, &st) && S_ISDIR(st.st_mode)) return read_config(&s->hf, path);
    if (slash) *slash = 0;
    else TRY(set_folder(s, "."));
    return json_load(&s->hf, path);
}

/* The model of the run that a checkpoint is in: RUN/recipe.yaml. */
static Status run_model_folder(Path out, const char *path)
{
    Path   recipe;
    Config c;
    TRY(path_join(recipe, path, "../recipe.yaml"));
    TRY(config_open(&c, recipe, 0, NULL));
    const char *found = *c.model.path ? c.model.path : c.model.preset;
    int         n     = snprintf(out, sizeof(Path), "%s", found);
    config_close(&c);
    return n < (int)sizeof(Path) ? OK : fail(E_CONFIG, "%s: the path of its model is too long", recipe);
}

Status model_source_files(Path out, const char *path)
{
    if (!checkpoint_is(path) || folder_has(path, "tokenizer.json"))
        return snprintf(out, sizeof(Path), "%s", path) < (int)sizeof(Path)
                   ? OK
                   : fail(E_IO, "%.200s: the path is too long", path);
    TRY(path_join(out, path, "state"));
    if (folder_has(out, "tokenizer.json")) return OK;
    Status st = run_model_folder(out, path);
    if (!st && folder_has(out, "tokenizer.json")) return OK;
    return fail(E_DATA,
                "%s has no tokenizer.json, and its run does not lead to one; write a model with treb "
                "convert %s FOLDER --config MODEL",
                path, path);
}

/* A checkpoint has its config.json in state/. */
static Status open_checkpoint(ModelSource *s, const char *path)
{
    Path state;
    TRY(path_join(state, path, "state"));
    TRY(model_source_files(s->folder, path));
    s->weights = path, s->is_checkpoint = true;
    return read_config(&s->hf, state);
}

/* A file in the place of a folder, and a folder that lacks what every model has. */
static Status check_folder(const char *path)
{
    if (!file_is(path)) return fail(E_IO, "model.path = %s: No such file or directory", path);
    if (!folder_is(path))
        return fail(E_CONFIG, "model.path = %s is a file; set the folder that it is in", path);
    bool words = folder_has(path, "tokenizer.json") || folder_has(path, "vocab.json") ||
                 folder_has(path, "tiktoken.model");
    if (!words || !folder_has(path, "config.json"))
        return fail(E_IO,
                    "model.path = %s has no %s; a model folder has config.json, tokenizer.json and "
                    "model*.safetensors, as the hub has them: copy or download all of it",
                    path, words ? "config.json" : "tokenizer.json");
    return OK;
}

static Status find_folder(ModelSource *s, const char *path)
{
    Path found;
    TRY(hub_cache_find(found, path));
    if (strcmp(found, path)) {
        s->snapshot = strdup(found);
        if (!s->snapshot) return fail(E_FIT, "no memory for a path");
        path = s->snapshot;
    }
    if (!weights_exist(path) && peft_is(path))
        return fail(E_CONFIG, "model.path = %s is an adapter, not a model; set lora.path to it, and "
                    "model.path to its base model", path);
    TRY_CTX(checkpoint_refuse_run_folder(path), "model.path");
    if (checkpoint_is(path) && !weights_exist(path)) return open_checkpoint(s, path);
    TRY(check_folder(path));
    s->weights = path;
    TRY(set_folder(s, path));
    return read_config(&s->hf, path);
}

static Status find_model(ModelSource *s, const struct cfg_model *c)
{
    if (!*c->preset) return find_folder(s, c->path);
    if (*c->path && weights_exist(c->path))
        return fail(E_CONFIG, "model.preset = %s starts from random weights, but model.path = %s has "
                    "weights; set only one of them", c->preset, c->path);
    if (!preset_is(c->preset) && file_is(c->preset))
        TRY_CTX(open_preset_folder(s, c->preset), "model.preset");
    else TRY(preset_config(&s->hf, c->preset));
    if (*c->path) TRY(set_folder(s, c->path));
    if (!*s->folder)
        return fail(E_CONFIG, "model.preset = %s gives the shape only; set model.path to a folder with "
                    "tokenizer.json", c->preset);
    return OK;
}

static Status choose_dtype(ModelSource *s, const char *word)
{
    s->dtype = s->shape.dtype;
    if (strcmp(word, "auto")) TRY(dtype_parse(&s->dtype, word));
    if (s->dtype == F32 || s->dtype == BF16) return OK;
    return fail(E_CONFIG,
                "model.dtype = auto: the model is stored as %s, in which training is not possible; set "
                "model.dtype to bfloat16 or float32",
                dtype_name(s->dtype));
}

/* With a tokenizer of another model training would run without an error and learn nothing useful. */
static Status check_tokenizer(const ModelSource *s)
{
    int64_t size = tokenizer_size(s->tokenizer), image = tokenizer_id(s->tokenizer, "<|image_pad|>");
    if (size > s->shape.text.V)
        return fail(E_DATA, "%s: the tokenizer has ids up to %lld, the model's vocabulary ends at %lld; use "
                    "the model's own tokenizer", s->folder, (long long)size - 1,
                    (long long)s->shape.text.V - 1);
    if (s->shape.vision.depth && image >= 0 && image != s->shape.image_token)
        return fail(E_DATA, "%s: <|image_pad|> is id %lld in the tokenizer, image_token_id is %lld in "
                    "config.json; use the model's own tokenizer", s->folder, (long long)image,
                    (long long)s->shape.image_token);
    return OK;
}

static Status open_all(ModelSource *s, const struct cfg_model *c)
{
    s->preset = c->preset;
    TRY(find_model(s, c));
    TRY(shape_read(&s->shape, s->hf, *c->preset ? c->preset : c->path));
    if (s->weights) TRY(weights_find_mtp(&s->shape, s->weights));
    TRY(choose_dtype(s, c->dtype));
    TRY(tokenizer_open(&s->tokenizer, s->folder));
    return check_tokenizer(s);
}

Status model_source_open(ModelSource *s, const struct cfg_model *c)
{
    *s = (ModelSource){ 0 };
    Status st = open_all(s, c);
    if (st) model_source_close(s);
    return st;
}

void model_source_close(ModelSource *s)
{
    tokenizer_close(s->tokenizer);
    json_decref(s->hf);
    free(s->snapshot);
    *s = (ModelSource){ 0 };
}

Status model_source_load(const ModelSource *s, Model *m, Backend *be, uint64_t seed, const Log *log)
{
    SafeTensors st;
    if (!s->weights) return model_init(m, be, seed);
    if (s->is_checkpoint) {
        TRY(checkpoint_load_weights(s->weights, m, be));
        return lora_init(m, be, seed);
    }
    TRY(st_open(&st, s->weights));
    Status r = weights_load(m, be, &st, log);
    st_close(&st);
    return r ? r : lora_init(m, be, seed);
}
