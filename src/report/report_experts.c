/* report/report_experts.c -- the load of experts: tokens by layer and expert as a map, image and text tokens
 * separately. page.js colours a cell by its load over the mean of its layer. */
#include "report/report_parts.h"

#include <math.h>
#include <string.h>

static const char *const kind_names[] = { [LOAD_IMAGE] = "Image tokens", [LOAD_TEXT] = "Text tokens" };

typedef struct LoadMap { const float *count; int layers, experts; const int *layer; } LoadMap;

static double layer_mean(const LoadMap *m, int l)
{
    double sum = 0;
    for (int e = 0; e < m->experts; e++) sum += m->count[l * m->experts + e];
    return sum / m->experts;
}

/* Loads over the mean of the layer; null in a layer without tokens. */
static Json *load_list(const LoadMap *m)
{
    Json *list = json_array();
    for (int l = 0; l < m->layers; l++) {
        double mean = layer_mean(m, l);
        for (int e = 0; e < m->experts; e++) {
            double count = m->count[l * m->experts + e], load = round(1000 * count / mean) / 1000;
            json_array_append_new(list,
                                  mean <= 0 ? json_null() : json_real(count > 0 ? fmax(load, 0.001) : 0));
        }
    }
    return list;
}

typedef struct WorstLoad { double over; int layer, expert; int64_t idle, cells; } WorstLoad;

static WorstLoad find_worst(const LoadMap *m)
{
    WorstLoad w = { .over = NAN };
    for (int l = 0; l < m->layers; l++) {
        double mean = layer_mean(m, l);
        for (int e = 0; e < m->experts && mean > 0; e++) {
            double over = m->count[l * m->experts + e] / mean;
            if (!(over <= w.over)) w.over = over, w.layer = m->layer[l], w.expert = e;
            w.idle += over == 0, w.cells++;
        }
    }
    return w;
}

static void say_worst(Json *legend, const LoadMap *m)
{
    WorstLoad w = find_worst(m);
    if (!w.cells) return page_say(legend, NULL, "no tokens");
    page_say(legend, NULL, "busiest "), page_say(legend, "b", "%s \xc3\x97 mean", NUM(w.over));
    page_say(legend, NULL, " (layer %d, expert %d), idle ", w.layer, w.expert);
    page_say(legend, "b", "%lld", (long long)w.idle),
        page_say(legend, NULL, " of %s", WHOLE((double)w.cells));
}

static void add_map(Report *r, const LoadMap *m, const char *kind, int run)
{
    Json *panel = page_panel(&r->page, false), *title = block_list(panel, "title"), *layers = json_array();
    say_letter(r, title, run);
    page_say(title, "b", "%s", kind), page_say(title, NULL, " ");
    page_say(title, "small", "layers down, experts across");
    say_worst(block_list(panel, "legend"), m);
    for (int l = 0; l < m->layers; l++) json_array_append_new(layers, json_integer(m->layer[l]));
    page_add(&r->page, block_list(panel, "blocks"),
             json_pack("{s:s, s:s, s:o, s:i, s:o}", "kind", "heat", "label", kind, "layers", layers,
                       "experts", m->experts, "load", load_list(m)));
    r->counts.charts++;
}

static void add_scale(Report *r)
{
    char text[80];
    Json *b = block_open("scale"), *notes = block_list(b, "notes");
    for (int i = 0; i < r->n; i++) {
        if (r->run[i]->load.step < 0) continue;
        snprintf(text, sizeof text, "%sat step %s", two(r) ? (i ? "B " : "A ") : "",
                 WHOLE((double)r->run[i]->load.step));
        json_array_append_new(notes, page_string(text));
    }
    page_add(&r->page, NULL, b);
}

void part_experts(Report *r)
{
    bool any = false;
    for (int i = 0; i < r->n; i++) any |= r->run[i]->load.layers > 0;
    page_section(&r->page, "experts", "Experts");
    if (any) add_scale(r);
    else     page_add(&r->page, NULL, block_text("empty wide", "No expert_load.json with layers: the load of "
                                                 "experts is not known."));
    for (int k = 0; k < LOAD_KINDS; k++)
        for (int i = 0; i < r->n; i++) {
            const ExpertLoad *x = &r->run[i]->load;
            LoadMap m = { x->count[k], x->layers, x->experts, x->layer };
            if (m.count && m.layers) add_map(r, &m, kind_names[k], i);
        }
    balance_charts(r);
}
