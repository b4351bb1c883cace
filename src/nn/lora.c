/* nn/lora.c -- see lora.h. */
#include "nn/lora.h"

#include "ops/dropout.h"

static const Tensor none = { 0 };

/* ---- chance ---- */

static bool of_experts(const Param *w) { return w->linear == LINEAR_EXPERTS; }

/* Ranks of one place have the same rows, all of them or some of their columns. */
static uint64_t place(const Pass *c, const Param *w)
{
    const Mesh *m = c->env->mesh;
    int row = of_experts(w) ? mesh_at(m, AX_EDP) * mesh_size(m, AX_EP) + mesh_at(m, AX_EP)
                            : mesh_at(m, AX_DP) * mesh_size(m, AX_CP) + mesh_at(m, AX_CP);
    return (uint64_t)(w->group == G_LLM ? row : row * mesh_size(m, AX_TP) + mesh_at(m, AX_TP));
}

static bool drops(const Pass *c, const Param *w) { return w->lora->dropout > 0 && c->dropout_seed; }

/* What is left out of an input of T rows: a replay asks for the same again, and so do all ranks that have the
 * same rows. A rank that has its own T rows of a layer which others see whole counts them behind its
 * neighbours'. */
static Dropout drop_of(const Pass *c, const Param *w, int64_t T)
{
    const Param *a = w->lora->a;
    int     last = a->ndim - 1;
    if (!drops(c, w)) return (Dropout){ 0 };
    int64_t whole = a->shape[last], part = a->shard.shape[last];
    int64_t row = c->first_row + (w->linear == LINEAR_ROUTER ? mesh_at(c->env->mesh, AX_TP) * T : 0);
    int64_t col = part == whole ? 0 : mesh_at(c->env->mesh, of_experts(w) ? AX_ETP : AX_TP) * part;
    return (Dropout){ w->lora->dropout, rng_u64(c->dropout_seed, w->lora->stream, place(c, w)), w->lora->stream, row,
                   col };
}

/* The factor of low and of back, and with them of all that follows: what is kept grows by it. */
static float factor(const Pass *c, const Param *w, const LoraPart *p)
{
    return drops(c, w) ? p->scale * dropout_scale(w->lora->dropout) : p->scale;
}

/* ---- a weight ---- */

/* low of x. Pairs of one scale that lie together are one product. */
static Tensor low_of(const Pass *c, Tensor x, const Param *w)
{
    const Lora *l = w->lora;
    Tensor low = scratch2(c, (DType)x.dtype, x.n[0], l->a->shard.w.n[0]);
    for (int i = 0, k; i < l->parts; i = k) {
        const LoraPart *p = &l->part[i];
        int64_t cols = 0;
        for (k = i; k < l->parts && l->part[k].scale == p->scale; k++) cols += l->part[k].r;
        op_gemm_scaled(c->be, t_cols(low, p->from, cols), x, t_rows(l->a->shard.w, p->from, cols), factor(c, w, p),
                       drop_of(c, w, x.n[0]), GEMM_NT);
    }
    return low;
}

void lora_fwd(const Pass *c, Tensor y, Tensor x, const Param *w)
{
    if (!w->lora) return;
    ArenaMark mark = arena_mark(c->scratch);
    Tensor low = low_of(c, x, w);
    for (int i = 0; i < w->lora->parts; i++) {
        const LoraPart *p = &w->lora->part[i];
        op_gemm(c->be, t_cols(y, p->at, p->rows), t_cols(low, p->from, p->r), p->b->shard.w, none,
                GEMM_NT | GEMM_ACC);
    }
    arena_reset(c->scratch, mark);
}

Tensor lora_d_a_out(const Pass *c, Tensor dy, const Param *w)
{
    if (!w->lora) return none;
    int64_t R = w->lora->a->shard.w.n[0];
    Tensor back = t_cols(scratch2(c, (DType)dy.dtype, dy.n[0], (R + 7) / 8 * 8), 0, R);   /* on 16 bytes */
    for (int i = 0; i < w->lora->parts; i++) {
        const LoraPart *p = &w->lora->part[i];
        op_gemm_scaled(c->be, t_cols(back, p->from, p->r), t_cols(dy, p->at, p->rows), p->b->shard.w,
                       factor(c, w, p), (Dropout){ 0 }, GEMM_NN);
    }
    return back;
}

void lora_input_grad(const Pass *c, Tensor dx, Tensor back, const Param *w)
{
    if (w->lora)
        op_gemm_scaled(c->be, dx, back, w->lora->a->shard.w, 1.0f, drop_of(c, w, dx.n[0]), GEMM_NN | GEMM_ACC);
}

/* low is made a second time, which the model does not need: it is charged as a replay. */
void lora_grads(const Pass *c, Tensor dy, Tensor back, Tensor x, const Param *w)
{
    bool *replay = &c->be->ledger.replay, before = *replay;
    if (!w->lora || w->lora->a->frozen) return;
    ArenaMark mark = arena_mark(c->scratch);
    Param *a = w->lora->a;
    *replay = true;
    Tensor low = low_of(c, x, w);
    *replay = before;
    for (int i = 0; i < w->lora->parts; i++) {
        const LoraPart *p = &w->lora->part[i];
        if (t_has(p->b->shard.g))
            op_gemm(c->be, p->b->shard.g, t_cols(dy, p->at, p->rows), t_cols(low, p->from, p->r), none,
                    param_grad_flags(p->b));
    }
    if (t_has(a->shard.g))
        op_gemm_scaled(c->be, a->shard.g, back, x, 1.0f, drop_of(c, w, x.n[0]), param_grad_flags(a));
    arena_reset(c->scratch, mark);
}

/* ---- experts: an A that all of them share is a stack of one, which grouped products take as such ---- */

static Tensor rows_scratch(const Pass *c, const LoraRows *by, Tensor like, int64_t cols)
{
    return t_rows(scratch2(c, (DType)like.dtype, by->room, cols), 0, like.n[0]);
}

int64_t lora_a_cols(const Param *w) { return w->lora ? w->lora->a->shard.w.n[w->lora->a->ndim - 2] : 0; }

void lora_rows_a_out(const Pass *c, Tensor low, Tensor x, const Param *w, const LoraRows *by)
{
    op_grouped_scaled(c->be, low, x, w->lora->a->shard.w, by->offsets, factor(c, w, &w->lora->part[0]),
                      drop_of(c, w, x.n[0]), GEMM_NT);
}

Tensor lora_rows_d_a_out(const Pass *c, Tensor dy, const Param *w, const LoraRows *by)
{
    if (!w->lora) return none;
    Tensor back = rows_scratch(c, by, dy, lora_a_cols(w));
    op_grouped_scaled(c->be, back, dy, w->lora->part[0].b->shard.w, by->offsets, factor(c, w, &w->lora->part[0]),
                      (Dropout){ 0 }, GEMM_NN);
    return back;
}

LoraTerm lora_term(Tensor low, const Param *w)
{
    return w->lora ? (LoraTerm){ .low = low, .w = w->lora->part[0].b->shard.w } : (LoraTerm){ 0 };
}

LoraTerm lora_input_term(const Pass *c, Tensor back, const Param *w)
{
    return w->lora ? (LoraTerm){ back, w->lora->a->shard.w, drop_of(c, w, back.n[0]) } : (LoraTerm){ 0 };
}

void lora_rows_grads(const Pass *c, Tensor dy, Tensor low, Tensor back, Tensor x, const Param *w, const LoraRows *by)
{
    if (!w->lora || w->lora->a->frozen) return;
    Param *a = w->lora->a, *b = w->lora->part[0].b;
    if (t_has(b->shard.g)) op_grouped_gemm(c->be, b->shard.g, dy, low, by->offsets, (LoraTerm){ 0 }, param_grad_flags(b));
    if (t_has(a->shard.g))
        op_grouped_scaled(c->be, a->shard.g, back, x, by->offsets, 1.0f, drop_of(c, w, x.n[0]),
                          param_grad_flags(a));
}
