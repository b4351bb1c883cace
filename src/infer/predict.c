/* infer/predict.c -- see predict.h. */
#include "infer/predict.h"

#include "engine/batching.h"
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

/* Accepts both forms: min_pixels and max_pixels, or size.shortest_edge and size.longest_edge, which are areas
 * in pixels too. */
static Status read_bounds(Config *c, const Json *o)
{
    const Json *size = json_object_get(o, "size");
    TRY(json_int(o, "min_pixels", c->image.min_pixels, &c->image.min_pixels));
    TRY(json_int(o, "max_pixels", c->image.max_pixels, &c->image.max_pixels));
    if (!json_is_object(size)) return OK;
    TRY(json_int(size, "shortest_edge", c->image.min_pixels, &c->image.min_pixels));
    return json_int(size, "longest_edge", c->image.max_pixels, &c->image.max_pixels);
}

Status predict_read_pixel_bounds(Config *recipe, const char *dir)
{
    Json *o;
    TRY(load_optional(&o, dir, "preprocessor_config.json"));
    Status st = json_is_object(o) ? read_bounds(recipe, o) : OK;
    json_decref(o);
    if (!st && (recipe->image.min_pixels < 1 || recipe->image.max_pixels < recipe->image.min_pixels))
        st = fail(E_DATA, "min_pixels = %lld and max_pixels = %lld: not a range of image sizes",
                  (long long)recipe->image.min_pixels, (long long)recipe->image.max_pixels);
    return st ? wrap(st, "%s/preprocessor_config.json", dir) : OK;
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
    TRY(chat_tokens(&token, p->source.tokenizer));
    add_stop(p, token.im_end), add_stop(p, token.endoftext);
    TRY(load_optional(&o, p->source.folder, "generation_config.json"));
    const Json *eos = json_is_object(o) ? json_object_get(o, "eos_token_id") : NULL;
    if (json_is_integer(eos)) add_stop(p, json_integer_value(eos));
    for (size_t i = 0; i < json_array_size(eos); i++)
        if (json_is_integer(json_array_get(eos, i))) add_stop(p, json_integer_value(json_array_get(eos, i)));
    json_decref(o);
    return OK;
}

Status predict_open(Predictor *p, const Config *recipe)
{
    *p = (Predictor){ .recipe = recipe };
    TRY(model_source_open(&p->source, &recipe->model));
    p->patch = batching_patches(recipe, &p->source.shape.vision);
    Status st = find_stops(p);
    if (!st && *recipe->lora.path) st = lora_source_open(&p->lora, recipe->lora.path, &p->source.shape);
    if (!st && p->lora.conf.rank) st = lora_source_check_base(&p->lora, p->source.weights);
    if (st) predict_close(p);
    return st;
}

static Status open_engine(Predictor *p, const PredictConf *c)
{
    EngineConf  conf = { .backend = backend_pick(p->recipe->device.backend), .dtype = p->source.dtype,
                         .budget = c->budget, .decode = c->capacity, .lora = p->lora.conf };
    LayoutAsk   ask = { p->recipe, &p->source.shape, c->world, c->one_document, c->log };
    StreamShape ss = shape_stream(&p->source.shape);
    ss.bytes = true;
    Stream      full = stream_full(&ss, &c->budget);
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
