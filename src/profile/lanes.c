/* profile/lanes.c -- see lanes.h. */
#include "profile/lanes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const color_names[COLORS] = {
    "gemm",     "grouped_gemm", "attention", "elementwise", "permute",    "optimizer", "comm",
    "copy_h2d", "copy_d2h",     "memset",    "launch",      "host waits", "data wait",
};

/* Pieces while they are being joined. */
typedef struct Pieces {
    LanePiece *at;
    size_t     n;
    double     from, to;
} Pieces;

static void add(Pieces *p, double from, double to, int lane, int color)
{
    from = fmax(from, p->from), to = fmin(to, p->to);
    if (to <= from) return;
    p->at[p->n++] =
        (LanePiece){ (float)(from - p->from), (float)(to - p->from), (uint8_t)lane, (uint8_t)color };
}

static LaneKind lane_of(Category c)
{
    return category_is_compute(c) ? LANE_COMPUTE : c == CAT_COMM ? LANE_COMM : LANE_COPIES;
}

static int color_of(HostKind k)
{
    if (k == HOST_DATA) return COLOR_DATA;
    return k == HOST_JOIN || k == HOST_GATHER || k == HOST_FETCH || k == HOST_SYNC ? COLOR_WAIT
                                                                                   : COLOR_LAUNCH;
}

/* Joins neighbours of one colour with a gap of at most `gap`. */
static size_t join(LanePiece *p, size_t n, float gap)
{
    ptrdiff_t last[LANE_KINDS] = { -1, -1, -1, -1 };
    size_t    k                = 0;
    for (size_t i = 0; i < n; i++) {
        ptrdiff_t at = last[p[i].lane];
        if (at >= 0 && p[at].color == p[i].color && p[i].from - p[at].to <= gap) {
            p[at].to = fmaxf(p[at].to, p[i].to);
            continue;
        }
        last[p[i].lane] = (ptrdiff_t)k;
        p[k++]          = p[i];
    }
    return k;
}

/* Pieces that are too short to be seen go first. */
static size_t drop_short(LanePiece *p, size_t n, float least)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (p[i].to - p[i].from >= least) p[k++] = p[i];
    return k;
}

Status lanes_fill(Lanes *out, const SpanList *s, const Recorder *r)
{
    Pieces p = { .from = s->step[0].ended, .to = s->step[1].ended };
    p.at     = malloc((s->n + r->n + 1) * sizeof *p.at);
    if (!p.at) return fail(E_FIT, "no host memory for the drawing of a profile");
    for (size_t i = 0; i < s->n; i++)
        if (!s->span[i].in_flight)
            add(&p, s->span[i].from, s->span[i].to, lane_of(s->span[i].category), (int)s->span[i].category);
    for (size_t i = 0; i < r->n; i++)
        add(&p, r->event[i].from, r->event[i].to, LANE_HOST, color_of(r->event[i].kind));
    out->step = (float)(p.to - p.from);
    for (float gap = out->step / 4000; (p.n = join(p.at, p.n, gap)) > LANE_PIECES; gap *= 2)
        p.n = drop_short(p.at, p.n, gap / 2);
    out->n = (int)p.n;
    memcpy(out->piece, p.at, p.n * sizeof *p.at);
    free(p.at);
    return OK;
}
