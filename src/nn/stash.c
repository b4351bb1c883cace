/* nn/stash.c -- labels by name, what each word of memory.recompute drops and of activation_offload parks, and
 * which layers `full` is of. */
#include "nn/stash.h"

#include "base/str.h"

#include <stdio.h>
#include <string.h>

#define BIT(l) (1u << L_##l)

enum {
    TOWER = BIT(V_STAT) | BIT(V_NORM) | BIT(V_QKV) | BIT(V_ROPE) | BIT(V_CORE) | BIT(V_RESID) | BIT(V_UP) |
            BIT(V_ACT) | BIT(MERGER),
    LAYER = BIT(INPUT) | BIT(STAT) | BIT(NORM) | BIT(QKV) | BIT(ROPE) | BIT(LATENT) | BIT(UP_PROJ) |
            BIT(GDN) | BIT(CORE) | BIT(RESID) | BIT(MLP_NORM) | BIT(LOGITS) | BIT(DISPATCH) | BIT(GATE_UP) |
            BIT(ACT) | BIT(LORA) |
            BIT(SHARED_UP) | BIT(SHARED_ACT) | BIT(MLP_UP) | BIT(MLP_ACT)
};

typedef struct Word { const char *word; uint32_t labels; WordScope of; } Word;

/* Words of other trainers for parts that no family here has drop nothing: the rules refuse them by what they
 * are of. */
static const Word words[] = {
    { "core_attn",      BIT(CORE) | BIT(V_CORE),                                 SCOPE_LAYERS },
    { "layernorm",      BIT(NORM) | BIT(MLP_NORM) | BIT(V_NORM),                 SCOPE_LAYERS },
    { "norm",           BIT(NORM) | BIT(MLP_NORM) | BIT(V_NORM),                 SCOPE_LAYERS },
    { "qkv",            BIT(QKV) | BIT(ROPE) | BIT(V_QKV) | BIT(V_ROPE),         SCOPE_LAYERS },
    { "moe_act",        BIT(ACT),                                                SCOPE_EXPERTS },
    { "moe_dispatch",   BIT(DISPATCH) | BIT(ACT),                                SCOPE_EXPERTS },
    { "moe",            BIT(LOGITS) | BIT(DISPATCH) | BIT(GATE_UP) | BIT(ACT) | BIT(LORA), SCOPE_EXPERTS },
    { "mlp",            BIT(MLP_UP) | BIT(MLP_ACT),                              SCOPE_DENSE },
    { "shared_experts", BIT(SHARED_UP) | BIT(SHARED_ACT),                        SCOPE_SHARED_EXPERTS },
    { "up_proj",        BIT(UP_PROJ),                                            SCOPE_LATENT_ATTENTION },
    { "mla_up_proj",    BIT(UP_PROJ),                                            SCOPE_LATENT_ATTENTION },
    { "gdn_norm_out",   0,                                                       SCOPE_LINEAR_ATTENTION },
    { "vision_act",     BIT(V_NORM) | BIT(V_ROPE) | BIT(V_ACT),                  SCOPE_TOWER },
    { "vision",         TOWER,                                                   SCOPE_TOWER },
    { "full",           ~0u,                                                     SCOPE_LAYERS },
};
enum { WORDS = sizeof words / sizeof *words };

/* The input of the norm before attention is that of the layer, that of an expert's first product the rows as
 * they arrived, and so on; `moe` and `mlp` are all of a feed-forward, `layer` all of a layer. */
static const Word parked[] = {
    { "attn_norm",    BIT(INPUT),                                              SCOPE_LAYERS },
    { "qkv_linear",   BIT(NORM),                                               SCOPE_LAYERS },
    { "core_attn",    BIT(QKV) | BIT(ROPE),                                    SCOPE_LAYERS },
    { "qkv",          BIT(QKV) | BIT(ROPE),                                    SCOPE_LAYERS },
    { "attn_proj",    BIT(CORE),                                               SCOPE_LAYERS },
    { "mlp_norm",     BIT(RESID),                                              SCOPE_LAYERS },
    { "layernorm",    BIT(NORM) | BIT(MLP_NORM),                               SCOPE_LAYERS },
    { "norm",         BIT(NORM) | BIT(MLP_NORM),                               SCOPE_LAYERS },
    { "expert_fc1",   BIT(DISPATCH),                                           SCOPE_EXPERTS },
    { "moe_dispatch", BIT(DISPATCH),                                           SCOPE_EXPERTS },
    { "moe_act",      BIT(GATE_UP),                                            SCOPE_EXPERTS },
    { "moe",          BIT(LOGITS) | BIT(DISPATCH) | BIT(GATE_UP) | BIT(ACT),   SCOPE_EXPERTS },
    { "mlp",          BIT(MLP_UP) | BIT(MLP_ACT),                              SCOPE_DENSE },
    { "vision",       TOWER & ~BIT(MERGER),                                    SCOPE_TOWER },
    { "layer",        LAYER,                                                   SCOPE_LAYERS },
};
enum { PARKED = sizeof parked / sizeof *parked };

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

static const Word *find(const Word *row, int n, const char *word)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(row[i].word, word)) return &row[i];
    return NULL;
}

Status policy_drop(uint8_t policy[LABEL_N], const char *what)
{
    const Word *w = find(words, WORDS, what);
    if (!w)
        return fail(E_CONFIG, "memory.recompute: %s is not a label; there are %s", what, policy_choices());
    for (int l = 0; l < LABEL_N; l++)
        if ((w->labels >> l & 1) && policy[l] != PIN) policy[l] = DROP;
    return OK;
}

const char *offload_choices(void)
{
    return "attn_norm, qkv_linear, core_attn (qkv), attn_proj, mlp_norm, layernorm (norm), expert_fc1 "
           "(moe_dispatch), moe_act, moe, mlp, vision, layer";
}

/* What is dropped already cannot wait anywhere; the rules refuse it. */
Status policy_offload(uint8_t policy[LABEL_N], const char *what)
{
    const Word *w = find(parked, PARKED, what);
    if (!w)
        return fail(E_CONFIG, "memory.activation_offload: %s is not a label; there are %s", what,
                    offload_choices());
    for (int l = 0; l < LABEL_N; l++)
        if ((w->labels >> l & 1) && policy[l] == DROP)
            return fail(E_CONFIG, "memory.activation_offload: %s parks what memory.recompute drops", what);
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
    const Word *w = find(words, WORDS, word);
    return w ? w->of : SCOPE_LAYERS;
}

WordScope offload_word_scope(const char *word)
{
    const Word *w = find(parked, PARKED, word);
    return w ? w->of : SCOPE_LAYERS;
}

bool recompute_word_within(const char *word, const char *other)
{
    const Word *a = find(words, WORDS, word), *b = find(words, WORDS, other);
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

/* The tower's blocks are checkpointed one by one with the layers; where only some of those are, the tower is
 * as the other words say. */
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
