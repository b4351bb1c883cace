/* nn/stash.h -- what forward leaves for backward, by label.
 *
 * LABEL(name, default, meaning). A module asks need() for each value that backward will read; the policy of
 * its label, and nothing else, decides whether the value is kept, offloaded to the host, or dropped and
 * recomputed. Recompute, offload, memory accounting and plans read this one list.
 *
 * A policy row has one byte a label. A recipe's words make one row for the tower and all layers; `full` has a
 * row of its own (policy_full), and FullRecompute says for which layers. */
#ifndef NN_STASH_H
#define NN_STASH_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

typedef enum { KEEP, DROP, PIN, OFFLOAD } Policy;  /* PIN: always kept; OFFLOAD: to the host until backward */

#define LABELS(LABEL)                                                                              \
    LABEL(INPUT,     PIN,  "input of a layer: where a replay starts")                              \
    LABEL(ROUTE,     PIN,  "selected experts: a replay could break ties differently")              \
    LABEL(STAT,      KEEP, "row statistics of norms, log-sum-exps: a few bytes a row and head")    \
    LABEL(NORM,      KEEP, "normalised input of attention: one cheap pass to recompute")           \
    LABEL(QKV,       KEEP, "query, key and value projections")                                     \
    LABEL(ROPE,      KEEP, "queries and keys after norm and rotation")                             \
    LABEL(LATENT,    KEEP, "down projections of latent attention (MLA)")                           \
    LABEL(UP_PROJ,   KEEP, "up projections of latent attention (MLA): queries, keys, values")      \
    LABEL(GDN,       KEEP, "projections of gated delta nets")                                      \
    LABEL(GDN_CONV,  KEEP, "queries, keys and values of gated delta nets after their convolution") \
    LABEL(CORE,      KEEP, "attention output")                                                     \
    LABEL(RESID,     KEEP, "residual stream between attention and feed-forward")                   \
    LABEL(MLP_NORM,  KEEP, "normalised input of feed-forwards")                                    \
    LABEL(LOGITS,    KEEP, "router logits")                                                        \
    LABEL(DISPATCH,  KEEP, "tokens as the experts received them")                                  \
    LABEL(GATE_UP,   KEEP, "gate and up projections of experts")                                   \
    LABEL(ACT,       KEEP, "activation product of experts")                                        \
    LABEL(LORA,      KEEP, "outputs of the LoRA A of experts")                                     \
    LABEL(SHARED_UP, KEEP, "gate and up projections of shared experts")                            \
    LABEL(SHARED_ACT, KEEP, "activation product of shared experts")                                \
    LABEL(MLP_UP,    KEEP, "gate and up projections of dense layers")                              \
    LABEL(MLP_ACT,   KEEP, "activation product of dense layers")                                   \
    LABEL(V_STAT,    KEEP, "vision tower: row statistics of norms, log-sum-exps")                  \
    LABEL(V_NORM,    KEEP, "vision tower: normalised inputs")                                      \
    LABEL(V_QKV,     KEEP, "vision tower: rotated queries and keys, values")                       \
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

/* Applies a word of memory.recompute (nn/recompute.def). "full" alone recomputes one layer at a time. */
void        policy_default(uint8_t policy[LABEL_N]);
MUST Status policy_drop(uint8_t policy[LABEL_N], const char *what);
const uint8_t *policy_full(void);                 /* drops all labels that are not pinned */
const char *policy_choices(void);

/* The same for a word of memory.activation_offload (nn/offload.def). */
MUST Status policy_offload(uint8_t policy[LABEL_N], const char *what);
const char *offload_choices(void);
MUST Status offload_words(uint8_t policy[LABEL_N], const char *words);   /* separated by commas; NULL: none */

/* What a model must have for a word to apply. */
typedef enum {
    SCOPE_LAYERS, SCOPE_DENSE, SCOPE_EXPERTS, SCOPE_TOWER, SCOPE_SHARED_EXPERTS, SCOPE_LATENT_ATTENTION,
    SCOPE_LINEAR_ATTENTION
} WordScope;
WordScope      recompute_word_scope(const char *word);            /* of a known word */
WordScope      offload_word_scope(const char *word);
bool        recompute_word_within(const char *word, const char *other);  /* the other drops all its labels */

/* Layers of a chunk that are recomputed whole: all of them in groups of `layers`, of which the first input is
 * kept (uniform), or the first `layers`, each one a group (block). Backward replays a group before its
 * layers. */
typedef enum { FULL_NONE, FULL_UNIFORM, FULL_BLOCK } FullMethod;
typedef struct FullRecompute { FullMethod method; int64_t layers; } FullRecompute;
typedef struct RecomputeGroup { int64_t from, to; bool full; } RecomputeGroup;
/* The group of a layer of a chunk. */
RecomputeGroup recompute_group(const FullRecompute *f, RecomputeGroup chunk, int64_t layer);

/* A word of a command line: as above, or full, full:N, full:uniform:N, full:block:N. */
MUST Status recompute_word(uint8_t policy[LABEL_N], FullRecompute *full, const char *word);
MUST Status recompute_words(uint8_t policy[LABEL_N], FullRecompute *full, const char *words); /* NULL: none */
MUST Status recompute_full(uint8_t policy[LABEL_N], FullRecompute *full, const char *method, int64_t layers);

#endif
