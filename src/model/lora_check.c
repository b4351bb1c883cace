/* model/lora_check.c -- adapters attached to less than was asked are an error: every entry of the lists
 * must do something in this model, and one that does not is told why and what there is instead. */
#include "model/lora_private.h"

#include "base/str.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

typedef struct Check { const LoraConf *c; const Model *m; const char *list; } Check;

/* What an entry has met: what it names, by what became of that. */
typedef struct Met {
    int  all, reached, taken;
    bool hidden[GROUP_N];
    char other[sizeof ((Piece *)0)->name];                   /* one that is no linear layer */
} Met;

static const char *const freezes[] = { "model.freeze_vit", "model.freeze_aligner", "model.freeze_llm" };

/* ---- what there is instead ---- */

enum { MANY = 24 };

typedef struct Likes { char name[MANY][64]; int n, unlike; } Likes;

static void like(Likes *l, const char *name, size_t len, int unlike)
{
    if (unlike > l->unlike || len >= sizeof l->name[0]) return;
    if (unlike < l->unlike) l->n = 0, l->unlike = unlike;
    for (int i = 0; i < l->n; i++)
        if (strlen(l->name[i]) == len && !strncmp(l->name[i], name, len)) return;
    if (l->n < MANY) snprintf(l->name[l->n++], sizeof l->name[0], "%.*s", (int)len, name);
}

static const char *last_part(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

/* The parts of names that are most like it, or all. For targets only last parts of linear modules count. */
static void likes(Likes *l, const Check *k, const char *word, bool target, bool all)
{
    *l = (Likes){ .unlike = all ? INT_MAX : INT_MAX - 1 };
    FOR_EACH_PIECE(p, i, k->m) {
        char name[sizeof p->piece->name], part[sizeof p->piece->name];
        size_t len;
        lora_module_name(name, sizeof name, p, i);
        if (target && !p->linear) continue;
        const char *rest = target ? last_part(name) : name;
        for (const char *item; (item = str_item(&rest, '.', &len));) {
            snprintf(part, sizeof part, "%.*s", (int)len, item);
            if (strspn(part, "0123456789") == len) continue;
            like(l, part, len, all ? INT_MAX : str_unlike(word, part));
        }
    }
}

/* "nearest are q_proj, qkv", or all there are. */
static const char *nearest(char *out, size_t n, const Check *k, const char *entry, bool target)
{
    Likes l;
    likes(&l, k, last_part(entry), target, false);
    bool all = !l.n;
    if (all) likes(&l, k, last_part(entry), target, true);
    int at = snprintf(out, n, "%s", all ? "there are " : l.n > 1 ? "nearest are " : "nearest is ");
    for (int i = 0; i < l.n && (size_t)at < n; i++)
        at += snprintf(out + at, n - (size_t)at, "%s%s", i ? ", " : "", l.name[i]);
    return out;
}

static bool has(const Model *m, Linear kind)
{
    bool yes = false;
    FOR_EACH_PIECE(p, i, m) yes |= p->linear == kind;
    return yes;
}

static bool ends(const char *entry, const char *word)
{
    size_t n = strlen(entry), k = strlen(word);
    return n >= k && !strcmp(entry + n - k, word) && (n == k || entry[n - k - 1] == '.');
}

/* What people expect to find and why it is not here; NULL: nothing is known of it. */
static const char *known(const Check *k, const char *entry, bool target)
{
    const Model *m = k->m;
    if ((ends(entry, "gate_proj") || ends(entry, "up_proj")) && has(m, LINEAR_EXPERTS))
        return target ? "experts hold gate and up as one, gate_up_proj; set experts or gate_up_proj"
                      : "experts hold gate and up as one; name gate_up_proj";
    if (ends(entry, "lm_head") && m->shape.text.tied)
        return target ? "the head is the embedding's table here (tie_word_embeddings), and a pair beside it "
                        "would be in one of the two alone; lora.modules_to_save=embed_tokens trains both"
                      : "the head is the embedding's table here (tie_word_embeddings); name embed_tokens";
    if (!strcmp(entry, "experts"))
        return "the model has no experts; its feed-forward layers are gate_proj, up_proj and down_proj";
    if (!strcmp(entry, "vision") && !m->vision.depth) return "the model has no vision tower";
    if (strpbrk(entry, "\\()|^$") || strstr(entry, ".*.*"))
        return "it looks like a regular expression; write names, or globs with * ? [ ]";
    return NULL;
}

static const char *freezes_of(char *out, size_t n, const bool hidden[GROUP_N])
{
    int at = 0;
    out[0] = 0;
    for (int g = 0; g < GROUP_N; g++)
        if (hidden[g]) at += snprintf(out + at, n - (size_t)at, "%s%s", at ? " and " : "", freezes[g]);
    return out;
}

static Status nothing(const Check *k, const char *entry, const Met *x, bool target)
{
    char text[1200];
    const char *why = known(k, entry, target);
    bool hidden = x->hidden[G_VIT] || x->hidden[G_ALIGNER] || x->hidden[G_LLM];
    if (hidden)
        return fail(E_CONFIG, "%s: %s is in parts that are frozen only; set %s to false or drop it", k->list,
                    entry, freezes_of(text, sizeof text, x->hidden));
    if (x->taken)
        return fail(E_CONFIG, "%s: all that %s names is in lora.exclude_modules or lora.modules_to_save; "
                    "drop it here or there", k->list, entry);
    if (why) return fail(E_CONFIG, "%s: %s names nothing: %s", k->list, entry, why);
    if (*x->other)
        return fail(E_CONFIG, "%s: %s is no linear layer that takes a pair; lora.modules_to_save trains a "
                    "module whole", k->list, x->other);
    return fail(E_CONFIG, "%s: %s names nothing; %s", k->list, entry,
                nearest(text, sizeof text, k, entry, target));
}

/* ---- the lists ---- */

static void meet(const Check *k, Met *x, const Param *p, int i, LoraRole want)
{
    LoraRole f = lora_role(k->c, k->m->frozen, p, i);
    x->all++;
    x->reached += f == want;
    if (f == want) return;
    if (want == LORA_ADAPTED && !p->linear) lora_module_name(x->other, sizeof x->other, p, i);
    else if (lora_freeze_blocks(k->c, k->m->frozen, p->group)) x->hidden[p->group] = true;
    else x->taken++;
}

static Status check_list(Check *k, const WordList *l, const char *name, LoraRole want)
{
    k->list = name;
    for (int e = 0; l && e < l->n; e++) {
        Met x = { 0 };
        FOR_EACH_PIECE(p, i, k->m) {
            bool named = want != LORA_FULL && lora_entry_targets(l->item[e], p, i);
            if (want != LORA_ADAPTED) named |= lora_entry_covers(l->item[e], p, i);
            if (named) meet(k, &x, p, i, want);
        }
        bool does = want == LORA_NONE ? x.all > 0 : x.reached > 0;
        if (!does) return nothing(k, l->item[e], &x, want == LORA_ADAPTED);
    }
    return OK;
}

static Status check_exact(const Check *k)
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
            return fail(E_CONFIG, "the adapter has a pair for %s, the model no linear layer of that name; %s",
                        t->module, nearest(text, sizeof text, k, t->module, true));
    }
    return OK;
}

/* Tensors that are kept as one are trained as one. */
static Status check_whole(const Check *k)
{
    for (int n = 0; n < k->m->params.n; n++) {
        const Param *p = k->m->params.p[n];
        int in = -1, out = -1;
        for (int i = 0; i < p->pieces; i++)
            *(lora_role(k->c, k->m->frozen, p, i) == LORA_FULL ? &in : &out) = i;
        if (in >= 0 && out >= 0)
            return fail(E_CONFIG, "lora.modules_to_save: %s is kept as one with %s; name all of them or none",
                        p->piece[in].name, p->piece[out].name);
    }
    return OK;
}

/* Of experts a module has two parameters, and PEFT keeps modules. */
static Status check_experts(const Check *k)
{
    const ParamSet *s = &k->m->params;
    for (int n = 0; n < s->n; n++)
        for (int i = 0; i < s->n; i++) {
            const Param *p = s->p[n], *q = s->p[i];
            if (p->form != FORM_EXPERT_GATE_UP || q->form != FORM_EXPERT_DOWN || p->unit != q->unit) continue;
            bool up = lora_role(k->c, k->m->frozen, p, 0) == LORA_FULL;
            if (up != (lora_role(k->c, k->m->frozen, q, 0) == LORA_FULL))
                return fail(E_CONFIG, "lora.modules_to_save: %s is half of the experts' module; name all of "
                            "it, mlp.experts", (up ? p : q)->piece[0].name);
        }
    return OK;
}

static Status check_width(const Check *k)
{
    FOR_EACH_PIECE(p, i, k->m) {
        char name[sizeof p->piece->name];
        if (lora_role(k->c, k->m->frozen, p, i) != LORA_ADAPTED) continue;
        lora_module_name(name, sizeof name, p, i);
        const LoraTarget *t = lora_find_target(k->c, name);
        int64_t r = t ? t->rank : k->c->rank, in = p->shape[p->ndim - 1];
        int64_t out = p->ndim == 3 ? p->shape[1] : p->piece[i].shape[0];
        if (r > in && r > out)
            return fail(E_CONFIG, "lora.rank = %lld: %s has %lld inputs and %lld outputs, a pair of it would "
                        "be wider than both; set %lld or less, or lora.exclude_modules", (long long)r, name,
                        (long long)in, (long long)out, (long long)(in > out ? in : out));
    }
    return OK;
}

Status lora_check(const LoraConf *c, const Model *whole)
{
    Check k = { .c = c, .m = whole };
    if (c->exact) TRY(check_exact(&k));
    else {
        TRY(check_list(&k, c->exclude, "lora.exclude_modules", LORA_NONE));
        TRY(check_list(&k, c->target, "lora.target_modules", LORA_ADAPTED));
    }
    TRY(check_list(&k, c->save, "lora.modules_to_save", LORA_FULL));
    TRY(check_whole(&k));
    TRY(check_experts(&k));
    return check_width(&k);
}
