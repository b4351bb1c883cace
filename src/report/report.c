/* report/report.c -- the page from top to bottom. */
#include "report/report.h"

#include "data/image_encode.h"
#include "report/report_html.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* Only the script that carries this page's number runs, whatever else might have found its way in. */
typedef struct Nonce { char hex[33]; } Nonce;

static Status nonce_draw(Nonce *n)
{
    uint8_t b[16];
    if (getrandom(b, sizeof b, 0) != sizeof b) return fail(E_OTHER, "no random numbers: %s", strerror(errno));
    for (size_t i = 0; i < sizeof b; i++) snprintf(n->hex + 2 * i, 3, "%02x", b[i]);
    return OK;
}

static void put_head(Html *h, const Runs *r, const Nonce *n)
{
    html_put(h, "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>\n");
    html_fmt(h, "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; img-src data:; "
             "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; script-src 'nonce-%s'\">\n",
             n->hex);
    html_put(h, "<meta name='viewport' content='width=device-width,initial-scale=1'>\n"
                "<meta name='referrer' content='no-referrer'>\n<title>");
    html_text(h, r->at[0]->name);
    if (two(r)) html_put(h, " and "), html_text(h, r->at[1]->name);
    html_put(h, " \xc2\xb7 treb report</title>\n<style>\n");
    html_put(h, report_style);
    html_put(h, "</style></head><body>\n");
}

static void put_nav(Html *h, const Runs *r)
{
    static const char *const parts[][2] = {
        { "differences", "Differences" }, { "learning", "Learning" }, { "speed", "Speed" },
        { "memory", "Memory" },           { "experts", "Experts" },   { "answers", "Answers" },
        { "recipe", "Recipe" },           { "machine", "Machine" },
    };
    html_put(h, "<nav><div class='top'><div class='links'><a class='brand' href='#top'>Trebuchet</a>");
    for (size_t i = two(r) ? 0 : 1; i < sizeof parts / sizeof *parts; i++)
        html_fmt(h, "<a href='#%s'>%s</a>", parts[i][0], parts[i][1]);
    html_put(h, "</div><button id='theme' title='light or dark' aria-label='light or dark'>\xe2\x97\x90"
                "</button></div></nav>\n");
}

static void put_when(Html *h, const MetricsFile *m)
{
    char text[64];
    struct tm t;
    time_t at = (time_t)m->first_time;
    if (m->first_time <= 0 || m->first_time > 1e11 || !gmtime_r(&at, &t)) return;
    strftime(text, sizeof text, "%e %B %Y, %H:%M UTC", &t);
    html_fmt(h, " \xc2\xb7 %s", text);
    double span = m->last_time - m->first_time;
    if (span > 0) html_fmt(h, " \xc2\xb7 <b>%s</b> from first to last line", SPAN(span));
}

static const char *model_name(const Run *run)
{
    const char *path = pairs_find(&run->recipe, "model.path");
    const char *preset = pairs_find(&run->recipe, "model.preset");
    return path && *path ? path : preset && *preset ? preset : NULL;
}

/* How far it came, when, and under which label: benchmark-only numbers must not pass for a training's. */
static void put_meta(Html *h, const Run *run)
{
    const MetricsFile *m = &run->metrics;
    const char *goal = pairs_find(&run->recipe, "train.max_steps");
    double steps = goal ? atof(goal) : 0;
    if (m->lines) html_fmt(h, "step <b>%s</b>", WHOLE(m->last_step));
    else          html_put(h, "no steps");
    if (m->lines && steps > m->last_step && steps < 1e15) html_fmt(h, " of %s", WHOLE(steps));
    put_when(h, m);
    if (model_name(run)) html_around(h, " \xc2\xb7 ", model_name(run), "");
    if (m->resumes) html_fmt(h, " \xc2\xb7 resumed %lld\xc3\x97", (long long)m->resumes);
    if (*m->label) {
        bool warn = strcmp(m->label, "training-equivalent") != 0;
        html_around(h, warn ? " <span class='badge warn'>" : " <span class='badge'>", m->label, "</span>");
    }
}

static void put_title(Html *h, const Runs *r)
{
    html_put(h, "<header id='top'><h1>");
    for (int i = 0; i < r->n; i++) {
        if (i) html_put(h, " <small>and</small> ");
        if (two(r)) html_letter(h, i);
        html_text(h, r->at[i]->name);
    }
    html_put(h, "</h1>\n");
    for (int i = 0; i < r->n; i++) {
        html_put(h, "<p class='meta'>");
        if (two(r)) html_fmt(h, "%c: ", 'A' + i);
        put_meta(h, r->at[i]);
        html_put(h, "</p>\n");
    }
    html_put(h, "</header>\n");
}

static void put_notes(Html *h, const Runs *r)
{
    for (int i = 0; i < r->n; i++) {
        const Run *run = r->at[i];
        h->counts.notes += run->notes;
        if (!run->notes) continue;
        html_put(h, "<div class='card notes'>");
        if (two(r)) html_letter(h, i);
        html_put(h, "<b>Worth knowing</b><ul>");
        for (int k = 0; k < run->notes; k++) html_around(h, "<li>", run->note[k], "</li>\n");
        html_put(h, "</ul></div>\n");
    }
}

static void put_foot(Html *h, const Runs *r, const Nonce *n)
{
    html_put(h, "<footer>Made by <b>treb report</b> from ");
    for (int i = 0; i < r->n; i++) {
        if (i) html_put(h, " and ");
        html_text(h, r->at[i]->dir);
        html_fmt(h, " (%s lines of metrics)", WHOLE((double)r->at[i]->metrics.lines));
    }
    html_fmt(h, ". One file, no network.</footer></main>\n<script nonce='%s'>\n", n->hex);
    html_put(h, report_script);
    html_put(h, "</script></body></html>\n");
}

static Status put_page(Html *h, const Runs *r)
{
    Nonce nonce;
    TRY(nonce_draw(&nonce));
    put_head(h, r, &nonce);
    put_nav(h, r);
    html_put(h, "<main>\n");
    put_title(h, r);
    part_summary(h, r);
    put_notes(h, r);
    if (two(r)) part_differences(h, r);
    part_learning(h, r);
    part_speed(h, r);
    part_memory(h, r);
    part_experts(h, r);
    part_answers(h, r);
    part_rest(h, r);
    part_recipe(h, r);
    part_machine(h, r);
    put_foot(h, r, &nonce);
    h->counts.bytes = (int64_t)h->t.n;
    return html_status(h);
}

Status report_write(const char *const *dir, int runs, const char *out, ReportCounts *counts)
{
    REQUIRE(runs >= 1 && runs <= REPORT_RUNS, "%d runs", runs);
    Html h = { 0 };
    Runs r = { .n = runs };
    Status st = OK;
    Run *run = calloc((size_t)runs, sizeof *run);
    if (!run) return fail(E_FIT, "no memory");
    for (int i = 0; i < runs && !st; i++) st = run_open(r.at[i] = &run[i], dir[i]);
    if (!st) st = put_page(&h, &r);
    if (!st) st = file_replace(out, h.t.v, h.t.n);
    if (counts) *counts = h.counts;
    html_close(&h);
    for (int i = 0; i < runs; i++) run_close(&run[i]);
    free(run);
    return st;
}
