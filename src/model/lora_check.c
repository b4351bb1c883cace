/* model/lora_check.c -- every entry of the lora.* lists must have an effect in this model. The error for one
 * that has none says why, and which names there are. */
#include "model/lora_private.h"

#include "base/str.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

typedef struct LoraCheck { const LoraConf *c; const Model *m; const char *list; } LoraCheck;

/* What an entry selects. */
typedef struct Selected {
    int  all, effective;                 /* pieces; those that get the role the list stands for */
    int  overridden;                     /* pieces to which another list gives another role */
    bool frozen[GROUP_N];                /* groups with pieces that model.freeze_* excludes */
    char other[sizeof ((Piece *)0)->name];                   /* a module that takes no adapter */
} Selected;

static const char *const freezes[] = { "model.freeze_vit", "model.freeze_aligner", "model.freeze_llm" };

/* ---- suggestions ---- */

enum { MAX_SUGGESTIONS = 24 };

typedef struct Suggestions { char name[MAX_SUGGESTIONS][64]; int n, distance; } Suggestions;

static void suggest(Suggestions *l, const char *name, size_t len, int distance)
{
    if (distance > l->distance || len >= sizeof l->name[0]) return;
    if (distance < l->distance) l->n = 0, l->distance = distance;
    for (int i = 0; i < l->n; i++)
        if (strlen(l->name[i]) == len && !strncmp(l->name[i], name, len)) return;
    if (l->n < MAX_SUGGESTIONS) snprintf(l->name[l->n++], sizeof l->name[0], "%.*s", (int)len, name);
}

static const char *last_part(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

/* Collects the parts of module names nearest to `word`, or all of them. For a target these are the last parts
 * of linear modules. */
static void find_suggestions(Suggestions *l, const LoraCheck *k, const char *word, bool target, bool all)
{
    *l = (Suggestions){ .distance = all ? INT_MAX : INT_MAX - 1 };
    FOR_EACH_PIECE(p, i, k->m) {
        char name[sizeof p->piece->name], part[sizeof p->piece->name];
        size_t len;
        lora_module_name(name, sizeof name, p, i);
        if (target && !p->linear) continue;
        const char *rest = target ? last_part(name) : name;
        for (const char *item; (item = str_item(&rest, '.', &len));) {
            snprintf(part, sizeof part, "%.*s", (int)len, item);
            if (strspn(part, "0123456789") == len) continue;
            suggest(l, part, len, all ? INT_MAX : str_unlike(word, part));
        }
    }
}

/* "nearest are q_proj, qkv"; if no name is near, all of them. */
static const char *suggestion_text(char *out, size_t n, const LoraCheck *k, const char *entry, bool target)
{
    Suggestions l;
    find_suggestions(&l, k, last_part(entry), target, false);
    bool all = !l.n;
    if (all) find_suggestions(&l, k, last_part(entry), target, true);
    int at = snprintf(out, n, "%s", all ? "there are " : l.n > 1 ? "nearest are " : "nearest is ");
    for (int i = 0; i < l.n && (size_t)at < n; i++)
        at += snprintf(out + at, n - (size_t)at, "%s%s", i ? ", " : "", l.name[i]);
    return out;
}

static bool has_linear(const Model *m, Linear kind)
{
    bool yes = false;
    FOR_EACH_PIECE(p, i, m) yes |= p->linear == kind;
    return yes;
}

/* Explains an entry that is valid for other models but not for this one; NULL: no explanation. */
static const char *explain(const LoraCheck *k, const char *entry, bool target)
{
    const Model *m = k->m;
    bool half = lora_name_ends_in(entry, "gate_proj") || lora_name_ends_in(entry, "up_proj");
    if (half && has_linear(m, LINEAR_EXPERTS))
        return target ? "experts have gate and up as one weight, gate_up_proj; set experts or gate_up_proj"
                      : "experts have gate and up as one weight; name gate_up_proj";
    if (lora_name_ends_in(entry, "lm_head") && m->shape.text.tied)
        return target ? "head and embedding are the same weight here (tie_word_embeddings), and an adapter "
                        "would change only one of them; lora.modules_to_save=embed_tokens trains both"
                      : "head and embedding are the same weight (tie_word_embeddings); name embed_tokens";
    if (!strcmp(entry, "experts"))
        return "the model has no experts; its feed-forward layers are gate_proj, up_proj and down_proj";
    if (!strcmp(entry, "vision") && !m->vision.depth) return "the model has no vision tower";
    if (strpbrk(entry, "\\()|^$") || strstr(entry, ".*.*"))
        return "it looks like a regular expression; write names, or globs with * ? [ ]";
    return NULL;
}

static const char *freeze_keys(char *out, size_t n, const bool frozen[GROUP_N])
{
    int at = 0;
    out[0] = 0;
    for (int g = 0; g < GROUP_N; g++)
        if (frozen[g]) at += snprintf(out + at, n - (size_t)at, "%s%s", at ? " and " : "", freezes[g]);
    return out;
}

static Status report_no_effect(const LoraCheck *k, const char *entry, const Selected *x, bool target)
{
    char text[1200];
    const char *why = explain(k, entry, target);
    if (x->frozen[G_VIT] || x->frozen[G_ALIGNER] || x->frozen[G_LLM])
        return fail(E_CONFIG, "%s: %s names frozen modules only; set %s to false or remove the entry",
                    k->list, entry, freeze_keys(text, sizeof text, x->frozen));
    if (x->overridden)
        return fail(E_CONFIG, "%s: every module that %s names is also in lora.exclude_modules or "
                    "lora.modules_to_save; remove one of the entries", k->list, entry);
    if (why) return fail(E_CONFIG, "%s: %s names nothing: %s", k->list, entry, why);
    if (*x->other)
        return fail(E_CONFIG, "%s: %s is not a linear layer that takes an adapter; lora.modules_to_save "
                    "trains a module in full", k->list, x->other);
    return fail(E_CONFIG, "%s: %s names nothing; %s", k->list, entry,
                suggestion_text(text, sizeof text, k, entry, target));
}

/* ---- the lists ---- */

static void count_piece(const LoraCheck *k, Selected *x, const Param *p, int i, LoraRole want)
{
    LoraRole role = lora_role(k->c, k->m->frozen, p, i);
    x->all++;
    x->effective += role == want;
    if (role == want) return;
    if (want == LORA_ADAPTED && !p->linear) lora_module_name(x->other, sizeof x->other, p, i);
    else if (lora_freeze_blocks(k->c, k->m->frozen, p->group)) x->frozen[p->group] = true;
    else x->overridden++;
}

static Status check_list(LoraCheck *k, const WordList *l, const char *name, LoraRole want)
{
    k->list = name;
    for (int e = 0; l && e < l->n; e++) {
        Selected x = { 0 };
        FOR_EACH_PIECE(p, i, k->m) {
            bool named = want != LORA_FULL && lora_entry_targets(l->item[e], p, i);
            if (want != LORA_ADAPTED) named |= lora_entry_covers(l->item[e], p, i);
            if (named) count_piece(k, &x, p, i, want);
        }
        bool effect = want == LORA_NONE ? x.all > 0 : x.effective > 0;
        if (!effect) return report_no_effect(k, l->item[e], &x, want == LORA_ADAPTED);
    }
    return OK;
}

static Status check_exact(const LoraCheck *k)
{
    for (int e = 0; e < k->c->exacts; e++) {
        const LoraTarget *t = &k->c->exact[e];
        char text[1200], name[sizeof t->module];
        bool there = false;
        FOR_EACH_PIECE(p, i, k->m) {
            lora_module_name(name, sizeof name, p, i);
            there |= p->linear && !strcmp(name, t->module);
        }
        if (!there)
            return fail(E_CONFIG, "the adapter file adapts %s, and the model has no linear layer of that "
                        "name; %s",
                        t->module, suggestion_text(text, sizeof text, k, t->module, true));
    }
    return OK;
}

/* Modules that are one parameter here (q, k and v) are all trained in full, or none of them. */
static Status check_stacked(const LoraCheck *k)
{
    for (int n = 0; n < k->m->params.n; n++) {
        const Param *p = k->m->params.p[n];
        int in = -1, out = -1;
        for (int i = 0; i < p->pieces; i++)
            *(lora_role(k->c, k->m->frozen, p, i) == LORA_FULL ? &in : &out) = i;
        if (in >= 0 && out >= 0)
            return fail(E_CONFIG, "lora.modules_to_save: %s is one parameter with %s here; name all or none",
                        p->piece[in].name, p->piece[out].name);
    }
    return OK;
}

/* gate_up_proj and down_proj are one module, mlp.experts, and PEFT saves whole modules. */
static Status check_experts(const LoraCheck *k)
{
    const ParamSet *s = &k->m->params;
    for (int n = 0; n < s->n; n++)
        for (int i = 0; i < s->n; i++) {
            const Param *p = s->p[n], *q = s->p[i];
            if (p->form != FORM_EXPERT_GATE_UP || q->form != FORM_EXPERT_DOWN || p->unit != q->unit) continue;
            bool up = lora_role(k->c, k->m->frozen, p, 0) == LORA_FULL;
            if (up != (lora_role(k->c, k->m->frozen, q, 0) == LORA_FULL))
                return fail(E_CONFIG, "lora.modules_to_save: %s is only half of the module; name mlp.experts",
                            (up ? p : q)->piece[0].name);
        }
    return OK;
}

static Status check_rank(const LoraCheck *k)
{
    FOR_EACH_PIECE(p, i, k->m) {
        char name[sizeof p->piece->name];
        if (lora_role(k->c, k->m->frozen, p, i) != LORA_ADAPTED) continue;
        lora_module_name(name, sizeof name, p, i);
        const LoraTarget *t = lora_find_target(k->c, name);
        int64_t r = t ? t->rank : k->c->rank, in = p->shape[p->ndim - 1];
        int64_t out = p->ndim == 3 ? p->shape[1] : p->piece[i].shape[0];
        if (r > in && r > out)
            return fail(E_CONFIG, "lora.rank = %lld is more than the %lld inputs and %lld outputs of %s; set "
                        "%lld or less, or exclude it with lora.exclude_modules", (long long)r, (long long)in,
                        (long long)out, name, (long long)(in > out ? in : out));
    }
    return OK;
}

Status lora_check(const LoraConf *c, const Model *whole)
{
    LoraCheck k = { .c = c, .m = whole };
    if (c->exact) TRY(check_exact(&k));
    else {
        TRY(check_list(&k, c->exclude, "lora.exclude_modules", LORA_NONE));
        TRY(check_list(&k, c->target, "lora.target_modules", LORA_ADAPTED));
    }
    TRY(check_list(&k, c->save, "lora.modules_to_save", LORA_FULL));
    TRY(check_stacked(&k));
    TRY(check_experts(&k));
    return check_rank(&k);
}
