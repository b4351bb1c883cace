/* tune/tune_plan.c -- dry runs of changed recipes, and which recipes were tried. */
#include "plan/dryrun.h"
#include "report/contract.h"
#include "tune/tune.h"

#include <string.h>

static Status changed_recipe(Config *c, const Tune *t, const char *set)
{
    *c = t->base;
    c->keep = (MemPool){ 0 };                            /* only texts of the overrides are freed */
    return config_set_all(c, set);
}

Status tune_plan(const Tune *t, const char *set, double *step, double *bytes)
{
    Config c;
    DryRun d;
    Status st = changed_recipe(&c, t, set);
    if (!st) st = dryrun_open(&d, &c, t->ask->ranks, t->ask->ranks, &t->machine.hw);
    if (!st) {
        *step = d.step.step, *bytes = (double)dryrun_peak(&d, NULL);
        dryrun_close(&d);
    }
    mem_pool_close(&c.keep);
    return st;
}

static void hash_of(char out[CONTRACT_HASH], const Tune *t, const char *set)
{
    Config   c;
    Contract x;
    *out = 0;
    Status st = changed_recipe(&c, t, set);
    if (!st) st = contract_of_config(&x, &c);
    if (!st) contract_hash(out, &x, NULL, 0), contract_close(&x);
    mem_pool_close(&c.keep);
}

bool tune_is_tried(Tune *t, const char *set, bool mark)
{
    char hash[CONTRACT_HASH], base[CONTRACT_HASH];
    hash_of(hash, t, set), hash_of(base, t, "");
    if (!*hash || !strcmp(hash, base)) return true;
    for (int i = 0; i < t->n_tried; i++)
        if (!strcmp(t->tried[i], hash)) return true;
    if (mark && t->n_tried < TUNE_TRIED) snprintf(t->tried[t->n_tried++], sizeof *t->tried, "%s", hash);
    return false;
}
