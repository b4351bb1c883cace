/* report/contract.c -- see contract.h. */
#include "report/contract.h"

#include "base/str.h"
#include "report/page.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- keys ---- */

static bool begins(const char *text, const char *with) { return !strncmp(text, with, strlen(with)); }

static bool outside(const char *key)
{
    static const char *const rows[] = {
#define OUTSIDE(beginning) beginning,
#include "report/contract.def"
#undef OUTSIDE
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (begins(key, rows[i])) return true;
    return false;
}

/* A value without the number of products that this machine has timed so far: each new shape adds one. */
static const char *lasting(char out[512], const char *value)
{
    const char *count = strstr(value, " algorithms measured"), *from = count;
    if (!count || strlen(value) >= 512) return value;
    while (from > value && strchr("0123456789, ", from[-1])) from--;
    snprintf(out, 512, "%.*s%s", (int)(from - value), value, count);
    return out;
}

static Status add_keys(Contract *c, const KeyValues *from, const char *before)
{
    char key[560], text[512];
    for (int i = 0; i < from->n; i++) {
        snprintf(key, sizeof key, "%s%s", before, from->at[i].key);
        if (!outside(key)) TRY(keys_push(&c->keys, &c->keep, key, lasting(text, from->at[i].value)));
    }
    return OK;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const KeyValue *)a)->key, ((const KeyValue *)b)->key);
}

static void sort_keys(Contract *c)
{
    if (c->keys.n) qsort(c->keys.at, (size_t)c->keys.n, sizeof *c->keys.at, by_key);
}

/* ---- opening ---- */

static bool is_value(const KeyValues *p, const char *key, const char *value)
{
    const char *v = keys_find(p, key);
    return v && !strcmp(v, value);
}

static bool is_given(const KeyValues *p, const char *key)
{
    const char *v = keys_find(p, key);
    return v && *v;
}

static bool has_no_picture(const ReportRun *run)
{
    const Series *s = series_find(&run->metrics, "data/visual_token_share");
    return is_value(&run->env, "run.vision", "true") && s && series_extreme(s, true).value <= 0;
}

static LabelFacts facts_of(const KeyValues *recipe, const KeyValues *env)
{
    const char *weights = keys_find(env, "run.weights");
    return (LabelFacts){
        .forced_balance = is_value(recipe, "moe.force_balance", "true"),
        .random_weights = weights ? !strcmp(weights, "random")
                                  : is_given(recipe, "model.preset") && !is_given(recipe, "model.path"),
        .synthetic      = is_value(env, "data_train.synthetic", "true"),
    };
}

Status contract_of_run(Contract *c, const ReportRun *run)
{
    *c = (Contract){ .facts = facts_of(&run->recipe, &run->env) };
    c->facts.image_free = has_no_picture(run);
    Status st = add_keys(c, &run->recipe, "");
    if (!st) st = add_keys(c, &run->env, "env.");
    sort_keys(c);
    if (st) contract_close(c);
    return st;
}

Status contract_read(Contract *c, const char *dir)
{
    ReportRun *run = calloc(1, sizeof *run);
    if (!run) return fail(E_FIT, "no memory to read %s", dir);
    Status st = run_open(run, dir);
    if (!st) st = contract_of_run(c, run);
    run_close(run);
    free(run);
    return st;
}

static Status dump_config(char **text, size_t *n, const Config *recipe)
{
    FILE *f = open_memstream(text, n);
    if (!f) return fail(E_FIT, "no memory for a recipe");
    config_dump(f, recipe);
    return fclose(f) ? fail(E_FIT, "no memory for a recipe") : OK;
}

Status contract_of_config(Contract *c, const Config *recipe)
{
    KeyValues keys = { 0 }, none = { 0 };
    char  *text = NULL;
    size_t n = 0;
    *c = (Contract){ 0 };
    Status st = dump_config(&text, &n, recipe);
    if (!st) st = keys_from_recipe(&keys, &c->keep, text, n, "recipe");
    if (!st) st = add_keys(c, &keys, "");
    if (!st) c->facts = facts_of(&keys, &none), sort_keys(c);
    keys_close(&keys);
    free(text);
    if (st) contract_close(c);
    return st;
}

void contract_close(Contract *c)
{
    keys_close(&c->keys);
    mem_pool_close(&c->keep);
    *c = (Contract){ 0 };
}

/* ---- comparing ---- */

static bool is_declared(const char *key, const char *const *declared, int n)
{
    for (int i = 0; i < n; i++) {
        size_t len = strlen(declared[i]);
        bool   section = len && declared[i][len - 1] == '.';
        if (section ? begins(key, declared[i]) : !strcmp(key, declared[i])) return true;
    }
    return false;
}

static XXH128_hash_t hash_keys(XXH3_state_t *x, const Contract *c, const char *const *declared, int n)
{
    XXH3_128bits_reset(x);
    for (int i = 0; i < c->keys.n; i++) {
        const KeyValue *k = &c->keys.at[i];
        if (is_declared(k->key, declared, n)) continue;
        XXH3_128bits_update(x, k->key, strlen(k->key) + 1);
        XXH3_128bits_update(x, k->value, strlen(k->value) + 1);
    }
    return XXH3_128bits_digest(x);
}

void contract_hash(char out[CONTRACT_HASH], const Contract *c, const char *const *declared, int n)
{
    XXH3_state_t *x = XXH3_createState();
    *out = 0;
    if (!x) return;
    XXH128_hash_t h = hash_keys(x, c, declared, n);
    snprintf(out, CONTRACT_HASH, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
    XXH3_freeState(x);
}

bool values_differ(const char *a, const char *b)
{
    double x, y;
    if (!a || !b) return a != b;
    if (str_number(a, &x) && str_number(b, &y)) return x != y;
    return strcmp(a, b) != 0;
}

int contract_compare(ContractDifference *d, int most, const Contract *a, const Contract *b,
                     const char *const *declared, int n)
{
    int found = 0;
    for (int i = 0, k = 0; i < a->keys.n || k < b->keys.n;) {
        const KeyValue *x = i < a->keys.n ? &a->keys.at[i] : NULL, *y = k < b->keys.n ? &b->keys.at[k] : NULL;
        int order = !x ? 1 : !y ? -1 : strcmp(x->key, y->key);
        ContractDifference one = { order <= 0 ? x->key : y->key, order <= 0 ? x->value : NULL,
                                   order >= 0 ? y->value : NULL };
        i += order <= 0, k += order >= 0;
        if (!values_differ(one.a, one.b) || is_declared(one.key, declared, n)) continue;
        if (found < most) d[found] = one;
        found++;
    }
    return found;
}

void contract_text(char *out, size_t n, const ContractDifference *d, int shown, int all)
{
    size_t at = (size_t)snprintf(out, n, "%d key%s:", all, all == 1 ? "" : "s");
    for (int i = 0; i < shown && i < all && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s %s (%.60s, %.60s)", i ? "," : "", d[i].key,
                               d[i].a ? d[i].a : "absent", d[i].b ? d[i].b : "absent");
    if (all > shown && at < n) snprintf(out + at, n - at, " and %d more", all - shown);
}

/* ---- labels ---- */

/* Whether gradients or moments are rounded. */
static bool rounds(const Contract *c)
{
    return is_value(&c->keys, "optim.state_dtype", "bfloat16") ||
           is_value(&c->keys, "optim.state_dtype", "int8") ||
           is_value(&c->keys, "optim.grad_dtype", "bfloat16");
}

static LabelFacts facts_of_both(const LabelFacts *a, const LabelFacts *b)
{
    LabelFacts f = { 0 };
#define REASON(fact, text) f.fact = a->fact || b->fact;
#include "train/label.def"
#undef REASON
    return f;
}

int contract_reasons(const char *list[COMPARISON_REASONS], const Contract *a, const Contract *b)
{
    LabelFacts f = facts_of_both(&a->facts, &b->facts);
    int n = label_reasons(list, &f);
    if (rounds(a) != rounds(b))
        list[n++] = "rounded optimizer states against exact ones (optim.state_dtype, optim.grad_dtype)";
    return n;
}

Status contract_json(Json **out, const Contract *c)
{
    const char *list[LABEL_REASONS];
    char  hash[CONTRACT_HASH];
    int   n = label_reasons(list, &c->facts);
    Json *keys = json_object(), *reasons = json_array();
    contract_hash(hash, c, NULL, 0);
    for (int i = 0; i < n; i++) json_array_append_new(reasons, json_string(list[i]));
    for (int i = 0; i < c->keys.n; i++)
        json_object_set_new(keys, c->keys.at[i].key, page_string(c->keys.at[i].value));
    *out = json_pack("{s:s, s:s, s:o, s:o}", "hash", hash, "label", label_word(&c->facts), "reasons", reasons,
                     "keys", keys);
    return *out ? OK : fail(E_FIT, "no memory for a contract");
}
