/* train/trainable.c -- see trainable.h. */
#include "train/trainable.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const group_names[GROUP_N] = { "vision tower", "mergers", "decoder" };

/* ---- kinds ---- */

/* Numbers between the dots of a name become stars. */
static void collapse(char *name)
{
    char *to = name;
    for (const char *from = name; *from;) {
        size_t len = strcspn(from, ".");
        bool   number = len && strspn(from, "0123456789") == len;
        if (number) *to++ = '*';
        else        memmove(to, from, len), to += len;
        from += len;
        if (*from) *to++ = *from++;
    }
    *to = 0;
}

static ModuleKind *kind_of(TrainableSummary *t, const Param *p, int i, ModuleStatus status)
{
    ModuleKind k = {
        .status = status, .group = p->group, .linear = p->linear, .least = INT64_MAX, .side = INT64_MAX
    };
    lora_module_name(k.name, sizeof k.name, p, i);
    collapse(k.name);
    for (int n = 0; n < t->n; n++)
        if (t->kind[n].status == status && !strcmp(t->kind[n].name, k.name)) return &t->kind[n];
    if (t->n == t->cap) {
        int         cap = t->cap ? 2 * t->cap : 32;
        ModuleKind *more = realloc(t->kind, (size_t)cap * sizeof *more);
        REQUIRE(more, "no memory for %d kinds of modules", cap);
        t->kind = more, t->cap = cap;
    }
    t->kind[t->n] = k;
    return &t->kind[t->n++];
}

static int64_t piece_count(const Piece *q)
{
    int64_t n = 1;
    for (int i = 0; i < q->rank; i++) n *= q->shape[i];
    return n;
}

static const LoraPart *part_of(const Param *p, int i)
{
    for (int k = 0; p->lora && k < p->lora->parts; k++)
        if (p->lora->part[k].piece == i) return &p->lora->part[k];
    return NULL;
}

static void add_adapter(TrainableSummary *t, const Param *p, int i, const LoraPart *x)
{
    const Param *a = p->lora->a;
    ModuleKind *k = kind_of(t, p, i, MODULE_ADAPTED);
    int64_t in = a->shape[a->ndim - 1], out = x->b->shape[a->ndim - 2];
    int64_t n = x->r * in * (a->ndim == 3 ? a->shape[0] : 1) + param_count(x->b);
    k->modules++, k->params += n, t->adapters += n;
    if (in < k->side)    k->side = in;
    if (out < k->side)   k->side = out;
    if (x->r < k->least) k->least = x->r;
    if (x->r > k->most)  k->most = x->r;
}

static void add_module(TrainableSummary *t, const Param *p, int i, ModuleStatus status)
{
    const char *bias = strrchr(p->piece[i].name, '.');
    ModuleKind *k = kind_of(t, p, i, status);
    k->modules += !bias || strcmp(bias, ".bias");            /* a bias belongs to the module of its weight */
    k->params += piece_count(&p->piece[i]);
}

static void add_param(TrainableSummary *t, const Param *p)
{
    if (p->adapter_of) return;                               /* of an adapter: counted with its module */
    t->base += param_count(p), t->group[p->group] += param_count(p);
    if (p->form != FORM_ROWS) t->experts += param_count(p);
    if (!p->frozen) t->whole += param_count(p);
    for (int i = 0; t->lora && i < p->pieces; i++) {
        const LoraPart *x = part_of(p, i);
        if (x && !p->lora->a->frozen) add_adapter(t, p, i, x);
        else if (!p->frozen)          add_module(t, p, i, MODULE_TRAINED);
        else if (p->linear)           add_module(t, p, i, MODULE_NOT_ADAPTED);
    }
}

Status trainable_open(TrainableSummary *t, const ModelShape *s, const bool *frozen, const LoraConf *lora)
{
    Model m;
    *t = (TrainableSummary){ .lora = lora && lora->rank > 0 };
    Status st = model_open_whole(&m, s, frozen, lora);
    for (int g = 0; frozen && g < GROUP_N; g++) t->frozen[g] = frozen[g];
    for (int i = 0; !st && i < m.params.n; i++) add_param(t, m.params.p[i]);
    memcpy(t->all_frozen, m.frozen, sizeof t->all_frozen);
    model_close(&m);
    return st;
}

void trainable_close(TrainableSummary *t)
{
    free(t->kind);
    *t = (TrainableSummary){ 0 };
}

/* ---- for people ---- */

typedef struct Output { TrainablePrint *print; void *self; } Output;

static void put(const Output *v, bool warning, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void put(const Output *v, bool warning, const char *fmt, ...)
{
    char line[1600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    v->print(v->self, warning, line);
}

static double millions(int64_t n) { return (double)n / 1e6; }

static void print_groups(const Output *v, const TrainableSummary *t)
{
    for (int g = 0; g < GROUP_N; g++) {
        char more[64] = "";
        if (g == G_LLM && t->experts)
            snprintf(more, sizeof more, ", %.3f M of them in experts", millions(t->experts));
        if (t->group[g])
            put(v, false, "             %-12s %12.3f M  %s%s", group_names[g], millions(t->group[g]),
                t->lora ? "frozen" : t->all_frozen[g] ? "frozen" : "trained", more);
    }
}

static void print_kind(const Output *v, const ModuleKind *k)
{
    char rank[48] = "whole";
    if (k->status == MODULE_ADAPTED && k->least == k->most)
        snprintf(rank, sizeof rank, "%lld", (long long)k->most);
    else if (k->status == MODULE_ADAPTED)
        snprintf(rank, sizeof rank, "%lld-%lld", (long long)k->least, (long long)k->most);
    put(v, false, "             %7d %7s %12.3f M  %s", k->modules, rank, millions(k->params), k->name);
}

/* Why kinds are not adapted; each reason is printed once, with all of its kinds. */
typedef enum { WHY_FROZEN, WHY_ROUTER = GROUP_N, WHY_HEAD, WHY_UNNAMED, WHY_N } Why;

static Why why_of(const TrainableSummary *t, const ModuleKind *k)
{
    if (t->frozen[k->group]) return (Why)(WHY_FROZEN + (int)k->group);
    return k->linear == LINEAR_ROUTER ? WHY_ROUTER : k->linear == LINEAR_HEAD ? WHY_HEAD : WHY_UNNAMED;
}

static void print_not_adapted(const Output *v, const TrainableSummary *t, Why why)
{
    static const char *const reasons[WHY_N] = {
        "model.freeze_vit is set", "model.freeze_aligner is set", "model.freeze_llm is set",
        [WHY_ROUTER]  = "a router is adapted only where lora.target_modules has its name, mlp.gate",
        [WHY_HEAD]    = "the head is adapted only where lora.target_modules has its name, lm_head",
        [WHY_UNNAMED] = "lora.target_modules does not name them, or exclude_modules does",
    };
    char   list[1400] = "";
    size_t at = 0;
    for (int i = 0; i < t->n; i++) {
        const ModuleKind *k = &t->kind[i];
        if (k->status != MODULE_NOT_ADAPTED || why_of(t, k) != why || at >= sizeof list) continue;
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%d x %s, %.3f M", at ? "; " : "", k->modules,
                               k->name, millions(k->params));
    }
    if (at) put(v, true, "NOT TRAINED, though linear (%s): %s", reasons[why], list);
}

void trainable_print(const TrainableSummary *t, TrainablePrint *print, void *self)
{
    Output v = { print, self };
    int64_t all = t->base + t->adapters, trained = t->adapters + t->whole;
    print_groups(&v, t);
    if (!t->lora) return;
    put(&v, false, "trains       %7s %7s %14s  %s", "modules", "rank", "parameters", "kind of module");
    for (int i = 0; i < t->n; i++)
        if (t->kind[i].status != MODULE_NOT_ADAPTED) print_kind(&v, &t->kind[i]);
    put(&v, false,
        "             %.3f M of %.3f M parameters train: %.3f %%; %.3f M are frozen, "
        "without gradients and optimizer state",
        millions(trained), millions(all), 100 * (double)trained / (double)all, millions(t->base - t->whole));
    for (int i = 0; i < t->n; i++) {
        const ModuleKind *k = &t->kind[i];
        if (k->status == MODULE_ADAPTED && k->most > k->side)
            put(&v, true,
                "rank %lld of %s: its smaller dimension is %lld; a higher rank adds cost and no capacity",
                (long long)k->most, k->name, (long long)k->side);
    }
    for (int why = 0; why < WHY_N; why++) print_not_adapted(&v, t, (Why)why);
}

/* ---- for programs ---- */

Json *trainable_json(const TrainableSummary *t)
{
    static const char *const statuses[] = { "adapter", "full", "frozen" };
    Json *kinds = json_array();
    for (int i = 0; i < t->n; i++) {
        const ModuleKind *k = &t->kind[i];
        json_array_append_new(kinds, json_pack("{s:s, s:s, s:i, s:I, s:I}", "module", k->name, "as",
                                               statuses[k->status], "modules", k->modules, "rank",
                                               (json_int_t)k->most, "parameters", (json_int_t)k->params));
    }
    return json_pack("{s:I, s:I, s:I, s:I, s:o}", "model", (json_int_t)t->base, "trained",
                     (json_int_t)(t->adapters + t->whole), "adapters", (json_int_t)t->adapters, "frozen",
                     (json_int_t)(t->base - t->whole), "kinds", kinds);
}
