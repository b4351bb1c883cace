/* report/report_memory.c -- where the memory is, as a waterfall of arenas, and where the FLOPs go. */
#include "report/report_html.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An arena in memory of the host, which is no part of what the device must hold. */
static bool on_host(const MemArena *a) { return !strcmp(a->name, "host"); }

static double plan_total(const MemPlan *p)
{
    double sum = 0;
    for (int i = 0; i < p->arenas; i++) sum += on_host(&p->arena[i]) ? 0 : p->arena[i].bytes;
    return sum;
}

static double plan_host(const MemPlan *p)
{
    double sum = 0;
    for (int i = 0; i < p->arenas; i++) sum += on_host(&p->arena[i]) ? p->arena[i].bytes : 0;
    return sum;
}

static double measured(const Run *run)                                  /* bytes; NAN: not measured */
{
    return series_extreme(series_find(&run->metrics, "mem/measured_gib"), true).value * 0x1p30;
}

static void put_cells(Html *h, const char *class, double bytes, double total)
{
    html_fmt(h, "<span class='num %s'>%s", class, BYTES(bytes));
    if (total > 0) html_fmt(h, " <span class='pct'>%s</span>", PERCENT(bytes / total));
    html_put(h, "</span>\n");
}

static int by_bytes(const void *a, const void *b)
{
    double x = ((const MemLabel *)a)->bytes, y = ((const MemLabel *)b)->bytes;
    return (x < y) - (x > y);
}

/* One bar of a waterfall: it begins where the one before it ended. Inside, its labels. */
static void put_arena(Html *h, const MemArena *a, int color, double from, double total, double scale)
{
    html_around(h, "<span>", a->name, "</span><div class='track'>");
    html_fmt(h, "<div class='bar k%d' style='left:%.3f%%;width:%.3f%%'>", color % 8 + 1, 100 * from / scale,
             100 * a->bytes / scale);
    for (int i = 0; i < a->labels && a->bytes > 0; i++) {
        double share = fmin(a->label[i].bytes / a->bytes, 1);
        html_fmt(h, "<i style='width:%.3f%%' title='", 100 * share);
        html_text(h, a->label[i].name);
        html_fmt(h, ": %s'></i>", BYTES(a->label[i].bytes));
    }
    html_put(h, "</div></div>");
    put_cells(h, "", a->bytes, total);
}

static void put_sum(Html *h, const char *name, const char *class, double bytes, double scale)
{
    html_fmt(h, "<span class='%s'>%s</span><div class='%s'>", class, name, class);
    html_fmt(h, "<div class='track'><div class='bar k8' style='left:0;width:%.3f%%'></div></div></div>",
             100 * bytes / scale);
    put_cells(h, class, bytes, 0);
}

static void put_labels(Html *h, const MemPlan *p)
{
    html_put(h, "<details><summary>What is in each arena at its peak</summary><div class='scroll'><table><tr>"
                "<th>arena</th><th>label</th><th class='num'>bytes</th><th class='num'>share</th></tr>\n");
    for (int i = 0; i < p->arenas; i++)
        for (int k = 0; k < p->arena[i].labels; k++) {
            const MemLabel *l = &p->arena[i].label[k];
            html_put(h, "<tr><td>"), html_text(h, p->arena[i].name);
            html_put(h, "</td><td>"), html_text(h, l->name);
            html_fmt(h, "</td><td class='num'>%s</td><td class='num'>%s</td></tr>\n", BYTES(l->bytes),
                     PERCENT(p->arena[i].bytes > 0 ? l->bytes / p->arena[i].bytes : NAN));
        }
    html_put(h, "</table></div></details>");
}

static void put_waterfall(Html *h, const Run *run, double scale)
{
    const MemPlan *p = &run->plan;
    double from = 0, total = plan_total(p), peak = measured(run);
    bool labels = false;
    html_put(h, "<div class='fall'>\n");
    for (int i = 0; i < p->arenas; i++) {
        qsort(p->arena[i].label, (size_t)p->arena[i].labels, sizeof(MemLabel), by_bytes);
        labels |= p->arena[i].labels > 0;
        if (on_host(&p->arena[i])) continue;
        put_arena(h, &p->arena[i], i, from, total, scale);
        from += p->arena[i].bytes;
    }
    put_sum(h, "planned", "sum", total, scale);
    if (plan_host(p) > 0) put_sum(h, "on the host", "", plan_host(p), scale);
    if (isfinite(peak)) put_sum(h, "measured peak", "", peak, scale);
    html_put(h, "</div>");
    if (labels) put_labels(h, p);
}

static const char *flops_text(char buf[NUM_ROOM], double v)
{
    static const char unit[] = " kMGTPE";
    int u = 0;
    for (; v >= 1000 && u < 6; u++) v /= 1000;
    snprintf(buf, NUM_ROOM, v < 9.95 ? "%.2f\xc2\xa0%.*sFLOP" : "%.1f\xc2\xa0%.*sFLOP", v, u > 0, &unit[u]);
    return buf;
}

static void put_flops(Html *h, const Run *run)
{
    double total = 0;
    for (int i = 0; i < PARTS; i++) total += run->plan.flops[i];
    if (total <= 0) return;
    char buf[NUM_ROOM];
    html_fmt(h, "<h3>Work of one step: %s</h3><div class='stack'>", flops_text(buf, total));
    for (int i = 0; i < PARTS; i++)
        html_fmt(h, "<i class='k%d' style='width:%.3f%%'></i>", i + 1, 100 * run->plan.flops[i] / total);
    html_put(h, "</div><div class='legend'>");
    for (int i = 0; i < PARTS; i++)
        html_fmt(h, "<span class='k%d'><i></i>%s <b>%s</b></span>", i + 1, part_names[i],
                 PERCENT(run->plan.flops[i] / total));
    html_put(h, "</div>");
}

static void put_trains(Html *h, const MemPlan *p)
{
    double all = p->model + p->adapters;
    if (p->trained <= 0 || all < p->trained) return;
    html_fmt(h, "<p class='note'>%.3f M of %.3f M parameters train (%.3f %%)%s.</p>", p->trained / 1e6,
             all / 1e6, 100 * p->trained / all, p->adapters >= p->trained ? ", all of them in adapters" :
             p->adapters > 0 ? ", some of them in adapters" : "");
}

void part_memory(Html *h, const Runs *r)
{
    double scale = 1;
    html_put(h, "<section id='memory'><h2>Memory and work</h2><div class='grid'>\n");
    for (int i = 0; i < r->n; i++)                        /* fmax takes no notice of what was not measured */
        scale = fmax(scale, fmax(fmax(plan_total(&r->at[i]->plan), plan_host(&r->at[i]->plan)),
                                 measured(r->at[i])));
    for (int i = 0; i < r->n; i++) {
        const Run *run = r->at[i];
        if (!run->has_plan) {
            html_put(h, "<p class='empty wide'>");
            if (two(r)) html_letter(h, i);
            html_put(h, "No plan.json: memory and FLOPs by part are not known.</p>");
            continue;
        }
        html_fmt(h, "<figure class='card%s'><figcaption><span class='title'>", two(r) ? "" : " wide");
        if (two(r)) html_letter(h, i);
        html_put(h, "<b>Memory by arena</b> <small>at the peak of each</small></span></figcaption>");
        if (run->plan.arenas) put_waterfall(h, run, scale);
        else                  html_put(h, "<p class='note'>plan.json lists no arenas.</p>");
        put_flops(h, run);
        put_trains(h, &run->plan);
        html_put(h, "</figure>\n");
    }
    html_put(h, "</div></section>\n");
}
