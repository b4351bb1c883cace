/* parallel/rules_fix.c -- searches the change of one setting that makes a layout legal; see rules_fix.h. */
#include "parallel/rules_fix.h"

#include "base/dispatchers.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TRIES = 4096 };                       /* alternatives of one setting */

/* A layout with one setting changed; fix says how. Not legal: this alternative is no
 * answer, others may be. */
typedef struct Attempt { RuleInput x; char fix[160]; bool legal; } Attempt;

static bool hierarchical(const RuleInput *x) { return x->cp_comm && !strcmp(x->cp_comm, "a2a+p2p"); }

/* ---- alternatives: each returns false when there is no i-th one ---- */

/* A change is a multiple of this: the parts of a micro-batch, the micro-batches of a step, or 1. */
static long long unit_of(const RuleInput *x, RuleFix f)
{
    long long dp = x->world / (x->tp * x->cp * x->pp);
    if (f == FIX_micro_tokens) return rules_token_unit(x);
    return f == FIX_global_tokens ? x->micro_tokens * (dp > 0 ? dp : 1) : 1;
}

/* Sets *value to its i-th nearest multiple of the unit, of two equally near ones the lower first. False: that
 * is the value itself or less than `least`. */
static bool nearest_number(const RuleInput *x, RuleFix f, long long least, int i, long long *value)
{
    long long unit = unit_of(x, f), base = *value / unit * unit, now = *value;
    bool above = (i % 2 == 0) == (unit == 1);
    *value = base + (above ? 1 : -1) * ((i + 1) / 2) * unit;
    return *value >= least && *value != now;
}

static const char *cp_comm_alternative(int i)
{
    static const char *const words[] = { "p2p", "all_gather" };
    return i < (int)(sizeof words / sizeof *words) ? words[i] : NULL;
}

/* Dispatchers that support every setting come before the others, and auto comes last. */
static const char *dispatcher_alternative(int i)
{
    for (int pads = 1; pads >= 0; pads--)
        for (int k = 0; k < DISPATCHER_COUNT; k++)
            if (dispatcher_rows[k].pads == pads && i-- == 0) return dispatcher_rows[k].name;
    return i == 0 ? "auto" : NULL;
}

static bool change_word(Attempt *a, const char **word, const char *key, const char *to)
{
    if (!to) return false;
    *word = to;
    snprintf(a->fix, sizeof a->fix, "%s=%s", key, to);
    return true;
}

/* The i-th pair of factors of cp. An inner level of one rank exchanges nothing: that is the plain ring. */
static bool change_cp_sizes(Attempt *a, int i)
{
    if (i == 0 && !hierarchical(&a->x)) {
        a->x.cp_sizes = 0;
        snprintf(a->fix, sizeof a->fix, "parallel.cp_sizes=[]");
        return true;
    }
    long long inner = i + 1;
    if (!hierarchical(&a->x) || inner > a->x.cp) return false;
    a->x.cp_sizes = 2, a->x.cp_size[0] = inner, a->x.cp_size[1] = a->x.cp / inner;
    a->legal = inner > 1 || a->x.cp == 1;
    snprintf(a->fix, sizeof a->fix, "parallel.cp_sizes=[%lld, %lld]", inner, a->x.cp_size[1]);
    return true;
}

/* The list without its i-th label; the last alternative is the empty list. */
static bool drop_label(Attempt *a, const char *key, const char **label, int *labels, int i)
{
    int n = *labels, at;
    if (i > n) return false;
    *labels = 0;
    for (int k = 0; k < n && i < n; k++)
        if (k != i) label[(*labels)++] = label[k];
    at = snprintf(a->fix, sizeof a->fix, "%s=[", key);
    for (int k = 0; k < *labels && at < (int)sizeof a->fix; k++)
        at += snprintf(a->fix + at, sizeof a->fix - (size_t)at, k ? ", %s" : "%s", label[k]);
    if (at < (int)sizeof a->fix) snprintf(a->fix + at, sizeof a->fix - (size_t)at, "]");
    return true;
}

/* Settings that have one alternative: their default, or a number that works. */
static bool reset(Attempt *a, RuleFix f, int i)
{
    const char *text = "";
    switch (f) {
    case FIX_layout:           a->x.layout = "", text = "parallel.layout=\"\""; break;
    case FIX_capacity_factor:  a->x.capacity_factor = 1.25, text = "moe.capacity_factor=1.25"; break;
    case FIX_recompute_layers: a->x.recompute_layers = 1, text = "memory.recompute_layers=1"; break;
    case FIX_recompute_method:
        a->x.recompute_method = "uniform", text = "memory.recompute_method=uniform";
        break;
    case FIX_offload_share:    a->x.offload_share = 1, text = "memory.activation_offload_fraction=1"; break;
    default: return false;
    }
    snprintf(a->fix, sizeof a->fix, "%s", text);
    return i == 0;
}

static bool next_alternative(Attempt *a, const RuleInput *x, RuleFix f, int i)
{
    a->x = *x, a->legal = true;
    switch (f) {
#define NUMBER(setting, key, least)                                                               \
    case FIX_##setting:                                                                           \
        a->legal = nearest_number(x, f, least, i, &a->x.setting);                                 \
        snprintf(a->fix, sizeof a->fix, key "=%lld", a->x.setting);                               \
        return i < MAX_TRIES;
#define WORD(setting, key, alternative)                                                           \
    case FIX_##setting: return change_word(a, &a->x.setting, key, alternative(i));
#define SWITCH(setting, key)                                                                      \
    case FIX_##setting:                                                                           \
        a->x.setting = false;                                                                     \
        snprintf(a->fix, sizeof a->fix, key "=false");                                            \
        return i == 0;
#define OTHER(setting)
    RULE_FIXES(NUMBER, WORD, SWITCH, OTHER)
#undef NUMBER
#undef WORD
#undef SWITCH
#undef OTHER
    case FIX_cp_sizes:  return change_cp_sizes(a, i);
    case FIX_recompute: return drop_label(a, "memory.recompute", a->x.recompute, &a->x.recomputes, i);
    case FIX_offload:   return drop_label(a, "memory.activation_offload", a->x.offload, &a->x.offloads, i);
    default:            return reset(a, f, i);
    }
}

/* ---- the search ---- */

static bool violates(const RuleReport *r, int number)
{
    for (int i = 0; i < r->n; i++)
        if (r->violation[i].number == number) return true;
    return false;
}

void rule_find_fix(RuleViolation *v, const RuleInput *x, const RuleFix *fixes, int n, int errors)
{
    static const int64_t max_world = 1 << 20;
    RuleReport *r = malloc(sizeof *r);
    bool found = false;
    v->fix[0] = 0;
    for (int k = 0; k < n && r && !found; k++) {
        Attempt a;
        for (int i = 0; i < MAX_TRIES && !found && next_alternative(&a, x, fixes[k], i); i++) {
            if (!a.legal || a.x.world > max_world) continue;
            rules_list(r, &a.x);
            if (violates(r, v->number)) continue;
            found = !r->errors;
            if (found || (!*v->fix && r->errors < errors)) memcpy(v->fix, a.fix, sizeof v->fix);
        }
    }
    free(r);
}
