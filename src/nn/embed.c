/* nn/embed.c -- see embed.h. */
#include "nn/embed.h"

#include "nn/rows.h"

/* Rows of this rank's part of the table for the ids of the batch; -1: another rank has the id. */
static Tensor rows_here(const Pass *c, const Param *table)
{
    Tensor ids = c->batch->ids;
    if (mesh_size(c->env->mesh, AX_TP) == 1) return ids;
    Tensor here = t1(c->scratch, "scratch", I32, t_count(ids));
    op_slice_ids(c->be, here, ids, table->shard.first_row, table->shard.real_rows);
    return here;
}

void embed_table_fwd(const Pass *c, const Param *table, Tensor x)
{
    ArenaMark mark = arena_mark(c->scratch);
    Tensor ids = rows_here(c, table), part = part_rows(c, x);
    op_embed_fwd(c->be, part, table->shard.w, ids);
    sum_rows(c, x, part);                                       /* each rank has a part of the vocabulary */
    arena_reset(c->scratch, mark);
}

void embed_table_bwd(const Pass *c, Param *table, Tensor dx, int64_t pad)
{
    if (!t_has(table->shard.g)) return;
    ArenaMark mark = arena_mark(c->scratch);
    int64_t at = pad - table->shard.first_row;
    AllRows all = all_rows_start(c, dx);
    Tensor ids = rows_here(c, table);
    op_embed_bwd(c->be, table->shard.g, all_rows_join(all), ids, at >= 0 &&
                 at < table->shard.real_rows ? at : -1);
    arena_reset(c->scratch, mark);
}
