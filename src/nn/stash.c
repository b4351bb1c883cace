/* nn/stash.c -- labels by name, the labels that words of memory.recompute and memory.activation_offload stand
 * for, and the recompute groups of `full`. */
#include "nn/stash.h"

#include "base/str.h"

#include <stdio.h>
#include <string.h>

#define BIT(l) (1u << L_##l)

enum {
    TOWER_LABELS = BIT(V_STAT) | BIT(V_NORM) | BIT(V_QKV) | BIT(V_CORE) | BIT(V_RESID) |
                   BIT(V_UP) | BIT(V_ACT) | BIT(MERGER),
    LAYER_LABELS = BIT(INPUT) | BIT(STAT) | BIT(NORM) | BIT(QKV) | BIT(ROPE) | BIT(LATENT) | BIT(UP_PROJ) |
                   BIT(GDN) | BIT(GDN_CONV) | BIT(CORE) | BIT(RESID) | BIT(MLP_NORM) | BIT(LOGITS) |
                   BIT(DISPATCH) |
                   BIT(GATE_UP) | BIT(ACT) | BIT(LORA) | BIT(SHARED_UP) | BIT(SHARED_ACT) | BIT(MLP_UP) |
                   BIT(MLP_ACT),
    MOE_LABELS = BIT(LOGITS) | BIT(DISPATCH) | BIT(GATE_UP) | BIT(ACT) | BIT(LORA) | BIT(SHARED_UP) |
                 BIT(SHARED_ACT)
};

typedef struct Word { const char *word; uint32_t labels; WordScope of; } Word;

#define WORD(word, labels, scope) { word, labels, SCOPE_##scope },
#define WORD_ALIAS(word, alias, labels, scope) WORD(word, labels, scope) WORD(alias, labels, scope)
static const Word recompute[] = {
#include "nn/recompute.def"
};
static const Word offload[] = {
#include "nn/offload.def"
};
#undef WORD
#undef WORD_ALIAS
enum { RECOMPUTE_WORDS = sizeof recompute / sizeof *recompute,
       OFFLOAD_WORDS = sizeof offload / sizeof *offload };

/* The words as a user may write them: ", a, b (alias of b), c". */
#define WORD(word, labels, scope) ", " word
#define WORD_ALIAS(word, alias, labels, scope) ", " word " (" alias ")"
static const char recompute_list[] =
#include "nn/recompute.def"
    ;
static const char offload_list[] =
#include "nn/offload.def"
    ;
#undef WORD
#undef WORD_ALIAS

static const struct { const char *name; Policy policy; } labels[] = {
#define LABEL(name, policy, meaning) { #name, policy },
    LABELS(LABEL)
#undef LABEL
};

_Static_assert(LABEL_N <= 32, "labels no longer fit a mask");

const char *label_name(Label l) { return labels[l].name; }

const char *policy_choices(void) { return recompute_list + 2; }

void policy_default(uint8_t policy[LABEL_N])
{
    for (int l = 0; l < LABEL_N; l++) policy[l] = (uint8_t)labels[l].policy;
}

const uint8_t *policy_full(void)
{
    static const uint8_t row[] = {
#define LABEL(name, policy, meaning) policy == PIN ? PIN : DROP,
        LABELS(LABEL)
#undef LABEL
    };
    return row;
}

static const Word *find_word(const Word *row, int n, const char *word)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(row[i].word, word)) return &row[i];
    return NULL;
}

Status policy_drop(uint8_t policy[LABEL_N], const char *what)
{
    const Word *w = find_word(recompute, RECOMPUTE_WORDS, what);
    if (!w)
        return fail(E_CONFIG, "memory.recompute: %s is not a label; there are %s", what, policy_choices());
    for (int l = 0; l < LABEL_N; l++)
        if ((w->labels >> l & 1) && policy[l] != PIN) policy[l] = DROP;
    return OK;
}

const char *offload_choices(void) { return offload_list + 2; }

/* A dropped label cannot be offloaded; the rules refuse it too. */
Status policy_offload(uint8_t policy[LABEL_N], const char *what)
{
    const Word *w = find_word(offload, OFFLOAD_WORDS, what);
    if (!w)
        return fail(E_CONFIG, "memory.activation_offload: %s is not a label; there are %s", what,
                    offload_choices());
    for (int l = 0; l < LABEL_N; l++)
        if ((w->labels >> l & 1) && policy[l] == DROP)
            return fail(E_CONFIG, "memory.activation_offload: %s offloads what memory.recompute drops", what);
    for (int l = 0; l < LABEL_N; l++)
        if (w->labels >> l & 1) policy[l] = OFFLOAD;
    return OK;
}

Status offload_words(uint8_t policy[LABEL_N], const char *list)
{
    char   word[64];
    size_t n;
    for (const char *w; (w = str_item(&list, ',', &n));) {
        snprintf(word, sizeof word, "%.*s", (int)n, w);
        TRY(policy_offload(policy, word));
    }
    return OK;
}

WordScope recompute_word_scope(const char *word)
{
    const Word *w = find_word(recompute, RECOMPUTE_WORDS, word);
    return w ? w->of : SCOPE_LAYERS;
}

WordScope offload_word_scope(const char *word)
{
    const Word *w = find_word(offload, OFFLOAD_WORDS, word);
    return w ? w->of : SCOPE_LAYERS;
}

bool recompute_word_within(const char *word, const char *other)
{
    const Word *a = find_word(recompute, RECOMPUTE_WORDS, word);
    const Word *b = find_word(recompute, RECOMPUTE_WORDS, other);
    return a && b && a != b && a->labels && !(a->labels & ~b->labels);
}

/* ---- full ---- */

RecomputeGroup recompute_group(const FullRecompute *f, RecomputeGroup chunk, int64_t layer)
{
    int64_t at = layer - chunk.from;
    if (f->method == FULL_UNIFORM) {
        int64_t from = chunk.from + at / f->layers * f->layers, to = from + f->layers;
        return (RecomputeGroup){ from, to < chunk.to ? to : chunk.to, true };
    }
    return (RecomputeGroup){ layer, layer + 1, f->method == FULL_BLOCK && at < f->layers };
}

/* With uniform groups the blocks of the tower are recomputed one by one; with block the other words decide
 * for the tower. */
Status recompute_full(uint8_t policy[LABEL_N], FullRecompute *full, const char *method, int64_t layers)
{
    bool block = !strcmp(method, "block");
    if (!block && strcmp(method, "uniform"))
        return fail(E_CONFIG, "memory.recompute_method = %s: uniform or block", method);
    if (layers < !block)
        return fail(E_CONFIG, "memory.recompute_layers = %lld: a group has one layer or more",
                    (long long)layers);
    *full = (FullRecompute){ block ? FULL_BLOCK : FULL_UNIFORM, layers };
    return block ? OK : policy_drop(policy, "full");
}

Status recompute_word(uint8_t policy[LABEL_N], FullRecompute *full, const char *word)
{
    char    method[16] = "uniform";
    int64_t layers = 1;
    if (strncmp(word, "full", 4) || (word[4] && word[4] != ':')) return policy_drop(policy, word);
    const char *last = strrchr(word, ':');
    if (last && !str_whole(last + 1, &layers))
        return fail(E_CONFIG, "%s: write full:N, full:uniform:N or full:block:N", word);
    if (last > word + 4) snprintf(method, sizeof method, "%.*s", (int)(last - word - 5), word + 5);
    return recompute_full(policy, full, method, layers);
}

Status recompute_words(uint8_t policy[LABEL_N], FullRecompute *full, const char *list)
{
    char   word[64];
    size_t n;
    for (const char *w; (w = str_item(&list, ',', &n));) {
        snprintf(word, sizeof word, "%.*s", (int)n, w);
        TRY(recompute_word(policy, full, word));
    }
    return OK;
}
