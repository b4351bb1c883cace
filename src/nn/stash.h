/* nn/stash.h -- what forward leaves for backward, by label.
 *
 * LABEL(name, default, meaning). A module asks need() for each value that backward will read; whether the
 * value is kept, or thrown away and computed again, is decided by the policy of its label and nowhere
 * else. Recompute, memory accounting and plans read this one list. */
#ifndef NN_STASH_H
#define NN_STASH_H

#include "base/status.h"
#include <stdint.h>

typedef enum { KEEP, DROP, PIN } Policy;      /* PIN: kept whatever the recipe says */

#define LABELS(LABEL)                                                                              \
    LABEL(INPUT,     PIN,  "input of a layer: where a replay starts")                              \
    LABEL(STAT,      PIN,  "row statistics of norms, log-sum-exps: a few bytes a row")             \
    LABEL(ROUTE,     PIN,  "top-k choice: a replay that re-decides trains another model")          \
    LABEL(NORM,      KEEP, "normalised input: one cheap pass to get back")                         \
    LABEL(QKV,       KEEP, "query, key and value projections")                                     \
    LABEL(ROPE,      KEEP, "queries and keys after norm and rotation")                             \
    LABEL(CORE,      KEEP, "attention output")                                                     \
    LABEL(RESID,     KEEP, "residual stream between attention and feed-forward")                   \
    LABEL(DISPATCH,  KEEP, "tokens as the experts received them")                                  \
    LABEL(GATE_UP,   KEEP, "gate and up projections of experts")                                   \
    LABEL(ACT,       KEEP, "activation product of experts")                                        \
    LABEL(MLP_UP,    KEEP, "gate and up projections of dense layers")                              \
    LABEL(MLP_ACT,   KEEP, "activation product of dense layers")                                   \
    LABEL(V_NORM,    KEEP, "vision tower: normalised inputs")                                      \
    LABEL(V_QKV,     KEEP, "vision tower: query, key and value projections")                       \
    LABEL(V_ROPE,    KEEP, "vision tower: rotated queries and keys")                               \
    LABEL(V_CORE,    KEEP, "vision tower: attention output")                                       \
    LABEL(V_RESID,   KEEP, "vision tower: residual stream inside a block")                         \
    LABEL(V_UP,      KEEP, "vision tower: first feed-forward projection")                          \
    LABEL(V_ACT,     KEEP, "vision tower: activation")                                             \
    LABEL(MERGER,    KEEP, "mergers: everything between their norm and their output")

typedef enum {
#define LABEL(name, policy, meaning) L_##name,
    LABELS(LABEL)
#undef LABEL
    LABEL_N
} Label;

const char *label_name(Label l);              /* "moe_act"-like lower case, as arenas and reports show it */

/* Policies for a recipe's memory.recompute: names of the table in stash.c, or "full". */
void        policy_default(uint8_t policy[LABEL_N]);
MUST Status policy_drop(uint8_t policy[LABEL_N], const char *what);
const char *policy_choices(void);

#endif
