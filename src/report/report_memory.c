/* report/report_memory.c -- the memory of a rank, arena by arena, and the FLOPs of a step by part. */
#include "report/report_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The arena in host memory is no part of what the device holds. */
static bool on_host(const MemArena *a) { return !strcmp(a->name, "host"); }

static double plan_bytes(const MemPlan *p, bool host)
{
    double sum = 0;
    for (int i = 0; i < p->arenas; i++) sum += on_host(&p->arena[i]) == host ? p->arena[i].bytes : 0;
    return sum;
}

static double measured_bytes(const ReportRun *run)                            /* NAN: not measured */
{
    return series_extreme(series_find(&run->metrics, KEY_MEASURED), true).value * 0x1p30;
}

static int by_bytes(const void *a, const void *b)
{
    double x = ((const MemLabel *)a)->bytes, y = ((const MemLabel *)b)->bytes;
    return (x < y) - (x > y);
}

static void add_sum(Json *bars, const char *name, bool line, double bytes, double scale)
{
    Json *row = bars_row(bars, name, 7, 0, bytes / scale, BYTES(bytes));
    if (line) json_object_set_new(row, "sum", json_true());
}

/* Each bar begins where the bar before it ended. */
static Json *arena_bars(const ReportRun *run, double scale)
{
    const MemPlan *p = &run->plan;
    double from = 0, total = plan_bytes(p, false), host = plan_bytes(p, true), measured = measured_bytes(run);
    Json *bars = block_bars();
    for (int i = 0; i < p->arenas; i++) {
        const MemArena *a = &p->arena[i];
        if (on_host(a)) continue;
        Json *row = bars_row(bars, a->name, i, from / scale, a->bytes / scale, BYTES(a->bytes));
        if (total > 0) json_object_set_new(row, "share", page_string(PERCENT(a->bytes / total)));
        for (int k = 0; k < a->labels && a->bytes > 0; k++)
            bars_part(row, a->label[k].bytes / a->bytes, "%s: %s", a->label[k].name,
                      BYTES(a->label[k].bytes));
        from += a->bytes;
    }
    add_sum(bars, "planned", true, total, scale);
    if (host > 0) add_sum(bars, "planned on the host", false, host, scale);
    if (isfinite(measured)) add_sum(bars, "measured", false, measured, scale);
    return bars;
}

static Json *label_table(const MemPlan *p)
{
    static const char *const columns[] = { "- arena", "- label", "num bytes", "num share" };
    Json *table = block_table(columns, 4, "Labels of each arena at its peak");
    for (int i = 0; i < p->arenas; i++)
        for (int k = 0; k < p->arena[i].labels; k++) {
            const MemLabel *l = &p->arena[i].label[k];
            double share = p->arena[i].bytes > 0 ? l->bytes / p->arena[i].bytes : NAN;
            Json *row = table_row(table);
            json_array_append_new(row, page_string(p->arena[i].name));
            json_array_append_new(row, page_string(l->name));
            json_array_append_new(row, page_string(BYTES(l->bytes)));
            json_array_append_new(row, page_string(PERCENT(share)));
        }
    return table;
}

static void add_arenas(Report *r, Json *blocks, const ReportRun *run, double scale)
{
    const MemPlan *p = &run->plan;
    int labels = 0;
    if (!p->arenas) return page_add(&r->page, blocks, block_text("note", "plan.json lists no arenas."));
    for (int i = 0; i < p->arenas; i++) {
        qsort(p->arena[i].label, (size_t)p->arena[i].labels, sizeof(MemLabel), by_bytes);
        labels += p->arena[i].labels;
    }
    page_add(&r->page, blocks, arena_bars(run, scale));
    if (labels) page_add(&r->page, blocks, label_table(p));
}

static const char *flops_text(char buf[NUM_BYTES], double v)
{
    static const char unit[] = " kMGTPE";
    int u = 0;
    for (; v >= 1000 && u < 6; u++) v /= 1000;
    snprintf(buf, NUM_BYTES, v < 9.95 ? "%.2f\xc2\xa0%.*sFLOP" : "%.1f\xc2\xa0%.*sFLOP", v, u > 0, &unit[u]);
    return buf;
}

static void add_flops(Report *r, Json *blocks, const MemPlan *p)
{
    double total = 0;
    char buf[NUM_BYTES], title[100];
    for (int i = 0; i < PARTS; i++) total += p->flops[i];
    if (total <= 0) return;
    snprintf(title, sizeof title, "FLOPs of one step: %s", flops_text(buf, total));
    Json *b = json_pack("{s:s, s:s, s:[]}", "kind", "stack", "title", title, "parts");
    for (int i = 0; i < PARTS; i++)
        json_array_append_new(json_object_get(b, "parts"),
                              json_pack("[s, f, s]", part_names[i], p->flops[i] / total,
                                        PERCENT(p->flops[i] / total)));
    page_add(&r->page, blocks, b);
}

static void add_trainable(Report *r, Json *blocks, const MemPlan *p)
{
    double all = p->model + p->adapters;
    if (p->trained <= 0 || all < p->trained) return;
    page_add(&r->page, blocks,
             block_text("note", "%.3f M of %.3f M parameters train (%.3f %%)%s.", p->trained / 1e6, all / 1e6,
                        100 * p->trained / all,
                        p->adapters >= p->trained ? ", all of them in adapters" :
                        p->adapters > 0 ? ", some of them in adapters" : ""));
}

void part_memory(Report *r)
{
    double scale = 1;
    page_section(&r->page, "memory", "Memory and FLOPs");
    for (int i = 0; i < r->n; i++) {                            /* fmax ignores NAN: what was not measured */
        const MemPlan *p = &r->run[i]->plan;
        scale = fmax(scale, fmax(fmax(plan_bytes(p, false), plan_bytes(p, true)), measured_bytes(r->run[i])));
    }
    for (int i = 0; i < r->n; i++) {
        const ReportRun *run = r->run[i];
        Json *panel = page_panel(&r->page, !two(r)), *title = block_list(panel, "title");
        Json *blocks = block_list(panel, "blocks");
        say_letter(r, title, i);
        page_say(title, "b", "Memory by arena"), page_say(title, NULL, " ");
        page_say(title, "small", "at the peak of each");
        if (!run->has_plan) {
            page_add(&r->page, blocks, block_text("note", "No plan.json: memory and FLOPs are not known."));
            continue;
        }
        add_arenas(r, blocks, run, scale);
        add_flops(r, blocks, &run->plan);
        add_trainable(r, blocks, &run->plan);
    }
}
