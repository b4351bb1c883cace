/* nn/lora.c -- see lora.h. */
#include "nn/lora.h"

#include "base/rng.h"

static const Tensor none = { 0 };

/* ---- chance ---- */

/* Where the numbers of x's elements begin: a replay asks for the same ones again, and so do all ranks that
 * have the same rows. */
typedef struct Draw { uint64_t seed; int64_t first, stride; } Draw;

static bool of_experts(const Param *w) { return w->linear == LINEAR_EXPERTS; }

/* Ranks of one place have the same rows, all of them or some of their columns. */
static uint64_t place(const Ctx *c, const Param *w)
{
    const Mesh *m = c->mesh;
    int row = of_experts(w) ? mesh_at(m, AX_EDP) * mesh_size(m, AX_EP) + mesh_at(m, AX_EP)
                            : mesh_at(m, AX_DP) * mesh_size(m, AX_CP) + mesh_at(m, AX_CP);
    return (uint64_t)(w->group == G_LLM ? row : row * mesh_size(m, AX_TP) + mesh_at(m, AX_TP));
}

/* A rank that has its own T rows of a layer which others see whole counts them behind its neighbours'. */
static Draw draw_of(const Ctx *c, const Param *w, Tensor x)
{
    const Param *a = w->lora->a;
    int     last = a->rank - 1;
    int64_t whole = a->full[last], part = a->local[last];
    int64_t row = c->row + (w->linear == LINEAR_ROUTER ? mesh_at(c->mesh, AX_TP) * x.n[0] : 0);
    int64_t col = part == whole ? 0 : mesh_at(c->mesh, of_experts(w) ? AX_ETP : AX_TP) * part;
    return (Draw){ rng_u64(c->chance, w->lora->stream, place(c, w)), row * whole + col, whole };
}

bool lora_drops(const Ctx *c, const Param *w) { return w->lora && w->lora->dropout > 0 && c->chance; }

static void drop(Ctx *c, Tensor y, Tensor x, const Param *w, bool add)
{
    Draw d = draw_of(c, w, x);
    op_dropout(c->be, y, x, w->lora->dropout, d.seed, w->lora->stream, d.first, d.stride, add);
}

static Tensor seen_of(Ctx *c, Tensor x, const Param *w)
{
    if (!lora_drops(c, w)) return x;
    Tensor y = scratch2(c, (DType)x.dtype, x.n[0], x.n[1]);
    drop(c, y, x, w, false);
    return y;
}

/* ---- a weight ---- */

/* low of what is seen of x. Pairs of one scale that lie together are one product. */
static Tensor low_of(Ctx *c, Tensor seen, const Param *w)
{
    const Lora *l = w->lora;
    Tensor low = scratch2(c, (DType)seen.dtype, seen.n[0], l->a->w.n[0]);
    for (int i = 0, k; i < l->parts; i = k) {
        const LoraPart *p = &l->part[i];
        int64_t cols = 0;
        for (k = i; k < l->parts && l->part[k].scale == p->scale; k++) cols += l->part[k].r;
        op_gemm_scaled(c->be, t_cols(low, p->from, cols), seen, t_rows(l->a->w, p->from, cols), p->scale,
                       GEMM_NT);
    }
    return low;
}

void lora_fwd(Ctx *c, Tensor y, Tensor x, const Param *w)
{
    if (!w->lora) return;
    ArenaMark mark = arena_mark(c->scratch);
    Tensor low = low_of(c, seen_of(c, x, w), w);
    for (int i = 0; i < w->lora->parts; i++) {
        const LoraPart *p = &w->lora->part[i];
        op_gemm(c->be, t_cols(y, p->at, p->rows), t_cols(low, p->from, p->r), p->b->w, none,
                GEMM_NT | GEMM_ACC);
    }
    arena_reset(c->scratch, mark);
}

Tensor lora_back(Ctx *c, Tensor dy, const Param *w)
{
    if (!w->lora) return none;
    Tensor back = scratch2(c, (DType)dy.dtype, dy.n[0], w->lora->a->w.n[0]);
    for (int i = 0; i < w->lora->parts; i++) {
        const LoraPart *p = &w->lora->part[i];
        op_gemm_scaled(c->be, t_cols(back, p->from, p->r), t_cols(dy, p->at, p->rows), p->b->w, p->scale,
                       GEMM_NN);
    }
    return back;
}

void lora_input(Ctx *c, Tensor dx, Tensor back, const Param *w)
{
    if (!w->lora) return;
    if (!lora_drops(c, w)) {
        op_gemm(c->be, dx, back, w->lora->a->w, none, GEMM_NN | GEMM_ACC);
        return;
    }
    ArenaMark mark = arena_mark(c->scratch);
    Tensor through = scratch2(c, (DType)dx.dtype, dx.n[0], dx.n[1]);
    op_gemm(c->be, through, back, w->lora->a->w, none, GEMM_NN);
    drop(c, dx, through, w, true);
    arena_reset(c->scratch, mark);
}

/* low is made a second time, which the model does not need: it is charged as a replay. */
void lora_grads(Ctx *c, Tensor dy, Tensor back, Tensor x, const Param *w)
{
    bool *replay = &c->be->ledger.replay, before = *replay;
    if (!w->lora || w->lora->a->frozen) return;
    ArenaMark mark = arena_mark(c->scratch);
    Param *a = w->lora->a;
    Tensor seen = seen_of(c, x, w);
    *replay = true;
    Tensor low = low_of(c, seen, w);
    *replay = before;
    for (int i = 0; i < w->lora->parts; i++) {
        const LoraPart *p = &w->lora->part[i];
        if (t_has(p->b->g))
            op_gemm(c->be, p->b->g, t_cols(dy, p->at, p->rows), t_cols(low, p->from, p->r), none,
                    param_grad_flags(p->b));
    }
    if (t_has(a->g)) op_gemm(c->be, a->g, back, seen, none, param_grad_flags(a));
    arena_reset(c->scratch, mark);
}

/* ---- experts: an A that all of them share is a stack of one, which grouped products take as such ---- */

static Tensor rows_scratch(Ctx *c, const LoraRows *by, Tensor like, int64_t cols)
{
    return t_rows(scratch2(c, (DType)like.dtype, by->room, cols), 0, like.n[0]);
}

static Tensor rows_seen(Ctx *c, const LoraRows *by, Tensor x, const Param *w)
{
    if (!lora_drops(c, w)) return x;
    Tensor y = rows_scratch(c, by, x, x.n[1]);
    drop(c, y, x, w, false);
    return y;
}

int64_t lora_width(const Param *w) { return w->lora ? w->lora->a->w.n[w->lora->a->rank - 2] : 0; }

void lora_rows_low(Ctx *c, Tensor low, Tensor x, const Param *w, const LoraRows *by)
{
    const Lora *l = w->lora;
    ArenaMark mark = arena_mark(c->scratch);
    op_grouped_scaled(c->be, low, rows_seen(c, by, x, w), l->a->w, by->offsets, l->part[0].scale, GEMM_NT);
    arena_reset(c->scratch, mark);
}

Tensor lora_rows_back(Ctx *c, Tensor dy, const Param *w, const LoraRows *by)
{
    if (!w->lora) return none;
    Tensor back = rows_scratch(c, by, dy, lora_width(w));
    op_grouped_scaled(c->be, back, dy, w->lora->part[0].b->w, by->offsets, w->lora->part[0].scale, GEMM_NN);
    return back;
}

Tail lora_tail(Tensor low, const Param *w)
{
    return w->lora ? (Tail){ low, w->lora->part[0].b->w } : (Tail){ none, none };
}

Tail lora_back_tail(const Ctx *c, Tensor back, const Param *w)
{
    return w->lora && !lora_drops(c, w) ? (Tail){ back, w->lora->a->w } : (Tail){ none, none };
}

void lora_rows_input(Ctx *c, Tensor dx, Tensor back, const Param *w, const LoraRows *by)
{
    if (!lora_drops(c, w)) return;
    ArenaMark mark = arena_mark(c->scratch);
    Tensor through = rows_scratch(c, by, dx, dx.n[1]);
    op_grouped_gemm(c->be, through, back, w->lora->a->w, by->offsets, (Tail){ none, none }, GEMM_NN);
    drop(c, dx, through, w, true);
    arena_reset(c->scratch, mark);
}

void lora_rows_grads(Ctx *c, Tensor dy, Tensor low, Tensor back, Tensor x, const Param *w, const LoraRows *by)
{
    if (!w->lora || w->lora->a->frozen) return;
    ArenaMark mark = arena_mark(c->scratch);
    Param *a = w->lora->a, *b = w->lora->part[0].b;
    Tail   tail = { none, none };
    if (t_has(b->g)) op_grouped_gemm(c->be, b->g, dy, low, by->offsets, tail, param_grad_flags(b));
    if (t_has(a->g))
        op_grouped_gemm(c->be, a->g, back, rows_seen(c, by, x, w), by->offsets, tail, param_grad_flags(a));
    arena_reset(c->scratch, mark);
}
