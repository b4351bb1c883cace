/* cli/data_setup.c -- see data.h. */
#include "cli/data.h"

#include "checkpoint/picture_limits.h"
#include "cli/options.h"
#include "engine/batching.h"
#include <stdlib.h>
#include <string.h>

static bool is_recipe(const char *path)
{
    size_t n = strlen(path);
    return (n > 5 && !strcmp(path + n - 5, ".yaml")) || (n > 4 && !strcmp(path + n - 4, ".yml"));
}

static Status read_recipe(DataSetup *s, const char **plain, int n)
{
    int files = 0;
    if (is_recipe(plain[0])) return config_open(&s->recipe, plain[0], n - 1, (char *const *)plain + 1);
    config_default(&s->recipe);
    s->source = calloc((size_t)n, sizeof *s->source);
    if (!s->source) return fail(E_FIT, "no memory for %d files", n);
    for (int i = 0; i < n; i++) {
        if (config_is_override(plain[i])) TRY(config_set(&s->recipe, plain[i]));
        else s->source[files++] = (Source){ .path = plain[i], .weight = 1, .channel = "" };
    }
    s->recipe.data.train = (SourceList){ s->source, files };
    s->recipe.data.eval  = (SourceList){ 0 };
    return OK;
}

/* Files without a model are checked with the patches of Qwen3-VL and without budgets. */
static void without_model(DataSetup *s)
{
    s->stream = (StreamShape){ .image_token = 0, .video_token = 0, .merge = 2, .patch_dim = 1536 };
    s->patch  = (PatchShape){ .patch = 16, .frames = 2, .merge = 2, .channels = 3 };
    s->budget =
        (Budget){ .tokens = INT32_MAX, .patches = INT32_MAX, .docs = INT32_MAX, .supervised = INT32_MAX };
    s->micro  = 1;
}

static Status with_model(DataSetup *s)
{
    const VisionShape *v = &s->model.shape.vision;
    TRY(model_source_open(&s->model, &s->recipe.model));
    TRY(picture_limits_read(&s->recipe, s->model.folder, s->recipe.lora.path, v));
    picture_limits_fit(&s->recipe, v, &s->log);
    s->stream = shape_stream(&s->model.shape);
    s->patch  = batching_patches(&s->recipe, &s->model.shape.vision);
    s->budget = batching_budget(&s->recipe, &s->model.shape);
    return batching_micro(&s->micro, &s->recipe.train, 1);
}

Status data_setup_open(DataSetup *s, const char *verb, const char **plain, int n)
{
    *s = (DataSetup){ .log = { .world = 1, .least = LOG_INFO } };
    if (n < 1) return fail(E_CONFIG, "%s: no recipe is named; see treb help data", verb);
    Status st    = read_recipe(s, plain, n);
    bool   named = !st && (*s->recipe.model.path || *s->recipe.model.preset);
    if (!st && s->recipe.data.train.n == 0)
        st = fail(E_CONFIG, s->source ? "%s: no file is named" : "%s: the recipe has no data.train", verb);
    if (!st && !named && !s->source)
        st = fail(E_CONFIG,
                  "%s: the recipe names no model; model.path or model.preset decides tokens and patches",
                  verb);
    if (!st && named) st = with_model(s);
    else if (!st)     without_model(s);
    if (st) data_setup_close(s);
    return st;
}

Status data_setup_of(DataSetup *s, const Config *recipe)
{
    *s = (DataSetup){ .recipe = *recipe, .log = { .world = 1, .least = LOG_ERROR } };
    s->recipe.keep = (MemPool){ 0 };
    Status st = with_model(s);
    if (st) data_setup_close(s);
    return st;
}

void data_setup_close(DataSetup *s)
{
    model_source_close(&s->model);
    config_close(&s->recipe);
    free(s->source);
    *s = (DataSetup){ 0 };
}

Status data_view_open(DataView *v, const DataSetup *s, const SourceList *sources, const char *key, bool once,
                      bool tolerant)
{
    *v = (DataView){ 0 };
    Status st = sample_conf(&v->sample, &s->recipe, s->model.tokenizer, &s->patch, &s->stream, &s->budget);
    if (!st && s->model.tokenizer) st = sample_settings(&v->sample, &v->settings);
    DatasetConf d = { .sources = sources, .key = key, .once = once, .tolerant = tolerant,
                      .seed = (uint64_t)s->recipe.train.seed, .settings = v->settings, .log = &s->log,
                      .format = { s->model.tokenizer, v->sample.max_length } };
    if (!once && s->recipe.data.eval.n == 0) d.split = s->recipe.eval.split;
    if (!st) st = dataset_open(&v->data, &d);
    v->sample.data = &v->data;
    if (st) data_view_close(v);
    return st;
}

void data_view_close(DataView *v)
{
    dataset_close(&v->data);
    json_decref(v->settings);
    *v = (DataView){ 0 };
}
