/* nn/attention_mla_decode.c -- latent attention over a cache of latents: see attention_mla.h.
 *
 * A row of the cache is the normed latent of keys and values, then the rotated part of the keys, for all
 * heads. The up projection of a head is a matrix of keys Uk (nope, kv_rank) and one of values Uv
 * (v, kv_rank):
 *
 *   score = q_nope (Uk c)' + q_rope k_rope' = [q_nope Uk, q_rope] [c, k_rope]'      o = (sum of p c) Uv'
 *
 * and attention runs with one key head of kv_rank + rope and values of kv_rank; no head has keys of its
 * own. */
#include "nn/attention_mla.h"

#include "nn/lora.h"
#include "nn/rows.h"
#include "nn/weight_panel.h"

static const Tensor none = { 0 };

Tensor mla_cache_latents(const Pass *c, const Mla *m, const MlaAct *a, Tensor cs)
{
    ArenaMark mark = arena_mark(c->scratch);
    int64_t   kr = m->shape.kv_rank, rope = m->shape.rope, Ta = all_rows_count(c, a->n);
    Tensor    row = scratch2(c, (DType)a->n.dtype, Ta, kr + rope), to = t_heads(row, kr, 1, rope);
    op_copy(c->be, t_cols(row, 0, kr), all_rows(c, a->latent_kv));
    op_turn_fwd(c->be, to, mla_shared_keys(c, m, a), cs, m->pairs);
    Tensor all = cache_write_latents(&c->cache->full, c->be, m->index, row);
    arena_reset(c->scratch, mark);
    return all;
}

/* Rows from .. of the up projection, `rows` of them, applied to x from one side or the other: y = x U or
 * y = x U'. The adapter of these rows is applied in the same way. */
typedef struct UpRows { const Param *of; int64_t from, rows; } UpRows;

static void lora_times_rows(const Pass *c, Tensor y, Tensor x, UpRows u, bool transposed)
{
    const Lora *l = u.of->lora;
    if (!l) return;
    REQUIRE(l->parts == 1, "latent attention: %d adapters of its up projection", l->parts);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor    low = scratch2(c, (DType)x.dtype, x.n[0], l->part[0].r), A = param_w(l->a);
    Tensor    B = t_rows(param_w(l->part[0].b), u.from, u.rows);
    int       mode = transposed ? GEMM_NT : GEMM_NN;
    op_gemm_scaled(c->be, low, x, transposed ? A : B, l->part[0].scale, (Dropout){ 0 }, mode);
    op_gemm(c->be, y, low, transposed ? B : A, none, mode | GEMM_ACC);
    arena_reset(c->scratch, mark);
}

static void times_rows(const Pass *c, Tensor y, Tensor x, UpRows u)
{
    for (WeightPanel p = panel_open_rows(c, u.of, u.from, u.rows); panel_next(c, &p);)
        op_gemm(c->be, y, t_cols(x, p.from, p.n), p.w, none, GEMM_NN | (p.from ? GEMM_ACC : 0));
    lora_times_rows(c, y, x, u, false);
}

static void times_rows_transposed(const Pass *c, Tensor y, Tensor x, UpRows u)
{
    for (WeightPanel p = panel_open_rows(c, u.of, u.from, u.rows); panel_next(c, &p);)
        op_gemm(c->be, t_cols(y, p.from, p.n), x, p.w, none, GEMM_NT);
    lora_times_rows(c, y, x, u, true);
}

static UpRows key_rows(const Mla *m, MlaShare s, int64_t h)
{
    return (UpRows){ m->w_up_kv, h * (s.nope + s.v), s.nope };
}
static UpRows value_rows(const Mla *m, MlaShare s, int64_t h)
{
    return (UpRows){ m->w_up_kv, h * (s.nope + s.v) + s.nope, s.v };
}

/* (Ta, H (kv_rank + rope)): queries of latents. */
static Tensor latent_queries(const Pass *c, const Mla *m, const MlaAct *a, MlaShare s)
{
    int64_t kr = m->shape.kv_rank, width = kr + s.rope;
    Tensor  q = scratch2(c, (DType)a->q.dtype, a->q.n[0], s.H * width);
    for (int64_t h = 0; h < s.H; h++)
        times_rows(c, t_cols(q, h * width, kr), t_cols(a->q, h * s.qk, s.nope), key_rows(m, s, h));
    op_copy(c->be, mla_parts(q, s.H, kr, s.rope), mla_parts(a->q, s.H, s.nope, s.rope));
    return q;
}

void mla_attend_latents(const Pass *c, const Mla *m, MlaAct *a, Tensor latents)
{
    ArenaMark mark = arena_mark(c->scratch);
    MlaShare  s = mla_share(c, m);
    int64_t   kr = m->shape.kv_rank, width = kr + s.rope;
    Tensor    q = latent_queries(c, m, a, s), k = t_heads(latents, 0, 1, width);
    Tensor    sum = scratch2(c, (DType)a->q.dtype, a->q.n[0], s.H * kr);
    op_attention_fwd(c->be, t_heads(sum, 0, s.H, kr), a->lse, t_heads(q, 0, s.H, width), k, t_cols(k, 0, kr),
                     c->cache->full.seg, m->scale);
    for (int64_t h = 0; h < s.H; h++)
        times_rows_transposed(c, t_cols(a->o, h * s.v, s.v), t_cols(sum, h * kr, kr), value_rows(m, s, h));
    arena_reset(c->scratch, mark);
}
