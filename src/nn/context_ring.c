/* nn/context_ring.c -- context parallelism by ring: keys and values go from rank to rank, queries stay.
 *
 * At step i a rank has the keys of rank at - i: first its own, under the causal mask of its documents, then
 * at most one rectangle a step (ContextBlock). Keys are sent to the next rank while they are used, with
 * double buffering. Partial outputs are merged in f32. In backward the gradients of keys and values follow a
 * step behind: each rank adds its part before it passes them on, and after `outer` steps they are back at
 * their rank. So the sum for the keys of rank j is over ranks j, j + 1, …: the same bits in every run. */
#include "nn/context_private.h"

/* Every rank sends `from` to the next member and receives `to` from the previous one. One call instead of a
 * send and a recv cannot deadlock. */
static Ticket shift_start(Comm *ring, Tensor to, Tensor from)
{
    int64_t at[CONTEXT_RANKS] = { 0 }, give[CONTEXT_RANKS] = { 0 }, get[CONTEXT_RANKS] = { 0 };
    give[(ring->rank + 1) % ring->size] = from.n[0];
    get[(ring->rank + ring->size - 1) % ring->size] = to.n[0];
    return comm_all_to_all_start(ring, to, (RowRanges){ at, get }, from, (RowRanges){ at, give });
}

/* Sums of bf16 are kept in f32 on the way; f32 needs no second copy. */
static Tensor sum_begin(const Pass *c, Tensor t)
{
    if (t.dtype == F32) return t;
    Tensor sum = scratch_heads(c, F32, t.n[0], t.n[1], t.n[2]);
    op_copy(c->be, sum, t);
    return sum;
}
static void sum_end(const Pass *c, Tensor t, Tensor sum)
{
    if (t.dtype != F32) op_copy(c->be, t, sum);
}

static void block_fwd(const Pass *c, const ContextCall *x, int i, KeysValues kv, Tensor sum, Tensor part,
                      Tensor lse)
{
    ContextBlock b = x->cut->block[i];
    if (!b.nq) return;
    kv = kv_rows(kv, b.k0, b.nk), part = t_rows(part, 0, b.nq), lse = t_cols(lse, 0, b.nq);
    op_attention_fwd(c->be, part, lse, t_rows(x->q, b.q0, b.nq), kv.k, kv.v, context_segments(x->cut, i),
                     x->terms.scale);
    op_attention_merge(c->be, t_rows(sum, b.q0, b.nq), t_cols(x->lse, b.q0, b.nq), part, lse);
}

void ring_fwd(const Pass *c, const ContextCall *x)
{
    int64_t T = x->q.n[0], H = x->q.n[1], Cv = x->o.n[2];
    int     n = x->cut->outer;
    KeysValues kv[2] = { kv_scratch(c, x, T), kv_scratch(c, x, T) };
    Tensor part = scratch_heads(c, (DType)x->o.dtype, T, H, Cv), lse = scratch2(c, F32, H, T), sum = x->o;
    op_copy(c->be, kv[0].k, x->k);
    op_copy(c->be, kv[0].v, x->v);
    for (int i = 0; i < n; i++) {
        Ticket moving = { 0 };
        if (i + 1 < n) moving = shift_start(x->outer, kv[(i + 1) % 2].both, kv[i % 2].both);
        if (i) block_fwd(c, x, i, kv[i % 2], sum, part, lse);
        else {
            op_attention_fwd(c->be, x->o, x->lse, x->q, x->k, x->v, x->cut->own, x->terms.scale);
            sum = sum_begin(c, x->o);
        }
        comm_join(moving);
    }
    sum_end(c, x->o, sum);
}

/* The gradients of a rectangle, into the places of its queries and keys. */
static void block_bwd(const Pass *c, const ContextCall *x, int i, KeysValues kv, Tensor dq, KeysValues dkv)
{
    ContextBlock b = x->cut->block[i];
    if (!b.nq) return;
    kv = kv_rows(kv, b.k0, b.nk), dkv = kv_rows(dkv, b.k0, b.nk);
    op_attention_bwd(c->be, t_rows(dq, b.q0, b.nq), dkv.k, dkv.v, t_cols(x->delta, b.q0, b.nq),
                     t_rows(x->dout, b.q0, b.nq), t_rows(x->o, b.q0, b.nq), t_cols(x->lse, b.q0, b.nq),
                     t_rows(x->q, b.q0, b.nq), kv.k, kv.v, context_segments(x->cut, i), x->terms.scale);
}

static void block_add(const Pass *c, ContextBlock b, Tensor sum, Tensor dq, Tensor dkv_sum, Tensor dkv)
{
    if (!b.nq) return;
    Tensor q = t_rows(sum, b.q0, b.nq), kv = t_rows(dkv_sum, b.k0, b.nk);
    op_add(c->be, q, q, t_rows(dq, b.q0, b.nq));
    op_add(c->be, kv, kv, t_rows(dkv, b.k0, b.nk));
}

void ring_bwd(const Pass *c, const ContextCall *x)
{
    int64_t T = x->q.n[0];
    int     n = x->cut->outer;
    KeysValues kv[2] = { kv_scratch(c, x, T), kv_scratch(c, x, T) };
    KeysValues dkv[2] = { kv_scratch(c, x, T), kv_scratch(c, x, T) }, part = kv_scratch(c, x, T);
    Tensor dq = scratch_heads(c, (DType)x->dq.dtype, T, x->q.n[1], x->q.n[2]), sum = x->dq;
    Ticket going_home = { 0 };
    op_copy(c->be, kv[0].k, x->k);
    op_copy(c->be, kv[0].v, x->v);
    for (int i = 0; i < n; i++) {
        Ticket moving = { 0 };
        if (i + 1 < n) moving = shift_start(x->outer, kv[(i + 1) % 2].both, kv[i % 2].both);
        if (i) {
            block_bwd(c, x, i, kv[i % 2], dq, part);
            comm_join(going_home);               /* what the ranks before this one found for these keys */
            block_add(c, x->cut->block[i], sum, dq, dkv[i % 2].both, part.both);
        } else {
            op_attention_bwd(c->be, x->dq, dkv[0].k, dkv[0].v, x->delta, x->dout, x->o, x->lse, x->q, x->k,
                             x->v, x->cut->own, x->terms.scale);
            sum = sum_begin(c, x->dq);
        }
        going_home = shift_start(x->outer, dkv[(i + 1) % 2].both, dkv[i % 2].both);
        comm_join(moving);
    }
    comm_join(going_home);
    sum_end(c, x->dq, sum);
    op_copy(c->be, x->dk, dkv[n % 2].k);
    op_copy(c->be, x->dv, dkv[n % 2].v);
}
