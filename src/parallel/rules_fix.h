/* parallel/rules_fix.h -- the settings that a violated rule proposes to change, and the search for a value
 * that makes the layout legal. For rules.c and rules_fix.c alone.
 *
 * A setting proposes its alternatives one by one: NUMBER the nearest multiples of its unit, WORD the entries
 * of a list, SWITCH off. Each OTHER has a function of its own in rules_fix.c. */
#ifndef PARALLEL_RULES_FIX_H
#define PARALLEL_RULES_FIX_H

#include "parallel/rules.h"

#define RULE_FIXES(NUMBER, WORD, SWITCH, OTHER)                                                   \
    NUMBER(world,         "world",                     1)                                         \
    NUMBER(tp,            "parallel.tp",               1)                                         \
    NUMBER(cp,            "parallel.cp",               1)                                         \
    NUMBER(pp,            "parallel.pp",               1)                                         \
    NUMBER(vpp,           "parallel.vpp",              1)                                         \
    NUMBER(ep,            "parallel.ep",               1)                                         \
    NUMBER(etp,           "parallel.etp",              1)                                         \
    NUMBER(zero,          "parallel.zero",             0)                                         \
    NUMBER(replicas,      "parallel.replicas",         1)                                         \
    NUMBER(group,         "parallel.microbatch_group", 0)                                         \
    NUMBER(micro_tokens,  "train.micro_tokens",        16)                                        \
    NUMBER(global_tokens, "train.global_tokens",       1)                                         \
    NUMBER(domain,        "moe.ranks_per_domain",      1)                                         \
    WORD(cp_comm,         "parallel.cp_comm",          cp_comm_alternative)                       \
    WORD(dispatcher,      "moe.dispatcher",            dispatcher_alternative)                    \
    SWITCH(overlap,         "moe.overlap")                                                        \
    SWITCH(pad_to_capacity, "moe.pad_to_capacity")                                                \
    SWITCH(force_balance,   "moe.force_balance")                                                  \
    OTHER(layout) OTHER(cp_sizes) OTHER(capacity_factor) OTHER(recompute)                         \
    OTHER(recompute_method) OTHER(recompute_layers) OTHER(offload) OTHER(offload_share)

typedef enum {
#define NUMBER(setting, key, least)     FIX_##setting,
#define WORD(setting, key, alternative) FIX_##setting,
#define SWITCH(setting, key)            FIX_##setting,
#define OTHER(setting)                  FIX_##setting,
    RULE_FIXES(NUMBER, WORD, SWITCH, OTHER)
#undef NUMBER
#undef WORD
#undef SWITCH
#undef OTHER
    FIX_NONE
} RuleFix;

/* Sets v->fix to the first alternative of `fixes` after which no error is left and rule v->number holds;
 * failing that, to the first after which that rule holds and fewer than `errors` are left; else to "". */
void      rule_find_fix(RuleViolation *v, const RuleInput *x, const RuleFix *fixes, int n, int errors);

/* train.micro_tokens must be a multiple of it. */
long long rules_token_unit(const RuleInput *x);

#endif
