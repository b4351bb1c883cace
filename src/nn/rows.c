/* nn/rows.c -- see rows.h. */
#include "nn/rows.h"

#include "nn/lora.h"

static bool   is_cut(const Pass *c)      { return mesh_size(c->env->mesh, AX_TP) > 1; }
static Comm  *ranks_of(const Pass *c) { return c->env->mesh->comm[GR_tp]; }
static Tensor all_rows_scratch(const Pass *c,
                               Tensor x) { return scratch2(c, (DType)x.dtype, all_rows_count(c, x), x.n[1]); }

AllRows all_rows_start(const Pass *c, Tensor x)
{
    AllRows r = { .all = x };
    if (!is_cut(c)) return r;
    r.all    = all_rows_scratch(c, x);
    r.ticket = comm_all_gather_start(ranks_of(c), r.all, x);
    return r;
}

Tensor all_rows_join(AllRows r)
{
    comm_join(r.ticket);
    return r.all;
}

Tensor part_rows(const Pass *c, Tensor y) { return is_cut(c) ? all_rows_scratch(c, y) : y; }

Ticket sum_rows_start(const Pass *c, Tensor y, Tensor part)
{
    return is_cut(c) ? comm_reduce_scatter_start(ranks_of(c), y, part, RED_SUM) : (Ticket){ 0 };
}

void column_linear_fwd(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b)
{
    ArenaMark mark = arena_mark(c->scratch);
    linear_fwd(c, y, all_rows(c, x), w, b);
    arena_reset(c->scratch, mark);
}

/* The rows are gathered while dx is computed, and dx is summed while the product that reads the rows runs. */
void column_linear_bwd(const Pass *c, Tensor dx, Tensor dy, Tensor x, Param *w, const Param *b)
{
    ArenaMark mark = arena_mark(c->scratch);
    AllRows all = is_trainable(w) ? all_rows_start(c, x) : (AllRows){ .all = x };   /* frozen: not read */
    Tensor part = t_has(dx) ? part_rows(c, dx) : dx, d_a_out = lora_d_a_out(c, dy, w);
    if (t_has(dx)) linear_input_grad(c, part, dy, d_a_out, w, 0);
    Tensor rows = all_rows_join(all);
    Ticket sum = { 0 };
    if (t_has(dx)) sum = sum_rows_start(c, dx, part);               /* each rank has some outputs of x */
    linear_grads(c, dy, d_a_out, rows, w, b);
    comm_join(sum);
    arena_reset(c->scratch, mark);
}

static void row_linear_whole(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b, Tensor res)
{
    if (t_has(res)) linear_residual(c, y, x, w, b, res);
    else            linear_fwd(c, y, x, w, b);
}

void row_linear_fwd(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b, Tensor res)
{
    if (!is_cut(c)) {
        row_linear_whole(c, y, x, w, b, res);
        return;
    }
    ArenaMark mark = arena_mark(c->scratch);
    Tensor part = part_rows(c, y);
    linear_fwd(c, part, x, w, mesh_at(c->env->mesh, AX_TP) ? NULL : b);  /* the sum has the bias once */
    sum_rows(c, y, part);                                           /* each rank has a part of w's inputs */
    if (t_has(res)) op_add(c->be, y, y, res);
    arena_reset(c->scratch, mark);
}

void row_linear_bwd(const Pass *c, Tensor dx, Tensor dy, Tensor x, Param *w, const Param *b)
{
    ArenaMark mark = arena_mark(c->scratch);
    AllRows all = all_rows_start(c, dy);
    if (t_has(param_g(b))) op_colsum(c->be, b->shard.g, dy);
    linear_bwd(c, dx, all_rows_join(all), x, w, NULL);
    arena_reset(c->scratch, mark);
}
