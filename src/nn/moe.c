/* nn/moe.c -- router, experts and their backward; the roads between tokens and experts of this rank. */
#include "nn/dispatch.h"
#include "nn/lora.h"

#include <math.h>

int64_t moe_capacity(const Moe *m, int64_t T)
{
    return m->capacity > 0 ? (int64_t)ceil(m->capacity * (double)(T * m->K) / (double)m->E) : 0;
}

/* Where all ranks must know the size, it is that of a full micro-batch. */
static int64_t capacity(const Pass *c, const Moe *m, int64_t T)
{
    return moe_capacity(m, m->pad && c->env->dispatcher ? c->env->dispatcher->conf.shape.T : T);
}

static void judge(const Pass *c, const Moe *m, MoeAct *a, Tensor x)
{
    enum { BENCHMARK = 0xba1a };
    int64_t T = x.n[0];
    linear_fwd(c, a->logits, x, m->w_router, NULL);
    tap(c, "router.logits", m->index, a->logits);
    if (m->balance)
        op_normal(c->be, a->logits, BENCHMARK, (uint64_t)m->index,
                  (uint64_t)((c->env->mesh ? c->env->mesh->rank : 0) * T * m->E), m->E, 1.0f);
}

/* Which experts, with what weight. Pinned: a replay that decided again could decide otherwise. */
static bool choose(const Pass *c, const Moe *m, MoeAct *a, Tensor x)
{
    int64_t T = x.n[0];
    bool now = need(c, L_ROUTE, &a->idx, I32, T, m->K);
    need(c, L_ROUTE, &a->weight, F32, T, m->K);
    need(c, L_ROUTE, &a->lse,    F32, T, 1);
    if (need(c, L_LOGITS, &a->logits, F32, T, m->E)) judge(c, m, a, x);
    if (!now) return false;
    op_router_fwd(c->be, a->idx, a->weight, a->lse, a->logits, m->renorm);
    return true;
}

/* Of what was chosen, not of what an expert had room for: the balance loss must see the crowd. */
static void count_choices(const Pass *c, const Moe *m, MoeAct *a)
{
    int64_t l = c->aux ? m->index - c->aux->first : 0;
    if (c->aux)
        op_router_stats(c->be, t_at(c->aux->count, l), t_at(c->aux->prob, l), t_rows(c->aux->zsum, l, 1),
                        a->logits, a->lse, a->idx, c->batch->group);
}

/* The choice without the slots that find their expert full; slices are planned from it more than once. */
static Tensor keep(const Pass *c, const Moe *m, MoeAct *a, int64_t room)
{
    int64_t T = a->idx.n[0];
    if (!room) return a->idx;
    Tensor kept;
    if (c->env->dispatcher && !m->pad) need(c, L_ROUTE, &kept, I32, T, m->K);
    else                        kept = scratch2(c, I32, T, m->K);
    Tensor offsets = scratch2(c, I32, m->E + 1, 1), rows = scratch2(c, I32, T, m->K);
    Tensor src = scratch2(c, I32, T * m->K, 1);
    op_sort_by_expert(c->be, offsets, rows, src, a->idx);
    op_moe_drop(c->be, kept, a->idx, a->weight, offsets, src, room);
    return kept;
}

void moe_sort(const Pass *c, const Moe *m, Tensor offsets, Tensor rows, Tensor src, Tensor kept, int64_t room)
{
    if (!m->pad) {
        op_sort_by_expert(c->be, offsets, rows, src, kept);
        return;
    }
    Tensor tight = scratch2(c, I32, m->E + 1, 1), slot = scratch2(c, I32, t_count(kept), 1);
    op_sort_by_expert(c->be, tight, rows, slot, kept);
    op_moe_pad(c->be, offsets, rows, src, tight, slot, room);
}

static void find_road(const Pass *c, const Moe *m, MoeAct *a, int64_t room)
{
    const DispatchOps *by = c->env->dispatcher->ops;
    a->kept = keep(c, m, a, room);
    by->reserve(c, m, a, a->kept.n[0]);
    if (!by->build_routing(c, m, a, a->kept)) a->R = 0, a->slices = by->count_token_chunks(c, a->kept);
}

/* The choice and what follows from it for the roads; true where it was made now. */
static bool route(const Pass *c, const Moe *m, MoeAct *a, Tensor x)
{
    int64_t T = x.n[0], room = capacity(c, m, T);
    bool now = choose(c, m, a, x);
    if (now) a->slices = 1, a->part = false;
    if (c->env->dispatcher) {
        if (now) find_road(c, m, a, room);
        return now;
    }
    a->R = m->pad ? m->E * room : T * m->K;
    need(c, L_ROUTE, &a->offsets, I32, m->E + 1, 1);
    need(c, L_ROUTE, &a->rows,    I32, T, m->K);
    need(c, L_ROUTE, &a->src,     I32, a->R, 1);
    need(c, L_ROUTE, &a->gate,    F32, a->R, 1);
    if (!now) return false;
    moe_sort(c, m, a->offsets, a->rows, a->src, keep(c, m, a, room), room);
    op_gather_rows(c->be, a->gate, t_as2(a->weight, T * m->K, 1), a->src, 1);
    return true;
}

/* Rows that buffers of experts are made for, of which the first a->R are used. */
static int64_t rows_room(const Pass *c, const MoeAct *a) { return c->env->dispatcher ? c->env->dispatcher->row_capacity : a->R; }

/* A slice finds the rows of another one in its buffers, so it always makes its own. */
static bool need_rows_if(const Pass *c, bool read, bool again, Label l, MoeAct *a, Tensor *slot, DType d,
                         int64_t cols)
{
    bool now = need_if(c, read, again, l, slot, d, rows_room(c, a), cols) || a->part;
    if (now) *slot = t_rows(*slot, 0, a->R);
    return now;
}
static bool need_rows(const Pass *c, Label l, MoeAct *a, Tensor *slot, DType d, int64_t cols)
{
    return need_rows_if(c, true, false, l, a, slot, d, cols);
}

/* Whether backward reads the rows that w was multiplied with. Where there may be slices their buffers are the
 * ones that backward fills again. */
static bool read_again(const Pass *c, const Param *w)
{
    return is_trainable(w) || (c->env->dispatcher && c->env->dispatcher->bounded);
}
static bool pairs_again(const Pass *c, const Param *w) { return w->lora && c->policy[L_LORA] == DROP; }

static Tensor scratch_rows(const Pass *c, const MoeAct *a, DType d, int64_t cols)
{
    return t_rows(scratch2(c, d, rows_room(c, a), cols), 0, a->R);
}

/* Rows of tokens to rows of experts. While they travel the choices are counted. */
static void to_experts(const Pass *c, const Moe *m, MoeAct *a, Tensor rows, Tensor x, bool count)
{
    Exchange exchange = { 0 };
    ArenaMark mark = arena_mark(c->scratch);
    if (c->env->dispatcher) c->env->dispatcher->ops->dispatch_start(c, &a->route, &exchange, x);
    else if (m->pad) op_gather_rows(c->be, rows, x, a->src, m->K);           /* its padding must be zeros */
    else             op_expand_rows(c->be, rows, x, a->rows);
    if (count)       count_choices(c, m, a);
    if (c->env->dispatcher) pass_yield(c), c->env->dispatcher->ops->dispatch_finish(c, &a->route, &exchange, rows);
    arena_reset(c->scratch, mark);
}

static void from_experts(const Pass *c, MoeAct *a, Tensor y, Tensor rows, Tensor res)
{
    Exchange exchange = { 0 };
    if (!c->env->dispatcher) {
        op_combine(c->be, y, rows, a->rows, res);
        return;
    }
    c->env->dispatcher->ops->combine_start(c, &a->route, &exchange, rows);
    c->env->dispatcher->ops->combine_finish(c, &a->route, &exchange, y, res);
}

/* Slices are planned where their buffers are there already; a layer that is done at once, which is planned
 * before, takes the same. */
static void reserve(const Pass *c)
{
    ArenaMark mark = arena_mark(c->scratch);
    if (!c->env->dispatcher || !c->env->dispatcher->bounded) return;
    arena_push(c->scratch, "scratch", c->env->dispatcher->routing_scratch);
    arena_reset(c->scratch, mark);
}

/* For the pairs of experts. */
static LoraRows rows_of(const Pass *c, const MoeAct *a)
{
    return (LoraRows){ a->offsets, rows_room(c, a) };
}

/* x in the few columns of w's pairs, kept: to make them again would be to read all of x, whose rows are
 * many. */
static void pairs_fwd(const Pass *c, MoeAct *a, Tensor *low, Tensor x, const Param *w)
{
    LoraRows by = rows_of(c, a);
    if (w->lora && need_rows(c, L_LORA, a, low, (DType)x.dtype, lora_a_cols(w)))
        lora_rows_a_out(c, *low, x, w, &by);
}

/* `out`: the output is wanted too. */
static void up_fwd(const Pass *c, const Moe *m, MoeAct *a, bool out)
{
    int64_t F = m->w_gu->shard.w.n[1] / 2;                             /* of this rank's slice */
    DType   d = (DType)a->x.dtype;
    pairs_fwd(c, a, &a->a_out_gu, a->x, m->w_gu);
    bool up  = need_rows(c, L_GATE_UP, a, &a->gu, d, 2 * F);
    bool act = need_rows_if(c, read_again(c, m->w_d), out || pairs_again(c, m->w_d), L_ACT, a, &a->h, d, F);
    LoraTerm pairs = lora_term(a->a_out_gu, m->w_gu);
    if (up && act)
        op_grouped_swiglu(c->be, a->gu, a->h, a->x, m->w_gu->shard.w, a->offsets, a->gate, pairs);
    else if (up)
        op_grouped_gemm(c->be, a->gu, a->x, m->w_gu->shard.w, a->offsets, pairs, GEMM_NT);
    else if (act)
        op_swiglu_fwd(c->be, a->h, a->gu, a->gate);
}

/* Through the experts, of all tokens or of a slice. */
static void experts_fwd(const Pass *c, const Moe *m, MoeAct *a, Tensor y, Tensor x, Tensor res, bool count)
{
    int64_t D = x.n[1];
    bool again = c->policy[L_GATE_UP] == DROP || pairs_again(c, m->w_gu);
    if (need_rows_if(c, read_again(c, m->w_gu), again, L_DISPATCH, a, &a->x, x.dtype, D))
        to_experts(c, m, a, a->x, x, count);
    up_fwd(c, m, a, t_has(y));
    pairs_fwd(c, a, &a->a_out_d, a->h, m->w_d);
    if (!t_has(y)) return;
    reserve(c);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor out = scratch_rows(c, a, x.dtype, D);
    op_grouped_gemm(c->be, out, a->h, m->w_d->shard.w, a->offsets, lora_term(a->a_out_d, m->w_d), GEMM_NT);
    from_experts(c, a, y, out, res);
    arena_reset(c->scratch, mark);
}

/* From the gradient of the weights and of the auxiliary losses to router weights and dx. */
static void route_bwd(const Pass *c, const Moe *m, MoeAct *a, Tensor dx, Tensor dweight, Tensor x)
{
    int64_t T = x.n[0];
    Tensor dlogits = scratch2(c, x.dtype, T, m->E);
    float  zcoef = c->batch->real ? c->aux->z_coeff / (float)c->batch->real : 0.0f;
    op_router_bwd(c->be, dlogits, dweight, a->weight, a->idx, a->logits, a->lse,
                  t_at(c->aux->coef, m->index - c->aux->first), c->batch->group, zcoef, m->renorm);
    Tensor back = lora_d_a_out(c, dlogits, m->w_router);
    linear_grads(c, dlogits, back, x, m->w_router, NULL);
    if (t_has(dx)) linear_input_grad(c, dx, dlogits, back, m->w_router, GEMM_ACC);
}

/* Gradients of the weights and pairs that took rows x to rows whose gradient is dy. */
static void expert_grads(const Pass *c, const Moe *m, MoeAct *a, Tensor dy, Tensor low, Tensor back, Tensor x,
                         Param *w)
{
    LoraRows by = rows_of(c, a);
    if (t_has(w->shard.g))
        op_grouped_gemm(c->be, w->shard.g, dy, x, a->offsets, (LoraTerm){ 0 }, param_grad_flags(w));
    lora_rows_grads(c, dy, low, back, x, w, &by);
}

/* The rows' gradients go back; those of the experts' first weights are made while they travel. */
static void rows_back(const Pass *c, const Moe *m, MoeAct *a, Tensor dx, Tensor dweight, Tensor drows, Tensor dgate,
                      Tensor dgu, Tensor back)
{
    const DispatchOps *by = c->env->dispatcher ? c->env->dispatcher->ops : NULL;
    Exchange exchange = { 0 }, gates = { 0 };
    if (by && t_has(dx)) by->combine_start(c, &a->route, &exchange, drows);
    if (by && t_has(dweight)) by->gate_grad_start(c, &a->route, &gates, dgate);
    expert_grads(c, m, a, dgu, a->a_out_gu, back, a->x, m->w_gu);
    if (by && t_has(dx)) by->combine_finish(c, &a->route, &exchange, dx, (Tensor){ 0 });
    if (by && t_has(dweight)) by->gate_grad_finish(c, &a->route, &gates, dweight);
    if (!by && t_has(dx)) op_combine(c->be, dx, drows, a->rows, (Tensor){ 0 });
    if (!by && t_has(dweight))
        op_gather_rows(c->be, t_as2(dweight, t_count(dweight), 1), dgate, a->rows, 1);
}

/* To the gradients of gate and up, where they are wanted, of dout (R, D). */
static void down_bwd(const Pass *c, const Moe *m, MoeAct *a, Tensor dgu, Tensor dgate, Tensor dout)
{
    LoraRows  by = rows_of(c, a);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor back = lora_rows_d_a_out(c, dout, m->w_d, &by);
    if (t_has(dgu))
        op_grouped_dswiglu(c->be, dgu, dgate, dout, m->w_d->shard.w, a->offsets, a->gu, a->gate,
                           lora_input_term(c, back, m->w_d));
    expert_grads(c, m, a, dout, a->a_out_d, back, a->h, m->w_d);
    arena_reset(c->scratch, mark);
}

/* dx and dweight where they are wanted. */
static void experts_bwd(const Pass *c, const Moe *m, MoeAct *a, Tensor dx, Tensor dweight, Tensor dy)
{
    bool    deeper = t_has(dx) || t_has(dweight) || is_trainable(m->w_gu);
    int64_t D = dy.n[1], F = m->w_gu->shard.w.n[1] / 2;
    DType d = (DType)dy.dtype;
    LoraRows  by = rows_of(c, a);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor dout = scratch_rows(c, a, d, D), dgu = scratch_rows(c, a, d, 2 * F);
    Tensor dgate = scratch_rows(c, a, F32, 1);
    to_experts(c, m, a, dout, dy, false);
    down_bwd(c, m, a, deeper ? dgu : (Tensor){ 0 }, dgate, dout);
    Tensor back = deeper ? lora_rows_d_a_out(c, dgu, m->w_gu, &by) : (Tensor){ 0 };
    if (t_has(dx))                                               /* dout is spent: now d(a->x) */
        op_grouped_gemm(c->be, dout, dgu, m->w_gu->shard.w, a->offsets, lora_input_term(c, back, m->w_gu), GEMM_NN);
    if (deeper) rows_back(c, m, a, dx, dweight, dout, dgate, dgu, back);
    arena_reset(c->scratch, mark);
}

/* ---- slices ---- */

typedef struct MoeSlice { Pass c; MoeAct a; int64_t from, n; } MoeSlice;

/* The road of slice w; false: a rank is lost, and what the group says with it. The buffers of its rows are
 * those of all slices. Another micro-batch is given way to as often as without slices, in the first of them:
 * ranks of other groups, which may do this layer at once, must see the same turns. */
static bool slice_open(MoeSlice *s, const Pass *c, const Moe *m, const MoeAct *a, int64_t w)
{
    static const uint8_t all_there[LABEL_N] = { KEEP };
    int64_t T = a->idx.n[0];
    s->from = T * w / a->slices, s->n = T * (w + 1) / a->slices - s->from;
    s->c = *c, s->a = *a;
    s->c.policy = all_there, s->c.mode = REPLAY, s->c.first_row = w * c->env->dispatcher->row_capacity;
    if (w) s->c.yielder = NULL;
    s->a.part = true, s->a.weight = t_rows(a->weight, s->from, s->n);
    bool fits = c->env->dispatcher->ops->build_routing(&s->c, m, &s->a, t_rows(a->kept, s->from, s->n));
    REQUIRE(fits || c->be->sticky, "MoE layer %d: a slice of %lld tokens has %lld rows", m->index,
            (long long)s->n, (long long)c->env->dispatcher->max_rows);
    return fits;
}

static Tensor slice_of(const MoeSlice *s, Tensor t) { return t_has(t) ? t_rows(t, s->from, s->n) : t; }

/* Of the buffers: all while slices are worked on, none between, since nothing of it will be read again. */
static void show_rows(MoeAct *a, int64_t rows)
{
    a->x.n[0] = a->gu.n[0] = a->h.n[0] = a->a_out_gu.n[0] = a->a_out_d.n[0] = rows;
}

/* Memory is what a layer takes that is done at once: a replay has its buffers too, which backward fills. */
static void slices_fwd(const Pass *c, const Moe *m, MoeAct *a, Tensor y, Tensor x, Tensor res, bool fresh)
{
    int64_t room = c->env->dispatcher->row_capacity, F = m->w_gu->shard.w.n[1] / 2;
    need(c, L_DISPATCH, &a->x, x.dtype, room, x.n[1]);
    if (m->w_gu->lora) need(c, L_LORA, &a->a_out_gu, x.dtype, room, lora_a_cols(m->w_gu));
    need(c, L_GATE_UP, &a->gu, x.dtype, room, 2 * F);
    need(c, L_ACT, &a->h, x.dtype, room, F);
    if (m->w_d->lora) need(c, L_LORA, &a->a_out_d, x.dtype, room, lora_a_cols(m->w_d));
    show_rows(a, room);
    c->be->ledger.sliced += fresh;
    for (int64_t w = 0; w < a->slices && t_has(y); w++) {
        MoeSlice s;
        ArenaMark mark = arena_mark(c->scratch);
        if (!slice_open(&s, c, m, a, w)) break;
        experts_fwd(&s.c, m, &s.a, slice_of(&s, y), slice_of(&s, x), slice_of(&s, res), fresh && w == 0);
        arena_reset(c->scratch, mark);
    }
    show_rows(a, 0);
}

static void slices_bwd(const Pass *c, const Moe *m, MoeAct *a, Tensor dx, Tensor dweight, Tensor dy, Tensor x)
{
    Tensor none = { 0 };
    show_rows(a, c->env->dispatcher->row_capacity);
    for (int64_t w = 0; w < a->slices; w++) {
        MoeSlice s;
        ArenaMark mark = arena_mark(c->scratch);
        c->be->ledger.replay = true;
        if (!slice_open(&s, c, m, a, w)) break;
        Pass again = s.c;
        again.yielder = NULL;
        experts_fwd(&again, m, &s.a, none, slice_of(&s, x), none, false);
        c->be->ledger.replay = false;
        experts_bwd(&s.c, m, &s.a, slice_of(&s, dx), slice_of(&s, dweight), slice_of(&s, dy));
        arena_reset(c->scratch, mark);
    }
    c->be->ledger.replay = false;
}

void moe_fwd(const Pass *c, const Moe *m, MoeAct *a, Tensor y, Tensor x, Tensor res)
{
    bool fresh = route(c, m, a, x);
    if (a->slices > 1) slices_fwd(c, m, a, y, x, res, fresh);
    else               experts_fwd(c, m, a, y, x, res, fresh);
}

void moe_bwd(const Pass *c, const Moe *m, MoeAct *a, Tensor dx, Tensor dy, Tensor x)
{
    ArenaMark mark = arena_mark(c->scratch);
    bool   routes = t_has(dx) || is_trainable(m->w_router);
    Tensor dweight = routes ? scratch2(c, F32, x.n[0], m->K) : (Tensor){ 0 };
    reserve(c);
    if (a->slices > 1) slices_bwd(c, m, a, dx, dweight, dy, x);
    else               experts_bwd(c, m, a, dx, dweight, dy);
    if (routes) route_bwd(c, m, a, dx, dweight, x);
    arena_reset(c->scratch, mark);
}
