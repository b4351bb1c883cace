/* checkpoint/checkpoint_lora.c -- state/adapter.json of a checkpoint of a run with adapters:
 *
 *   { "format": 1, "rank", "alpha", "dropout", "use_rslora", "gaussian", "shared_a", "base": {…},
 *     "pairs": [[module, rank, alpha], …], "modules_to_save": [name, …] }
 *
 * "pairs" lists the adapted modules by name, so a model opened by this file has the same adapters whatever
 * lora.target_modules selected them. */
#include "checkpoint/checkpoint_private.h"

#include "base/file_version.h"
#include "model/peft.h"

#include <stdio.h>
#include <string.h>

enum { MAX_RANK = 65536 };

#define ADAPTER_JSON "state/adapter.json"

bool checkpoint_has_lora(const char *path) { return folder_has(path, ADAPTER_JSON); }

/* ---- writing ---- */


/* Entries of "pairs": every adapted module of a whole model. */
static Json *list_adapters(const Model *m)
{
    Json *list = json_array();
    for (int i = 0; i < m->params.n; i++) {
        const Lora *l = m->params.p[i]->lora;
        for (int k = 0; l && k < l->parts; k++) {
            char module[sizeof m->params.p[i]->piece->name];
            lora_module_name(module, sizeof module, m->params.p[i], l->part[k].piece);
            json_array_append_new(list, json_pack("[s, I, f]", module, (json_int_t)l->part[k].r,
                                                  lora_module_alpha(m->lora, module)));
        }
    }
    return list;
}

/* Entries of "modules_to_save": every module of a whole model that is trained in full. */
static Json *list_full_modules(const Model *m)
{
    Json *list = json_array();
    for (int i = 0; i < m->params.n; i++)
        for (int k = 0; lora_trains_in_full(m, m->params.p[i]) && k < m->params.p[i]->pieces; k++) {
            char module[sizeof m->params.p[i]->piece->name];
            lora_module_name(module, sizeof module, m->params.p[i], k);
            json_array_append_new(list, json_string(module));
        }
    return list;
}

Status checkpoint_lora_dump(char **out, const Model *part, const Json *base)
{
    const LoraConf *c = part->lora;
    Model m;
    TRY(model_open_whole_of(&m, part));
    Json *o = json_pack("{s:i, s:I, s:f, s:f, s:b, s:b, s:b, s:O?, s:o, s:o}", "format", LORA_STATE_VERSION,
                        "rank", (json_int_t)c->rank, "alpha", c->alpha, "dropout", c->dropout, "use_rslora",
                        (int)c->rslora, "gaussian", (int)c->gaussian, "shared_a", (int)c->shared_a, "base",
                        (Json *)base, "pairs", list_adapters(&m), "modules_to_save",
                        list_full_modules(&m));
    model_close(&m);
    *out = o ? json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(o);
    return *out ? OK : fail(E_FIT, "no memory for adapter.json");
}

/* ---- reading ---- */

static Status read_adapter(LoraTarget *t, const Json *v)
{
    const char *module = json_string_value(json_array_get(v, 0));
    const Json *rank = json_array_get(v, 1), *alpha = json_array_get(v, 2);
    if (json_array_size(v) != 3 || !module || !json_is_integer(rank) || !json_is_number(alpha))
        return fail(E_DATA, "pairs: an entry is not a list of module name, rank and alpha");
    *t = (LoraTarget){ .rank = json_integer_value(rank), .alpha = json_number_value(alpha) };
    if (t->rank < 1 || t->rank > MAX_RANK || !(t->alpha >= 0) ||
        snprintf(t->module, sizeof t->module, "%s", module) >= (int)sizeof t->module)
        return fail(E_DATA, "pairs: %.120s: rank %lld and alpha %g are out of range, or its name is too long",
                    module, (long long)t->rank, t->alpha);
    return OK;
}

static Status read_lists(CheckpointLora *a)
{
    const Json *adapters = json_object_get(a->file, "pairs"),
               *full = json_object_get(a->file, "modules_to_save");
    size_t n = json_array_size(adapters), k = json_array_size(full);
    LoraTarget *exact = mem_pool_alloc(&a->keep, (n + 1) * sizeof *exact);
    const char   **word = mem_pool_alloc(&a->keep, (k + 1) * sizeof *word);
    if (!n) return fail(E_DATA, "pairs: the list is empty");
    for (size_t i = 0; i < n; i++) TRY(read_adapter(&exact[i], json_array_get(adapters, i)));
    for (size_t i = 0; i < k; i++)
        if (!(word[i] = json_string_value(json_array_get(full, i))))
            return fail(E_DATA, "modules_to_save: an entry is not a string");
    a->save = (WordList){ word, (int)k };
    a->conf.exact = exact, a->conf.exacts = (int)n, a->conf.save = k ? &a->save : NULL;
    return OK;
}

static Status read_all(CheckpointLora *a)
{
    int64_t format;
    LoraConf *c = &a->conf;
    if (!json_is_object(a->file)) return fail(E_DATA, "the file is not a JSON object");
    TRY(json_int(a->file, "format", -1, &format));
    if (format != LORA_STATE_VERSION)
        return fail(E_DATA, "format %lld is not one that this build reads", (long long)format);
    TRY(json_int(a->file, "rank", 0, &c->rank));
    TRY(json_num(a->file, "alpha", 0, &c->alpha));
    TRY(json_num(a->file, "dropout", 0, &c->dropout));
    TRY(json_flag(a->file, "use_rslora", false, &c->rslora));
    TRY(json_flag(a->file, "gaussian", false, &c->gaussian));
    TRY(json_flag(a->file, "shared_a", false, &c->shared_a));
    if (c->rank < 1 || c->rank > MAX_RANK)
        return fail(E_DATA, "rank = %lld is out of range", (long long)c->rank);
    a->base = json_object_get(a->file, "base");
    return read_lists(a);
}

Status checkpoint_lora_open(CheckpointLora *a, const char *path)
{
    Path file;
    *a = (CheckpointLora){ 0 };
    TRY(path_join(file, path, ADAPTER_JSON));
    Status st = json_load(&a->file, file);
    if (!st && (st = read_all(a))) st = wrap(st, "%s", file);
    if (st) checkpoint_lora_close(a);
    return st;
}

void checkpoint_lora_close(CheckpointLora *a)
{
    json_decref(a->file);
    mem_pool_close(&a->keep);
    *a = (CheckpointLora){ 0 };
}

/* ---- comparison with a recipe ---- */

#define SET_BACK "set the former value, or start a new run from this checkpoint with lora.path"

static bool has_adapter(const Json *adapters, const char *module)
{
    for (size_t i = 0; i < json_array_size(adapters); i++)
        if (!strcmp(json_string_value(json_array_get(json_array_get(adapters, i), 0)), module)) return true;
    return false;
}

static bool has_word(const Json *list, const char *word)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(json_string_value(json_array_get(list, i)), word)) return true;
    return false;
}

/* `now` lists the adapters of the whole model by the recipe. */
static Status check_adapters(const CheckpointLora *a, const Json *now)
{
    const Json *was = json_object_get(a->file, "pairs");
    for (int i = 0; i < a->conf.exacts; i++)
        if (!has_adapter(now, a->conf.exact[i].module))
            return fail(E_CONFIG, "lora.target_modules: %s was trained with an adapter and would now have "
                        "none (by lora.target_modules, lora.exclude_modules, model.freeze_*); " SET_BACK,
                        a->conf.exact[i].module);
    for (size_t i = 0; i < json_array_size(now); i++) {
        const char *module = json_string_value(json_array_get(json_array_get(now, i), 0));
        if (!has_adapter(was, module))
            return fail(E_CONFIG, "lora.target_modules: %s was trained without an adapter and would now have "
                        "one; " SET_BACK, module);
    }
    return OK;
}

static Status check_full_modules(const CheckpointLora *a, const Json *now)
{
    const Json *was = json_object_get(a->file, "modules_to_save");
    for (int i = 0; i < a->save.n; i++)
        if (!has_word(now, a->save.item[i]))
            return fail(E_CONFIG, "lora.modules_to_save: %s was trained in full and is no longer listed; "
                        SET_BACK, a->save.item[i]);
    for (size_t i = 0; i < json_array_size(now); i++) {
        const char *module = json_string_value(json_array_get(now, i));
        if (!has_word(was, module))
            return fail(E_CONFIG, "lora.modules_to_save: %s was not trained in full; " SET_BACK, module);
    }
    return OK;
}

static Status check_modules(const CheckpointLora *a, const Model *whole)
{
    Json *adapters = list_adapters(whole), *full = list_full_modules(whole);
    Status st = adapters && full ? check_adapters(a, adapters)
                                 : fail(E_FIT, "no memory for the list of adapters");
    if (!st) st = check_full_modules(a, full);
    json_decref(adapters), json_decref(full);
    return st;
}

/* Adapters that lora.path defines (`exact`) are not compared: the recipe does not describe them. */
Status checkpoint_lora_check(const CheckpointLora *a, const Model *whole)
{
    const LoraConf *c = &a->conf, *wanted = whole->lora;
    if (wanted->exact) return OK;
    for (int i = 0; i < c->exacts; i++) {
        const LoraTarget *t = &c->exact[i];
        if (t->rank != wanted->rank)
            return fail(E_CONFIG, "lora.rank = %lld: %s was trained with rank %lld; " SET_BACK,
                        (long long)wanted->rank, t->module, (long long)t->rank);
        if (t->alpha != wanted->alpha)
            return fail(E_CONFIG, "lora.alpha = %g: %s was trained with alpha %g; " SET_BACK, wanted->alpha,
                        t->module, t->alpha);
    }
    if (c->rslora != wanted->rslora)
        return fail(E_CONFIG, "lora.use_rslora: the adapters were trained with the other value; " SET_BACK);
    if (c->shared_a != wanted->shared_a)
        return fail(E_CONFIG, "lora.expert_a: the adapters were trained with the other value; " SET_BACK);
    return check_modules(a, whole);
}
