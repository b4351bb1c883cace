/* model/peft_describe.c -- adapter_config.json of a model's adapters, which has PEFT attach exactly what
 * the file has tensors of; see adapter_files.h.
 *
 * PEFT finds modules by the ends of their names (target_modules) and weights that belong to no linear module
 * by theirs (target_parameters): experts, and routers, which transformers 5 keeps so. Each entry here is the
 * shortest end that nothing else in the model has.
 *
 * Where the hub's files of a family have a tensor per expert, the names gate_proj, up_proj and down_proj are
 * taken for those of experts by PEFT, wherever they stand. Experts of such a family are written one by one as
 * long as all of them are adapted alike, which is what PEFT can bring into its own form; else fused. Its
 * dense layers are named as parameters, which is not taken for experts and comes to the same tensors. */
#include "model/peft_private.h"
#include "model/lora_private.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef char Name[160];

typedef struct Item { Name name; bool module, pair; int64_t r; double alpha; } Item;

typedef struct Describer {
    const Model *m;
    Item        *item;                   /* every module, and every weight by its tensor's name */
    int          n;
    bool         each;
    int64_t      r;                      /* what most have */
    double       alpha;
} Describer;

bool lora_trains_in_full(const Model *m, const Param *p)
{
    for (int i = 0; !p->adapter_of && i < p->pieces; i++)
        if (lora_role(m->lora, m->frozen, p, i) == LORA_FULL) return true;
    return false;
}

bool peft_ties_head(const Model *m, const Param *p)
{
    return m->shape.text.tied && p == m->embed && lora_trains_in_full(m, p);
}

static bool ends_in(const char *name, const char *tail)
{
    size_t a = strlen(name), b = strlen(tail);
    return a >= b && !strcmp(name + a - b, tail) && (a == b || name[a - b - 1] == '.');
}

static bool by_expert(const Model *m) { return m->shape.text.E && !m->shape.fused_experts; }

/* ---- what there is ---- */

/* Whether PEFT has to be told of it as a parameter. */
static bool is_parameter(const Model *m, const Param *p)
{
    return p->linear == LINEAR_EXPERTS || p->linear == LINEAR_ROUTER ||
           (p->linear == LINEAR_FEED && p->group == G_LLM && by_expert(m));
}

static const LoraPart *part_of(const Param *p, int piece)
{
    for (int k = 0; p->lora && k < p->lora->parts; k++)
        if (p->lora->part[k].piece == piece) return &p->lora->part[k];
    return NULL;
}

/* A piece as a tensor, and as a module unless it is that one's bias. */
static void add_items(Describer *d, const Param *p, int i)
{
    const LoraPart *part = part_of(p, i);
    bool parameter = is_parameter(d->m, p);
    Item x = { .pair = part && parameter, .r = part ? part->r : 0 };
    lora_module_name(x.name, sizeof x.name, p, i);
    const LoraTarget *exact = lora_find_target(d->m->lora, x.name);
    x.alpha = exact ? exact->alpha : d->m->lora->alpha;
    Item module = x;
    module.module = true, module.pair = part && !parameter;
    if (p->linear == LINEAR_EXPERTS) *strrchr(module.name, '.') = 0;
    if (!ends_in(p->piece[i].name, "bias")) d->item[d->n++] = module;
    snprintf(x.name, sizeof x.name, "%s", p->piece[i].name);
    d->item[d->n++] = x;
}

/* One by one: all experts, alike, and no dense layer that has the same names. PEFT doubles their rank and
 * their alpha, which with rsLoRA is another scale. */
static bool writes_each(const Describer *d)
{
    const LoraPart *one = NULL;
    int up = 0, down = 0;
    if (!by_expert(d->m) || d->m->lora->rslora) return false;
    for (int k = 0; k < d->m->params.n; k++) {
        const Param *p = d->m->params.p[k];
        if (p->adapter_of || p->group != G_LLM) continue;
        if (p->linear == LINEAR_FEED) return false;
        if (p->linear != LINEAR_EXPERTS || !p->lora) continue;
        if (!one) one = &p->lora->part[0];
        if (p->lora->part[0].r != one->r || p->lora->part[0].scale != one->scale) return false;
        *(p->form == FORM_EXPERT_DOWN ? &down : &up) += 1;
    }
    int64_t layers = shape_sparse_layers(&d->m->shape.text);
    return down == layers && (up == layers || !up);
}

/* The rank and the alpha that most have; of experts written one by one theirs, since PEFT doubles these. */
static void find_usual(Describer *d)
{
    int best[2] = { 0 };
    for (int i = 0; i < d->n; i++) {
        const Item *x = &d->item[i];
        int same[2] = { 0 };
        bool expert = d->each && strstr(x->name, ".mlp.experts.");
        for (int k = 0; k < d->n && x->pair; k++) {
            same[0] += d->item[k].pair && d->item[k].r == x->r;
            same[1] += d->item[k].pair && d->item[k].alpha == x->alpha;
        }
        if (expert && x->pair) same[0] = same[1] = d->n + 1;
        if (same[0] > best[0]) best[0] = same[0], d->r = x->r;
        if (same[1] > best[1]) best[1] = same[1], d->alpha = x->alpha;
    }
}

/* ---- entries ---- */

/* Something that has no pair would be found by it too, be it a module that others are in. */
static bool hits_others(const Describer *d, const char *tail, bool modules)
{
    for (int i = 0; i < d->n; i++) {
        const Item *x = &d->item[i];
        Name name;
        if (x->module != modules) continue;
        if (!x->pair && ends_in(x->name, tail)) return true;
        snprintf(name, sizeof name, "%s", x->name);
        for (char *dot; modules && (dot = strrchr(name, '.'));) {
            *dot = 0;
            if (ends_in(name, tail)) return true;
        }
    }
    return false;
}

static const char *shortest_end(const Describer *d, const char *name, bool modules, int least)
{
    const char *at = name + strlen(name);
    while (at > name) {
        do at--;
        while (at > name && at[-1] != '.');
        if (--least <= 0 && !hits_others(d, at, modules)) break;
    }
    return at;
}

static void append_new(Json *list, const char *word)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(json_string_value(json_array_get(list, i)), word)) return;
    json_array_append_new(list, json_string(word));
}

static bool covered(const Json *list, const char *name)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (ends_in(name, json_string_value(json_array_get(list, i)))) return true;
    return false;
}

/* Parameters by at least three words, as everybody writes them: mlp.experts.down_proj. */
static Json *targets(const Describer *d, bool modules)
{
    Json *list = json_array();
    for (int i = 0; i < d->n; i++) {
        const Item *x = &d->item[i];
        bool expert = strstr(x->name, ".mlp.experts.");
        if (x->module == modules && x->pair && !(d->each && expert) && !covered(list, x->name))
            append_new(list, shortest_end(d, x->name, modules, modules ? 1 : 3));
    }
    for (int i = 0; d->each && modules && i < d->n; i++) {
        if (!d->item[i].pair || !strstr(d->item[i].name, ".mlp.experts.")) continue;
        bool down = ends_in(d->item[i].name, "down_proj");
        append_new(list, down ? "down_proj" : "gate_proj");
        if (!down) append_new(list, "up_proj");
    }
    return list;
}

static void escape(char *out, size_t n, const char *name)
{
    size_t at = 0;
    for (; *name && at + 3 < n; name++) {
        if (!isalnum((unsigned char)*name) && *name != '_') out[at++] = '\\';
        out[at++] = *name;
    }
    out[at] = 0;
}

static Json *patterns(const Describer *d, bool rank)
{
    Json *o = json_object();
    for (int i = 0; i < d->n; i++) {
        const Item *x = &d->item[i];
        char key[2 * sizeof(Name) + 1];
        if (!x->pair || (rank ? x->r == d->r : x->alpha == d->alpha)) continue;
        escape(key, sizeof key, x->name);
        json_object_set_new(o, key, rank ? json_integer(x->r) : json_real(x->alpha));
    }
    return o;
}

/* Of experts the module is trained, not one of its parameters. */
static Json *saved(const Model *m)
{
    Json *list = json_array();
    FOR_EACH_PIECE(p, i, m) {
        Name name;
        if (!lora_trains_in_full(m, p)) continue;
        lora_module_name(name, sizeof name, p, i);
        if (p->linear == LINEAR_EXPERTS) *strrchr(name, '.') = 0;
        append_new(list, name);
    }
    if (json_array_size(list)) return list;
    json_decref(list);
    return json_null();
}

/* ---- the file ---- */

static Json *number(double x)                                /* a whole number is written as one */
{
    return x == (double)(int64_t)x ? json_integer((json_int_t)x) : json_real(x);
}

/* The keys of PEFT 0.19.1, whose form of fused experts this is; those that are not used here say so. */
static Json *configuration(const Describer *d, const char *base)
{
    static const char *const none[] = { "exclude_modules", "layers_to_transform", "layers_pattern",
                                        "layer_replication", "revision", "auto_mapping" };
    static const char *const no[] = { "use_dora", "use_qalora", "lora_bias", "fan_in_fan_out" };
    const LoraConf *c = d->m->lora;
    Json *parameters = targets(d, false);
    bool  wraps = d->each || json_array_size(parameters);          /* parameters take no dropout there */
    if (!json_array_size(parameters)) json_decref(parameters), parameters = json_null();
    Json *o = json_pack("{s:s, s:s, s:s, s:s, s:s, s:{}}", "peft_type", "LORA", "peft_version", "0.19.1",
                        "task_type", "CAUSAL_LM", "bias", "none", "megatron_core", "megatron.core",
                        "loftq_config");
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) json_object_set_new(o, none[i], json_null());
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) json_object_set_new(o, no[i], json_false());
    json_object_set_new(o, "base_model_name_or_path", *base ? json_string(base) : json_null());
    json_object_set_new(o, "inference_mode", json_true());
    json_object_set_new(o, "init_lora_weights", c->gaussian ? json_string("gaussian") : json_true());
    json_object_set_new(o, "r", json_integer(d->r));
    json_object_set_new(o, "lora_alpha", number(d->alpha));
    json_object_set_new(o, "use_rslora", json_boolean(c->rslora));
    json_object_set_new(o, "lora_dropout", json_real(wraps ? 0.0 : c->dropout));
    json_object_set_new(o, "target_modules", targets(d, true));
    json_object_set_new(o, "target_parameters", parameters);
    json_object_set_new(o, "rank_pattern", patterns(d, true));
    json_object_set_new(o, "alpha_pattern", patterns(d, false));
    json_object_set_new(o, "modules_to_save", saved(d->m));
    json_object_set_new(o, "ensure_weight_tying", json_boolean(peft_ties_head(d->m, d->m->embed)));
    return o;
}

/* It takes its name whole: with it the folder is an adapter. */
static Status write_file(const Json *o, const char *dir)
{
    Path path, fresh;
    char *text = o ? json_dumps(o, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    Status st = text ? path_join(path, dir, PEFT_CONFIG) : fail(E_FIT, "no memory for " PEFT_CONFIG);
    if (!st) st = path_join(fresh, dir, "." PEFT_CONFIG ".tmp");
    if (!st) st = file_write(fresh, text, strlen(text));
    if (!st && rename(fresh, path)) st = fail(E_IO, "%s: %s", path, strerror(errno));
    if (!st) folder_sync(dir);
    free(text);
    return st;
}

Status peft_describe(const Model *m, const char *base, bool *each, const char *dir)
{
    Describer d = { .m = m };
    int pieces = 0;
    for (int i = 0; i < m->params.n; i++) pieces += m->params.p[i]->pieces;
    d.item = calloc(2 * (size_t)pieces, sizeof *d.item);
    if (!d.item) return fail(E_FIT, "no memory for the names of %d modules", pieces);
    FOR_EACH_PIECE(p, i, m)
        if (!p->adapter_of) add_items(&d, p, i);
    *each = d.each = writes_each(&d);
    find_usual(&d);
    Json *o = dir ? configuration(&d, base) : NULL;
    Status st = dir ? write_file(o, dir) : OK;
    json_decref(o);
    free(d.item);
    return st;
}
