/* nn/vision.c -- see vision.h. */
#include "nn/vision.h"

#include "nn/product.h"

#include <math.h>

static const float LN_EPS = 1e-6f;                           /* a constant of the model, not of its config */

static Tensor part(const Vision *v, Tensor qkv, int i)       /* q, k or v of a (P, 3D) buffer as (P, H, C) */
{
    return t_heads(qkv, i * v->D, v->H, v->D / v->H);
}
static Tensor whole(const Vision *v, Tensor t) { return t_heads(t, 0, v->H, v->D / v->H); }

/* q and k, whose heads lie side by side. */
static Tensor rotated(const Vision *v, Tensor qkv) { return t_heads(qkv, 0, 2 * v->H, v->D / v->H); }

static void block_attention(const Pass *c, const Vision *v, const VisionBlock *m, BlockAct *a, Tensor cs)
{
    int64_t P = a->x.n[0], D = v->D;
    DType d = (DType)a->x.dtype;
    Tensor none = { 0 };
    need(c, L_V_STAT, &a->stat1, F32, P, 2);
    if (need(c, L_V_NORM, &a->n1, d, P, D))
        op_layernorm_fwd(c->be, a->n1, a->stat1, a->x, m->norm1_w->shard.w, m->norm1_b->shard.w, LN_EPS);
    if (need(c, L_V_QKV, &a->qkv, d, P, 3 * D)) {
        linear_fwd(c, a->qkv, a->n1, m->w_qkv, m->b_qkv);
        op_rope_fwd(c->be, rotated(v, a->qkv), none, rotated(v, a->qkv), none, cs, 0.0f);
    }
    need(c, L_V_STAT, &a->lse, F32, v->H, P);
    if (need(c, L_V_CORE, &a->o, d, P, D))
        op_attention_fwd(c->be, whole(v, a->o), a->lse, part(v, a->qkv, 0), part(v, a->qkv, 1),
                         part(v, a->qkv, 2), c->batch->vseg, 1.0f / sqrtf((float)(D / v->H)));
}

/* The projection and its activation, in one product where both are wanted and nothing is added between. */
static void up_fwd(const Pass *c, const Vision *v, const VisionBlock *m, BlockAct *a)
{
    int64_t P = a->x.n[0];
    DType d = (DType)a->x.dtype;
    bool up = need(c, L_V_UP, &a->up, d, P, v->I), act = need(c, L_V_ACT, &a->act, d, P, v->I);
    if (up && act && !m->w_up->lora) {
        product_gelu(c, a->act, a->up, a->n2, m->w_up, m->b_up, v->gelu);
        return;
    }
    if (up)  linear_fwd(c, a->up, a->n2, m->w_up, m->b_up);
    if (act) op_gelu_fwd(c->be, a->act, a->up, v->gelu);
}

/* y absent: a replay. */
static void block_fwd(const Pass *c, const Vision *v, const VisionBlock *m, BlockAct *a, Tensor y, Tensor cs)
{
    int64_t P = a->x.n[0], D = v->D;
    DType d = (DType)a->x.dtype;
    block_attention(c, v, m, a, cs);
    if (need(c, L_V_RESID, &a->h, d, P, D)) linear_residual(c, a->h, a->o, m->w_o, m->b_o, a->x);
    need(c, L_V_STAT, &a->stat2, F32, P, 2);
    if (need(c, L_V_NORM, &a->n2, d, P, D))
        op_layernorm_fwd(c->be, a->n2, a->stat2, a->h, m->norm2_w->shard.w, m->norm2_b->shard.w, LN_EPS);
    up_fwd(c, v, m, a);
    if (t_has(y)) linear_residual(c, y, a->act, m->w_down, m->b_down, a->h);
}

static void block_attention_bwd(const Pass *c, const Vision *v, const VisionBlock *m, BlockAct *a, Tensor dn,
                                Tensor dh, Tensor cs)
{
    int64_t P = a->x.n[0], D = v->D;
    DType d = (DType)a->x.dtype;
    Tensor none = { 0 };
    Tensor dout = scratch2(c, d, P, D), delta = scratch2(c, F32, v->H, P), dqkv = scratch2(c, d, P, 3 * D);
    bool   deeper = t_has(dn) || is_trainable(m->w_qkv) || is_trainable(m->b_qkv);
    linear_bwd(c, deeper ? dout : none, dh, a->o, m->w_o, m->b_o);
    if (!deeper) return;
    op_attention_bwd(c->be, part(v, dqkv, 0), part(v, dqkv, 1), part(v, dqkv, 2), delta, whole(v, dout),
                     whole(v, a->o), a->lse, part(v, a->qkv, 0), part(v, a->qkv, 1), part(v, a->qkv, 2),
                     c->batch->vseg, 1.0f / sqrtf((float)(D / v->H)));
    op_rope_bwd(c->be, rotated(v, dqkv), none, rotated(v, dqkv), none, none, none, cs);
    linear_bwd(c, dn, dqkv, a->n1, m->w_qkv, m->b_qkv);
}

/* dup = gradient of the projection's output, where it is wanted; fused where nothing is added in between. */
static void down_bwd(const Pass *c, const Vision *v, const VisionBlock *m, BlockAct *a, Tensor dup, Tensor dy)
{
    if (m->w_down->lora || !t_has(dup)) {
        linear_bwd(c, dup, dy, a->act, m->w_down, m->b_down);
        if (t_has(dup)) op_gelu_bwd(c->be, dup, dup, a->up, v->gelu);
        return;
    }
    linear_grads(c, dy, (Tensor){ 0 }, a->act, m->w_down, m->b_down);
    product_dgelu(c, dup, dy, m->w_down, a->up, v->gelu);
}

static bool attention_trains(const VisionBlock *m)
{
    return is_trainable(m->w_qkv) || is_trainable(m->b_qkv) || is_trainable(m->w_o) || is_trainable(m->b_o);
}

static bool norm_trains(const Param *w, const Param *b) { return is_trainable(w) || is_trainable(b); }

/* From dy to what is before the feed-forward; dh absent where nothing there trains. */
static void feed_bwd(const Pass *c, const Vision *v, const VisionBlock *m, BlockAct *a, Tensor dn, Tensor dh,
                     Tensor dy)
{
    Tensor none = { 0 }, dup = scratch2(c, (DType)dy.dtype, dy.n[0], v->I);
    bool   normed = t_has(dh) || norm_trains(m->norm2_w, m->norm2_b);
    bool   deeper = normed || is_trainable(m->w_up) || is_trainable(m->b_up);
    down_bwd(c, v, m, a, deeper ? dup : none, dy);
    if (deeper) linear_bwd(c, normed ? dn : none, dup, a->n2, m->w_up, m->b_up);
    if (normed)
        op_layernorm_bwd(c->be, dh, m->norm2_w->shard.g, m->norm2_b->shard.g, dn, a->h, m->norm2_w->shard.w,
                         a->stat2, dy);
}

/* dx may alias dy; absent where nothing below trains. */
static void block_bwd(const Pass *c, const Vision *v, const VisionBlock *m, BlockAct *a, Tensor dx, Tensor dy,
                      Tensor cs)
{
    int64_t P = a->x.n[0], D = v->D;
    DType d = (DType)a->x.dtype;
    ArenaMark mark = arena_mark(c->scratch);
    Pass replay;
    if (replay_begin(&replay, c, L_V_STAT, L_V_ACT)) {
        block_fwd(&replay, v, m, a, (Tensor){ 0 }, cs);
        replay_end(c);
    }
    bool   normed = t_has(dx) || norm_trains(m->norm1_w, m->norm1_b), below = normed || attention_trains(m);
    Tensor none = { 0 }, dn = scratch2(c, d, P, D), dh = scratch2(c, d, P, D);
    feed_bwd(c, v, m, a, dn, below ? dh : none, dy);
    if (below) block_attention_bwd(c, v, m, a, normed ? dn : none, dh, cs);
    if (normed)
        op_layernorm_bwd(c->be, dx, m->norm1_w->shard.g, m->norm1_b->shard.g, dn, a->x, m->norm1_w->shard.w,
                         a->stat1, dh);
    arena_reset(c->scratch, mark);
}

/* y (N, O) from x (P, D); y absent: a replay. The 2x2 merge itself is a reshape: patches of a block are
 * consecutive rows. */
static void merger_fwd(const Pass *c, const Vision *v, const Merger *m, MergerAct *a, Tensor y, Tensor x)
{
    int64_t wide = v->D * v->merge * v->merge, N = x.n[0] / (v->merge * v->merge);
    DType d = (DType)x.dtype;
    Tensor rows = m->norm_after ? t_as2(x, N, wide) : x;
    a->x = x;
    need(c, L_MERGER, &a->stat, F32, rows.n[0], 2);
    if (need(c, L_MERGER, &a->n, d, rows.n[0], rows.n[1]))
        op_layernorm_fwd(c->be, a->n, a->stat, rows, m->norm_w->shard.w, m->norm_b->shard.w, LN_EPS);
    if (need(c, L_MERGER, &a->f1, d, N, wide)) linear_fwd(c, a->f1, t_as2(a->n, N, wide), m->w1, m->b1);
    if (need(c, L_MERGER, &a->a1, d, N, wide)) op_gelu_fwd(c->be, a->a1, a->f1, GELU_ERF);
    if (t_has(y)) linear_fwd(c, y, a->a1, m->w2, m->b2);
}

static bool merger_trains(const Merger *m)
{
    return is_trainable(m->norm_w) || is_trainable(m->norm_b) || is_trainable(m->w1) || is_trainable(m->b1) ||
           is_trainable(m->w2) || is_trainable(m->b2);
}

/* Whether a merger of what block b made has a backward: its own, or on the way to the blocks. */
static bool merger_goes_back(const Vision *v, const Merger *m, int64_t b)
{
    return b >= v->first_trainable || merger_trains(m);
}

/* dx = dres + gradient of x; dx absent when nothing below trains. dy absent: dx stays as it is. */
static void merger_bwd(const Pass *c, const Vision *v, const Merger *m, MergerAct *a, Tensor dx, Tensor dy,
                       Tensor dres)
{
    int64_t wide = v->D * v->merge * v->merge, N = dy.n[0];
    DType d = (DType)dy.dtype;
    ArenaMark mark = arena_mark(c->scratch);
    unit_begin(c, m->w1->unit, true);
    if (!t_has(dy)) {                                        /* no later layer read its output */
        unit_end(c, m->w1->unit, true);
        return;
    }
    ledger_enter(&c->be->ledger, PART_MERGER);
    Pass replay;
    if (replay_begin(&replay, c, L_MERGER, L_MERGER)) {
        merger_fwd(&replay, v, m, a, (Tensor){ 0 }, a->x);
        replay_end(c);
    }
    Tensor df = scratch2(c, d, N, wide), dn = scratch2(c, d, N, wide), none = { 0 };
    bool   normed = t_has(dx) || norm_trains(m->norm_w, m->norm_b);
    bool   deeper = normed || is_trainable(m->w1) || is_trainable(m->b1);
    linear_bwd(c, deeper ? df : none, dy, a->a1, m->w2, m->b2);
    if (deeper) op_gelu_bwd(c->be, df, df, a->f1, GELU_ERF);
    if (deeper) linear_bwd(c, normed ? dn : none, df, t_as2(a->n, N, wide), m->w1, m->b1);
    int64_t rows = a->n.n[0], cols = a->n.n[1];
    if (normed)
        op_layernorm_bwd(c->be, t_has(dx) ? t_as2(dx, rows, cols) : dx, m->norm_w->shard.g,
                         m->norm_b->shard.g, t_as2(dn, rows, cols), t_as2(a->x, rows,
                                                                          cols), m->norm_w->shard.w, a->stat,
                         t_has(dres) ? t_as2(dres, rows, cols) : dres);
    unit_end(c, m->w1->unit, true);
    ledger_enter(&c->be->ledger, PART_VISION);
    arena_reset(c->scratch, mark);
}

static Tensor merge(const Pass *c, const Vision *v, const Merger *m, MergerAct *a, Tensor x)
{
    Tensor y = t2(c->act, "VISUAL", (DType)x.dtype, x.n[0] / (v->merge * v->merge), v->out);
    ArenaMark mark = arena_mark(c->scratch);
    ledger_enter(&c->be->ledger, PART_MERGER);
    unit_begin(c, m->w1->unit, false);
    merger_fwd(c, v, m, a, y, x);
    unit_end(c, m->w1->unit, false);
    ledger_enter(&c->be->ledger, PART_VISION);
    arena_reset(c->scratch, mark);
    return y;
}

static Tensor patches(const Pass *c, const Vision *v, VisionAct *a)
{
    int64_t P = c->batch->P;
    Tensor x = t2(c->act, label_name(L_INPUT), c->env->dtype, P, v->D);
    a->cs = t2(c->act, "ROPE_TABLE", F32, P, v->D / v->H);
    op_rope_table(c->be, a->cs, c->batch->vpos, v->inv, v->axis);
    a->pixels = c->batch->pixels;
    if (a->pixels.dtype != c->env->dtype) {
        a->pixels = t2(c->act, "PIXELS", c->env->dtype, P, v->patch_dim);
        if (c->batch->pixels.dtype == U8) op_normalize_pixels(c->be, a->pixels, c->batch->pixels);
        else                              op_copy(c->be, a->pixels, c->batch->pixels);
    }
    linear_fwd(c, x, a->pixels, v->w_patch, v->b_patch);
    op_pos_embed_fwd(c->be, x, x, v->pos->shard.w, c->batch->cell);
    return x;
}

static const Merger *merger_of(const Vision *v, int64_t feature) { return &v->stack[v->weights[feature]]; }

/* Whether a backward will read the output of block b: that of the next one or of a merger. */
static bool is_read_later(const Vision *v, PassMode mode, int64_t b)
{
    bool kept = b + 1 >= v->first_trainable;
    for (int f = 0; f < v->deepstacks; f++) kept |= v->after[f] == b && merger_trains(merger_of(v, f));
    return kept && mode != EVAL;
}

/* Mergers whose features leave the tower after block b. */
static int merges(const Vision *v, int64_t b)
{
    int n = 0;
    for (int f = 0; f < v->deepstacks; f++) n += v->after[f] == b;
    return n;
}

static void unit_pass_by(const Pass *c, const Param *p, bool backward)
{
    unit_begin(c, p->unit, backward);
    unit_end(c, p->unit, backward);
}

/* A rank without images takes part in the collectives of parameter units and computes nothing. */
static void units_without_images(const Pass *c, const Vision *v, bool backward)
{
    int f = backward ? v->deepstacks : 0;
    if (!c->env->units) return;
    if (!backward) unit_pass_by(c, v->w_patch, false);
    else if (merger_goes_back(v, &v->merger, v->depth - 1)) unit_pass_by(c, v->merger.w1, true);
    for (int64_t i = 0; i < v->depth; i++) {
        int64_t b = backward ? v->depth - 1 - i : i;
        if (!backward) unit_pass_by(c, v->block[b].w_qkv, false);
        for (int k = merges(v, b); k > 0; k--) {
            const Merger *m = merger_of(v, backward ? --f : f++);
            if (!backward || merger_goes_back(v, m, b)) unit_pass_by(c, m->w1, backward);
        }
        if (backward && b >= v->first_trainable) unit_pass_by(c, v->block[b].w_qkv, true);
    }
    if (!backward)          unit_pass_by(c, v->merger.w1, false);
    else if (v->first_trainable < 0) unit_pass_by(c, v->w_patch, true);
}

static bool offloads_block(const Pass *c, const Vision *v, int64_t b)
{
    return b >= v->first_trainable && any_offloaded(c, L_V_STAT, L_V_ACT);
}

static void run_block_fwd(const Pass *c, const Vision *v, VisionAct *a, Tensor y, int64_t b)
{
    ArenaMark mark = arena_mark(c->scratch);
    bool offloads = c->mode == FORWARD && offloads_block(c, v, b);
    Pass block = *c;
    if (offloads) offload_open(c, &a->offload[b]), block.offload_record = &a->offload[b];
    unit_begin(c, v->block[b].w_qkv->unit, false);
    block_fwd(&block, v, &v->block[b], &a->block[b], y, a->cs);
    unit_end(c, v->block[b].w_qkv->unit, false);
    if (offloads) offload_start(c, &a->offload[b], false);
    arena_reset(c->scratch, mark);
}

static void run_block_bwd(const Pass *c, const Vision *v, VisionAct *a, Tensor dx, int64_t b)
{
    bool offloads = offloads_block(c, v, b);
    if (offloads) offload_wait(c, &a->offload[b]);
    for (int i = 1; offloads && i <= c->env->offload->buffers && b - i >= 0 &&
         b - i >= v->first_trainable; i++)
        offload_prefetch(c, &a->offload[b - i]);
    unit_begin(c, v->block[b].w_qkv->unit, true);
    block_bwd(c, v, &v->block[b], &a->block[b], b > v->first_trainable ? dx : (Tensor){ 0 }, dx, a->cs);
    unit_end(c, v->block[b].w_qkv->unit, true);
    if (offloads) offload_release(c, &a->offload[b]);
}

/* Blocks and mergers without a backward run as in evaluation and keep nothing. */
void vision_fwd(const Pass *c, const Vision *v, VisionAct *a)
{
    Pass eval = *c;
    eval.mode = EVAL;
    if (!c->batch->has_media) {
        units_without_images(c, v, false);
        return;
    }
    ledger_enter(&c->be->ledger, PART_VISION);
    unit_begin(c, v->w_patch->unit, false);
    Tensor x = patches(c, v, a);
    unit_end(c, v->w_patch->unit, false);
    for (int64_t b = 0, f = 0; b < v->depth; b++) {
        bool spent = b > 0 && !is_read_later(v, c->mode, b - 2);
        Tensor y = spent ? a->block[b - 1].x : t2(c->act, label_name(L_INPUT), c->env->dtype, x.n[0], v->D);
        a->block[b].x = x;
        backend_mark(c->be);
        run_block_fwd(b < v->first_trainable ? &eval : c, v, a, y, b);
        x = y;
        for (; f < v->deepstacks && v->after[f] == b; f++) {
            a->feature[f] = merge(merger_goes_back(v, merger_of(v, f), b) ? c : &eval, v, merger_of(v, f),
                                  &a->stack[f], x);
            tap(c, "vision.deepstack", (int)f, a->feature[f]);
        }
    }
    a->last = x;
    a->out  = merge(merger_goes_back(v, &v->merger, v->depth - 1) ? c : &eval, v, &v->merger, &a->merger, x);
    tap(c, "vision.hidden", -1, a->out);
}

static void patches_bwd(const Pass *c, const Vision *v, VisionAct *a, Tensor dx)
{
    unit_begin(c, v->w_patch->unit, true);
    if (t_has(v->pos->shard.g)) op_pos_embed_bwd(c->be, v->pos->shard.g, dx, c->batch->cell);
    linear_bwd(c, (Tensor){ 0 }, dx, a->pixels, v->w_patch, v->b_patch);
    unit_end(c, v->w_patch->unit, true);
}

void vision_bwd(const Pass *c, const Vision *v, VisionAct *a, Tensor dout, const Tensor *dfeature)
{
    if (!c->batch->has_media) {
        units_without_images(c, v, true);
        return;
    }
    ledger_enter(&c->be->ledger, PART_VISION);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor none = { 0 };
    Tensor dx = v->first_trainable < v->depth ? scratch2(c, c->env->dtype, a->last.n[0], v->D) : none;
    if (merger_goes_back(v, &v->merger, v->depth - 1))
        merger_bwd(c, v, &v->merger, &a->merger, dx, dout, none);
    int f = v->deepstacks - 1;
    for (int64_t b = v->depth - 1; b >= 0; b--) {
        Tensor through = b >= v->first_trainable ? dx : none;
        backend_mark(c->be);
        for (; f >= 0 && v->after[f] == b; f--)
            if (merger_goes_back(v, merger_of(v, f), b))
                merger_bwd(c, v, merger_of(v, f), &a->stack[f], through, dfeature[f], through);
        if (b >= v->first_trainable) run_block_bwd(c, v, a, dx, b);
    }
    if (v->first_trainable < 0) patches_bwd(c, v, a, dx);
    arena_reset(c->scratch, mark);
}
