/* nn/context_gather.c -- context parallelism by gathering: every rank gets all keys and values, in the order
 * of the stream, and its queries attend to the beginning of their documents. It works with any number of
 * heads and takes the memory of all keys. Windows that are longer than a chunk are gathered too.
 *
 * The first chunks of all ranks are the first half of the stream in the order of the ranks, the second chunks
 * its second half in reverse: each half is gathered by itself, and the second is reversed. */
#include "nn/context_private.h"

/* Reverses the chunks of the second half: by rank to by stream, or the other way. */
static void reverse_half(const Pass *c, Tensor to, Tensor from, int n)
{
    int64_t chunk = to.n[0] / n;
    for (int i = 0; i < n; i++)
        op_copy(c->be, t_rows(to, (n - 1 - i) * chunk, chunk), t_rows(from, i * chunk, chunk));
}

static void gather_keys(const Pass *c, const ContextCall *x, KeysValues all)
{
    int64_t   T = x->k.n[0], half = all.both.n[0] / 2;
    ArenaMark mark = arena_mark(c->scratch);
    KeysValues mine = kv_scratch(c, x, T), second = kv_scratch(c, x, half);
    op_copy(c->be, mine.k, x->k);
    op_copy(c->be, mine.v, x->v);
    Ticket a = comm_all_gather_start(x->outer, t_rows(all.both, 0, half), t_rows(mine.both, 0, T / 2));
    Ticket b = comm_all_gather_start(x->outer, second.both, t_rows(mine.both, T / 2, T / 2));
    comm_join(b);
    reverse_half(c, t_rows(all.both, half, half), second.both, x->cut->outer);
    comm_join(a);
    arena_reset(c->scratch, mark);
}

static Segments prefixes_of(const ContextCall *x)
{
    return segments_in_window(x->cut->prefix, x->terms.window, x->q.n[0]);
}

void gather_fwd(const Pass *c, const ContextCall *x)
{
    KeysValues all = kv_scratch(c, x, x->cut->tokens);
    gather_keys(c, x, all);
    op_attention_fwd(c->be, x->o, x->lse, x->q, all.k, all.v, prefixes_of(x), x->terms.scale);
}

/* What this rank found for all keys, summed at their owners. */
void gather_bwd(const Pass *c, const ContextCall *x)
{
    int64_t T = x->k.n[0], half = x->cut->tokens / 2;
    KeysValues all = kv_scratch(c, x, 2 * half), d = kv_scratch(c, x, 2 * half);
    KeysValues mine = kv_scratch(c, x, T), second = kv_scratch(c, x, half);
    gather_keys(c, x, all);
    op_attention_bwd(c->be, x->dq, d.k, d.v, x->delta, x->dout, x->o, x->lse, x->q, all.k, all.v,
                     prefixes_of(x), x->terms.scale);
    Ticket a = comm_reduce_scatter_start(x->outer, t_rows(mine.both, 0, T / 2), t_rows(d.both, 0, half),
                                         RED_SUM);
    reverse_half(c, second.both, t_rows(d.both, half, half), x->cut->outer);
    Ticket b = comm_reduce_scatter_start(x->outer, t_rows(mine.both, T / 2, T / 2), second.both, RED_SUM);
    comm_join(a);
    comm_join(b);
    op_copy(c->be, x->dk, mine.k);
    op_copy(c->be, x->dv, mine.v);
}
