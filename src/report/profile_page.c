/* report/profile_page.c -- see profile_page.h. */
#include "report/profile_page.h"

#include "plan/view.h"
#include "profile/lanes.h"
#include "profile/profile_print.h"
#include "report/page.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RANKS_SHOWN = 16 };

static Json *number(double x, char unit)
{
    char text[32];
    return page_string(profile_number(text, x, unit));
}

/* ---- summary ---- */

static void add_tile(Page *p, Json *tiles, const char *name, const char *value, const char *note)
{
    page_add(p, tiles, json_pack("{s:s, s:[[s]], s:s}", "name", name, "values", value, "note", note));
}

static void add_tiles(Page *p, const Profile *x)
{
    const StepProfile *m = &x->measured;
    Json              *b = block_open("tiles"), *tiles = block_list(b, "tiles");
    char               text[32], note[120];
    snprintf(note, sizeof note, "profiled %+.1f %%", 100 * x->overhead);
    add_tile(p, tiles, "Step, unprofiled", profile_number(text, x->plain, 's'), note);
    snprintf(note, sizeof note, "%.0f tokens/s of all ranks", m->tokens_s);
    add_tile(p, tiles, "MFU", PERCENT(m->mfu), note);
    snprintf(note, sizeof note, "idle %s", PERCENT(m->idle / m->step));
    add_tile(p, tiles, "Busy", PERCENT(m->busy / m->step), note);
    snprintf(note, sizeof note, "of the step; hidden %s", PERCENT(m->comm > 0 ? m->hidden / m->comm : NAN));
    add_tile(p, tiles, "Exposed communication", PERCENT(m->exposed / m->step), note);
    add_tile(p, tiles, "Memory", BYTES(m->memory_driver), "given out by the driver");
    add_tile(p, tiles, "Residual", PERCENT(m->residual / m->step), "of the step, not explained");
    page_add(p, NULL, b);
}

static void add_heading(Page *p, const Profile *x)
{
    Json *meta = json_array();
    page_say(json_object_get(p->root, "heading"), NULL, "%s", x->recipe);
    page_say(meta, NULL, "%s on ", x->model), page_say(meta, "b", "%d", x->ranks);
    page_say(meta, NULL, " rank%s, %s, %s; %d profiled steps after %d to warm up; intervals from %s",
             x->ranks == 1 ? "" : "s", x->backend, x->dtype, x->steps, x->warmup, x->source);
    page_add(p, json_object_get(p->root, "meta"), meta);
}

/* ---- bars ---- */

/* Each bar begins where the one before ended: together they are the step. */
static void add_causes(Page *p, const StepProfile *m)
{
    const struct {
        const char *name;
        double      seconds;
    } row[] = {
        { "compute", m->compute },       { "blocking", m->blocking }, { "launch-starved", m->launch_starved },
        { "dependency", m->dependency }, { "residual", m->residual },
    };
    Json  *panel = page_panel(p, true), *bars = block_bars();
    double from = 0;
    page_say(block_list(panel, "title"), "b", "Where the step goes");
    for (int i = 0; i < 5; i++) {
        char   text[32];
        double share = row[i].seconds / m->step;
        bars_row(bars, row[i].name, i, fmin(from, 1), fmin(share, 1),
                 profile_number(text, row[i].seconds, 's'));
        from += share;
    }
    page_add(p, block_list(panel, "blocks"), bars);
}

static void add_bars(Page *p, const char *title, const double *x, int n, const char *const *names,
                     double step)
{
    Json *panel = page_panel(p, false), *bars = block_bars();
    page_say(block_list(panel, "title"), "b", "%s", title);
    for (int i = 0; i < n; i++) {
        char text[32];
        if (!(x[i] > 0)) continue;
        bars_row(bars, names[i], i, 0, fmin(x[i] / step, 1), profile_number(text, x[i], 's'));
    }
    page_add(p, block_list(panel, "blocks"), bars);
}

/* ---- timeline ---- */

static Json *lanes_block(const Profile *x, int ranks)
{
    static const char *const lane_names[LANE_KINDS] = { "compute", "communication", "copies", "host" };
    Json  *b = block_open("lanes"), *spans = block_list(b, "spans"), *rows = block_list(b, "rows");
    double end = 0;
    for (int r = 0; r < ranks; r++) {
        const Lanes *l = &x->lanes[r];
        end            = fmax(end, (double)l->step);
        for (int k = 0; k < LANE_KINDS; k++) {
            char name[48];
            snprintf(name, sizeof name, "rank %d %s", r, lane_names[k]);
            json_array_append_new(rows, json_string(name));
        }
        for (int i = 0; i < l->n; i++)
            json_array_append_new(spans, json_pack("[i, i, f, f]", r * LANE_KINDS + l->piece[i].lane,
                                                   l->piece[i].color, (double)l->piece[i].from,
                                                   (double)l->piece[i].to));
    }
    for (int i = 0; i < COLORS; i++)
        json_array_append_new(block_list(b, "colors"), json_string(color_names[i]));
    json_object_set_new(b, "end", json_real(end > 0 ? end : 1));
    return b;
}

static void add_timeline(Page *p, const Profile *x)
{
    int ranks = x->ranks < RANKS_SHOWN ? x->ranks : RANKS_SHOWN;
    if (!x->lanes) return;
    page_section(p, "timeline", "Timeline of a step");
    Json *blocks = block_list(page_panel(p, true), "blocks");
    page_add(p, blocks,
             block_text("meta",
                        "%d of %d ranks; rows of a rank: compute, communication, copies, host. "
                        "trace.json has every kernel.",
                        ranks, x->ranks));
    page_add(p, blocks, lanes_block(x, ranks));
}

/* ---- tables ---- */

static void add_row(Json *table, const char *name, double m, double p, char unit, double step)
{
    char ratio[32] = "", share[32] = "";
    if (!(isfinite(m) && m != 0) && !(isfinite(p) && p != 0)) return;
    if (m > 0 && p > 1e-3 * m) snprintf(ratio, sizeof ratio, "%.2f", m / p);
    if (unit == 's' && isfinite(m)) snprintf(share, sizeof share, "%.1f %%", 100 * m / step);
    Json *row = table_row(table), *cell[] = { page_string(name), number(m, unit), page_string(share),
                                              number(p, unit), page_string(ratio) };
    for (int i = 0; i < 5; i++) json_array_append_new(row, cell[i]);
}

static Json *open_table(void)
{
    static const char *const columns[] = { "mono field", "num measured", "num of the step", "num predicted",
                                           "num m / p" };
    return block_table(columns, 5, NULL);
}

static const char *arena_name(char out[64], int arena)
{
    snprintf(out, 64, "arena: %s", engine_arena_label((ArenaId)arena));
    return out;
}

static void add_fields(Page *p, const Profile *x)
{
    char name[64];
    const StepProfile *m = &x->measured, *q = &x->predicted;
    Json              *table = open_table();
    page_section(p, "fields", "Measured beside predicted");
    for (int i = 0; i < profile_fields_n; i++)
        add_row(table, profile_fields[i].name, profile_value(m, &profile_fields[i]),
                profile_value(q, &profile_fields[i]), profile_fields[i].unit, m->step);
    for (int i = 0; i < ARENA_N; i++)
        add_row(table, arena_name(name, i), m->arena[i], q->arena[i], 'B', m->step);
    page_add(p, block_list(page_panel(p, true), "blocks"), table);
}

static void add_groups(Page *p, const Profile *x)
{
    static const char *const columns[] = { "mono group", "- for",          "num calls",
                                           "num length", "num exposed",    "num blocking",
                                           "num jitter", "num intra-node", "num inter-node" };
    Json                    *table     = block_table(columns, 9, NULL);
    if (x->ranks < 2) return;
    for (int g = 0; g < GR_N; g++) {
        const GroupProfile *m = &x->measured.group[g];
        if (m->calls <= 0) continue;
        Json *row    = table_row(table);
        Json *cell[] = { page_string(group_name((GroupId)g)),
                         page_string(group_use((GroupId)g)),
                         number(m->calls, '1'),
                         number(m->length, 's'),
                         number(m->exposed, 's'),
                         number(m->blocking, 's'),
                         number(m->jitter, 's'),
                         number(m->intra_node, 'B'),
                         number(m->inter_node, 'B') };
        for (int i = 0; i < 9; i++) json_array_append_new(row, cell[i]);
    }
    page_section(p, "groups", "Communication by group");
    page_add(p, block_list(page_panel(p, true), "blocks"), table);
}

static void add_ranks(Page *p, const Profile *x)
{
    static const char *const columns[] = { "num rank",    "num stage",   "num step",  "num compute",
                                           "num exposed", "num starved", "num memory" };
    Json                    *table     = block_table(columns, 7, NULL);
    if (x->ranks < 2) return;
    for (int r = 0; r < x->ranks; r++) {
        const StepProfile *s      = &x->rank[r];
        Json              *row    = table_row(table);
        Json              *cell[] = { number(r, '1'),
                                      number(x->stage[r], '1'),
                                      number(s->step, 's'),
                                      number(s->compute, 's'),
                                      number(s->exposed, 's'),
                                      number(s->launch_starved, 's'),
                                      number(s->memory_peak, 'B') };
        for (int i = 0; i < 7; i++) json_array_append_new(row, cell[i]);
    }
    page_section(p, "ranks", "Ranks");
    page_add(p, block_list(page_panel(p, true), "blocks"), table);
}

Status profile_page_write(const Profile *x, const char *path)
{
    const StepProfile *m = &x->measured;
    Page               p;
    char               title[200];
    snprintf(title, sizeof title, "%.150s \xc2\xb7 treb profile", x->recipe);
    page_open(&p, "treb profile", title);
    add_heading(&p, x);
    page_section(&p, "summary", "");
    add_tiles(&p, x);
    add_causes(&p, m);
    add_bars(&p, "By part", m->part, PART_N, part_words, m->step);
    add_bars(&p, "By layer kind", m->layer, LAYER_N, layer_names, m->step);
    add_bars(&p, "By category", m->category, CAT_N, category_names, m->step);
    add_timeline(&p, x);
    add_fields(&p, x);
    add_groups(&p, x);
    add_ranks(&p, x);
    Status st = page_write(&p, path);
    page_close(&p);
    return st;
}
