/* diagnose/source.c -- see source.h. */
#include "diagnose/source.h"

#include "base/folder.h"
#include "report/contract.h"

#include <stdlib.h>
#include <string.h>

/* ---- hardware ---- */

/* The named row; else `this`, if the machine was measured and has that backend; else the device's row. */
static Status find_hardware(Hardware *hw, const char *named, const char *backend, const char *device)
{
    const char *row = hardware_of_device(device);
    if (named) return hardware_find(hw, named);
    if (!hardware_find(hw, "this") && !strcmp(hw->backend, backend)) return OK;
    if (!strcmp(backend, "cpu")) return hardware_find(hw, "cpu-node");
    if (row) return hardware_find(hw, row);
    return fail(E_CONFIG, "the hardware is not known: name it by --hardware, one of %s", hardware_names());
}

static const char *backend_of(const Config *c)
{
    return !strcmp(c->device.backend, "meta") ? "cpu" : backend_pick(c->device.backend);
}

/* ---- ranks ---- */

static void set_ranks(DiagnoseAsk *a, const SourceAsk *ask, int64_t ranks, int64_t per_node)
{
    a->ranks = (int)(ask->ranks ? ask->ranks : ranks);
    a->per_node = (int)(ask->per_node ? ask->per_node : per_node);
    if (!a->per_node) a->per_node = hardware_node(&a->hw, a->ranks);
    if (a->per_node > a->ranks) a->per_node = a->ranks;
}

/* ---- the three sources ---- */

static Status open_recipe(DiagnoseSource *s, const SourceAsk *ask)
{
    TRY(config_open(&s->recipe, ask->path, ask->n, ask->overrides));
    const Config *c = &s->recipe;
    TRY(find_hardware(&s->ask.hw, ask->hardware, backend_of(c), ""));
    int64_t ranks = c->parallel.ranks ? c->parallel.ranks : dryrun_ranks(&c->parallel);
    set_ranks(&s->ask, ask, ranks, c->comm.ranks_per_node);
    return OK;
}

static Status take_profile(DiagnoseSource *s, const SourceAsk *ask, const Profile *p)
{
    config_default(&s->recipe);
    TRY(config_parse(&s->recipe, p->recipe_yaml, strlen(p->recipe_yaml), p->recipe));
    TRY(find_hardware(&s->ask.hw, ask->hardware, *p->backend ? p->backend : "cuda", p->device));
    set_ranks(&s->ask, ask, p->ranks, p->per_node);
    if (!p->has_measured) return OK;
    s->measured = p->measured, s->ask.measured = &s->measured, s->ask.spread = p->spread;
    if (content_of_step(&s->content, &s->measured)) s->ask.content = &s->content;
    return OK;
}

static Status open_profile(DiagnoseSource *s, const SourceAsk *ask, const char *path)
{
    Profile p;
    TRY(profile_load(&p, path));
    Status st = *p.recipe_yaml ? take_profile(s, ask, &p)
                               : fail(E_DATA, "%s: it has no recipe_yaml", path);
    profile_close(&p);
    return st;
}

static int64_t env_int(const ReportRun *run, const char *key)
{
    const char *v = keys_find(&run->env, key);
    return v ? atoll(v) : 0;
}

static Status take_run(DiagnoseSource *s, const SourceAsk *ask, const ReportRun *run)
{
    const char *device = keys_find(&run->env, "cuda");
    Contract    c;
    Path        recipe;
    TRY(path_join(recipe, run->dir, "recipe.yaml"));
    TRY(config_open(&s->recipe, recipe, 0, NULL));
    TRY(find_hardware(&s->ask.hw, ask->hardware, backend_of(&s->recipe), device ? device : ""));
    set_ranks(&s->ask, ask, env_int(run, "run.ranks"), env_int(run, "run.ranks_per_node"));
    if (!s->ask.ranks) s->ask.ranks = s->ask.per_node = dryrun_ranks(&s->recipe.parallel);
    TRY(step_of_metrics(&s->measured, run));
    s->ask.measured = &s->measured;
    TRY(contract_of_run(&c, run));
    s->ask.facts = c.facts;
    contract_close(&c);
    return OK;
}

/* A profile of the run is better than its metrics. */
static Status open_run(DiagnoseSource *s, const SourceAsk *ask)
{
    Path       profile;
    ReportRun *run = calloc(1, sizeof *run);
    if (!run) return fail(E_FIT, "no memory to read %s", ask->path);
    Status st = path_join(profile, ask->path, "profile/profile.json");
    if (!st && file_is(profile)) st = open_profile(s, ask, profile);
    else if (!st) {
        st = run_open(run, ask->path);
        if (!st) st = take_run(s, ask, run);
        run_close(run);
    }
    free(run);
    return st;
}

static bool ends_in(const char *path, const char *end)
{
    size_t n = strlen(path), k = strlen(end);
    return n >= k && !strcmp(path + n - k, end);
}

Status source_open(DiagnoseSource *s, const SourceAsk *ask)
{
    *s = (DiagnoseSource){ .ask.recipe = &s->recipe };
    Status st = folder_is(ask->path)             ? open_run(s, ask)
                : ends_in(ask->path, ".json")    ? open_profile(s, ask, ask->path)
                                                 : open_recipe(s, ask);
    if (st) source_close(s);
    else    hardware_limit(&s->ask.hw, s->recipe.device.memory_limit);
    return st;
}

void source_close(DiagnoseSource *s)
{
    config_close(&s->recipe);
    mem_pool_close(&s->keep);
}
