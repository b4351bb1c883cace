/* parallel/rules.h -- which combinations of settings are legal, checked before anything is opened.
 *
 * rules.def has a row per rule. The input is plain numbers, so that the planner can check thousands of
 * layouts; a violation names the rule, the numbers and one change of a setting that makes the whole layout
 * legal. */
#ifndef PARALLEL_RULES_H
#define PARALLEL_RULES_H

#include "base/config.h"
#include "base/log.h"
#include "comm/mesh.h"
#include "model/shape.h"
#include "parallel/pipe_layout.h"
#include "parallel/pipe.h"

enum { RULE_LABELS = 16, RULE_VIOLATIONS = 64 };

typedef struct RuleInput {
    long long   world, per_node;                 /* ranks; ranks of a node, 0: not known */
    long long   tp, cp, pp, vpp, ep, etp, zero, replicas;
    const char *cp_comm;
    long long   cp_size[2];
    int         cp_sizes;                        /* entries of parallel.cp_sizes; -1: not numbers */
    const char *layout;
    long long   first_layers, last_layers, group;
    bool        count_embedding, count_loss;

    long long   layers, heads, kv_heads;         /* of the model, as the next two lines */
    long long   ffn;                             /* width of dense FFN layers; 0: the model has none */
    long long   experts, per_token, expert_ffn;
    bool        renorm;
    long long   shared;                          /* width of shared experts; 0: none */
    bool        latent, linear;                  /* some attention is latent (MLA), or a gated delta net */
    long long   linear_heads;                    /* key heads of gated delta nets; 0: there are none */
    bool        wide_norm;                       /* one norm of all heads of queries, one of keys */
    bool        expert_bias;                     /* experts' products have biases */
    int64_t linear_conv;                         /* width of the convolution of gated delta nets; 0: none */

    long long   micro_tokens, global_tokens;
    const char *dispatcher;
    double      capacity_factor;
    long long   domain;
    bool        pad_to_capacity, overlap, force_balance;
    const char *recompute[RULE_LABELS];
    int         recomputes;
    const char *offload[RULE_LABELS];            /* words of memory.activation_offload */
    int         offloads;
    double      offload_share;                   /* 0: not set */
    const char *recompute_method;                /* NULL: it and recompute_layers are not set */
    long long   recompute_layers;
    bool        tower;                           /* the model has a vision tower */
    bool        tied, fp8_head;                  /* its head is the embedding; train.fp8_products has head */
} RuleInput;

/* fix is an override ("parallel.tp=4") or "world=16"; "": `why` says what to do. */
typedef struct RuleViolation { int number; char severity; char why[440], fix[160]; } RuleViolation;
typedef struct RuleReport { RuleViolation violation[RULE_VIOLATIONS]; int n, errors; } RuleReport;

/* The settings of a recipe on `world` ranks. Its strings belong to the Config. */
RuleInput   rules_input(const Config *c, const ModelShape *s, int world, int per_node);
/* Parts of the model that no layout can divide yet. */
void        rules_family(RuleInput *x, const TextShape *t);

void        rules_find(RuleReport *r, const RuleInput *x);  /* violations with fixes: E before W, by number */
void        rules_list(RuleReport *r, const RuleInput *x);             /* the same without fixes: fast */
/* Fails with the first error, after logging every other violation. log NULL: logs nothing. */
MUST Status rules_check(const RuleInput *x, const Log *log);
void        rule_text(char *text, size_t size, const RuleViolation *h);  /* "…; set parallel.tp=4 (rule 5)" */
bool        rules_legal(const RuleInput *x);                           /* no rule of severity E is violated */

/* The result of a legal layout. */
MeshLayout      rules_layout(const RuleInput *x);
PipeLayoutSpec   rules_pipe_layout(const RuleInput *x);
/* Prints mesh, layers by stage and schedule. m NULL: of rank 0. */
MUST Status rules_print(FILE *out, const RuleInput *x, const Mesh *m);

#endif
