/* nn/moe.c -- the router of an MoE layer, and the layer as a whole. */
#include "nn/lora.h"
#include "nn/moe_private.h"

/* Rows that an expert takes; 0: all. Where all ranks must know the number, it is that of a full micro-batch.
 * Decoding drops none, unless rows are padded: what is dropped would depend on the other documents. */
static int64_t expert_capacity(const Pass *c, const Moe *m, int64_t T)
{
    if (c->cache && !m->pad) return 0;
    return moe_capacity(m, m->pad && c->env->dispatcher ? c->env->dispatcher->conf.shape.T : T);
}

static void compute_router_logits(const Pass *c, const Moe *m, MoeAct *a, Tensor x)
{
    enum { BENCHMARK = 0xba1a };
    int64_t T = x.n[0];
    linear_fwd(c, a->logits, x, m->w_router, m->b_router);
    tap(c, "router.logits", m->index, a->logits);
    if (m->balance)
        op_normal(c->be, a->logits, BENCHMARK, (uint64_t)m->index,
                  (uint64_t)((c->env->mesh ? c->env->mesh->rank : 0) * T * m->E), m->E, 1.0f);
    if (m->router == ROUTER_SIGMOID) op_log_sigmoid(c->be, a->logits);
}

/* The balance loss of a sigmoid router counts the K largest scores, without bias and groups. */
static void select_by_scores(const Pass *c, const Moe *m, MoeAct *a)
{
    int64_t T = a->idx.n[0];
    a->counted = scratch2(c, I32, T, m->K);
    op_router_fwd(c->be, a->counted, a->weight, a->lse, a->logits, true);
    op_select_fwd(c->be, a->idx, a->weight, a->logits, param_w(m->score_bias), m->groups, m->renorm,
                  m->scale);
}

/* The experts of each token and their weights; true where they were selected now. Always kept: recomputing
 * the top-k could break ties differently from the forward pass. */
static bool select_experts(const Pass *c, const Moe *m, MoeAct *a, Tensor x)
{
    int64_t T = x.n[0];
    bool now = need(c, L_ROUTE, &a->idx, I32, T, m->K);
    need(c, L_ROUTE, &a->weight, F32, T, m->K);
    need(c, L_ROUTE, &a->lse,    F32, T, 1);
    if (need(c, L_LOGITS, &a->logits, F32, T, m->E)) compute_router_logits(c, m, a, x);
    if (!now) return false;
    a->counted = a->idx;
    if (m->router == ROUTER_SIGMOID) select_by_scores(c, m, a);
    else op_router_fwd(c->be, a->idx, a->weight, a->lse, a->logits, m->renorm);
    tap(c, "router.chosen", m->index, a->idx);
    tap(c, "router.weights", m->index, a->weight);
    return true;
}

/* The assignments without those over the capacity of their expert. With a dispatcher they are kept: each
 * chunk builds its routing from them, in forward and in backward. */
static Tensor drop_over_capacity(const Pass *c, const Moe *m, MoeAct *a, int64_t capacity)
{
    int64_t T = a->idx.n[0];
    if (!capacity) return a->idx;
    Tensor kept;
    if (c->env->dispatcher && !m->pad) need(c, L_ROUTE, &kept, I32, T, m->K);
    else                               kept = scratch2(c, I32, T, m->K);
    Tensor offsets = scratch2(c, I32, m->E + 1, 1), rows = scratch2(c, I32, T, m->K);
    Tensor src = scratch2(c, I32, T * m->K, 1);
    op_sort_by_expert(c->be, offsets, rows, src, a->idx);
    op_moe_drop(c->be, kept, a->idx, a->weight, offsets, src, capacity);
    return kept;
}

static void build_routing(const Pass *c, const Moe *m, MoeAct *a, int64_t capacity)
{
    const DispatchOps *ops = c->env->dispatcher->ops;
    a->kept = drop_over_capacity(c, m, a, capacity);
    ops->reserve(c, m, a, a->kept.n[0]);
    if (ops->build_routing(c, m, a, a->kept)) return;
    a->R = 0, a->token_chunks = ops->count_token_chunks(c, a->kept);
}

/* Sorts the assignments into rows of experts that are all on this rank. */
static void sort_rows(const Pass *c, const Moe *m, MoeAct *a, int64_t capacity)
{
    Tensor kept = drop_over_capacity(c, m, a, capacity);
    moe_sort(c, a->offsets, a->rows, a->src, kept, m->pad ? capacity : 0);
    op_gather_rows(c->be, a->gate, t_as2(a->weight, t_count(a->weight), 1), a->src, 1);
}

/* The experts of each token and the rows that follow from them; true where they were selected now. */
static bool route_tokens(const Pass *c, const Moe *m, MoeAct *a, Tensor x)
{
    int64_t T = x.n[0], capacity = expert_capacity(c, m, T);
    pass_scope(c, GRAPH_MOE_ROUTER);
    bool now = select_experts(c, m, a, x);
    pass_scope(c, GRAPH_MOE_PREPROCESS);
    if (now) a->token_chunks = 1, a->is_chunk = false, a->charged_rows = 0;
    if (c->env->dispatcher) {
        if (now) build_routing(c, m, a, capacity);
        return now;
    }
    a->R = m->pad ? m->E * capacity : T * m->K;
    need(c, L_ROUTE, &a->offsets, I32, m->E + 1, 1);
    need(c, L_ROUTE, &a->rows,    I32, T, m->K);
    need(c, L_ROUTE, &a->src,     I32, a->R, 1);
    need(c, L_ROUTE, &a->gate,    F32, a->R, 1);
    if (now) sort_rows(c, m, a, capacity);
    return now;
}

/* From the gradients of the K weights and of the auxiliary losses to those of the router and dx. */
static void router_bwd(const Pass *c, const Moe *m, MoeAct *a, Tensor dx, Tensor dweight, Tensor x)
{
    int64_t T = x.n[0];
    Tensor dlogits = scratch2(c, x.dtype, T, m->E), coef = t_at(c->aux->coef, m->index - c->aux->first);
    if (m->router == ROUTER_SIGMOID)
        op_select_bwd(c->be, dlogits, dweight, a->weight, a->idx, a->logits, a->lse, coef, c->batch->group,
                      c->aux->z, m->renorm, m->scale);
    else
        op_router_bwd(c->be, dlogits, dweight, a->weight, a->idx, a->logits, a->lse, coef, c->batch->group,
                      c->aux->z, m->renorm);
    Tensor d_a_out = lora_d_a_out(c, dlogits, m->w_router);
    linear_grads(c, dlogits, d_a_out, x, m->w_router, m->b_router);
    if (t_has(dx)) linear_input_grad(c, dx, dlogits, d_a_out, m->w_router, GEMM_ACC);
}

/* Rows that the host counts are others in every step. */
static void enter_experts(const Pass *c, const MoeAct *a)
{
    bool counted = a->token_chunks > 1 || (c->env->dispatcher && c->env->dispatcher->host_counts);
    pass_scope(c, counted ? GRAPH_EAGER : GRAPH_MOE);
    c->be->ledger.scope = GRAPH_MOE;
}

void moe_fwd(const Pass *c, const Moe *m, MoeAct *a, Tensor y, Tensor x, Tensor res)
{
    bool fresh = route_tokens(c, m, a, x);
    res = moe_shared_fwd(c, m, a, x, res, t_has(y));
    enter_experts(c, a);
    if (a->token_chunks > 1) moe_chunked_fwd(c, m, a, y, x, res, fresh);
    else                     moe_experts_fwd(c, m, a, y, x, res, fresh);
}

void moe_bwd(const Pass *c, const Moe *m, MoeAct *a, Tensor dx, Tensor dy, Tensor x)
{
    ArenaMark mark = arena_mark(c->scratch);
    bool   routes = t_has(dx) || is_trainable(m->w_router);
    Tensor dweight = routes ? scratch2(c, F32, x.n[0], m->K) : (Tensor){ 0 };
    Tensor dx_shared = moe_shared_bwd(c, m, a, dy, x, t_has(dx));
    moe_reserve_routing_scratch(c);
    enter_experts(c, a);
    if (a->token_chunks > 1) moe_chunked_bwd(c, m, a, dx, dweight, dy, x);
    else                     moe_experts_bwd(c, m, a, dx, dweight, dy, x);
    pass_scope(c, GRAPH_MOE_ROUTER);
    if (routes) router_bwd(c, m, a, dx, dweight, x);
    if (t_has(dx_shared)) op_add(c->be, dx, dx, dx_shared);
    arena_reset(c->scratch, mark);
}
