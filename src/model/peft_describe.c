/* model/peft_describe.c -- writes adapter_config.json such that PEFT attaches exactly the adapters that the
 * file has tensors for; see peft.h.
 *
 * PEFT selects linear modules by the end of their name (target_modules) and other weights likewise
 * (target_parameters): experts, and routers, which are plain parameters in transformers 5. Each entry written
 * here is the shortest end that no other module or weight of the model has.
 *
 * If the hub files of a family have a tensor per expert, PEFT takes the names gate_proj, up_proj and
 * down_proj for experts everywhere. Experts of such a family are written one by one if all of them have the
 * same rank and scale, which PEFT can convert to its fused form; else fused. Dense layers of such a family
 * are listed as parameters, which PEFT does not take for experts and which gives the same tensors. */
#include "model/peft_private.h"
#include "model/lora_private.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef char Name[160];

/* A module, or a weight by its tensor's name; adapted: PEFT has to attach an adapter under this name. */
typedef struct Item { Name name; bool module, adapted; int64_t r; double alpha; } Item;

typedef struct Describer {
    const Model *m;
    Item        *item;                   /* all modules and all weights */
    int          n;
    bool         per_expert;             /* experts are written one by one */
    int64_t      r;                      /* the most frequent rank and alpha */
    double       alpha;
} Describer;


bool peft_ties_head(const Model *m, const Param *p)
{
    return m->shape.text.tied && p == m->embed && lora_trains_in_full(m, p);
}

/* Whether hub files of the family have a tensor per expert. */
static bool hub_is_per_expert(const Model *m) { return m->shape.text.E && !m->shape.fused_experts; }

/* ---- modules and weights ---- */

/* Whether p is an entry of target_parameters, not of target_modules. */
static bool is_parameter(const Model *m, const Param *p)
{
    return p->linear == LINEAR_EXPERTS || p->linear == LINEAR_ROUTER ||
           (p->linear == LINEAR_FEED && p->group == G_LLM && hub_is_per_expert(m));
}

static const LoraPart *part_of(const Param *p, int piece)
{
    for (int k = 0; p->lora && k < p->lora->parts; k++)
        if (p->lora->part[k].piece == piece) return &p->lora->part[k];
    return NULL;
}

/* Adds piece i as a weight, and as a module unless it is a bias. */
static void add_items(Describer *d, const Param *p, int i)
{
    const LoraPart *part = part_of(p, i);
    bool parameter = is_parameter(d->m, p);
    Item x = { .adapted = part && parameter, .r = part ? part->r : 0 };
    lora_module_name(x.name, sizeof x.name, p, i);
    x.alpha = lora_module_alpha(d->m->lora, x.name);
    Item module = x;
    module.module = true, module.adapted = part && !parameter;
    if (p->linear == LINEAR_EXPERTS) *strrchr(module.name, '.') = 0;
    if (!lora_name_ends_in(p->piece[i].name, "bias")) d->item[d->n++] = module;
    snprintf(x.name, sizeof x.name, "%s", p->piece[i].name);
    d->item[d->n++] = x;
}

/* Experts are written one by one if all have adapters of the same rank and scale and no dense layer has the
 * same names. PEFT doubles rank and alpha when it fuses gate and up, which with rsLoRA would change the
 * scale. */
static bool writes_per_expert(const Describer *d)
{
    const LoraPart *one = NULL;
    int up = 0, down = 0;
    if (!hub_is_per_expert(d->m) || d->m->lora->rslora) return false;
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

/* The most frequent rank and alpha. With experts written one by one it is theirs, since PEFT doubles the
 * default rank and alpha for them. */
static void find_defaults(Describer *d)
{
    int best[2] = { 0 };
    for (int i = 0; i < d->n; i++) {
        const Item *x = &d->item[i];
        int same[2] = { 0 };
        bool expert = d->per_expert && strstr(x->name, ".mlp.experts.");
        for (int k = 0; k < d->n && x->adapted; k++) {
            same[0] += d->item[k].adapted && d->item[k].r == x->r;
            same[1] += d->item[k].adapted && d->item[k].alpha == x->alpha;
        }
        if (expert && x->adapted) same[0] = same[1] = d->n + 1;
        if (same[0] > best[0]) best[0] = same[0], d->r = x->r;
        if (same[1] > best[1]) best[1] = same[1], d->alpha = x->alpha;
    }
}

/* ---- entries ---- */

/* Whether the entry would also select a module or weight without an adapter, or a module that contains
 * others. */
static bool selects_others(const Describer *d, const char *tail, bool modules)
{
    for (int i = 0; i < d->n; i++) {
        const Item *x = &d->item[i];
        Name name;
        if (x->module != modules) continue;
        if (!x->adapted && lora_name_ends_in(x->name, tail)) return true;
        snprintf(name, sizeof name, "%s", x->name);
        for (char *dot; modules && (dot = strrchr(name, '.'));) {
            *dot = 0;
            if (lora_name_ends_in(name, tail)) return true;
        }
    }
    return false;
}

/* The shortest end of name, of at least `least` parts, that selects nothing else. */
static const char *shortest_end(const Describer *d, const char *name, bool modules, int least)
{
    const char *at = name + strlen(name);
    while (at > name) {
        do at--;
        while (at > name && at[-1] != '.');
        if (--least <= 0 && !selects_others(d, at, modules)) break;
    }
    return at;
}

static void append_new(Json *list, const char *word)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(json_string_value(json_array_get(list, i)), word)) return;
    json_array_append_new(list, json_string(word));
}

static bool is_selected(const Json *list, const char *name)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (lora_name_ends_in(name, json_string_value(json_array_get(list, i)))) return true;
    return false;
}

/* target_modules or target_parameters. A parameter has at least three parts: mlp.experts.down_proj. */
static Json *list_targets(const Describer *d, bool modules)
{
    Json *list = json_array();
    for (int i = 0; i < d->n; i++) {
        const Item *x = &d->item[i];
        bool expert = strstr(x->name, ".mlp.experts.");
        if (x->module == modules && x->adapted && !(d->per_expert && expert) && !is_selected(list, x->name))
            append_new(list, shortest_end(d, x->name, modules, modules ? 1 : 3));
    }
    for (int i = 0; d->per_expert && modules && i < d->n; i++) {
        if (!d->item[i].adapted || !strstr(d->item[i].name, ".mlp.experts.")) continue;
        bool down = lora_name_ends_in(d->item[i].name, "down_proj");
        append_new(list, down ? "down_proj" : "gate_proj");
        if (!down) append_new(list, "up_proj");
    }
    return list;
}

static void escape_regex(char *out, size_t n, const char *name)
{
    size_t at = 0;
    for (; *name && at + 3 < n; name++) {
        if (!isalnum((unsigned char)*name) && *name != '_') out[at++] = '\\';
        out[at++] = *name;
    }
    out[at] = 0;
}

/* rank_pattern or alpha_pattern: the modules whose value is not the default. */
static Json *list_patterns(const Describer *d, bool rank)
{
    Json *o = json_object();
    for (int i = 0; i < d->n; i++) {
        const Item *x = &d->item[i];
        char key[2 * sizeof(Name) + 1];
        if (!x->adapted || (rank ? x->r == d->r : x->alpha == d->alpha)) continue;
        escape_regex(key, sizeof key, x->name);
        json_object_set_new(o, key, rank ? json_integer(x->r) : json_real(x->alpha));
    }
    return o;
}

/* modules_to_save. Experts are listed as a module, not as parameters. */
static Json *list_full_modules(const Model *m)
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

/* A whole number is written as an integer. */
static Json *number(double x)
{
    return x == (double)(int64_t)x ? json_integer((json_int_t)x) : json_real(x);
}

/* The keys of PEFT 0.19.1, which defines this form of fused experts; unused keys are null or false. */
static Json *build_config(const Describer *d, const char *base)
{
    static const char *const none[] = { "exclude_modules", "layers_to_transform", "layers_pattern",
                                        "layer_replication", "revision", "auto_mapping" };
    static const char *const no[] = { "use_dora", "use_qalora", "lora_bias", "fan_in_fan_out" };
    const LoraConf *c = d->m->lora;
    Json *parameters = list_targets(d, false);
    bool  no_dropout = d->per_expert || json_array_size(parameters);   /* PEFT has none for parameters */
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
    json_object_set_new(o, "lora_dropout", json_real(no_dropout ? 0.0 : c->dropout));
    json_object_set_new(o, "target_modules", list_targets(d, true));
    json_object_set_new(o, "target_parameters", parameters);
    json_object_set_new(o, "rank_pattern", list_patterns(d, true));
    json_object_set_new(o, "alpha_pattern", list_patterns(d, false));
    json_object_set_new(o, "modules_to_save", list_full_modules(d->m));
    json_object_set_new(o, "ensure_weight_tying", json_boolean(peft_ties_head(d->m, d->m->embed)));
    return o;
}

static Status write_config(const Json *o, const char *dir)
{
    char *text = o ? json_dumps(o, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    Status st = text ? file_write_atomic(dir, PEFT_CONFIG, text, strlen(text))
                     : fail(E_FIT, "no memory for " PEFT_CONFIG);
    free(text);
    return st;
}

Status peft_describe(const Model *m, const char *base, bool *per_expert, const char *dir)
{
    Describer d = { .m = m };
    int pieces = 0;
    for (int i = 0; i < m->params.n; i++) pieces += m->params.p[i]->pieces;
    d.item = calloc(2 * (size_t)pieces, sizeof *d.item);
    if (!d.item) return fail(E_FIT, "no memory for the names of %d modules", pieces);
    FOR_EACH_PIECE(p, i, m)
        if (!p->adapter_of) add_items(&d, p, i);
    *per_expert = d.per_expert = writes_per_expert(&d);
    find_defaults(&d);
    Json *o = dir ? build_config(&d, base) : NULL;
    Status st = dir ? write_config(o, dir) : OK;
    json_decref(o);
    free(d.item);
    return st;
}
