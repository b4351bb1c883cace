/* report/report.c -- the page of one run or two, from top to bottom. */
#include "report/report.h"

#include "report/report_parts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static void say_when(Json *meta, const MetricsFile *m)
{
    char text[64];
    struct tm t;
    time_t at = (time_t)m->first_time;
    if (m->first_time <= 0 || m->first_time > 1e11 || !gmtime_r(&at, &t)) return;
    strftime(text, sizeof text, "%e %B %Y, %H:%M UTC", &t);
    page_say(meta, NULL, " \xc2\xb7 %s", text);
    double span = m->last_time - m->first_time;
    if (span <= 0) return;
    page_say(meta, NULL, " \xc2\xb7 "), page_say(meta, "b", "%s", SPAN(span));
    page_say(meta, NULL, " from first to last line");
}

static const char *set_value(const KeyValues *p, const char *key)       /* NULL for "" too */
{
    const char *value = keys_find(p, key);
    return value && *value ? value : NULL;
}

static void say_progress(Json *meta, const ReportRun *run)
{
    const MetricsFile *m = &run->metrics;
    const char *goal = keys_find(&run->recipe, "train.max_steps");
    double steps = goal ? atof(goal) : 0;
    page_say(meta, NULL, m->lines ? "step " : "no steps");
    if (m->lines) page_say(meta, "b", "%s", WHOLE(m->last_step));
    if (m->lines && steps > m->last_step && steps < 1e15) page_say(meta, NULL, " of %s", WHOLE(steps));
    say_when(meta, m);
    if (m->resumes) page_say(meta, NULL, " \xc2\xb7 resumed %lld\xc3\x97", (long long)m->resumes);
}

/* Benchmark-only numbers must not be taken for those of a training run, so the label is always shown. */
static void say_label(const Report *r, Json *meta, int i)
{
    const char *label = run_label(r, i);
    if (!*label) return;
    page_say(meta, NULL, " ");
    page_say(meta, strcmp(label, "training-equivalent") ? "badge warn" : "badge", "%s", label);
}

static void add_meta(Report *r, int i)
{
    const ReportRun *run = r->run[i];
    const char *model = set_value(&run->recipe, "model.path");
    const char *version = set_value(&run->env, "build.version"),
               *commit  = set_value(&run->env, "build.commit");
    Json *meta = json_array();
    if (two(r)) page_say(meta, NULL, "%c: ", 'A' + i);
    say_progress(meta, run);
    if (!model) model = set_value(&run->recipe, "model.preset");
    if (model) page_say(meta, NULL, " \xc2\xb7 %s", model);
    if (version) page_say(meta, NULL, " \xc2\xb7 treb %s", version);
    if (commit) page_say(meta, NULL, " \xc2\xb7 commit %.12s", commit);
    say_label(r, meta, i);
    page_add(&r->page, json_object_get(r->page.root, "meta"), meta);
}

static void add_heading(Report *r)
{
    Json *heading = json_object_get(r->page.root, "heading"),
         *footer  = json_object_get(r->page.root, "footer");
    for (int i = 0; i < r->n; i++) {
        if (i) page_say(heading, "small", "and");
        say_letter(r, heading, i);
        page_say(heading, NULL, "%s", r->run[i]->name);
        page_say(footer, NULL, "%s%s (%s lines of metrics)", i ? " and " : " from ", r->run[i]->dir,
                 WHOLE((double)r->run[i]->metrics.lines));
        add_meta(r, i);
    }
}

static void add_notes(Report *r)
{
    for (int i = 0; i < r->n; i++) {
        const ReportRun *run = r->run[i];
        r->counts.notes += run->notes;
        if (!run->notes) continue;
        Json *b = block_open("notes"), *title = block_list(b, "title"), *items = block_list(b, "items");
        say_letter(r, title, i);
        page_say(title, "b", "Missing or damaged");
        for (int k = 0; k < run->notes; k++) page_add(&r->page, items, page_string(run->note[k]));
        page_add(&r->page, NULL, b);
    }
}

static void open_page(Report *r)
{
    char title[600];
    const char *second = two(r) ? r->run[1]->name : "";
    snprintf(title, sizeof title, "%.250s%s%.250s \xc2\xb7 treb report", r->run[0]->name,
             two(r) ? " and " : "", second);
    page_open(&r->page, "treb report", title);
}

static void add_sections(Report *r)
{
    void (*const parts[])(Report *) = { part_hang, part_learning, part_speed, part_memory, part_experts,
                                        part_answers,  part_rest,  part_recipe, part_machine };
    page_section(&r->page, "summary", "");
    part_summary(r);
    part_label(r);
    add_notes(r);
    if (two(r)) part_differences(r);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) parts[i](r);
}

static Status build_page(Report *r, const ReportAsk *ask, ReportRun *run)
{
    for (int i = 0; i < ask->runs; i++) TRY(run_open(r->run[i] = &run[i], ask->dir[i]));
    TRY(contracts_open(r, ask));
    open_page(r);
    add_heading(r);
    add_sections(r);
    return OK;
}

/* Where a page goes: to the file `path`, or to `text` (report_text). */
typedef struct Target { const char *path, *live; Text *text; } Target;

static Status put_page(Report *r, const Target *to)
{
    struct stat info;
    if (to->text && !to->live) return page_document(&r->page, to->text);
    if (to->text) return page_html(&r->page, to->live, to->text);
    TRY(page_write(&r->page, to->path));
    r->counts.bytes = stat(to->path, &info) ? 0 : (int64_t)info.st_size;
    return OK;
}

static Status make(const ReportAsk *ask, const Target *to, ReportCounts *counts)
{
    int runs = ask->runs;
    REQUIRE(runs >= 1 && runs <= REPORT_RUNS, "%d runs", runs);
    Report r = { .n = runs };
    ReportRun *run = calloc((size_t)runs, sizeof *run);
    if (!run) return fail(E_FIT, "no memory to read %d runs", runs);
    Status st = build_page(&r, ask, run);
    if (!st) st = put_page(&r, to);
    r.counts.pair = r.pair;
    if (counts) *counts = r.counts;
    page_close(&r.page);
    contracts_close(&r);
    for (int i = 0; i < runs; i++) run_close(&run[i]);
    free(run);
    return st;
}

Status report_write(const ReportAsk *ask, ReportCounts *counts)
{
    return make(ask, &(Target){ .path = ask->out }, counts);
}

Status report_text(const ReportAsk *ask, const char *live, Text *out)
{
    return make(ask, &(Target){ .live = live, .text = out }, NULL);
}
