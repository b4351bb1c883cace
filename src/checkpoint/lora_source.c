/* checkpoint/lora_source.c -- see lora_source.h. */
#include "checkpoint/lora_source.h"

#include "checkpoint/base_model.h"

#include <stdio.h>
#include <string.h>

bool lora_source_is(const char *path) { return checkpoint_has_lora(path) || peft_is(path); }

/* ---- opening ---- */

/* The whole model with the adapters, for names and shapes; nothing is bound. */
static Status open_whole(Model *m, const LoraConf *c, const ModelShape *s)
{
    const bool frozen[GROUP_N] = { true, true, true };
    return model_open_whole(m, s, frozen, c);
}

static Status open_checkpoint(LoraSource *l, const char *path, const ModelShape *s)
{
    Model m;
    TRY(checkpoint_lora_open(&l->lora, path));
    l->conf = l->lora.conf;
    TRY_CTX(open_whole(&m, &l->conf, s), "%s", path);
    Status st = checkpoint_lora_check_shapes(path, &m);
    model_close(&m);
    return st;
}

static Status open_any(LoraSource *l, const char *path, const ModelShape *s)
{
    if (snprintf(l->path, sizeof l->path, "%s", path) >= (int)sizeof l->path)
        return fail(E_IO, "%.200s: the path is too long", path);
    if ((l->is_checkpoint = checkpoint_has_lora(path))) return open_checkpoint(l, path, s);
    TRY(checkpoint_refuse_run_folder(path));
    if (!peft_is(path))
        return fail(E_IO, "%s is neither a PEFT folder (it has no " PEFT_CONFIG ") nor a checkpoint of a run "
                    "with adapters", path);
    TRY(peft_open(&l->file, path, s));
    return l->conf = l->file.conf, OK;
}

Status lora_source_open(LoraSource *l, const char *path, const ModelShape *s)
{
    *l = (LoraSource){ 0 };
    Status st = open_any(l, path, s);
    if (st) lora_source_close(l);
    return st;
}

void lora_source_close(LoraSource *l)
{
    peft_close(&l->file);
    checkpoint_lora_close(&l->lora);
    shards_close(&l->weights.s);
    *l = (LoraSource){ 0 };
}

static Status check_peft_base(const LoraSource *l, const char *base)
{
    SafeTensors st;
    if (!base) return peft_check_base(&l->file, NULL);
    TRY(st_open(&st, base));
    Status r = peft_check_base(&l->file, &st);
    st_close(&st);
    return r;
}

Status lora_source_check_base(const LoraSource *l, const ModelSource *base)
{
    const char *files = base->is_checkpoint ? NULL : base->weights;
    if (!l->is_checkpoint) TRY_CTX(check_peft_base(l, files), "%s", l->path);
    return OK;
}

Status lora_source_load(LoraSource *l, Model *m, Backend *be)
{
    Status st = l->is_checkpoint ? checkpoint_lora_load(l->path, m, be) : peft_load(&l->file, m, be);
    return st ? wrap(st, "%s", l->path) : OK;
}

/* ---- export and merge ---- */

static Status param_source(LoraSource *l, ParamSource *out)
{
    if (!l->is_checkpoint) return *out = (ParamSource){ peft_fill, &l->file, NULL }, OK;
    if (!l->weights.s.file) TRY(shards_open(&l->weights.s, l->path));
    l->weights.dtype = F32;
    return *out      = (ParamSource){ checkpoint_weights_fill, &l->weights, NULL }, OK;
}

Status lora_source_export(LoraSource *l, const ModelShape *s, const char *dir, const char *base)
{
    Backend be = { 0 };
    Model m = { 0 };
    ParamSource from;
    TRY(param_source(l, &from));
    TRY(backend_open(&be, "cpu"));
    Status st = open_whole(&m, &l->conf, s);
    if (!st) st = peft_save(&m, &be, from, dir, base);
    model_close(&m);
    backend_close(&be);
    return st;
}

static Status merge(LoraSource *l, const ModelShape *s, const SafeTensors *base, const char *dir, DType dtype,
                    int64_t max_shard)
{
    const Log log = { .world = 1, .least = LOG_INFO };
    const bool frozen[GROUP_N] = { true, true, true };
    Backend be = { 0 };
    Model m = { 0 }, adapted = { 0 };
    ParamSource from;
    TRY(param_source(l, &from));
    TRY(backend_open(&be, "cpu"));
    Status st = model_open(&m, s, frozen);
    if (!st) st = open_whole(&adapted, &l->conf, s);
    if (!st) st = weights_check(&m, base, &log);
    if (!st && !l->is_checkpoint) st = peft_check_base(&l->file, base);
    if (!st) st = peft_merge(&m, &adapted, &be, base, from, dir, dtype, max_shard);
    model_close(&adapted), model_close(&m);
    backend_close(&be);
    return st;
}

Status lora_source_merge(LoraSource *l, const ModelShape *s, const char *base, const char *dir, DType dtype,
                         int64_t max_shard)
{
    SafeTensors st;
    TRY(st_open(&st, base));
    Status r = merge(l, s, &st, dir, dtype, max_shard);
    st_close(&st);
    return r;
}

/* ---- the base model ---- */

static Status checkpoint_base(Path out, const char *path)
{
    CheckpointLora a;
    TRY(checkpoint_lora_open(&a, path));
    const char *base = json_string_value(json_object_get(a.base, "path"));
    int n = snprintf(out, sizeof(Path), "%s", base ? base : "");
    checkpoint_lora_close(&a);
    return n < (int)sizeof(Path) ? OK : fail(E_DATA, "%s: the path of its base model is too long", path);
}

Status lora_source_base(Path out, const char *path)
{
    return checkpoint_has_lora(path) ? checkpoint_base(out, path) : peft_base(out, path);
}

Status lora_source_warn_base(const LoraSource *l, const ModelSource *base, uint64_t seed, const Log *log)
{
    bool same = true;
    if (!l->is_checkpoint || !l->lora.base) return OK;
    TRY(base_model_matches(&same, l->lora.base, base, seed));
    if (!same)
        log_warn(log, "%s: its adapters were trained on %s, and the weights of %s are different; use the "
                 "former base model unless this is intended", l->path, base_model_name(l->lora.base),
                 base->weights ? base->weights : base->preset);
    return OK;
}

static void set_key(Config *c, const char **key, const char *value)
{
    *key = mem_pool_copy(&c->keep, value, strlen(value));
}

/* A base model of random weights is initialized with the same seed. Its tokenizer is in the checkpoint or in
 * the folder that the checkpoint records. */
static Status resolve_preset(Config *c, const char *path)
{
    CheckpointLora a;
    int64_t seed;
    const char *preset, *folder;
    TRY(checkpoint_lora_open(&a, path));
    Status st = json_str(a.base, "preset", "", &preset);
    if (!st) st = json_str(a.base, "folder", "", &folder);
    if (!st) st = json_int(a.base, "seed", 0, &seed);
    if (!st && !*preset)
        st = fail(E_DATA, "%s does not record its base model; set model.path and lora.path", path);
    if (!st) {
        set_key(c, &c->model.preset, preset);
        set_key(c, &c->model.path, folder_has(path, "tokenizer.json") ? path : folder);
        c->train.seed = seed;
    }
    checkpoint_lora_close(&a);
    return st;
}

Status lora_source_resolve(Config *c)
{
    Path base;
    const char *path = c->model.path;
    if (*c->model.preset || !*path || weights_exist(path) || !lora_source_is(path)) return OK;
    if (*c->lora.path)
        return fail(E_CONFIG, "model.path = %s and lora.path = %s are both adapters; set model.path to the "
                    "base model", path, c->lora.path);
    TRY(lora_source_base(base, path));
    set_key(c, &c->lora.path, path);
    if (!*base && checkpoint_has_lora(path)) return resolve_preset(c, path);
    if (!*base || (!folder_has(base, "config.json") && !checkpoint_is(base)))
        return fail(E_CONFIG,
                    "%s is an adapter of %s, which is not a model folder here; set model.path to its base "
                    "model and lora.path to the adapter",
                    path, *base ? base : "a base model that it does not name");
    set_key(c, &c->model.path, base);
    return OK;
}
