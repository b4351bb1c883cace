/* plan/auto_run.c -- the choice of auto.h for the ranks of a run. */
#include "plan/auto.h"

#include "base/folder.h"
#include "ops/backend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bytes that this rank may take; CPU ranks of a host share its memory. */
static double available(const Config *c, const char *backend, const Comm *world)
{
    double left, all, most = c->device.memory_limit * (1 << 30);
    backend_memory(backend, &left, &all);
    if (!strcmp(backend, "cpu")) left /= comm_ranks_on_node(world);
    return most > 0 ? fmin(left, most) : left;
}

/* The sections of the recipe in the folder of a run, if the run had as many ranks. */
static Status read_run(AutoChoice *a, const Config *c, int ranks)
{
    Path   path;
    Config run;
    bool   asked;
    TRY(path_join(path, c->checkpoint.output_dir, "recipe.yaml"));
    TRY(config_open(&run, path, 0, NULL));
    FILE *f = run.parallel.ranks == ranks ? fmemopen(a->yaml, sizeof a->yaml, "w") : NULL;
    if (f && config_is_auto(c, "parallel", &asked)) config_dump_section(f, &run, "parallel");
    if (f && config_is_auto(c, "memory", &asked)) config_dump_section(f, &run, "memory");
    if (f && fclose(f)) *a->yaml = 0;
    config_close(&run);
    return OK;
}

static Status find(AutoChoice *a, const Config *c, const Comm *world, double bytes)
{
    AutoAsk ask = { .recipe = c, .ranks = world->size, .per_node = comm_ranks_on_node(world),
                    .available = bytes };
    *a = (AutoChoice){ .keys = { 0 } };
    if (strcmp(c->checkpoint.resume_from_checkpoint, "none") && read_run(a, c, world->size)) *a->yaml = 0;
    if (*a->yaml) return OK;
    TRY(hardware_here(&ask.hw, c->device.backend, ask.per_node));
    TRY(auto_find(a, &ask));
    if (world->size > 1 || a->keys.n) layout_key(&a->keys, "parallel.ranks=%d", world->size);
    return OK;
}

Status auto_choose(AutoChoice *a, Config *c, Comm *world)
{
    bool asked;
    const char *backend = backend_pick(c->device.backend);
    *a = (AutoChoice){ .keys = { 0 } };
    if (!config_is_auto(c, "parallel", &asked) && !config_is_auto(c, "memory", &asked)) return OK;
    double bytes = -available(c, backend, world);
    if (world->size > 1) comm_host_max(world, &bytes, 1);
    Status st = world->rank == 0 ? find(a, c, world, -bytes) : OK;
    if (world->size > 1) TRY(comm_agree(world, st));
    TRY(st);
    if (world->size > 1) TRY(comm_host_broadcast(world, a, sizeof *a));
    TRY(layout_keys_apply(c, &a->keys));
    if (*a->yaml) TRY(config_parse(c, a->yaml, strlen(a->yaml), "recipe.yaml of the run"));
    c->auto_parallel = c->auto_memory = false;
    return OK;
}
