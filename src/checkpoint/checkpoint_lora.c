/* checkpoint/checkpoint_lora.c -- state/adapter.json of a checkpoint with adapters:
 *
 *   { "format": 1, "rank", "alpha", "dropout", "use_rslora", "gaussian", "shared_a", "base": {…},
 *     "pairs": [[module, rank, alpha], …], "modules_to_save": [name, …] }
 *
 * All that a model is opened with to have the same adapters, whatever words asked for them. */
#include "checkpoint/checkpoint_private.h"

#include "model/peft.h"

#include <stdio.h>
#include <string.h>

enum { MAX_RANK = 65536 };

static Status state_path(Path out, const char *path) { return path_join(out, path, "state/adapter.json"); }

bool checkpoint_has_lora(const char *path)
{
    Path file;
    return !state_path(file, path) && file_is(file);
}

/* ---- writing ---- */

static double alpha_of(const LoraConf *c, const char *module)
{
    for (int i = 0; i < c->exacts; i++)
        if (!strcmp(c->exact[i].module, module)) return c->exact[i].alpha;
    return c->alpha;
}

static Json *pairs_of(const Model *m)
{
    Json *list = json_array();
    for (int i = 0; i < m->params.n; i++) {
        const Lora *l = m->params.p[i]->lora;
        for (int k = 0; l && k < l->parts; k++) {
            char module[sizeof m->params.p[i]->piece->name];
            lora_module_name(module, sizeof module, m->params.p[i], l->part[k].piece);
            json_array_append_new(list, json_pack("[s, I, f]", module, (json_int_t)l->part[k].r,
                                                  alpha_of(m->lora, module)));
        }
    }
    return list;
}

static Json *saved_of(const Model *m)
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
    TRY(model_open_whole(&m, part));
    Json *o = json_pack("{s:i, s:I, s:f, s:f, s:b, s:b, s:b, s:O?, s:o, s:o}", "format", 1, "rank",
                        (json_int_t)c->rank, "alpha", c->alpha, "dropout", c->dropout, "use_rslora",
                        (int)c->rslora, "gaussian", (int)c->gaussian, "shared_a", (int)c->shared_a, "base",
                        (Json *)base, "pairs", pairs_of(&m), "modules_to_save", saved_of(&m));
    model_close(&m);
    *out = o ? json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(o);
    return *out ? OK : fail(E_FIT, "no memory for adapter.json");
}

/* ---- reading ---- */

static Status read_pair(LoraTarget *t, const Json *v)
{
    const char *module = json_string_value(json_array_get(v, 0));
    const Json *rank = json_array_get(v, 1), *alpha = json_array_get(v, 2);
    if (json_array_size(v) != 3 || !module || !json_is_integer(rank) || !json_is_number(alpha))
        return fail(E_DATA, "pairs: an entry is not a name, a rank and an alpha");
    *t = (LoraTarget){ .rank = json_integer_value(rank), .alpha = json_number_value(alpha) };
    if (t->rank < 1 || t->rank > MAX_RANK || !(t->alpha >= 0) ||
        snprintf(t->module, sizeof t->module, "%s", module) >= (int)sizeof t->module)
        return fail(E_DATA, "pairs: %.120s: of rank %lld", module, (long long)t->rank);
    return OK;
}

static Status read_lists(CheckpointLora *a)
{
    const Json *pairs = json_object_get(a->file, "pairs"),
               *saved = json_object_get(a->file, "modules_to_save");
    size_t n = json_array_size(pairs), k = json_array_size(saved);
    LoraTarget *exact = keep_take(&a->keep, (n + 1) * sizeof *exact);
    const char   **word = keep_take(&a->keep, (k + 1) * sizeof *word);
    if (!n) return fail(E_DATA, "pairs: there are none");
    for (size_t i = 0; i < n; i++) TRY(read_pair(&exact[i], json_array_get(pairs, i)));
    for (size_t i = 0; i < k; i++)
        if (!(word[i] = json_string_value(json_array_get(saved, i))))
            return fail(E_DATA, "modules_to_save: an entry is not a name");
    a->save = (WordList){ word, (int)k };
    a->conf.exact = exact, a->conf.exacts = (int)n, a->conf.save = k ? &a->save : NULL;
    return OK;
}

static Status read_all(CheckpointLora *a)
{
    int64_t format;
    LoraConf *c = &a->conf;
    if (!json_is_object(a->file)) return fail(E_DATA, "not an object");
    TRY(json_int(a->file, "format", -1, &format));
    if (format != 1) return fail(E_DATA, "this build does not read format %lld", (long long)format);
    TRY(json_int(a->file, "rank", 0, &c->rank));
    TRY(json_num(a->file, "alpha", 0, &c->alpha));
    TRY(json_num(a->file, "dropout", 0, &c->dropout));
    TRY(json_flag(a->file, "use_rslora", false, &c->rslora));
    TRY(json_flag(a->file, "gaussian", false, &c->gaussian));
    TRY(json_flag(a->file, "shared_a", false, &c->shared_a));
    if (c->rank < 1 || c->rank > MAX_RANK) return fail(E_DATA, "rank = %lld", (long long)c->rank);
    a->base = json_object_get(a->file, "base");
    return read_lists(a);
}

Status checkpoint_lora_open(CheckpointLora *a, const char *path)
{
    Path file;
    *a = (CheckpointLora){ 0 };
    TRY(state_path(file, path));
    Status st = json_load(&a->file, file);
    if (!st && (st = read_all(a))) st = wrap(st, "%s", file);
    if (st) checkpoint_lora_close(a);
    return st;
}

void checkpoint_lora_close(CheckpointLora *a)
{
    json_decref(a->file);
    keep_close(&a->keep);
    *a = (CheckpointLora){ 0 };
}

/* ---- against a recipe ---- */

#define AS_IT_WAS "set it as it was, or go on from here in another run with lora.path"

static bool has_pair(const Json *pairs, const char *module)
{
    for (size_t i = 0; i < json_array_size(pairs); i++)
        if (!strcmp(json_string_value(json_array_get(json_array_get(pairs, i), 0)), module)) return true;
    return false;
}

static bool has_word(const Json *list, const char *word)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(json_string_value(json_array_get(list, i)), word)) return true;
    return false;
}

/* Both lists name modules of the whole model, so what is in one alone is what differs. */
static Status check_pairs(const CheckpointLora *a, const Json *now)
{
    const Json *was = json_object_get(a->file, "pairs");
    for (int i = 0; i < a->conf.exacts; i++)
        if (!has_pair(now, a->conf.exact[i].module))
            return fail(E_CONFIG, "lora.target_modules: %s was trained with a pair, and these words (and "
                        "lora.exclude_modules, model.freeze_*) give it none; " AS_IT_WAS,
                        a->conf.exact[i].module);
    for (size_t i = 0; i < json_array_size(now); i++) {
        const char *module = json_string_value(json_array_get(json_array_get(now, i), 0));
        if (!has_pair(was, module))
            return fail(E_CONFIG, "lora.target_modules: these words give %s a pair, and it was trained "
                        "without one; " AS_IT_WAS, module);
    }
    return OK;
}

static Status check_saved(const CheckpointLora *a, const Json *now)
{
    const Json *was = json_object_get(a->file, "modules_to_save");
    for (int i = 0; i < a->save.n; i++)
        if (!has_word(now, a->save.item[i]))
            return fail(E_CONFIG, "lora.modules_to_save: %s was trained whole, and is not among these; "
                        AS_IT_WAS, a->save.item[i]);
    for (size_t i = 0; i < json_array_size(now); i++) {
        const char *module = json_string_value(json_array_get(now, i));
        if (!has_word(was, module))
            return fail(E_CONFIG, "lora.modules_to_save: %s was not trained whole; " AS_IT_WAS, module);
    }
    return OK;
}

static Status check_modules(const CheckpointLora *a, const Model *whole)
{
    Json *pairs = pairs_of(whole), *saved = saved_of(whole);
    Status st = pairs && saved ? check_pairs(a, pairs) : fail(E_FIT, "no memory for the list of adapters");
    if (!st) st = check_saved(a, saved);
    json_decref(pairs), json_decref(saved);
    return st;
}

/* What was read from a file needs no comparing. */
Status checkpoint_lora_check(const CheckpointLora *a, const Model *whole)
{
    const LoraConf *c = &a->conf, *wanted = whole->lora;
    if (wanted->exact) return OK;
    for (int i = 0; i < c->exacts; i++) {
        const LoraTarget *t = &c->exact[i];
        if (t->rank != wanted->rank)
            return fail(E_CONFIG, "lora.rank = %lld: %s was trained with %lld; " AS_IT_WAS,
                        (long long)wanted->rank, t->module, (long long)t->rank);
        if (t->alpha != wanted->alpha)
            return fail(E_CONFIG, "lora.alpha = %g: %s was trained with %g; " AS_IT_WAS, wanted->alpha,
                        t->module, t->alpha);
    }
    if (c->rslora != wanted->rslora)
        return fail(E_CONFIG, "lora.use_rslora: its adapters were trained with the other; " AS_IT_WAS);
    if (c->shared_a != wanted->shared_a)
        return fail(E_CONFIG, "lora.expert_a: its adapters were trained with the other; " AS_IT_WAS);
    return check_modules(a, whole);
}
