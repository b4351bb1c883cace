/* nn/stash.c -- labels by name, what each word of memory.recompute drops, and which layers `full` is of. */
#include "nn/stash.h"

#include "base/str.h"

#include <stdio.h>
#include <string.h>

#define BIT(l) (1u << L_##l)

enum {
    TOWER = BIT(V_STAT) | BIT(V_NORM) | BIT(V_QKV) | BIT(V_ROPE) | BIT(V_CORE) | BIT(V_RESID) | BIT(V_UP) |
            BIT(V_ACT) | BIT(MERGER)
};

/* Words of other trainers for parts that no family here has drop nothing: the rules refuse them by what they
 * are of. */
static const struct { const char *word; uint32_t drops; WordOf of; } words[] = {
    { "core_attn",      BIT(CORE) | BIT(V_CORE),                                 OF_LAYERS },
    { "layernorm",      BIT(NORM) | BIT(MLP_NORM) | BIT(V_NORM),                 OF_LAYERS },
    { "norm",           BIT(NORM) | BIT(MLP_NORM) | BIT(V_NORM),                 OF_LAYERS },
    { "qkv",            BIT(QKV) | BIT(ROPE) | BIT(V_QKV) | BIT(V_ROPE),         OF_LAYERS },
    { "moe_act",        BIT(ACT),                                                OF_EXPERTS },
    { "moe_dispatch",   BIT(DISPATCH) | BIT(ACT),                                OF_EXPERTS },
    { "moe",            BIT(LOGITS) | BIT(DISPATCH) | BIT(GATE_UP) | BIT(ACT),   OF_EXPERTS },
    { "mlp",            BIT(MLP_UP) | BIT(MLP_ACT),                              OF_DENSE },
    { "shared_experts", 0,                                                       OF_SHARED_EXPERTS },
    { "up_proj",        0,                                                       OF_LATENT_ATTENTION },
    { "mla_up_proj",    0,                                                       OF_LATENT_ATTENTION },
    { "gdn_norm_out",   0,                                                       OF_LINEAR_ATTENTION },
    { "vision_act",     BIT(V_NORM) | BIT(V_ROPE) | BIT(V_ACT),                  OF_TOWER },
    { "vision",         TOWER,                                                   OF_TOWER },
    { "full",           ~0u,                                                     OF_LAYERS },
};
enum { WORDS = sizeof words / sizeof *words };

static const struct { const char *name; Policy policy; } labels[] = {
#define LABEL(name, policy, meaning) { #name, policy },
    LABELS(LABEL)
#undef LABEL
};

_Static_assert(LABEL_N <= 32, "labels no longer fit a mask");

const char *label_name(Label l) { return labels[l].name; }

const char *policy_choices(void)
{
    return "core_attn, layernorm (norm), qkv, moe_act, moe_dispatch, moe, mlp, shared_experts, mla_up_proj "
           "(up_proj), gdn_norm_out, vision_act, vision, full";
}

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

static int word_row(const char *word)
{
    int i = 0;
    while (i < WORDS && strcmp(words[i].word, word)) i++;
    return i;
}

Status policy_drop(uint8_t policy[LABEL_N], const char *what)
{
    int i = word_row(what);
    if (i == WORDS)
        return fail(E_CONFIG, "memory.recompute: %s is not a label; there are %s", what, policy_choices());
    for (int l = 0; l < LABEL_N; l++)
        if ((words[i].drops >> l & 1) && policy[l] != PIN) policy[l] = DROP;
    return OK;
}

WordOf word_of(const char *word)
{
    int i = word_row(word);
    return i < WORDS ? words[i].of : OF_LAYERS;
}

bool word_within(const char *word, const char *other)
{
    int a = word_row(word), b = word_row(other);
    return a < WORDS && b < WORDS && a != b && words[a].drops && !(words[a].drops & ~words[b].drops);
}

/* ---- full ---- */

Stretch full_stretch(const Full *f, Stretch chunk, int64_t layer)
{
    int64_t at = layer - chunk.from;
    if (f->method == FULL_UNIFORM) {
        int64_t from = chunk.from + at / f->layers * f->layers, to = from + f->layers;
        return (Stretch){ from, to < chunk.to ? to : chunk.to, true };
    }
    return (Stretch){ layer, layer + 1, f->method == FULL_BLOCK && at < f->layers };
}

/* The tower's blocks are checkpointed one by one with the layers; where only some of those are, the tower is
 * as the other words say. */
Status recompute_full(uint8_t policy[LABEL_N], Full *full, const char *method, int64_t layers)
{
    bool block = !strcmp(method, "block");
    if (!block && strcmp(method, "uniform"))
        return fail(E_CONFIG, "memory.recompute_method = %s: uniform or block", method);
    if (layers < !block)
        return fail(E_CONFIG, "memory.recompute_layers = %lld: a group has one layer or more",
                    (long long)layers);
    *full = (Full){ block ? FULL_BLOCK : FULL_UNIFORM, layers };
    return block ? OK : policy_drop(policy, "full");
}

Status recompute_word(uint8_t policy[LABEL_N], Full *full, const char *word)
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

Status recompute_words(uint8_t policy[LABEL_N], Full *full, const char *list)
{
    char   word[64];
    size_t n;
    for (const char *w; (w = str_item(&list, ',', &n));) {
        snprintf(word, sizeof word, "%.*s", (int)n, w);
        TRY(recompute_word(policy, full, word));
    }
    return OK;
}
