/* report/plan_page.c -- a dry run as one page of HTML: memory of every stage as a waterfall, who sits where, the
 * pipeline's timeline, messages. Styles and script are those of a run's report; nothing is loaded. */
#include "report/report_html.h"
#include "plan/view.h"

#include "data/image_encode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEATS = 512, MICROS_SHOWN = 24, BARS_MOST = 6000 };

static const char page_style[] =
    ".seats{display:flex;flex-wrap:wrap;gap:10px}\n"
    ".node{border:1px solid var(--line);border-radius:8px;padding:6px 8px}\n"
    ".node small{color:var(--soft);display:block;margin-bottom:4px}\n"
    ".node div{display:grid;grid-template-columns:repeat(4,auto);gap:3px}\n"
    ".node i{font-style:normal;font-size:11px;padding:1px 6px;border-radius:4px;white-space:nowrap;\n"
    "background:color-mix(in srgb,var(--c) 24%,var(--card));border-left:3px solid var(--c)}\n"
    ".time svg{display:block;width:100%;background:var(--track);border-radius:5px}\n"
    ".time rect{stroke:var(--card);stroke-width:.5;fill:var(--c)}\n"
    ".time .back{opacity:.55}\n"
    "#layout .meta,#time .meta{margin-bottom:10px}\n";

static void put_head(Html *h, const PlanView *v)
{
    html_put(h, "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>\n"
                "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; "
                "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n"
                "<meta name='viewport' content='width=device-width,initial-scale=1'>\n"
                "<meta name='referrer' content='no-referrer'>\n<title>");
    html_around(h, "", v->title, " \xc2\xb7 treb plan</title>\n<style>\n");
    html_put(h, report_style);
    html_put(h, page_style);
    html_put(h, "</style></head><body>\n<nav><div class='top'><div class='links'>"
                "<a class='brand' href='#top'>Trebuchet</a><a href='#memory'>Memory</a>"
                "<a href='#layout'>Layout</a><a href='#time'>Timeline</a><a href='#messages'>Messages</a>");
    if (v->advice) html_put(h, "<a href='#advice'>Advice</a>");
    html_put(h, "</div></div></nav>\n<main>\n");
}

static void put_tile(Html *h, const char *label, const char *value, const char *note)
{
    html_fmt(h, "<div class='card tile'><div class='name'>%s</div><div class='value'>%s</div><div class='sub'>",
             label, value);
    html_around(h, "", note, "</div></div>\n");
}

static void put_title(Html *h, const PlanView *v)
{
    const DryRun *d = v->dry;
    int    full = 0;
    double peak = (double)dryrun_peak(d, &full);
    char   note[120];
    html_around(h, "<header id='top'><h1>", v->title, "</h1><p class='meta'>");
    html_around(h, "", d->model, "");
    html_fmt(h, " on <b>%d</b> ranks, %d a node, %s</p></header>\n<div class='tiles'>", d->ranks, d->per_node,
             dtype_name(d->dtype));
    snprintf(note, sizeof note, "of stage %d, the fullest", full);
    put_tile(h, "peak of a rank", BYTES(peak), note);
    if (d->timed) {
        snprintf(note, sizeof note, "%s has room for %s", d->hw.id, BYTES(d->hw.capacity));
        put_tile(h, "fit", fit_word(fit_of(peak, &d->hw)), note);
    }
    if (d->step.step > 0) {
        snprintf(note, sizeof note, "give or take %.0f %%; the wall is %s", 100 * d->step.error,
                 d->step.wall ? d->step.wall : "not known");
        put_tile(h, "a step", SPAN(d->step.step), note);
        snprintf(note, sizeof note, "%.0f TFLOP/s a rank, hfu %.1f %%", d->step.model_tflops,
                 100 * d->step.hfu);
        put_tile(h, "mfu", PERCENT(d->step.mfu), note);
        put_tile(h, "tokens a second", NUM(d->step.tokens_s), "of all ranks");
    }
    html_put(h, "</div>\n");
}

/* One bar, which begins where the one before it ended; inside, its labels. */
static void put_arena(Html *h, const EnginePlan *p, int a, double from, double scale)
{
    double bytes = (double)p->bytes[a];
    html_fmt(h, "<span>%s</span><div class='track'><div class='bar k%d' style='left:%.3f%%;width:%.3f%%'>",
             engine_arena_label((ArenaId)a), a % 8 + 1, 100 * from / scale, 100 * fmin(bytes / scale, 1));
    for (int k = 0; k < ARENA_LABELS && p->label[a][k].bytes; k++) {
        double part = (double)p->label[a][k].bytes;
        html_fmt(h, "<i style='width:%.3f%%' title='", 100 * part / bytes);
        html_text(h, p->label[a][k].name);
        html_fmt(h, ": %s'></i>", BYTES(part));
    }
    html_fmt(h, "</div></div><span class='num'>%s</span>\n", BYTES(bytes));
}

static void put_stage(Html *h, const DryRun *d, int stage, double scale)
{
    const EnginePlan *p = &d->stage[stage].plan;
    double from = 0, sum = (double)dryrun_device(d, stage);
    html_fmt(h, "<figure class='card%s'><figcaption><span class='title'><b>Stage %d</b> "
             "<small>%d in flight</small></span></figcaption><div class='fall'>\n", d->stages > 1 ? "" : " wide", stage, p->slots);
    for (int i = 0; i < ARENA_N; i++) {
        if (!p->bytes[i] || !view_on_device(i)) continue;
        put_arena(h, p, i, from, scale);
        from += (double)p->bytes[i];
    }
    html_fmt(h, "<span class='sum'>%s</span><div class='sum'></div><span class='num sum'>%s</span>",
             d->timed ? fit_word(fit_of(sum, &d->hw)) : "sum", BYTES(sum));
    if (p->bytes[A_HOST]) put_arena(h, p, A_HOST, 0, scale);
    html_put(h, "</div></figure>\n");
}

static void put_memory(Html *h, const DryRun *d)
{
    double scale = (double)dryrun_peak(d, NULL);
    if (d->timed) scale = fmax(scale, d->hw.capacity);
    for (int s = 0; s < d->stages; s++) scale = fmax(scale, (double)d->stage[s].plan.bytes[A_HOST]);
    html_put(h, "<section id='memory'><h2>Memory of a rank, by stage</h2><div class='grid'>\n");
    for (int s = 0; s < d->stages; s++) put_stage(h, d, s, scale);
    html_put(h, "</div></section>\n");
}

static void put_seats(Html *h, const DryRun *d)
{
    MeshLayout l = view_layout(d);
    Mesh   m;
    char   text[PLACEMENT_BYTES];
    int    n = d->ranks < SEATS ? d->ranks : SEATS;
    html_put(h, "<section id='layout'><h2>Who sits where</h2><div class='card wide'><p class='meta'>"
                "t tensor, c context, d data, p stage, x slice of experts, e experts; axes of one place are left out, a "
                "colour is a stage</p><div class='seats'>\n");
    for (int r = 0; r < n; r++) {
        mesh_place(&m, r, d->ranks, &l);
        if (r % d->per_node == 0) html_fmt(h, "<div class='node'><small>node %d</small><div>", r / d->per_node);
        html_fmt(h, "<i class='k%d' title='rank %d'>%s</i>", m.at[AX_PP] % 8 + 1, r,
                 *placement_text(text, &m) ? text : "\xc2\xb7");
        if ((r + 1) % d->per_node == 0 || r + 1 == n) html_put(h, "</div></div>\n");
    }
    html_put(h, "</div>");
    if (n < d->ranks) html_fmt(h, "<p class='meta'>and %d ranks more</p>", d->ranks - n);
    html_put(h, "</div></section>\n");
}

static void put_span(Html *h, const ScheduleSpan *b, int stage, double end, bool timed)
{
    bool back = b->way == PIPE_BACKWARD;
    if (b->to <= b->from) return;                            /* a backward that there is not */
    html_fmt(h, "<rect class='k%d%s' x='%.2f' y='%d' width='%.2f' height='20'><title>stage %d chunk %d "
             "micro-batch %d %s", b->chunk % 8 + 1, back ? " back" : "", 1000 * b->from / end, 22 * stage + 1,
             1000 * (b->to - b->from) / end, stage, b->chunk, b->micro, back ? "back" : "there");
    if (timed) html_fmt(h, ", %.2f to %.2f ms", 1e3 * b->from, 1e3 * b->to);
    html_put(h, "</title></rect>\n");
}

static Status put_timeline(Html *h, const DryRun *d)
{
    Schedule t;
    int      most = BARS_MOST / (2 * d->stages * d->chunks), tall = 22 * d->stages;
    TRY(view_timeline_open(&t, d, most < MICROS_SHOWN ? most > 1 ? most : 1 : MICROS_SHOWN));
    int micros = t.actions / (2 * d->chunks);
    html_put(h, "<section id='time'><h2>Timeline of the pipeline</h2><div class='card wide time'>");
    html_fmt(h, "<p class='meta'>%s %d of %d micro-batches; a colour is a chunk, pale is backward; %s</p>",
             micros < d->micros ? "the first" : "all", micros, d->micros,
             d->timed ? "times are the plan's" : "a backward is drawn twice as long as a forward");
    html_fmt(h, "<svg viewBox='0 0 1000 %d' preserveAspectRatio='none' height='%d'>\n", tall, tall);
    for (int s = 0; s < t.stages; s++)
        for (int i = 0; i < t.actions; i++)
            put_span(h, &t.span[s * t.actions + i], s, t.end > 0 ? t.end : 1, d->timed);
    html_put(h, "</svg></div></section>\n");
    schedule_close(&t);
    return OK;
}

static void put_messages(Html *h, const DryRun *d)
{
    html_fmt(h, "<section id='messages'><h2>What a rank sends in a step of %d micro-batch%s</h2>"
             "<div class='card wide scroll'><table><tr><th>stage</th><th>group</th><th>for</th>"
             "<th class='num'>calls</th><th class='num'>over fast links</th>"
             "<th class='num'>over the network</th></tr>\n", d->micros, d->micros > 1 ? "es" : "");
    for (int s = 0; s < d->stages; s++)
        for (int g = 0; g < GR_N; g++) {
            LedgerComm c = view_comm(d, s, g);
            if (c.near + c.far == 0) continue;
            html_fmt(h, "<tr><td>%d</td><td class='mono'>%s</td><td>%s</td><td class='num'>%s</td>"
                     "<td class='num'>%s</td><td class='num'>%s</td></tr>\n", s, group_name((GroupId)g),
                     group_use((GroupId)g), WHOLE((double)c.calls), BYTES((double)c.near),
                     BYTES((double)c.far));
        }
    html_put(h, "</table></div></section>\n");
}

static void put_advice(Html *h, const FitAdvice *a)
{
    if (!a) return;
    html_put(h, "<section id='advice'><h2>What can be turned, cheapest first</h2><div class='card wide scroll'>"
                "<table><tr><th>set</th><th class='num'>saves</th><th class='num'>then</th><th></th>"
                "<th>price</th></tr>\n");
    for (int i = 0; i < a->n; i++) {
        html_around(h, "<tr><td class='mono'>", a->row[i].set, "</td>");
        html_fmt(h, "<td class='num'>%s</td><td class='num'>%s</td><td>%s</td><td>%s</td></tr>\n",
                 BYTES(a->bytes - a->row[i].bytes), BYTES(a->row[i].bytes),
                 fit_row_fits(a, i) ? "fits" : "not enough", a->row[i].price);
    }
    html_put(h, "</table></div></section>\n");
}

static Status put_page(Html *h, const PlanView *v)
{
    put_head(h, v);
    put_title(h, v);
    put_memory(h, v->dry);
    put_seats(h, v->dry);
    TRY(put_timeline(h, v->dry));
    put_messages(h, v->dry);
    put_advice(h, v->advice);
    html_put(h, "<footer>Made by <b>treb plan</b>. One file, no network.</footer></main></body></html>\n");
    return html_status(h);
}

Status view_page(const PlanView *v, const char *path)
{
    Html h = { 0 };
    Status st = put_page(&h, v);
    if (!st) st = file_replace(path, h.t.v, h.t.n);
    html_close(&h);
    return st;
}
