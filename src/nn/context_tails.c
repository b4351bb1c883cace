/* nn/context_tails.c -- rows before a rank's chunks. The chunk before the first of rank r is the first of
 * rank r - 1, the chunk before its second is the second of rank r + 1; the last rank has both of its own. */
#include "nn/context.h"

/* Each rank gives rows [0, h) of `from` to the member `up` places above and rows [h, 2 h) to the one below,
 * and gets rows of `to` from the same members the other way. */
static void swap_neighbours(Comm *c, Tensor to, Tensor from, int up)
{
    int64_t h = from.n[0] / 2, give[CONTEXT_RANKS] = { 0 }, get[CONTEXT_RANKS] = { 0 };
    int64_t give_at[CONTEXT_RANKS] = { 0 }, get_at[CONTEXT_RANKS] = { 0 };
    int     next = c->rank + up, last = c->rank - up;
    if (next >= 0 && next < c->size) give[next] = h, get[next] = h, get_at[next] = h;
    if (last >= 0 && last < c->size) give[last] = h, give_at[last] = h, get[last] = h;
    comm_all_to_all(c, to, (RowRanges){ get_at, get }, from, (RowRanges){ give_at, give });
}

static Tensor half_of(Tensor t, int half) { return t_rows(t, half * t.n[0] / 2, t.n[0] / 2); }

void context_exchange_tails(const Pass *c, Comm *outer, Tensor before, Tensor tail)
{
    swap_neighbours(outer, before, tail, 1);
    if (outer->rank == outer->size - 1) op_copy(c->be, half_of(before, 1), half_of(tail, 0));
    if (outer->rank == 0)               op_fill(c->be, half_of(before, 0), 0.0f);
}

void context_return_tails(const Pass *c, Comm *outer, Tensor dtail, Tensor dbefore)
{
    swap_neighbours(outer, dtail, dbefore, -1);
    if (outer->rank == outer->size - 1) op_copy(c->be, half_of(dtail, 0), half_of(dbefore, 1));
    if (outer->rank == 0)               op_fill(c->be, half_of(dtail, 1), 0.0f);
}
