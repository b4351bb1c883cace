/* cli/cmd_profile.c -- treb profile recipe.yaml: a short measured run, and where the time and memory of its
 * steps go, beside what the planner predicts. */
#include "cli/commands.h"
#include "cli/ranks.h"
#include "profile/measure.h"
#include "profile/predict.h"
#include "profile/profile_print.h"
#include "report/profile_page.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct ProfileArgs {
    const char *out, *hardware;
    int64_t     steps, warmup;
    bool        json;
    const char *path;
    Config      recipe;
    Path        folder, run; /* of the results; of the run, which is removed */
} ProfileArgs;

static const Option options[] = {
    OPTION_INT(ProfileArgs, steps, "--steps", "N", 1, 1000, "profiled steps (default 8)"),
    OPTION_INT(ProfileArgs, warmup, "--warmup", "N", 0, 100000,
               "steps before anything is measured (default 3)"),
    OPTION_TEXT(ProfileArgs, hardware, "--hardware", "ID",
                "a GPU by name, or `this`, that predicts; by default the row of the GPU at hand"),
    OPTION_TEXT(ProfileArgs, out, "--out", "FOLDER",
                "for the results (default: checkpoint.output_dir with -profile)"),
    OPTION_FLAG(ProfileArgs, json, "--json", "print profile.json in place of the table"),
    OPTION_END
};

/* ---- folders ---- */

static Status name_folders(ProfileArgs *a)
{
    const char *run = a->recipe.checkpoint.output_dir;
    TRY(option_folder("--out", a->out));
    int n = a->out ? snprintf(a->folder, sizeof a->folder, "%s", a->out)
                   : snprintf(a->folder, sizeof a->folder, "%s-profile", *run ? run : "run");
    if (n >= (int)sizeof a->folder) return fail(E_IO, "the path of the folder is too long");
    return path_join(a->run, a->folder, "run");
}

static Status make_folder(const ProfileArgs *a)
{
    folder_remove(a->run); /* left by a profile that was killed */
    return folder_make(a->folder);
}

/* A profile that failed leaves no empty folder. */
static void remove_run(const ProfileArgs *a)
{
    folder_remove(a->run);
    rmdir(a->folder);
}

/* ---- prediction ---- */

static Status find_hardware(Hardware *hw, const ProfileArgs *a, const char *backend, bool *found)
{
    *found = true;
    if (a->hardware) return hardware_find(hw, a->hardware);
    *found = predict_hardware(hw, backend);
    return OK;
}

/* A prediction that fails is no reason to lose a measurement. */
static Status predict(const ProfileArgs *a, Profile *p)
{
    Hardware hw;
    bool     found;
    TRY(find_hardware(&hw, a, p->backend, &found));
    if (profile_predict(p, &a->recipe, p->ranks, p->per_node, found ? &hw : NULL))
        fprintf(stderr, "nothing is predicted: %s\n", status_text());
    return OK;
}

/* ---- results, on rank 0 ---- */

static Status recipe_text(Profile *p, const Config *recipe)
{
    char  *text = NULL;
    size_t n    = 0;
    FILE  *f    = open_memstream(&text, &n);
    if (!f) return fail(E_FIT, "no host memory for the text of a recipe");
    config_dump(f, recipe);
    fclose(f);
    p->recipe_yaml = mem_pool_copy(&p->keep, text, n);
    free(text);
    return p->recipe_yaml ? OK : fail(E_FIT, "no host memory for the text of a recipe");
}

static Status print_result(const ProfileArgs *a, const Profile *p)
{
    Json *o = NULL;
    if (!a->json) {
        profile_print(stdout, p);
        printf("\nwritten: %s/profile.json, trace.json (for ui.perfetto.dev), profile.html\n", a->folder);
        return OK;
    }
    TRY(profile_json(&o, p));
    json_dumpf(o, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9)), putchar('\n');
    json_decref(o);
    return OK;
}

static Status finish(const ProfileArgs *a, Profile *p)
{
    Path path;
    snprintf(p->recipe, sizeof p->recipe, "%.159s", a->path);
    const struct cfg_model *m = &a->recipe.model;
    snprintf(p->model, sizeof p->model, "%.159s", *m->preset ? m->preset : m->path);
    TRY(predict(a, p));
    TRY(recipe_text(p, &a->recipe));
    TRY(path_join(path, a->folder, "profile.json"));
    TRY(profile_save(p, path));
    TRY(path_join(path, a->folder, "profile.html"));
    TRY(profile_page_write(p, path));
    return print_result(a, p);
}

static Status run(void *self, Comm *world)
{
    ProfileArgs *a    = self;
    Profile      p    = { 0 };
    Config       c    = measure_recipe(&a->recipe, a->run, (int)a->steps, (int)a->warmup);
    MeasureConf  conf = {
         .recipe = &c, .world = world, .steps = (int)a->steps, .warmup = (int)a->warmup, .folder = a->folder
    };
    TRY(comm_agree(world, world->rank ? OK : make_folder(a)));
    Status measured = profile_measure(&p, &conf);
    Status st = measured || world->rank ? measured : finish(a, &p);
    if (!world->rank) remove_run(a);
    profile_close(&p);
    return measured ? measured : comm_agree(world, st);
}

static void close_args(void *self) {}

static Status profile_command(ProfileArgs *a, const PlainArgs *plain)
{
    a->path = plain->value[0];
    TRY(config_open(&a->recipe, a->path, plain->n - 1, (char **)plain->value + 1));
    Status st = name_folders(a);
    if (!st) st = ranks_run(&a->recipe, (RankVerb){ run, close_args }, a);
    config_close(&a->recipe);
    return st;
}

static Status cmd_profile(int argc, char **argv)
{
    ProfileArgs *a     = calloc(1, sizeof *a);
    PlainArgs    plain = { .least = 1, .most = PLAIN_ANY, .what = "a recipe" };
    if (!a) return fail(E_FIT, "no host memory");
    a->steps = 8, a->warmup = 3;
    Status st = options_parse(argc, argv, options, a, &plain);
    if (!st) st = profile_command(a, &plain);
    plain_args_close(&plain);
    free(a);
    return st;
}

static const Usage usage = {
    .args    = "recipe.yaml [section.key=value ...]",
    .options = options,
    .notes = "Trains for a few steps as treb train would, on all ranks that a launcher started, and saves no "
             "checkpoint. Steps are measured without the profiler before and after the profiled ones. Writes "
             "profile.json (treb diagnose reads it), trace.json and profile.html.",
};

const Command command_profile = {
    .name     = "profile",
    .help     = "measure where the time and memory of a step go, beside the prediction",
    .run      = cmd_profile,
    .usage    = USAGE(&usage),
    .sections = ALL_SECTIONS,
};
