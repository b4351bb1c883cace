/* report/report_experts.c -- who does the work: tokens by layer and expert as a map, image and text tokens
 * apart.
 *
 * A cell is coloured by its load over the mean of its layer, on a scale of powers of two from 1/4 and less to
 * 4 and more. An expert without a single token has a colour of its own; a layer without tokens is blank. */
#include "report/report_html.h"

#include <math.h>
#include <string.h>

enum { SHADES = 9, IDLE = SHADES, BLANK, CLASSES };

static const char *const class_names[CLASSES] = { "h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8",
                                                   [IDLE] = "hx", [BLANK] = "hn" };
static const char *const kind_names[] = { [LOAD_IMAGE] = "Image tokens", [LOAD_TEXT] = "Text tokens" };

typedef struct Map { const float *count; int layers, experts; const int *layer; } Map;

static double layer_mean(const Map *m, int l)
{
    double sum = 0;
    for (int e = 0; e < m->experts; e++) sum += m->count[l * m->experts + e];
    return sum / m->experts;
}

static int shade(double count, double mean)
{
    if (mean <= 0) return BLANK;
    if (count <= 0) return IDLE;
    double s = round(2 * log2(count / mean)) + 4;
    return (int)fmin(fmax(s, 0), SHADES - 1);
}

/* All cells of a colour are one path; neighbours in a row are one rectangle. */
static void put_shade(Html *h, const Map *m, int which)
{
    bool open = false;
    for (int l = 0; l < m->layers; l++) {
        double mean = layer_mean(m, l);
        const float *row = m->count + (size_t)l * (size_t)m->experts;
        for (int e = 0; e < m->experts;) {
            int from = e;
            while (e < m->experts && shade(row[e], mean) == which) e++;
            if (e == from) { e++; continue; }
            if (!open) html_fmt(h, "<path class='%s' d='", class_names[which]), open = true;
            html_fmt(h, "M%d %dh%dv1h-%dz", from, l, e - from, e - from);
        }
    }
    if (open) html_put(h, "'/>");
}

/* What the script shows under the pointer; nothing for a layer without tokens. */
static void put_values(Html *h, const Map *m)
{
    html_put(h, " data-layers='");
    for (int l = 0; l < m->layers; l++) html_fmt(h, "%s%d", l ? "," : "", m->layer[l]);
    html_put(h, "' data-load='");
    for (int l = 0; l < m->layers; l++) {
        double mean = layer_mean(m, l);
        for (int e = 0; e < m->experts; e++) {
            if (l || e) html_put(h, ",");
            if (mean > 0) html_fmt(h, "%.3g", m->count[l * m->experts + e] / mean);
        }
    }
    html_put(h, "'");
}

static void put_scales(Html *h, const Map *m)
{
    int rows = m->layers < 8 ? m->layers : 5, cols = m->experts < 8 ? m->experts : 5;
    for (int i = 0; i < rows; i++) {
        int l = rows > 1 ? i * (m->layers - 1) / (rows - 1) : 0;
        html_fmt(h, "<span class='yl' style='--f:%.4f'>%d</span>", (l + 0.5) / m->layers, m->layer[l]);
    }
    for (int i = 0; i < cols; i++) {
        int e = cols > 1 ? i * (m->experts - 1) / (cols - 1) : 0;
        html_fmt(h, "<span class='xl' style='--f:%.4f'>%d</span>", (e + 0.5) / m->experts, e);
    }
}

typedef struct Worst { double over; int layer, expert; int64_t idle, cells; } Worst;

static Worst find_worst(const Map *m)
{
    Worst w = { .over = NAN };
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

static void put_worst(Html *h, const Map *m)
{
    Worst w = find_worst(m);
    html_put(h, "<span class='legend'>");
    if (!w.cells) html_put(h, "there were none");
    else html_fmt(h, "<span>busiest <b>%s \xc3\x97 mean</b> (layer %d, expert %d)</span>"
                  "<span>idle <b>%lld</b> of %s</span>", NUM(w.over), w.layer, w.expert, (long long)w.idle,
                  WHOLE((double)w.cells));
    html_put(h, "</span>");
}

static void put_map(Html *h, const Map *m, const char *title, int which)
{
    html_put(h, "<figure class='card'><figcaption><span class='title'>");
    if (which >= 0) html_letter(h, which);
    html_fmt(h, "<b>%s</b> <small>layers down, experts across</small></span>", title);
    put_worst(h, m);
    html_put(h, "</figcaption><div class='heat'");
    put_values(h, m);
    int height = m->layers * 12 < 96 ? 96 : m->layers * 12 > 420 ? 420 : m->layers * 12;
    html_fmt(h, "><svg viewBox='0 0 %d %d' preserveAspectRatio='none' style='height:%dpx' role='img' "
             "aria-label='%s by layer and expert'>", m->experts, m->layers, height, title);
    for (int s = 0; s < CLASSES; s++) put_shade(h, m, s);
    html_put(h, "</svg>");
    put_scales(h, m);
    html_put(h, "</div></figure>\n");
    h->counts.charts++;
}

static void put_key(Html *h, const Runs *r)
{
    html_put(h, "<div class='scale'><div>load over the mean of the layer: \xc2\xbc<span>");
    for (int s = 0; s < SHADES; s++) html_fmt(h, "<i class='%s'></i>", class_names[s]);
    html_put(h, "</span>4</div><div><i class='mark hx'></i>not one token</div>");
    for (int i = 0; i < r->n; i++)
        if (r->at[i]->load.step >= 0)
            html_fmt(h, "<div>%sat step %s</div>", two(r) ? (i ? "B " : "A ") : "",
                     WHOLE((double)r->at[i]->load.step));
    html_put(h, "</div>");
}

void part_experts(Html *h, const Runs *r)
{
    bool any = false;
    for (int i = 0; i < r->n; i++) any |= r->at[i]->load.layers > 0;
    html_put(h, "<section id='experts'><h2>Experts</h2>");
    if (any) put_key(h, r);
    html_put(h, "<div class='grid'>\n");
    for (int k = 0; k < LOAD_KINDS; k++)
        for (int i = 0; i < r->n; i++) {
            const ExpertLoad *x = &r->at[i]->load;
            Map m = { x->count[k], x->layers, x->experts, x->layer };
            if (m.count && m.layers) put_map(h, &m, kind_names[k], two(r) ? i : -1);
        }
    part_balance(h, r);
    html_put(h, "</div>");
    if (!any) html_put(h, "<p class='empty'>No expert_load.json with layers: the load is not known.</p>");
    html_put(h, "</section>\n");
}
