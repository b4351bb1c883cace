/* nn/visual.c -- see visual.h. */
#include "nn/visual.h"

static bool alone(const Pass *c)
{
    return mesh_size(c->env->mesh, AX_TP) * mesh_size(c->env->mesh, AX_CP) == 1;
}

static Tensor first(Tensor t, int64_t n) { return t_rows(t, 0, n); }

/* Rows sorted by the member they go to or come from; a rank without images takes part with no rows. */
static Tensor sorted_rows(const Pass *c, int64_t D)
{
    return scratch2(c, c->env->dtype, c->batch->N ? c->batch->N : 1, D);
}

Tensor visual_send(const Pass *c, Tensor made, int64_t D)
{
    const VisualRoutes *r = &c->batch->routes;
    if (alone(c)) return made;
    Tensor    out = t2(c->act, "VISUAL", c->env->dtype, c->batch->M, D);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor    sorted = sorted_rows(c, D);
    if (c->batch->has_media && r->made)
        op_gather_rows(c->be, first(sorted, r->made), made, first(r->order, r->made), 1);
    comm_all_to_all(c->env->mesh->comm[GR_tp_cp], out, (RowRanges){ r->get_at, r->get_n }, sorted,
                    (RowRanges){ r->give_at, r->give_n });
    arena_reset(c->scratch, mark);
    return out;
}

Tensor visual_return(const Pass *c, Tensor rows)
{
    const VisualRoutes *r = &c->batch->routes;
    int64_t D = rows.n[1];
    if (alone(c)) return rows;
    Tensor    out = t2(c->act, "GRADIENT", c->env->dtype, c->batch->N ? c->batch->N : 1, D);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor    sorted = sorted_rows(c, D);
    comm_all_to_all(c->env->mesh->comm[GR_tp_cp], sorted, (RowRanges){ r->give_at, r->give_n }, rows,
                    (RowRanges){ r->get_at, r->get_n });
    if (c->batch->has_media) {
        op_fill(c->be, out, 0.0f);                           /* patches of the tail have no token */
        if (r->made) op_scatter_rows(c->be, out, first(sorted, r->made), first(r->order, r->made), false);
    }
    arena_reset(c->scratch, mark);
    return c->batch->has_media ? out : (Tensor){ 0 };
}
