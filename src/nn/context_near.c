/* nn/context_near.c -- context parallelism of windows that reach no further than the chunk before: keys and
 * values of a rank's two chunks and of the chunks before them are all that its queries see. One exchange
 * between neighbours takes the place of the ring. */
#include "nn/context_private.h"

static Segments segments_of(const ContextCall *x)
{
    return segments_in_window(x->cut->near, x->terms.window, x->q.n[0]);
}

/* Between rows of chunks (2 n) and the chunk's places in rows of both (4 n): before, chunk, before, chunk. */
static void copy_chunks(const Pass *c, Tensor both, Tensor rows, int place, bool out)
{
    int64_t n = rows.n[0] / 2;
    for (int half = 0; half < 2; half++) {
        Tensor there = t_rows(both, (2 * half + place) * n, n), here = t_rows(rows, half * n, n);
        op_copy(c->be, out ? here : there, out ? there : here);
    }
}

static void near_keys(const Pass *c, const ContextCall *x, KeysValues near)
{
    int64_t    T = x->k.n[0];
    ArenaMark  mark = arena_mark(c->scratch);
    KeysValues mine = kv_scratch(c, x, T), before = kv_scratch(c, x, T);
    op_copy(c->be, mine.k, x->k);
    op_copy(c->be, mine.v, x->v);
    context_exchange_tails(c, x->outer, before.both, mine.both);
    copy_chunks(c, near.both, before.both, 0, false);
    copy_chunks(c, near.both, mine.both, 1, false);
    arena_reset(c->scratch, mark);
}

void near_fwd(const Pass *c, const ContextCall *x)
{
    KeysValues near = kv_scratch(c, x, 2 * x->k.n[0]);
    near_keys(c, x, near);
    op_attention_fwd(c->be, x->o, x->lse, x->q, near.k, near.v, segments_of(x), x->terms.scale);
}

void near_bwd(const Pass *c, const ContextCall *x)
{
    int64_t    T = x->k.n[0];
    KeysValues near = kv_scratch(c, x, 2 * T), d = kv_scratch(c, x, 2 * T);
    KeysValues own = kv_scratch(c, x, T), before = kv_scratch(c, x, T), returned = kv_scratch(c, x, T);
    near_keys(c, x, near);
    op_attention_bwd(c->be, x->dq, d.k, d.v, x->delta, x->dout, x->o, x->lse, x->q, near.k, near.v,
                     segments_of(x), x->terms.scale);
    copy_chunks(c, d.both, before.both, 0, true);
    copy_chunks(c, d.both, own.both, 1, true);
    context_return_tails(c, x->outer, returned.both, before.both);
    op_add(c->be, own.both, own.both, returned.both);
    op_copy(c->be, x->dk, own.k);
    op_copy(c->be, x->dv, own.v);
}
