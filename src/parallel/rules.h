/* parallel/rules.h -- which layouts are legal, said before anything is opened.
 *
 * rules.def has a row per rule. What goes in is plain numbers, so that a planner can ask about thousands of
 * layouts; what comes out names the rule, the numbers and one change that makes the whole layout legal. */
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
    int64_t     world, per_node;                 /* ranks; those a fast link joins, 0: not known */
    int64_t     tp, cp, pp, vpp, ep, etp, zero, replicas;
    const char *cp_comm;
    int64_t     cp_size[2];
    int         cp_sizes;                        /* how many were given; -1: not numbers */
    const char *layout;
    int64_t     first_layers, last_layers, group;
    bool        count_embedding, count_loss;

    int64_t     layers, heads, kv_heads;         /* of the model */
    int64_t     ffn;                             /* width of dense feed-forwards; 0: it has none */
    int64_t     experts, per_token, expert_ffn;
    bool        renorm;

    int64_t     micro_tokens, global_tokens;
    const char *dispatcher;
    double      capacity_factor;
    int64_t     domain;
    bool        pad_to_capacity, overlap, force_balance;
    const char *recompute[RULE_LABELS];
    int         recomputes;
    const char *offload[RULE_LABELS];            /* words of memory.activation_offload */
    int         offloads;
    double      offload_share;                   /* 0: not said */
    const char *recompute_method;                /* of full; NULL: not said, and neither are its layers */
    int64_t     recompute_layers;
    bool        tower;                           /* the model sees */
} RuleInput;

/* A rule that is broken. fix is an override ("parallel.tp=4") or "world=16"; "": why says what to do. */
typedef struct RuleViolation { int number; char severity; char why[440], fix[160]; } RuleViolation;
typedef struct RuleReport { RuleViolation hit[RULE_VIOLATIONS]; int n, errors; } RuleReport;

/* A recipe on so many ranks. Texts are those of the Config. */
RuleInput   rules_input(const Config *c, const ModelShape *s, int world, int per_node);

void        rules_find(RuleReport *r, const RuleInput *x);             /* E before W, in order of number */
void        rules_list(RuleReport *r, const RuleInput *x);             /* the same without fixes, and fast */
/* The first error, after a line for every other rule that is broken. log NULL: no lines. */
MUST Status rules_check(const RuleInput *x, const Log *log);
void        rule_text(char *text, size_t size, const RuleViolation *h);      /* "…; set parallel.tp=4 (rule 5)" */
bool        rules_legal(const RuleInput *x);                           /* no error; looks for no fix */

/* What legal input amounts to. */
MeshLayout      rules_layout(const RuleInput *x);
PipeLayoutSpec   rules_pipe_layout(const RuleInput *x);
PipeShape   rules_pipe(const RuleInput *x, int chunks);
/* Lines for a person: meshes, layers by stage, schedule. m NULL: as rank 0 has it. */
MUST Status rules_print(FILE *out, const RuleInput *x, const Mesh *m);

#endif
