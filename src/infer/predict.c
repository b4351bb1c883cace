/* infer/predict.c -- see predict.h. */
#include "infer/predict.h"

#include "checkpoint/picture_limits.h"
#include "engine/batching.h"
#include "engine/recipe.h"
#include "infer/layout.h"

#include "data/chat.h"

/* *out is NULL if the file does not exist. */
static Status load_optional(Json **out, const char *dir, const char *name)
{
    Path path;
    *out = NULL;
    TRY(path_join(path, dir, name));
    return file_is(path) ? json_load(out, path) : OK;
}

static void add_stop(Predictor *p, int64_t id)
{
    for (int i = 0; i < p->stops; i++)
        if (p->stop[i] == id) return;
    if (id >= 0 && id < p->source.shape.text.V && p->stops < MAX_STOPS) p->stop[p->stops++] = (int32_t)id;
}

/* eos_token_id is a number or a list of numbers. */
static Status find_stops(Predictor *p)
{
    ChatTokens token;
    Json *o;
    chat_tokens_find(&token, p->source.tokenizer);
    add_stop(p, token.im_end), add_stop(p, token.endoftext), add_stop(p, tokenizer_end(p->source.tokenizer));
    TRY(load_optional(&o, p->source.folder, "generation_config.json"));
    const Json *eos = json_is_object(o) ? json_object_get(o, "eos_token_id") : NULL;
    if (json_is_integer(eos)) add_stop(p, json_integer_value(eos));
    for (size_t i = 0; i < json_array_size(eos); i++)
        if (json_is_integer(json_array_get(eos, i))) add_stop(p, json_integer_value(json_array_get(eos, i)));
    json_decref(o);
    return OK;
}

Status predict_open(Predictor *p, Config *recipe)
{
    *p = (Predictor){ .recipe = recipe };
    TRY(model_source_open(&p->source, &recipe->model));
    const VisionShape *v = &p->source.shape.vision;
    Status st = picture_limits_read(recipe, p->source.folder, recipe->lora.path, v);
    p->patch  = batching_patches(recipe, v);
    if (!st) st = find_stops(p);
    if (!st && *recipe->lora.path) st = lora_source_open(&p->lora, recipe->lora.path, &p->source.shape);
    if (!st && p->lora.conf.rank) st = lora_source_check_base(&p->lora, &p->source);
    if (st) predict_close(p);
    return st;
}

static Status open_engine(Predictor *p, const PredictConf *c)
{
    EngineConf  conf = { .backend = backend_pick(p->recipe->device.backend), .dtype = p->source.dtype,
                         .kernels = p->recipe->device.kernels,
                         .budget = c->budget, .decode = c->capacity, .lora = p->lora.conf };
    LayoutAsk   ask = { p->recipe, &p->source.shape, c->world, c->one_document, c->log };
    StreamShape ss = shape_stream(&p->source.shape);
    ss.bytes = true;
    Stream      full = stream_full(&ss, &c->budget);
    TRY(recipe_base(&conf.base, p->recipe));
    policy_default(conf.policy);
    if (c->world) TRY(comm_agree(c->world, backend_check(conf.backend)));
    if (c->world && c->world->size > 1) TRY(comm_agree(c->world, layout_set_ranks(&conf, &ask)));
    Status st = engine_open(&p->e, &p->source.shape, &conf, &full);
    return c->world ? comm_agree(c->world, st) : st;
}

static Status load_weights(Predictor *p, const Log *log)
{
    uint64_t seed = (uint64_t)p->recipe->train.seed;
    TRY(model_source_load(&p->source, &p->e.model, &p->e.be, seed, log));
    if (!p->lora.conf.rank) return OK;
    if (p->e.mesh.rank == 0) TRY(lora_source_warn_base(&p->lora, &p->source, seed, log));
    return lora_source_load(&p->lora, &p->e.model, &p->e.be);
}

Status predict_load(Predictor *p, const PredictConf *conf)
{
    TRY(open_engine(p, conf));
    TRY(comm_agree(p->e.mesh.comm[GR_world], load_weights(p, conf->log)));
    engine_publish_weights(&p->e);
    return OK;
}

void predict_close(Predictor *p)
{
    engine_close(&p->e);
    model_source_close(&p->source);
    lora_source_close(&p->lora);
    *p = (Predictor){ 0 };
}
