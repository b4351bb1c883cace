/* train/trainer_state.c -- trainer_state.json: everything that decides the next step and is not a tensor.
 * Keys are those of Hugging Face's file of the same name where they mean the same. */
#define _GNU_SOURCE                      /* strchrnul */
#include "train/trainer.h"

#include "base/file_version.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *recipe_text(const Config *c)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (f) config_dump(f, c);
    if (f && !fclose(f)) return text;
    free(text);
    return NULL;
}

static Json *best_name(const Trainer *t)
{
    char name[64];
    snprintf(name, sizeof name, "checkpoint-%lld", (long long)t->best_step);
    return t->best_step < 0 ? json_null() : json_string(name);
}

Status trainer_state_save(Trainer *t, Json **out)
{
    Json *loader = NULL;
    char *recipe = recipe_text(t->recipe);
    TRY(loader_state(t->loader, &loader));
    *out = json_pack(
        "{s:i, s:I, s:I, s:I, s:f, s:I, s:{s:s, s:I}, s:s, s:o, s:I, s:o, s:{s:f, s:I, s:I}, s:o, s:s}",
        "format", TRAINER_STATE_VERSION, "global_step", (json_int_t)t->step, "max_steps",
        (json_int_t)t->steps, "updates", (json_int_t)t->updates, "epoch", t->epoch, "num_input_tokens_seen",
        (json_int_t)t->tokens, "rng", "kind", "philox4x32-10", "seed", (json_int_t)t->recipe->train.seed,
        "best_metric_name", "eval/loss", "best_metric", isnan(t->best) ? json_null() : json_real(t->best),
        "best_global_step", (json_int_t)t->best_step, "best_model_checkpoint", best_name(t), "guard",
        "highest", t->guard.highest, "skipped", (json_int_t)t->guard.skipped, "in_a_row",
        (json_int_t)t->guard.in_a_row, "loader", loader, "recipe", recipe ? recipe : "");
    free(recipe);
    return *out ? OK : fail(E_FIT, "no memory for trainer_state.json");
}

/* config_dump writes one key a line; a section is its name and the lines after it that start with " " or
 * "-". */
static const char *next_line(const char *p) { return *(p = strchrnul(p, '\n')) ? p + 1 : p; }
static bool is_section(const char *line) { return *line && *line != ' ' && *line != '-'; }
static bool same_line(const char *a, const char *b)
{
    size_t n = strcspn(a, "\n");
    return strcspn(b, "\n") == n && !strncmp(a, b, n);
}

static bool section_has(const char *dump, const char *section, const char *line)
{
    const char *p = dump;
    while (*p && !same_line(p, section)) p = next_line(p);
    for (p = next_line(p); *p && !is_section(p); p = next_line(p))
        if (same_line(p, line)) return true;
    return false;
}

static void warn_changes(const Trainer *t, const char *before)
{
    static const char expected[] = "  resume_from_checkpoint:";
    char *now = recipe_text(t->recipe);
    const char *section = "";
    for (const char *line = now; line && *line; line = next_line(line)) {
        if (is_section(line)) section = line;
        else if (strncmp(line, expected, sizeof expected - 1) && !section_has(before, section, line))
            log_warn(&t->log, "the recipe differs from the checkpoint's: %.*s.%.*s",
                     (int)strcspn(section, ":"), section, (int)strcspn(line + 2, "\n"), line + 2);
    }
    free(now);
}

static Status read_guard(Trainer *t, const Json *o)
{
    TRY(json_num(o, "highest", 0, &t->guard.highest));
    TRY(json_int(o, "skipped", 0, &t->guard.skipped));
    return json_int(o, "in_a_row", 0, &t->guard.in_a_row);
}

Status trainer_state_load(Trainer *t, const Json *o)
{
    int64_t format, seed;
    const char *recipe;
    TRY(json_int(o, "format", -1, &format));
    if (format != TRAINER_STATE_VERSION)
        return fail(E_DATA,
                    "trainer_state.json: format %lld is not known to this build; resume with the build "
                    "that wrote it",
                    (long long)format);
    TRY(json_int(o, "global_step", -1, &t->step));
    TRY(json_int(o, "updates", -1, &t->updates));
    TRY(json_int(o, "num_input_tokens_seen", 0, &t->tokens));
    TRY(json_num(o, "epoch", 0, &t->epoch));
    TRY(json_num(o, "best_metric", NAN, &t->best));
    TRY(json_int(o, "best_global_step", -1, &t->best_step));
    TRY(read_guard(t, json_object_get(o, "guard")));
    TRY(json_int(json_object_get(o, "rng"), "seed", -1, &seed));
    TRY(json_str(o, "recipe", "", &recipe));
    if (t->step < 0 || t->updates < 0 || t->updates > t->step)
        return fail(E_DATA, "trainer_state.json: global_step and updates are missing or wrong");
    if (seed != t->recipe->train.seed)
        return fail(E_CONFIG,
                    "train.seed = %lld: the run was started with %lld, and another seed changes the "
                    "order of the data; set it back",
                    (long long)t->recipe->train.seed, (long long)seed);
    t->saved = t->step;
    warn_changes(t, recipe);
    return OK;
}
