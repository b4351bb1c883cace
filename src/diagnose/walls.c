/* diagnose/walls.c -- the terms of a step that walls.def reads, and the dominant wall. */
#include "diagnose/diagnose.h"

#include <math.h>
#include <string.h>

static const double GIB = 1 << 30;

/* Seconds unless said otherwise. */
typedef struct WallTerms {
    double step, exposed, blocking, bubble, idle, starved, data, recompute, copies;
    double recomputing;                  /* what recomputation and offload cost in all */
    double tower, tower_backward, larger;
    double uneven;                       /* the slowest rank beyond the fastest of its stage */
    double spread, expert_max;
    double rows, expert_rows, micros;
    double bytes, limit, peak;           /* peak: bytes / limit */
    double hidden;                       /* share of communication */
    const char *group;                   /* that exposes most */
    double group_exposed;
    bool   inter, unfit, frozen;
    char   expert_text[24];
} WallTerms;

static double larger_of(double a, double b) { return a > b ? a : b; }

static void find_group(WallTerms *w, const StepProfile *s)
{
    w->group = "no group";
    for (int g = 0; g < GR_N; g++) {
        const GroupProfile *p = &s->group[g];
        if (joins_stages(g) || known(p->exposed) <= w->group_exposed) continue;
        w->group = group_name((GroupId)g), w->group_exposed = p->exposed, w->inter = p->inter_node > 0;
    }
}

/* Waiting for other stages and for a late rank is no transfer, and what recomputation repeats is the price of
 * memory. A plan's ranks are never late. */
static void fill_communication(WallTerms *w, const StepProfile *s, double repeated)
{
    double jitter = 0;
    for (int g = 0; g < GR_N; g++) jitter += known(s->group[g].jitter);
    w->bubble   = known(s->bubble);
    w->exposed  = larger_of(0, known(s->exposed) - w->bubble);
    w->blocking = larger_of(0, w->exposed - jitter - repeated);
    w->hidden   = known(s->comm) > 0 ? known(s->hidden) / s->comm : 0;
    find_group(w, s);
}

static void fill_vision(WallTerms *w, const Evidence *e)
{
    const StepProfile *s = &e->at;
    w->frozen = e->recipe->model.freeze_vit;
    w->tower = known(s->part[PART_VISION]) + known(s->part[PART_MERGER]);
    w->tower_backward = w->frozen ? 0 : w->tower * 2 / 3;
}

static void fill_memory(WallTerms *w, const Evidence *e)
{
    w->bytes = e->bytes, w->limit = e->limit, w->peak = e->limit > 0 ? e->bytes / e->limit : 0;
    w->unfit = w->peak > 1;
    w->recompute = known(e->at.recompute), w->copies = known(e->at.copies);
    w->recomputing = larger_of(e->recomputing, w->recompute + w->copies);
}

static void fill_terms(WallTerms *w, const Evidence *e)
{
    const StepProfile *s = &e->at;
    *w = (WallTerms){ .step = s->step, .data = known(s->data_wait), .larger = e->larger,
                      .rows = (double)e->recipe->train.micro_tokens, .expert_rows = known(s->expert_rows),
                      .spread = e->spread, .expert_max = known(s->expert_max), .micros = e->micros };
    w->idle = known(s->idle);
    w->starved = larger_of(0, known(s->launch_starved) - w->data);
    w->uneven = e->spread * larger_of(0, s->step - known(s->exposed));
    snprintf(w->expert_text, sizeof w->expert_text, "%.0f", w->expert_rows);
    fill_communication(w, s, e->repeated);
    fill_vision(w, e);
    fill_memory(w, e);
}

/* ---- the walls ---- */

static void find_each(WallFinding wall[WALL_N], const WallTerms *w)
{
#define UNPACK(...) __VA_ARGS__
#define WALL(which, name, trigger, seconds, text, check)                                          \
    wall[WALL_##which] = (WallFinding){ .id = WALL_##which, .found = trigger, .recoverable = seconds }; \
    snprintf(wall[WALL_##which].evidence, DIAGNOSE_TEXT, UNPACK text);
#define FIX(...)
#include "diagnose/walls.def"
#undef WALL
#undef FIX
#undef UNPACK
}

WallId walls_find(WallFinding wall[WALL_N], const Evidence *e)
{
    WallTerms w;
    WallId    first = WALL_none;
    fill_terms(&w, e);
    find_each(wall, &w);
    for (WallId i = 1; i < WALL_N; i++)
        if (wall[i].found && (first == WALL_none || wall[i].recoverable > wall[first].recoverable)) first = i;
    return w.unfit ? WALL_memory : first;
}

const char *wall_name(WallId id)
{
    static const char *const names[WALL_N] = {
        "none",
#define WALL(which, name, ...) name,
#define FIX(...)
#include "diagnose/walls.def"
#undef WALL
#undef FIX
    };
    return names[id];
}

const char *wall_check(WallId id)
{
    static const char *const checks[WALL_N] = {
        "",
#define WALL(which, name, trigger, seconds, text, check) check,
#define FIX(...)
#include "diagnose/walls.def"
#undef WALL
#undef FIX
    };
    return checks[id];
}
