/* checkpoint/model_source.c -- see source.h. */
#include "checkpoint/model_source.h"

#include "model/presets.h"
#include "checkpoint/checkpoint.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static bool has(const char *folder, const char *name)
{
    Path path;
    return !path_join(path, folder, name) && file_is(path);
}

static bool has_weights(const char *folder)
{
    return has(folder, "model.safetensors") || has(folder, "model.safetensors.index.json");
}

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

/* A config.json named outright stands for its folder. */
static Status preset_folder(ModelSource *s, const char *path)
{
    struct stat st;
    TRY(set_folder(s, path));
    char *slash = strrchr(s->folder, '/');
    if (!stat(path, &st) && S_ISDIR(st.st_mode)) return read_config(&s->hf, path);
    if (slash) *slash = 0;
    else TRY(set_folder(s, "."));
    return json_load(&s->hf, path);
}

static Status find_model(ModelSource *s, const struct cfg_model *c)
{
    if (!*c->preset) {
        if (!has_weights(c->path) && has(c->path, "adapter_config.json"))
            return fail(E_CONFIG,
                        "model.path = %s: an adapter, not a model; set lora.path to it, and model.path to "
                        "the model that it was made for",
                        c->path);
        TRY_CTX(checkpoint_refuse_run_folder(c->path), "model.path");
        s->weights = c->path;
        TRY(set_folder(s, c->path));
        return read_config(&s->hf, c->path);
    }
    if (*c->path && has_weights(c->path))
        return fail(E_CONFIG, "model.preset = %s starts from random weights, but model.path = %s has some: "
                    "set one of them", c->preset, c->path);
    if (!preset_is(c->preset) && file_is(c->preset)) TRY_CTX(preset_folder(s, c->preset), "model.preset");
    else TRY(preset_config(&s->hf, c->preset));
    if (*c->path) TRY(set_folder(s, c->path));
    if (!*s->folder)
        return fail(E_CONFIG, "model.preset = %s gives dimensions only: set model.path to a folder with "
                    "tokenizer.json", c->preset);
    return OK;
}

static Status choose_dtype(ModelSource *s, const char *word)
{
    s->dtype = s->shape.dtype;
    if (strcmp(word, "auto")) TRY(dtype_parse(&s->dtype, word));
    if (s->dtype == F32 || s->dtype == BF16) return OK;
    return fail(E_CONFIG,
                "model.dtype = auto: the model is stored as %s, which is not trained in; set bfloat16 "
                "or float32",
                dtype_name(s->dtype));
}

/* A tokenizer that does not belong to the model would train nonsense without a word. */
static Status check_tokenizer(const ModelSource *s)
{
    int64_t size = tokenizer_size(s->tokenizer), image = tokenizer_id(s->tokenizer, "<|image_pad|>");
    if (size > s->shape.text.V)
        return fail(E_DATA, "%s: the tokenizer has ids up to %lld, the model's vocabulary ends at %lld",
                    s->folder, (long long)size - 1, (long long)s->shape.text.V - 1);
    if (s->shape.vision.depth && image >= 0 && image != s->shape.image_token)
        return fail(E_DATA, "%s: <|image_pad|> is id %lld, config.json says image_token_id = %lld", s->folder,
                    (long long)image, (long long)s->shape.image_token);
    return OK;
}

static Status open_all(ModelSource *s, const struct cfg_model *c)
{
    s->preset = c->preset;
    TRY(find_model(s, c));
    TRY(shape_read(&s->shape, s->hf, *c->preset ? c->preset : c->path));
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
    *s = (ModelSource){ 0 };
}

Status model_source_load(const ModelSource *s, Model *m, Backend *be, uint64_t seed, const Log *log)
{
    SafeTensors st;
    if (!s->weights) return model_init(m, be, seed);
    TRY(st_open(&st, s->weights));
    Status r = weights_load(m, be, &st, log);
    st_close(&st);
    return r ? r : lora_init(m, be, seed);
}
