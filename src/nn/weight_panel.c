/* nn/weight_panel.c -- see weight_panel.h. */
#include "nn/weight_panel.h"

#include "base/num.h"

bool weight_is_coded(const Param *w) { return t_has(w->shard.codes.q); }

static int64_t extent(const Param *p, PanelAxis axis)
{
    return p->shard.shape[axis == PANEL_ROWS ? p->ndim - 2 : p->ndim - 1];
}

/* How many of `all` pieces of a weight fit into a panel, one at least. */
static int64_t fitting(const Pass *c, const Param *w, int64_t pieces, int64_t all)
{
    int64_t most = c->env->panel_elems ? c->env->panel_elems : WEIGHT_PANEL_ELEMS;
    int64_t n = most / (param_local(w) / pieces);
    return n < 1 ? 1 : min_i64(n, all);
}

/* Columns of a panel begin on 16 elements. */
static int64_t panel_step(const Pass *c, const Param *p, PanelAxis axis, int64_t all)
{
    int64_t n = fitting(c, p, extent(p, axis), all);
    return axis == PANEL_ROWS ? n : min_i64(n < 16 ? 16 : n / 16 * 16, all);
}

Tensor panel_of_matrices(const Pass *c, const Param *w)
{
    const int64_t *n = w->shard.shape;
    return t3(c->scratch, "scratch", c->env->dtype, fitting(c, w, n[0], n[0]), n[1], n[2]);
}

static Tensor panel_memory(const Pass *c, const WeightPanel *p)
{
    const int64_t *n = p->of->shard.shape;
    DType          d = c->env->dtype;
    return p->axis == PANEL_ROWS ? scratch2(c, d, p->step, n[1]) : scratch2(c, d, n[0], p->step);
}

static WeightPanel open_part(const Pass *c, const Param *w, PanelAxis axis, int64_t from, int64_t n)
{
    WeightPanel p = { .of = w, .axis = axis, .begin = from, .end = from + n, .step = n };
    if (!weight_is_coded(w)) return p;
    p.mark   = arena_mark(c->scratch);
    p.step   = panel_step(c, w, axis, n);
    p.memory = panel_memory(c, &p);
    return p;
}

WeightPanel panel_open(const Pass *c, const Param *w, PanelAxis axis)
{
    return open_part(c, w, axis, 0, extent(w, axis));
}

WeightPanel panel_open_rows(const Pass *c, const Param *w, int64_t from, int64_t rows)
{
    return open_part(c, w, PANEL_ROWS, from, rows);
}

static Tensor decode(const Pass *c, const WeightPanel *p)
{
    const int64_t *all = p->of->shard.shape;
    int64_t        at = p->begin + p->from, n[2] = { all[0], all[1] };
    n[p->axis == PANEL_ROWS ? 0 : 1] = p->n;
    TileAt tile = { 0, p->axis == PANEL_ROWS ? at : 0, p->axis == PANEL_COLS ? at : 0 };
    Tensor w = t_wrap(p->memory.data, c->env->dtype, 2, n);
    op_decode_weight(c->be, w, p->of->shard.codes, tile);
    return w;
}

bool panel_next(const Pass *c, WeightPanel *p)
{
    p->from += p->n;
    p->n = min_i64(p->end - p->begin - p->from, p->step);
    if (p->n <= 0) {
        if (t_has(p->memory)) arena_reset(c->scratch, p->mark);
        return false;
    }
    if (t_has(p->memory))           p->w = decode(c, p);
    else if (p->axis == PANEL_ROWS) p->w = t_rows(p->of->shard.w, p->begin, p->n);
    else                            p->w = p->of->shard.w;
    return true;
}
