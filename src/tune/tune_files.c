/* tune/tune_files.c -- what a tuning leaves: tune.jsonl, best.yaml and a page. */
#include "base/json.h"
#include "report/page.h"
#include "tune/tune.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(Json *o, const char *key, double v)
{
    if (isfinite(v)) json_object_set_new(o, key, json_real(v));
}

static Json *entry_json(const Tune *t, const TuneEntry *e)
{
    Json *o = json_object();
    json_object_set_new(o, "round", json_integer(e->round));
    json_object_set_new(o, "set", page_string(e->set));
    json_object_set_new(o, "why", page_string(e->why));
    json_object_set_new(o, "end", json_string(trial_word(e->end)));
    json_object_set_new(o, "kept", json_boolean(e->kept));
    put(o, "predicted_gain", e->predicted), put(o, "measured_gain", e->gain), put(o, "noise", e->noise);
    put(o, "base_step", e->base_step), put(o, "step", e->step), put(o, "peak_gib", e->peak);
    json_object_set_new(o, "hardware", json_string(t->machine.hw.id));
    json_object_set_new(o, "ranks", json_integer(t->ask->ranks));
    json_object_set_new(o, "label", json_string(e->label));
    if (*e->failure) json_object_set_new(o, "failure", page_string(e->failure));
    return o;
}

Status tune_write_entry(const Tune *t, const TuneEntry *e)
{
    Path  path;
    Json *o = entry_json(t, e);
    TRY(path_join(path, t->folder, "tune.jsonl"));
    FILE *f = fopen(path, "a");
    bool  bad = !f || !o || json_dumpf(o, f, JSON_REAL_PRECISION(9)) || putc('\n', f) == EOF;
    if (f) bad |= fclose(f) != 0;
    json_decref(o);
    return bad ? fail(E_IO, "%s: %s", path, strerror(errno)) : OK;
}

/* ---- best.yaml ---- */

static void comment_entry(FILE *f, const TuneEntry *e)
{
    char predicted[40] = "";
    if (!isnan(e->predicted))
        snprintf(predicted, sizeof predicted, " (predicted %+.1f %%)", 100 * e->predicted);
    if (e->end) fprintf(f, "#   - %s: %s\n", e->set, trial_word(e->end));
    else fprintf(f, "#   %c %s: %+.1f %%%s\n", e->kept ? '+' : '-', e->set, 100 * e->gain, predicted);
    if (e->kept) fprintf(f, "#       %s\n", e->why);
}

static char *comments(const Tune *t)
{
    char  *text = NULL;
    size_t n = 0;
    FILE  *f = open_memstream(&text, &n);
    if (!f) return NULL;
    fprintf(f, "# Tuned from %s on %d rank%s of %s: %.4g tokens/s a rank, %+.1f %%; %.4g s a step.\n",
            t->ask->recipe, t->ask->ranks, t->ask->ranks > 1 ? "s" : "", t->machine.hw.id, t->rate,
            100 * (t->rate / t->first_rate - 1), t->step);
    if (t->entries) fprintf(f, "# These numbers are %s.\n", t->entry[0].label);
    fprintf(f, "# Each change was measured alone against the recipe so far, in matched runs; single gains\n"
               "# do not add up to the total. Noise %.1f %%. (+ kept, - not kept)\n", 100 * t->noise);
    for (int i = 0; i < t->entries; i++) comment_entry(f, &t->entry[i]);
    if (*t->end) fprintf(f, "# %s.\n", t->end);
    return fclose(f) ? free(text), NULL : text;
}

Status tune_write_best(const Tune *t)
{
    Path  path;
    char *text = comments(t);
    TRY(path_join(path, t->folder, "best.yaml"));
    FILE *f = text ? fopen(path, "w") : NULL;
    if (f) {
        fputs(text, f);
        config_dump_short(f, &t->base);
    }
    bool bad = !f || fclose(f);
    free(text);
    return bad ? fail(E_IO, "%s: %s", path, strerror(errno)) : OK;
}

/* ---- the page ---- */

static void row_of(Json *table, const TuneEntry *e)
{
    Json *r = table_row(table);
    char  text[64];
    const char *verdict = e->end ? trial_word(e->end) : e->kept ? "kept" : "not kept";
    snprintf(text, sizeof text, "%d", e->round);
    json_array_append_new(r, page_string(text));
    json_array_append_new(r, page_string(e->set));
    json_array_append_new(r, page_string(isnan(e->predicted) ? "" : PERCENT(e->predicted)));
    json_array_append_new(r, page_string(isnan(e->gain) ? "" : PERCENT(e->gain)));
    json_array_append_new(r, page_string(NUM(e->step)));
    json_array_append_new(r, page_string(NUM(e->peak)));
    json_array_append_new(r, page_string(verdict));
    json_array_append_new(r, page_string(*e->failure ? e->failure : e->why));
}

Status tune_write_page(const Tune *t)
{
    static const char *const columns[] = { "num round", "key change", "num predicted", "num measured",
                                           "num s a step", "num peak GiB", "- verdict", "- why" };
    Page p;
    Path path;
    TRY(path_join(path, t->folder, "tune.html"));
    page_open(&p, "treb tune", "tuning");
    page_say(json_object_get(p.root, "heading"), NULL, "%s", t->ask->recipe);
    page_section(&p, "changes", "");
    page_add(&p, NULL, block_text("-", "%s tokens/s a rank at first, %s at the end (%s); %d runs; noise %s. "
                                  "%s.", NUM(t->first_rate), NUM(t->rate),
                                  PERCENT(t->rate / t->first_rate - 1), t->number, PERCENT(t->noise),
                                  t->end));
    Json *table = block_table(columns, sizeof columns / sizeof *columns, NULL);
    for (int i = 0; i < t->entries; i++) row_of(table, &t->entry[i]);
    page_add(&p, NULL, table);
    Status st = page_write(&p, path);
    page_close(&p);
    return st;
}
