/* nn/module.c -- need() and the linear layer. */
#include "nn/lora.h"
#include "nn/product.h"

bool need(const Pass *c, Label l, Tensor *slot, DType d, int64_t rows, int64_t cols)
{
    bool keep = c->policy[l] != DROP;
    if (c->mode == REPLAY && keep) return false;
    bool lasting = c->mode == FORWARD && keep;
    if (lasting && c->offload_record && c->policy[l] == OFFLOAD) *slot = offload_push(c, c->offload_record,
                                                                                      slot, l, d, rows, cols);
    else *slot = t2(lasting ? c->act : c->scratch, label_name(l), d, rows, cols);
    return true;
}

bool need_if(const Pass *c, bool read, bool replayed, Label l, Tensor *slot, DType d, int64_t rows,
             int64_t cols)
{
    if (read) return need(c, l, slot, d, rows, cols);
    bool now = c->mode != REPLAY || replayed;
    if (now) *slot = t2(c->scratch, label_name(l), d, rows, cols);
    return now;
}

bool replay_begin(Pass *replay, const Pass *c, Label first, Label last)
{
    bool dropped = false;
    for (int l = (int)first; l <= (int)last; l++) dropped |= c->policy[l] == DROP;
    *replay = *c;
    replay->mode = REPLAY;
    if (dropped) c->be->ledger.replay = true;
    return dropped;
}

void replay_end(const Pass *c) { c->be->ledger.replay = false; }

Tensor norm_weight(const Pass *c, const Param *p)
{
    if (!p->zero_centred) return p->shard.w;
    Tensor w = scratch2(c, F32, p->shard.w.n[0], p->shard.w.n[1]);
    op_fill(c->be, w, 1.0f);
    op_add(c->be, w, w, p->shard.w);
    return w;
}

void linear_fwd(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b)
{
    product_y(c, y, x, w, b);
    lora_fwd(c, y, x, w);
}

void linear_residual(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b, Tensor res)
{
    product_residual(c, y, x, w, b, res);
    lora_fwd(c, y, x, w);
}

Tensor param_sum(const Pass *c, Param *p)
{
    if (t_has(param_g(p)) && p->step.grad_unset) op_fill(c->be, param_g(p), 0.0f);
    p->step.grad_unset = false;
    return param_g(p);
}

bool is_trainable(const Param *p) { return p && (!p->frozen || (p->lora && !p->lora->a->frozen)); }

void linear_input_grad(const Pass *c, Tensor dx, Tensor dy, Tensor d_a_out, const Param *w, int flags)
{
    product_dx(c, dx, dy, w, flags);
    lora_input_grad(c, dx, d_a_out, w);
}

void linear_grads(const Pass *c, Tensor dy, Tensor d_a_out, Tensor x, Param *w, const Param *b)
{
    product_dw(c, w, dy, x);
    if (t_has(param_g(b))) op_colsum(c->be, b->shard.g, dy);
    lora_grads(c, dy, d_a_out, x, w);
}

void linear_bwd(const Pass *c, Tensor dx, Tensor dy, Tensor x, Param *w, const Param *b)
{
    ArenaMark mark = arena_mark(c->scratch);
    Tensor d_a_out = lora_d_a_out(c, dy, w);
    linear_grads(c, dy, d_a_out, x, w, b);
    if (t_has(dx)) linear_input_grad(c, dx, dy, d_a_out, w, 0);
    arena_reset(c->scratch, mark);
}
