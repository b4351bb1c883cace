/* engine/fit_advise.c -- how much memory each change of the recipe saves; see fit.h. */
#include "engine/fit.h"

#include "parallel/rules.h"

#include <stdlib.h>
#include <string.h>

typedef struct Change { int cost; const char *price; char set[FIT_SET]; } Change;

/* The list of memory.recompute without "full", each word with a comma after it. */
static void recompute_list(char *out, size_t n, const WordList *list)
{
    size_t at = 0;
    *out = 0;
    for (int i = 0; i < list->n && at < n; i++)
        if (strcmp(list->item[i], "full")) at += (size_t)snprintf(out + at, n - at, "%s,", list->item[i]);
}

static bool covers(const char *word, const char *other)
{
    return !strcmp(word, other) || recompute_word_within(other, word);
}

/* Leaves out words of memory.recompute that others of the list include. */
static void drop_included_words(char set[FIT_SET])
{
    char  copy[FIT_SET], *word[FIT_SET / 2], *list = strstr(set, "recompute=["), *save = NULL;
    int   n = 0;
    if (!list) return;
    memcpy(copy, set, sizeof copy);
    list += strlen("recompute=[");
    char *inner = copy + (list - set), *rest = strchr(inner, ']');
    *rest = 0;
    for (char *w = strtok_r(inner, ",", &save); w; w = strtok_r(NULL, ",", &save)) word[n++] = w;
    size_t size = FIT_SET - (size_t)(list - set), at = 0;
    for (int i = 0; i < n; i++) {
        bool within = false;
        for (int k = 0; k < n; k++)
            within |= k != i && covers(word[k], word[i]) && (k < i || !covers(word[i], word[k]));
        if (!within) at += (size_t)snprintf(list + at, size - at, "%s%s", at ? "," : "", word[i]);
    }
    snprintf(list + at, size - at, "]%s", rest + 1);
}

/* The rows of fit.def whose condition holds. */
static int list_changes(Change change[FIT_ROWS], const FitRequest *ask)
{
    const Config *c = ask->recipe;
    const struct cfg_parallel *p = &c->parallel;
    const bool experts = ask->shape->text.E > 0, tower = ask->shape->vision.depth > 0;
    const bool dense = shape_sparse_layers(&ask->shape->text) < ask->shape->text.L;
    const bool overlap = c->moe.overlap;
    const long long T = c->train.micro_tokens, P = c->train.micro_patches;
    const long long rank = *c->lora.path ? 0 : c->lora.rank;
    const bool      wide_base = (c->lora.rank || *c->lora.path) && !strcmp(c->model.base_quant, "none") &&
                           !strcmp(c->train.precision, "bf16");
    const double offload = c->memory.optimizer_offload;
    const long long zero = p->zero, ep = p->ep, pp = p->pp, cp = p->cp, tp = p->tp;
    const char *dispatcher = strcmp(c->moe.dispatcher, "local") ? "" : " moe.dispatcher=auto";
    char words[FIT_SET / 2];
    int  n = 0;
    recompute_list(words, sizeof words, &c->memory.recompute);
#define CHANGE(class, in_words, when, ...)                      \
    if ((when) && n < FIT_ROWS) {                               \
        change[n].cost = class, change[n].price = in_words;     \
        snprintf(change[n].set, FIT_SET, __VA_ARGS__);          \
        drop_included_words(change[n++].set);                   \
    }
#define RECOMPUTE_SET(class, swept, when, list, in_words, forbids) \
    CHANGE(class, in_words, when, "memory.recompute=[%s" list "]", words)
#include "engine/recompute_sets.def"
#include "engine/fit.def"
#undef RECOMPUTE_SET
#undef CHANGE
    return n;
}

/* False for a change that the rules refuse, that cannot be planned or that saves next to nothing. */
static bool try_change(FitRow *r, const FitRequest *ask, const Change *t)
{
    Config c = *ask->recipe;
    c.keep = (MemPool){ 0 };                                /* only texts of the overrides are freed below */
    bool ok = !config_set_all(&c, t->set);
    RuleInput x = rules_input(&c, ask->shape, ask->ranks, ask->per_node);
    *r = (FitRow){ .price = t->price, .cost = t->cost };
    memcpy(r->set, t->set, sizeof r->set);
    ok = ok && rules_legal(&x) && !ask->plan(ask->self, &c, &r->bytes);
    mem_pool_close(&c.keep);
    return ok && r->bytes < 0.998 * ask->bytes;
}

static int by_cost(const void *a, const void *b)
{
    const FitRow *x = a, *y = b;
    if (x->cost != y->cost) return x->cost - y->cost;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

bool fit_row_fits(const FitAdvice *a, int row) { return a->row[row].bytes <= a->available; }

const FitRow *fit_cheapest(const FitAdvice *a)
{
    const FitRow *best = NULL;
    for (int i = 0; i < a->n; i++) {
        const FitRow *r = &a->row[i];
        if (best && r->cost > best->cost) break;
        if (fit_row_fits(a, i) && (!best || r->bytes > best->bytes)) best = r;
    }
    return best;
}

static bool has_set(const FitAdvice *a, const char *set)
{
    for (int i = 0; i < a->n; i++)
        if (!strcmp(a->row[i].set, set)) return true;
    return false;
}

/* Adds overrides to a list; an override of the same key replaces the older one. */
static void join_sets(char out[FIT_SET], const char *more)
{
    char old[FIT_SET];
    size_t at = 0;
    memcpy(old, out, sizeof old);
    for (const char *o = old; *o; o += strspn(o, " ")) {
        size_t n = strcspn(o, " "), key = strcspn(o, "=") + 1;
        bool replaced = false;
        for (const char *m = more; *m && !replaced; m += strcspn(m, " "), m += strspn(m, " "))
            replaced = !strncmp(m, o, key);
        if (!replaced) at += (size_t)snprintf(out + at, FIT_SET - at, "%.*s ", (int)n, o);
        o += n;
    }
    snprintf(out + at, FIT_SET - at, "%s", more);
}

/* Where no change is enough alone: adds the best of each class to those of the classes before it, until they
 * are enough together. */
static void try_combined(FitAdvice *a, const FitRequest *ask)
{
    Change t = { .price = "all of these together" };
    int  singles = a->n;
    for (int i = 0; i < singles && a->n < FIT_ROWS; i++) {
        char before[FIT_SET];
        FitRow *r = &a->row[a->n];
        if (i && a->row[i].cost == a->row[i - 1].cost) continue;       /* sorted: the first saves most */
        memcpy(before, t.set, sizeof before);
        join_sets(t.set, a->row[i].set);
        t.cost = a->row[i].cost;
        if (!try_change(r, ask, &t)) memcpy(t.set, before, sizeof before);
        else if (r->bytes <= a->available) {
            a->n++;
            return;
        }
    }
}

Status fit_advise(FitAdvice *a, const FitRequest *ask)
{
    Change *change = calloc(FIT_ROWS, sizeof *change);
    *a = (FitAdvice){ .bytes = ask->bytes, .available = ask->available };
    if (!change) return fail(E_FIT, "no host memory for advice");
    int n = list_changes(change, ask);
    for (int i = 0; i < n; i++)
        if (!has_set(a, change[i].set)) a->n += try_change(&a->row[a->n], ask, &change[i]);
    qsort(a->row, (size_t)a->n, sizeof *a->row, by_cost);
    if (!fit_cheapest(a)) try_combined(a, ask);
    free(change);
    return OK;
}

void fit_cheapest_text(char *out, size_t n, const FitAdvice *a)
{
    const FitRow *r = fit_cheapest(a);
    if (r)
        snprintf(out, n, "Cheapest change that is enough: %s (-%.3f GiB, %s)", r->set,
                 (a->bytes - r->bytes) / (1 << 30), r->price);
    else
        snprintf(out, n, "No listed change is enough, nor all of them together: take more ranks");
}

void fit_row_text(char *out, size_t n, const FitAdvice *a, int row)
{
    const FitRow *r = &a->row[row];
    double gib = 1 << 30;
    snprintf(out, n, "%8.2f GiB less, %8.2f in all, %-10s  %s  (%s)", (a->bytes - r->bytes) / gib,
             r->bytes / gib, fit_row_fits(a, row) ? "fits" : "not enough", r->set, r->price);
}
