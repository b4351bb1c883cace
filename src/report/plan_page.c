/* report/plan_page.c -- see plan_page.h. */
#include "report/plan_page.h"

#include "report/page.h"
#include <math.h>
#include <stdlib.h>

enum { RANKS_SHOWN = 512, MICROS_SHOWN = 24, SPANS_MOST = 6000 };

static void add_tile(Page *p, Json *tiles, const char *name, const char *value, Json *note)
{
    page_add(p, tiles, json_pack("{s:s, s:[[s]], s:o}", "name", name, "values", value, "note", note));
}

static Json *format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static Json *format(const char *fmt, ...)
{
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return page_string(text);
}

static void add_tiles(Page *p, const DryRun *d)
{
    const DryStep *s = &d->step;
    int    full = 0;
    double peak = (double)dryrun_peak(d, &full);
    char   content[300];
    Json  *b = block_open("tiles"), *tiles = block_list(b, "tiles");
    add_tile(p, tiles, "Peak memory of a rank", BYTES(peak), format("stage %d, the fullest", full));
    if (d->timed)
        add_tile(p, tiles, "Fit", fit_word(fit_of(peak, &d->hw)),
                 format("%s has %s for a run", d->hw.id, BYTES(d->hw.capacity)));
    if (s->step > 0) {
        add_tile(p, tiles, "Step time", SPAN(s->step),
                 format("\xc2\xb1%.0f %%; bottleneck: %s", 100 * s->error, s->wall ? s->wall : "not known"));
        add_tile(p, tiles, "MFU", PERCENT(s->mfu),
                 format("%.0f TFLOP/s a rank; HFU %.1f %%", s->model_tflops, 100 * s->hfu));
        add_tile(p, tiles, "Tokens/s", NUM(s->tokens_s), format("of all ranks"));
        content_text(content, sizeof content, &d->content);
        add_tile(p, tiles, "Tokens of a document", NUM(d->content.document), page_string(content));
    }
    page_add(p, NULL, b);
}

static void add_heading(Page *p, const PlanView *v)
{
    const DryRun *d = v->dry;
    Json *meta = json_array();
    page_say(json_object_get(p->root, "heading"), NULL, "%s", v->title);
    page_say(meta, NULL, "%s on ", d->model), page_say(meta, "b", "%d", d->ranks);
    page_say(meta, NULL, " ranks, %d per node, %s", d->per_node, dtype_name(d->dtype));
    page_add(p, json_object_get(p->root, "meta"), meta);
}

/* --- memory ------------------------------------------------------------------------------------------- */

static void add_arena(Json *bars, const EnginePlan *p, int a, double from, double scale)
{
    double bytes = (double)p->bytes[a];
    Json  *row =
        bars_row(bars, engine_arena_label((ArenaId)a), a, from / scale, fmin(bytes / scale, 1), BYTES(bytes));
    for (int k = 0; k < ARENA_LABELS && p->label[a][k].bytes; k++)
        bars_part(row, (double)p->label[a][k].bytes / bytes, "%s: %s", p->label[a][k].name,
                  BYTES((double)p->label[a][k].bytes));
}

/* Each bar begins where the bar before it ended. */
static Json *stage_bars(const DryRun *d, int stage, double scale)
{
    const EnginePlan *p = &d->stage[stage].plan;
    double from = 0, sum = (double)dryrun_device(d, stage);
    Json *bars = block_bars();
    for (int i = 0; i < ARENA_N; i++) {
        if (!p->bytes[i] || !view_on_device(i)) continue;
        add_arena(bars, p, i, from, scale);
        from += (double)p->bytes[i];
    }
    Json *row =
        bars_row(bars, d->timed ? fit_word(fit_of(sum, &d->hw)) : "sum", 7, 0, sum / scale, BYTES(sum));
    json_object_set_new(row, "sum", json_true());
    if (p->bytes[A_HOST]) add_arena(bars, p, A_HOST, 0, scale);
    return bars;
}

static void add_memory(Page *p, const DryRun *d)
{
    double scale = (double)dryrun_peak(d, NULL);
    if (d->timed) scale = fmax(scale, d->hw.capacity);
    for (int s = 0; s < d->stages; s++) scale = fmax(scale, (double)d->stage[s].plan.bytes[A_HOST]);
    page_section(p, "memory", "Memory of a rank, by stage");
    for (int s = 0; s < d->stages; s++) {
        Json *panel = page_panel(p, d->stages == 1), *title = block_list(panel, "title");
        page_say(title, "b", "Stage %d", s), page_say(title, NULL, " ");
        page_say(title, "small", "%d micro-batches in flight", d->stage[s].plan.slots);
        page_add(p, block_list(panel, "blocks"), stage_bars(d, s, scale));
    }
}

/* --- placement and timeline ----------------------------------------------------------------------------- */

static void add_placement(Page *p, const DryRun *d)
{
    MeshLayout l = view_layout(d);
    Mesh   m;
    char   text[PLACEMENT_BYTES];
    int    n = d->ranks < RANKS_SHOWN ? d->ranks : RANKS_SHOWN;
    page_section(p, "placement", "Rank placement");
    Json *blocks = block_list(page_panel(p, true), "blocks"), *b = block_open("placement"), *node = NULL;
    for (int r = 0; r < n; r++) {
        mesh_place(&m, r, d->ranks, &l);
        if (r % d->per_node == 0)
            node = json_array(), json_array_append_new(block_list(b, "nodes"), node);
        json_array_append_new(node, json_pack("[i, i, s]", r, m.at[AX_PP], placement_text(text, &m)));
    }
    page_add(p, blocks, block_text("meta", "t tensor, c context, d data, p stage, x expert tensor, e expert "
                                   "parallel; axes of size 1 are left out, a colour is a stage"));
    page_add(p, blocks, b);
    if (n < d->ranks) page_add(p, blocks, block_text("meta", "and %d more", d->ranks - n));
}

static Json *timeline_block(const Schedule *t, const DryRun *d)
{
    Json *spans = json_array();
    for (int s = 0; s < t->stages; s++)
        for (int i = 0; i < t->actions; i++) {
            const ScheduleSpan *b = &t->span[s * t->actions + i];
            if (b->to <= b->from) continue;                  /* a chunk without a backward pass */
            json_array_append_new(spans, json_pack("[i, i, i, b, f, f]", s, b->chunk, b->micro,
                                                   b->way == PIPE_BACKWARD, b->from, b->to));
        }
    return json_pack("{s:s, s:i, s:f, s:b, s:o}", "kind", "timeline", "stages", t->stages, "end",
                     t->end > 0 ? t->end : 1.0, "timed", (int)d->timed, "spans", spans);
}

static Status add_timeline(Page *p, const DryRun *d)
{
    Schedule t;
    int      most = SPANS_MOST / (2 * d->stages * d->chunks);
    TRY(view_timeline_open(&t, d, most < MICROS_SHOWN ? most > 1 ? most : 1 : MICROS_SHOWN));
    int micros = t.actions / (2 * d->chunks);
    page_section(p, "timeline", "Pipeline timeline");
    Json *blocks = block_list(page_panel(p, true), "blocks");
    page_add(p, blocks,
             block_text("meta", "%s %d of %d micro-batches; a colour is a chunk, pale is backward; %s",
                        micros < d->micros ? "the first" : "all", micros, d->micros,
                        d->timed ? "times are the plan's"
                                 : "a backward is drawn twice as long as a "
                                   "forward"));
    page_add(p, blocks, timeline_block(&t, d));
    schedule_close(&t);
    return OK;
}

/* --- tables ------------------------------------------------------------------------------------------- */

static void add_cells(Json *row, int n, Json *const *cell)
{
    for (int i = 0; i < n; i++) json_array_append_new(row, cell[i]);
}

static void add_messages(Page *p, const DryRun *d)
{
    static const char *const columns[] = { "- stage", "mono group", "- for", "num calls", "num intra-node",
                                           "num inter-node" };
    Json *table = block_table(columns, 6, NULL);
    page_section(p, "messages", "Communication");
    Json *panel = page_panel(p, true);
    page_say(block_list(panel, "title"), NULL, "bytes a rank sends in a step of %d micro-batch%s", d->micros,
             d->micros > 1 ? "es" : "");
    for (int s = 0; s < d->stages; s++)
        for (int g = 0; g < GR_N; g++) {
            LedgerComm c = view_comm(d, s, g);
            if (c.intra_node + c.inter_node == 0) continue;
            add_cells(
                table_row(table), 6,
                (Json *const[]){ format("%d", s), page_string(group_name((GroupId)g)),
                                 page_string(group_use((GroupId)g)), page_string(WHOLE((double)c.calls)),
                                 page_string(BYTES((double)c.intra_node)),
                                 page_string(BYTES((double)c.inter_node)) });
        }
    page_add(p, block_list(panel, "blocks"), table);
}

static void add_advice(Page *p, const FitAdvice *a)
{
    static const char *const columns[] = { "mono set", "num saves", "num then", "- ", "- cost" };
    if (!a) return;
    Json *table = block_table(columns, 5, NULL);
    page_section(p, "advice", "Settings that save memory, cheapest first");
    for (int i = 0; i < a->n; i++)
        add_cells(table_row(table), 5,
                  (Json *const[]){ page_string(a->row[i].set), page_string(BYTES(a->bytes - a->row[i].bytes)),
                                   page_string(BYTES(a->row[i].bytes)),
                                   page_string(fit_row_fits(a, i) ? "fits" : "not enough"),
                                   page_string(a->row[i].price) });
    page_add(p, block_list(page_panel(p, true), "blocks"), table);
}

static Status fill_page(Page *p, const PlanView *v)
{
    add_heading(p, v);
    page_section(p, "summary", "");
    add_tiles(p, v->dry);
    add_memory(p, v->dry);
    add_placement(p, v->dry);
    TRY(add_timeline(p, v->dry));
    add_messages(p, v->dry);
    add_advice(p, v->advice);
    return OK;
}

Status plan_page_write(const PlanView *v, const char *path)
{
    Page p;
    char title[300];
    snprintf(title, sizeof title, "%.280s \xc2\xb7 treb plan", v->title);
    page_open(&p, "treb plan", title);
    Status st = fill_page(&p, v);
    if (!st) st = page_write(&p, path);
    page_close(&p);
    return st;
}
