/* nn/stash.c -- labels by name, and what each word of memory.recompute drops. */
#include "nn/stash.h"

#include <string.h>

#define BIT(l) (1u << L_##l)

static const struct { const char *word; uint32_t drops; } words[] = {
    { "layernorm", BIT(NORM) | BIT(V_NORM) },
    { "norm",      BIT(NORM) | BIT(V_NORM) },
    { "core_attn", BIT(CORE) | BIT(V_CORE) },
    { "qkv",       BIT(QKV) | BIT(ROPE) | BIT(V_QKV) | BIT(V_ROPE) },
    { "moe_act",   BIT(ACT) },
    { "moe_dispatch", BIT(DISPATCH) | BIT(ACT) },
    { "moe",       BIT(DISPATCH) | BIT(GATE_UP) | BIT(ACT) },
    { "mlp",       BIT(MLP_UP) | BIT(MLP_ACT) },
    { "vision",
      BIT(V_NORM) | BIT(V_QKV) | BIT(V_ROPE) | BIT(V_CORE) | BIT(V_RESID) | BIT(V_UP) | BIT(V_ACT) |
                   BIT(MERGER) },
    { "vision_act", BIT(V_NORM) | BIT(V_ROPE) | BIT(V_ACT) },
    { "full",      ~0u },
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
    return "layernorm, norm, core_attn, qkv, moe_act, moe_dispatch, moe, mlp, vision_act, vision, full";
}

void policy_default(uint8_t policy[LABEL_N])
{
    for (int l = 0; l < LABEL_N; l++) policy[l] = (uint8_t)labels[l].policy;
}

Status policy_drop(uint8_t policy[LABEL_N], const char *what)
{
    for (int i = 0; i < WORDS; i++) {
        if (strcmp(words[i].word, what)) continue;
        for (int l = 0; l < LABEL_N; l++)
            if ((words[i].drops >> l & 1) && policy[l] != PIN) policy[l] = DROP;
        return OK;
    }
    return fail(E_CONFIG, "memory.recompute: %s is not a label; there are %s", what, policy_choices());
}
