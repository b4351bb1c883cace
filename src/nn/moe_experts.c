/* nn/moe_experts.c -- the experts of a rank: tokens to them, their products, and back; and the backward. */
#include "nn/lora.h"
#include "nn/moe_private.h"
#include "nn/product.h"
#include "ops/quant.h"

/* NULL: all experts are on this rank. */
static const DispatchOps *ops_of(const Pass *c)
{
    return c->env->dispatcher ? c->env->dispatcher->ops : NULL;
}

/* The load-balancing loss counts every assignment the router made, including those dropped over capacity. */
static void count_assignments(const Pass *c, const Moe *m, MoeAct *a)
{
    int64_t l = c->aux ? m->index - c->aux->first : 0;
    if (c->aux)
        op_router_stats(c->be, t_at(c->aux->count, l), t_at(c->aux->prob, l), t_rows(c->aux->zsum, l, 1),
                        a->logits, a->lse, a->counted, c->batch->group);
}

/* Rows that the buffers of this rank's experts hold; the first a->R of them are used. */
static int64_t row_capacity(const Pass *c, const MoeAct *a)
{
    return c->env->dispatcher ? c->env->dispatcher->row_capacity : a->R;
}

/* A chunk has its buffers already, with rows of the chunk before, so it computes all of its values. */
static bool need_rows_if(const Pass *c, bool read, bool replayed, Label l, MoeAct *a, Tensor *slot, DType d,
                         int64_t cols)
{
    bool now = a->is_chunk || need_if(c, read, replayed, l, slot, d, row_capacity(c, a), cols);
    if (now) *slot = t_rows(*slot, 0, a->R);
    return now;
}
static bool need_rows(const Pass *c, Label l, MoeAct *a, Tensor *slot, DType d, int64_t cols)
{
    return need_rows_if(c, true, false, l, a, slot, d, cols);
}

/* Whether backward reads the input rows of w. Where the layer may run in chunks it does: backward fills these
 * buffers for each chunk. */
static bool read_by_backward(const Pass *c, const Param *w)
{
    return is_trainable(w) || (c->env->dispatcher && c->env->dispatcher->bounded);
}
static bool replays_a_out(const Pass *c, const Param *w) { return w->lora && c->policy[L_LORA] == DROP; }

static Tensor scratch_rows(const Pass *c, const MoeAct *a, DType d, int64_t cols)
{
    return t_rows(scratch2(c, d, row_capacity(c, a), cols), 0, a->R);
}

static ExpertRows expert_rows(const Pass *c, const MoeAct *a)
{
    return (ExpertRows){ a->offsets, row_capacity(c, a) };
}

/* Tokens that do not travel are quantised once each, in place of once for every expert. */
static void expand_tokens(const Pass *c, const MoeAct *a, CodedRows rows, Tensor x)
{
    if (t_has(rows.q)) op_expand_rows_fp8(c->be, rows.x, rows.q, rows.scale, x, a->rows, true);
    else               op_expand_rows(c->be, rows.x, x, a->rows);
}

/* Rows as they travel: x on this side, rows on that of the experts; packed: in 8 bits. */
typedef struct Travel { Tensor x, rows; bool packed; } Travel;

static Travel pack_tokens(const Pass *c, const MoeAct *a, Tensor x)
{
    int64_t width = quant_packed_width(x.n[1]), most = c->env->dispatcher->conf.shape.T;
    Travel  t = { t_rows(scratch2(c, BF16, most, width), 0, x.n[0]), scratch_rows(c, a, BF16, width), true };
    op_pack_rows(c->be, t.x, x);
    return t;
}

static void land_tokens(const Pass *c, const MoeAct *a, CodedRows rows, Travel t)
{
    if (t.packed) op_unpack_rows(c->be, rows.x, rows.q, rows.scale, t.rows, a->offsets);
    else          encode_rows(c, rows, expert_rows(c, a));
}

/* Rows of tokens to rows of experts. While the rows travel the router statistics are taken. packed: where the
 * first product of the experts reads 8 bits, rows travel so. */
static void dispatch_tokens(const Pass *c, const Moe *m, MoeAct *a, CodedRows rows, Tensor x, bool count,
                            bool packed)
{
    const DispatchOps *ops = ops_of(c);
    Exchange exchange = { .at_once = !c->yielder };
    ArenaMark mark = arena_mark(c->scratch);
    Travel travel = ops && packed ? pack_tokens(c, a, x) : (Travel){ x, rows.x, false };
    if (ops)         ops->dispatch_start(c, &a->route, &exchange, travel.x, travel.rows);
    else if (m->pad) op_gather_rows(c->be, rows.x, x, a->src, m->K);         /* padding rows must be zeros */
    else             expand_tokens(c, a, rows, x);
    if (count)       count_assignments(c, m, a);
    if (ops)         pass_yield(c), ops->dispatch_finish(c, &a->route, &exchange, travel.rows);
    c->be->ledger.expert_rows = a->charged_rows;        /* another micro-batch may have had other rows */
    if (ops || m->pad) land_tokens(c, a, rows, travel);
    arena_reset(c->scratch, mark);
}

static void combine_tokens(const Pass *c, MoeAct *a, Tensor y, Tensor rows, Tensor res)
{
    const DispatchOps *ops = ops_of(c);
    Exchange exchange = { .at_once = !c->yielder };
    if (ops) ops->combine_start(c, &a->route, &exchange, rows);
    if (ops) ops->combine_finish(c, &a->route, &exchange, y, res);
    else     op_combine(c->be, y, rows, a->rows, res);
}

void moe_reserve_routing_scratch(const Pass *c)
{
    ArenaMark mark = arena_mark(c->scratch);
    if (!c->env->dispatcher || !c->env->dispatcher->bounded) return;
    arena_push(c->scratch, "scratch", c->env->dispatcher->routing_scratch);
    arena_reset(c->scratch, mark);
}

/* Memory for x times the LoRA A of w; true where it is computed now. It is kept: recomputing it would read
 * all of x, whose rows are many. */
static bool need_a_out(const Pass *c, MoeAct *a, Tensor *a_out, const Param *w)
{
    return w->lora && need_rows(c, L_LORA, a, a_out, c->env->dtype, lora_a_cols(w));
}

/* Biases, and activations that no product ends in: gate and up, then the activation, each by itself. */
static bool is_apart(const Moe *m) { return m->b_gu || !activations[m->act].grouped_fwd; }

/* Backward gathers the tokens in codes and computes h anew. Not with a dispatcher: codes of rows that have
 * travelled would take a pass over these, which costs as much time as the products save. */
bool moe_codes_dw(const Env *env, const Moe *m)
{
    const ProductPrecision *p = env->precision;
    bool listed = p && p->format == PREC_FP8 && p->coded[SITE_EXPERTS][PRODUCT_DW];
    return listed && !env->dispatcher && !is_apart(m) && !m->b_d && activations[m->act].bwd_cols &&
           is_trainable(m->w_gu) && !m->w_gu->lora && !m->w_d->lora;
}

static bool dw_is_coded(const Pass *c, const Moe *m) { return moe_codes_dw(c->env, m); }

/* Whether backward, or what measures codes, reads more of the rows between products than their codes. */
static bool reads_wide_rows(const Pass *c, const Moe *m)
{
    return t_has(c->code_stats) || !dw_is_coded(c, m);
}

static ExpertAct expert_act(const Pass *c, const Moe *m, const MoeAct *a)
{
    return (ExpertAct){ &activations[m->act], expert_rows(c, a), a->gate, reads_wide_rows(c, m) };
}

/* The values that a pass computes now. */
typedef struct Wanted { bool x, a_out_gu, gu, h, a_out_d; } Wanted;

/* Memory for them. out: the output of the layer is wanted, so h is too. */
static Wanted need_values(const Pass *c, const Moe *m, MoeAct *a, int64_t D, bool out)
{
    const Activation *act = &activations[m->act];
    int64_t wide = m->w_gu->shard.shape[1], F = wide / act->projections;      /* of this rank */
    DType   d = c->env->dtype;
    bool    replayed = c->policy[L_GATE_UP] == DROP || replays_a_out(c, m->w_gu), coded = dw_is_coded(c, m);
    bool    keeps_x = !coded && read_by_backward(c, m->w_gu), keeps_h = !coded && read_by_backward(c, m->w_d);
    Wanted  w = { .x = need_rows_if(c, keeps_x, replayed, L_DISPATCH, a, &a->x, d, D) };
    w.a_out_gu = need_a_out(c, a, &a->a_out_gu, m->w_gu);
    w.gu       = need_rows(c, L_GATE_UP, a, &a->gu, d, wide);
    w.h        = need_rows_if(c, keeps_h, out || replays_a_out(c, m->w_d), L_ACT, a, &a->h, d, F);
    w.a_out_d  = need_a_out(c, a, &a->a_out_d, m->w_d);
    return w;
}

static void lora_a_fwd(const Pass *c, MoeAct *a, Tensor a_out, Tensor x, const Param *w)
{
    ExpertRows by = expert_rows(c, a);
    lora_rows_a_out(c, a_out, x, w, &by);
}

/* What dispatch writes: codes alone where nothing but the product reads the rows, which are not kept, or a
 * replay will write them. */
static CodedRows dispatched(const Pass *c, const Moe *m, CodedRows rows)
{
    bool kept = c->mode == FORWARD && read_by_backward(c, m->w_gu) && c->policy[L_DISPATCH] != DROP;
    bool expands = !ops_of(c) && !m->pad, read = !dw_is_coded(c, m) && (kept || c->mode == REPLAY);
    if (t_has(rows.q) && expands && !read && !m->w_gu->lora) rows.x = (Tensor){ 0 };
    return rows;
}

static void up_apart_fwd(const Pass *c, const Moe *m, MoeAct *a, Wanted want, CodedRows h, CodedRows rows)
{
    ExpertRows by = expert_rows(c, a);
    if (want.gu) experts_y(c, a->gu, rows, m->w_gu, by, lora_term(a->a_out_gu, m->w_gu));
    if (want.gu && m->b_gu) op_group_bias_fwd(c->be, a->gu, param_w(m->b_gu), a->offsets, (Tensor){ 0 });
    if (want.h)  activations[m->act].fwd(c->be, a->h, a->gu, a->gate, a->offsets);
    if (want.h && t_has(h.q)) encode_rows(c, h, by);
}

/* Tokens to the experts, gate, up and activation. */
static void up_fwd(const Pass *c, const Moe *m, MoeAct *a, Wanted want, CodedRows h, Tensor x, bool count)
{
    ArenaMark  mark = arena_mark(c->scratch);
    ExpertRows by = expert_rows(c, a);
    CodedRows  rows = { .x = a->x };
    if (want.x && want.gu) rows = coded_rows(c, a->x, m->w_gu, PRODUCT_Y, by);
    bool packed = c->env->fp8_dispatch && product_is_fp8(c, m->w_gu, PRODUCT_Y);
    if (want.x)        dispatch_tokens(c, m, a, dispatched(c, m, rows), x, count, packed);
    if (want.a_out_gu) lora_a_fwd(c, a, a->a_out_gu, a->x, m->w_gu);
    LoraTerm lora = lora_term(a->a_out_gu, m->w_gu);
    if (is_apart(m))            up_apart_fwd(c, m, a, want, h, rows);
    else if (want.gu && want.h) experts_act(c, expert_act(c, m, a), a->gu, h, rows, m->w_gu, lora);
    else if (want.gu)      experts_y(c, a->gu, rows, m->w_gu, by, lora);
    else if (want.h)       activations[m->act].fwd(c->be, a->h, a->gu, a->gate, a->offsets);
    arena_reset(c->scratch, mark);
}

void moe_experts_fwd(const Pass *c, const Moe *m, MoeAct *a, Tensor y, Tensor x, Tensor res, bool count)
{
    c->be->ledger.expert_rows = a->charged_rows;
    Wanted     want = need_values(c, m, a, x.n[1], t_has(y));
    ExpertRows by = expert_rows(c, a);
    ArenaMark  mark = arena_mark(c->scratch);
    CodedRows  h = { .x = a->h };
    if (t_has(y) && want.gu && want.h) h = coded_rows(c, a->h, m->w_d, PRODUCT_Y, by);
    up_fwd(c, m, a, want, h, x, count);
    if (want.a_out_d) lora_a_fwd(c, a, a->a_out_d, a->h, m->w_d);
    if (t_has(y)) {
        moe_reserve_routing_scratch(c);
        Tensor out = scratch_rows(c, a, x.dtype, x.n[1]);
        experts_y(c, out, h, m->w_d, by, lora_term(a->a_out_d, m->w_d));
        if (m->b_d) op_group_bias_fwd(c->be, out, param_w(m->b_d), a->offsets, a->gate);
        combine_tokens(c, a, y, out, res);
    }
    arena_reset(c->scratch, mark);
}

/* Gradients of w and its adapters, which took rows x to rows whose gradient is dy. */
static void expert_grads(const Pass *c, const Moe *m, MoeAct *a, Tensor dy, Tensor a_out, Tensor d_a_out,
                         Tensor x, Param *w)
{
    ExpertRows by = expert_rows(c, a);
    experts_dw(c, w, dy, x, by);
    lora_rows_grads(c, dy, a_out, d_a_out, x, w, &by);
}

static void bias_grads(const Pass *c, const MoeAct *a, Param *b, Tensor dy, Tensor gate)
{
    if (!t_has(param_g(b))) return;
    op_group_bias_bwd(c->be, param_sum(c, b), (Tensor){ 0 }, dy, param_w(b), a->offsets, gate);
}

/* Columns of tokens x, in the order of rows. */
static void gather_columns(const Pass *c, const Moe *m, const MoeAct *a, ColumnCodes z, Tensor x)
{
    op_quantize_cols(c->be, z, x, a->src, m->K, a->offsets, true);
}

/* The gradient of w_gu from that of its rows, or from its columns and the tokens x. */
static void gate_up_grads(const Pass *c, const Moe *m, MoeAct *a, Tensor dgu, ColumnCodes dgu_cols,
                          Tensor d_a_out, Tensor x)
{
    ArenaMark mark = arena_mark(c->scratch);
    if (t_has(dgu_cols.q)) {
        ColumnCodes x_cols = x_columns(c, x.n[1], expert_rows(c, a));
        gather_columns(c, m, a, x_cols, x);
        experts_dw_coded(c, m->w_gu, dgu_cols, x_cols, expert_rows(c, a));
    } else {
        expert_grads(c, m, a, dgu, a->a_out_gu, d_a_out, a->x, m->w_gu);
    }
    arena_reset(c->scratch, mark);
}

/* Gradients by rows of experts, which those of tokens are made from. */
typedef struct RowGrads { Tensor dx, dgate, dgu, d_a_out; ColumnCodes dgu_cols; } RowGrads;

/* Sends the gradients of rows and gates to the tokens; those of w_gu are computed while the rows travel. */
static void combine_grads(const Pass *c, const Moe *m, MoeAct *a, Tensor dx, Tensor dweight, RowGrads g,
                          Tensor x)
{
    const DispatchOps *ops = ops_of(c);
    Exchange exchange = { 0 }, gates = { 0 };
    if (ops && t_has(dx)) ops->combine_start(c, &a->route, &exchange, g.dx);
    if (ops && t_has(dweight)) ops->gate_grad_start(c, &a->route, &gates, g.dgate);
    gate_up_grads(c, m, a, g.dgu, g.dgu_cols, g.d_a_out, x);
    if (ops && t_has(dx)) ops->combine_finish(c, &a->route, &exchange, dx, (Tensor){ 0 });
    if (ops && t_has(dweight)) ops->gate_grad_finish(c, &a->route, &gates, dweight);
    if (!ops && t_has(dx)) op_combine(c->be, dx, g.dx, a->rows, (Tensor){ 0 });
    if (!ops && t_has(dweight))
        op_gather_rows(c->be, t_as2(dweight, t_count(dweight), 1), g.dgate, a->rows, 1);
}

/* experts_dact where the activation stands apart. */
static void down_apart_bwd(const Pass *c, const Moe *m, MoeAct *a, CodedRows dgu, Tensor dgate,
                           CodedRows dout, LoraTerm lora)
{
    Tensor dh = scratch_rows(c, a, (DType)dout.x.dtype, a->gu.n[1] / activations[m->act].projections);
    experts_dx(c, dh, dout, m->w_d, expert_rows(c, a), lora);
    activations[m->act].bwd(c->be, dgu.x, dgate, dh, a->gu, a->gate);
    if (t_has(dgu.q)) encode_rows(c, dgu, expert_rows(c, a));
    if (m->b_d) op_group_bias_bwd(c->be, (Tensor){ 0 }, dgate, dout.x, param_w(m->b_d), a->offsets, a->gate);
}

/* From dout (R, D) to the gradients of gate and up, where they are wanted, and of w_d. */
static void down_bwd(const Pass *c, const Moe *m, MoeAct *a, CodedRows dgu, ExpertCols cols, Tensor dgate,
                     CodedRows dout)
{
    ExpertRows  by = expert_rows(c, a);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor d_a_out = lora_rows_d_a_out(c, dout.x, m->w_d, &by);
    if (t_has(dgu.x) && is_apart(m))
        down_apart_bwd(c, m, a, dgu, dgate, dout, lora_input_term(c, d_a_out, m->w_d));
    else if (t_has(dgu.x))
        experts_dact(c, expert_act(c, m, a), dgu, cols, dgate, dout, m->w_d, a->gu,
                     lora_input_term(c, d_a_out, m->w_d));
    if (t_has(cols.dgu.q)) experts_dw_coded(c, m->w_d, cols.dout, cols.h, by);
    else                   expert_grads(c, m, a, dout.x, a->a_out_d, d_a_out, a->h, m->w_d);
    bias_grads(c, a, m->b_d, dout.x, a->gate);
    arena_reset(c->scratch, mark);
}

/* The columns that the gradient of w_d in codes is computed from, of the gradients dy of tokens. */
static void down_columns(const Pass *c, const Moe *m, const MoeAct *a, ExpertCols *cols, Tensor dy)
{
    ExpertRows by = expert_rows(c, a);
    if (!t_has(cols->dgu.q) || !is_trainable(m->w_d)) return;
    cols->dout = dy_columns(c, dy.n[1], by);
    cols->h    = x_columns(c, m->w_d->shard.shape[2], by);
    gather_columns(c, m, a, cols->dout, dy);
}

/* Gradients of the outputs to the experts, and through w_d. */
static void dispatch_grads(const Pass *c, const Moe *m, MoeAct *a, CodedRows dgu, ColumnCodes dgu_cols,
                           Tensor dgate, Tensor dout, Tensor dy)
{
    ArenaMark  mark = arena_mark(c->scratch);
    CodedRows  rows = { .x = dout };
    ExpertCols cols = { .dgu = dgu_cols };
    if (t_has(dgu.x)) rows = coded_rows(c, dout, m->w_d, PRODUCT_DX, expert_rows(c, a));
    if (!reads_wide_rows(c, m) && !m->pad) rows.x = (Tensor){ 0 };
    dispatch_tokens(c, m, a, rows, dy, false, false);
    down_columns(c, m, a, &cols, dy);
    down_bwd(c, m, a, dgu, cols, dgate, rows);
    arena_reset(c->scratch, mark);
}

void moe_experts_bwd(const Pass *c, const Moe *m, MoeAct *a, Tensor dx, Tensor dweight, Tensor dy, Tensor x)
{
    bool    deeper = t_has(dx) || t_has(dweight) || is_trainable(m->w_gu) || is_trainable(m->b_gu);
    int64_t D = dy.n[1], wide = m->w_gu->shard.shape[1];
    DType d = (DType)dy.dtype;
    ExpertRows  by = expert_rows(c, a);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor dout = scratch_rows(c, a, d, D), dgu_x = scratch_rows(c, a, d, wide);
    Tensor dgate = scratch_rows(c, a, F32, 1);
    CodedRows dgu = { .x = deeper ? dgu_x : (Tensor){ 0 } };
    ColumnCodes dgu_cols = dw_is_coded(c, m) ? dy_columns(c, wide, by) : (ColumnCodes){ 0 };
    if (t_has(dx)) dgu = coded_rows(c, dgu_x, m->w_gu, PRODUCT_DX, by);
    dispatch_grads(c, m, a, dgu, dgu_cols, dgate, dout, dy);
    if (deeper) bias_grads(c, a, m->b_gu, dgu.x, (Tensor){ 0 });
    Tensor d_a_out = deeper ? lora_rows_d_a_out(c, dgu.x, m->w_gu, &by) : (Tensor){ 0 };
    if (t_has(dx))                                               /* dout is read no more: now d(a->x) */
        experts_dx(c, dout, dgu, m->w_gu, by, lora_input_term(c, d_a_out, m->w_gu));
    RowGrads g = { dout, dgate, dgu.x, d_a_out, dgu_cols };
    if (deeper) combine_grads(c, m, a, dx, dweight, g, x);
    arena_reset(c->scratch, mark);
}
