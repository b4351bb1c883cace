/* nn/lora.c -- see lora.h. */
#include "nn/lora.h"

#include "ops/dropout.h"

static const Tensor none = { 0 };

/* ---- dropout ---- */

static bool is_expert(const Param *w) { return w->linear == LINEAR_EXPERTS; }

/* A number of the rows that a rank has: ranks with the same rows, or some of their columns, have the same. */
static uint64_t rows_id(const Pass *c, const Param *w)
{
    const Mesh *m = c->env->mesh;
    int row = is_expert(w) ? mesh_at(m, AX_EDP) * mesh_size(m, AX_EP) + mesh_at(m, AX_EP)
                            : mesh_at(m, AX_DP) * mesh_size(m, AX_CP) + mesh_at(m, AX_CP);
    return (uint64_t)(w->group == G_LLM ? row : row * mesh_size(m, AX_TP) + mesh_at(m, AX_TP));
}

static bool has_dropout(const Pass *c, const Param *w) { return w->lora->dropout > 0 && c->dropout_seed; }

/* The dropout mask of an input of T rows: the same in a replay, and on all ranks that have the same rows. A
 * rank that has its own T rows of a layer which others see whole counts them behind its neighbours'. */
static Dropout dropout_of(const Pass *c, const Param *w, int64_t T)
{
    const Param *a = w->lora->a;
    int     last = a->ndim - 1;
    if (!has_dropout(c, w)) return (Dropout){ 0 };
    int64_t whole = a->shape[last], part = a->shard.shape[last];
    int64_t row = c->first_row + (w->linear == LINEAR_ROUTER ? mesh_at(c->env->mesh, AX_TP) * T : 0);
    int64_t col = part == whole ? 0 : mesh_at(c->env->mesh, is_expert(w) ? AX_ETP : AX_TP) * part;
    return (Dropout){ w->lora->dropout, rows_id(c, w), w->lora->stream, row, col, c->dropout_seed };
}

/* The factor of a_out and d_a_out: s times the factor of dropout. */
static float scale_of(const Pass *c, const Param *w, const LoraPart *p)
{
    return has_dropout(c, w) ? p->scale * dropout_scale(w->lora->dropout) : p->scale;
}

/* ---- a weight ---- */

/* Adjacent adapters of one scale are one product. */
static Tensor a_out_of(const Pass *c, Tensor x, const Param *w)
{
    const Lora *l = w->lora;
    Tensor a_out = scratch2(c, (DType)x.dtype, x.n[0], l->a->shard.w.n[0]);
    for (int i = 0, k; i < l->parts; i = k) {
        const LoraPart *p = &l->part[i];
        int64_t cols = 0;
        for (k = i; k < l->parts && l->part[k].scale == p->scale; k++) cols += l->part[k].r;
        op_gemm_scaled(c->be, t_cols(a_out, p->from, cols), x, t_rows(l->a->shard.w, p->from, cols),
                       scale_of(c, w, p), dropout_of(c, w, x.n[0]), GEMM_NT);
    }
    return a_out;
}

void lora_fwd(const Pass *c, Tensor y, Tensor x, const Param *w)
{
    if (!w->lora) return;
    ArenaMark mark = arena_mark(c->scratch);
    Tensor a_out = a_out_of(c, x, w);
    for (int i = 0; i < w->lora->parts; i++) {
        const LoraPart *p = &w->lora->part[i];
        op_gemm(c->be, t_cols(y, p->at, p->rows), t_cols(a_out, p->from, p->r), p->b->shard.w, none,
                GEMM_NT | GEMM_ACC);
    }
    arena_reset(c->scratch, mark);
}

Tensor lora_d_a_out(const Pass *c, Tensor dy, const Param *w)
{
    if (!w->lora) return none;
    int64_t R = w->lora->a->shard.w.n[0];
    Tensor d_a_out = t_cols(scratch2(c, (DType)dy.dtype, dy.n[0], (R + 7) / 8 * 8), 0, R);  /* 16 bytes */
    for (int i = 0; i < w->lora->parts; i++) {
        const LoraPart *p = &w->lora->part[i];
        op_gemm_scaled(c->be, t_cols(d_a_out, p->from, p->r), t_cols(dy, p->at, p->rows), p->b->shard.w,
                       scale_of(c, w, p), (Dropout){ 0 }, GEMM_NN);
    }
    return d_a_out;
}

void lora_input_grad(const Pass *c, Tensor dx, Tensor d_a_out, const Param *w)
{
    if (w->lora)
        op_gemm_scaled(c->be, dx, d_a_out, w->lora->a->shard.w, 1.0f, dropout_of(c, w, dx.n[0]),
                       GEMM_NN | GEMM_ACC);
}

/* a_out is computed a second time, which the ledger counts as a replay. */
void lora_grads(const Pass *c, Tensor dy, Tensor d_a_out, Tensor x, const Param *w)
{
    bool *replay = &c->be->ledger.replay, before = *replay;
    if (!w->lora || w->lora->a->frozen) return;
    ArenaMark mark = arena_mark(c->scratch);
    Param *a = w->lora->a;
    *replay = true;
    Tensor a_out = a_out_of(c, x, w);
    *replay = before;
    for (int i = 0; i < w->lora->parts; i++) {
        const LoraPart *p = &w->lora->part[i];
        if (t_has(p->b->shard.g))
            op_gemm(c->be, p->b->shard.g, t_cols(dy, p->at, p->rows), t_cols(a_out, p->from, p->r), none,
                    param_grad_flags(p->b));
    }
    if (t_has(a->shard.g))
        op_gemm_scaled(c->be, a->shard.g, d_a_out, x, 1.0f, dropout_of(c, w, x.n[0]), param_grad_flags(a));
    arena_reset(c->scratch, mark);
}

/* ---- experts: an A that all of them share is a stack of one, which grouped products accept ---- */

static Tensor rows_scratch(const Pass *c, const ExpertRows *by, Tensor like, int64_t cols)
{
    return t_rows(scratch2(c, (DType)like.dtype, by->capacity, cols), 0, like.n[0]);
}

int64_t lora_a_cols(const Param *w) { return w->lora ? w->lora->a->shard.w.n[w->lora->a->ndim - 2] : 0; }

void lora_rows_a_out(const Pass *c, Tensor a_out, Tensor x, const Param *w, const ExpertRows *by)
{
    op_grouped_scaled(c->be, a_out, x, w->lora->a->shard.w, by->offsets, scale_of(c, w, &w->lora->part[0]),
                      dropout_of(c, w, x.n[0]), GEMM_NT);
}

Tensor lora_rows_d_a_out(const Pass *c, Tensor dy, const Param *w, const ExpertRows *by)
{
    if (!w->lora) return none;
    Tensor d_a_out = rows_scratch(c, by, dy, lora_a_cols(w));
    op_grouped_scaled(c->be, d_a_out, dy, w->lora->part[0].b->shard.w, by->offsets,
                      scale_of(c, w, &w->lora->part[0]), (Dropout){ 0 }, GEMM_NN);
    return d_a_out;
}

LoraTerm lora_term(Tensor a_out, const Param *w)
{
    return w->lora ? (LoraTerm){ .low_rank = a_out, .w = w->lora->part[0].b->shard.w } : (LoraTerm){ 0 };
}

LoraTerm lora_input_term(const Pass *c, Tensor d_a_out, const Param *w)
{
    if (!w->lora) return (LoraTerm){ 0 };
    return (LoraTerm){ d_a_out, w->lora->a->shard.w, dropout_of(c, w, d_a_out.n[0]) };
}

void lora_rows_grads(const Pass *c, Tensor dy, Tensor a_out, Tensor d_a_out, Tensor x, const Param *w,
                     const ExpertRows *by)
{
    if (!w->lora || w->lora->a->frozen) return;
    Param *a = w->lora->a, *b = w->lora->part[0].b;
    if (t_has(b->shard.g))
        op_grouped_gemm(c->be, b->shard.g, dy, a_out, by->offsets, (LoraTerm){ 0 }, param_grad_flags(b));
    if (t_has(a->shard.g))
        op_grouped_scaled(c->be, a->shard.g, d_a_out, x, by->offsets, 1.0f, dropout_of(c, w, x.n[0]),
                          param_grad_flags(a));
}
