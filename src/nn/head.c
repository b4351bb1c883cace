/* nn/head.c -- see head.h. */
#include "nn/head.h"

#include "nn/rows.h"

int64_t head_chunk_rows(int64_t V, int64_t logits)
{
    int64_t rows = logits / V, most = logits >> 12;   /* small vocabularies: no more rows than large ones */
    return rows < 16 ? 16 : rows > most ? most : rows;
}

/* The columns of real ids; the columns behind them are padding, which does not enter the loss. */
static Tensor real_of(const Head *h, Tensor z) { return t_cols(z, 0, h->w->shard.real_rows); }

/* A chunk of rows: normalised rows n and their gradient dn, labels, results of the loss. */
typedef struct HeadChunk { Tensor n, dn, labels, logits, part, lse, loss, each; Factor scale; } HeadChunk;

static Tensor logits_grad(const Pass *c, const HeadChunk *k)
{
    bool alike = c->env->dtype == c->env->logits_dtype;
    return alike ? k->logits : scratch2(c, c->env->dtype, k->logits.n[0], k->logits.n[1]);
}

/* The loss, and dz where it is wanted. Ranks of tp exchange parts before they know the gradient. */
static void logits_loss(const Pass *c, const Head *h, const HeadChunk *k, Tensor dz)
{
    int64_t from = h->w->shard.first_row;
    bool    whole = mesh_size(c->env->mesh, AX_TP) == 1, back = t_has(dz);
    Tensor  z = real_of(h, k->logits);
    if (whole && back) op_ce_grad(c->be, k->part, real_of(h, dz), z, k->labels, k->scale);
    else               op_ce_part(c->be, k->part, z, k->labels, from);
    op_ce_join(c->be, k->loss, k->lse, k->each, all_rows(c, k->part), k->labels, k->scale);
    if (!whole && back) op_ce_bwd(c->be, real_of(h, dz), z, k->lse, k->labels, from, k->scale);
}

static void weights_grad(const Pass *c, const Head *h, const HeadChunk *k, Tensor dz)
{
    int64_t real = h->w->shard.real_rows, padding = dz.n[1] - real;
    if (padding) op_fill(c->be, t_cols(dz, real, padding), 0.0f);
    linear_bwd(c, k->dn, dz, k->n, h->w, NULL);
}

/* One chunk of rows: logits of this rank's part of the vocabulary and the loss; with `back` gradients of the
 * weights and this part's share of the gradient of the rows (dn). */
static void chunk_loss(const Pass *c, const Head *h, HeadChunk k, bool back)
{
    int64_t rows = k.n.n[0];
    ArenaMark mark = arena_mark(c->scratch);
    k.logits = scratch2(c, c->env->logits_dtype, rows, h->w->shard.shape[0]);
    k.lse = scratch2(c, F32, rows, 1), k.part = scratch2(c, F64, rows, 3);
    Tensor dz = back ? logits_grad(c, &k) : (Tensor){ 0 };
    linear_fwd(c, k.logits, k.n, h->w, NULL);
    logits_loss(c, h, &k, dz);
    if (back) weights_grad(c, h, &k, dz);
    arena_reset(c->scratch, mark);
}

static Tensor rows_of(Tensor t, int64_t from, int64_t n) { return t_has(t) ? t_rows(t, from, n) : t; }

/* The backward of the norm is linear in dn, so shares of dn can go through it and be summed after. */
static void norm_bwd(const Pass *c, const Head *h, Tensor dx, Tensor dn, Tensor xs, Tensor rstd, Tensor rows)
{
    ArenaMark mark = arena_mark(c->scratch);
    Tensor part = t_has(dx) ? part_rows(c, dx) : dx;
    op_rmsnorm_bwd(c->be, dn, h->norm->shard.g, dn, xs, norm_weight(c, h->norm), rstd, (Tensor){ 0 });
    if (t_has(dx)) {
        op_fill(c->be, part, 0.0f);
        op_scatter_rows(c->be, part, dn, rows, false);
        sum_rows(c, dx, part);
    }
    arena_reset(c->scratch, mark);
}

static void take_rows(const Pass *c, Tensor xs, Tensor x, Tensor rows)
{
    ArenaMark mark = arena_mark(c->scratch);
    op_gather_rows(c->be, xs, all_rows(c, x), rows, 1);
    arena_reset(c->scratch, mark);
}

void head_loss(const Pass *c, const Head *h, Tensor loss, Tensor dx, Tensor x, Factor scale, bool back)
{
    int64_t S = c->batch->supervised, D = x.n[1];
    Pass   chunk = *c;
    Tensor none = { 0 };
    ArenaMark mark = arena_mark(c->scratch);
    ledger_enter(&c->be->ledger, PART_HEAD);
    Tensor rows = t_rows(c->batch->sup_row, 0, S), labels = t_rows(c->batch->sup_label, 0, S);
    Tensor xs = scratch2(c, c->env->dtype, S, D), n = scratch2(c, c->env->dtype, S, D);
    Tensor rstd = scratch2(c, F32, S, 1);
    Tensor dn = t_has(dx) || (back && is_trainable(h->norm)) ? scratch2(c, c->env->dtype, S, D) : none;
    take_rows(c, xs, x, rows);
    op_rmsnorm_fwd(c->be, n, rstd, none, xs, none, norm_weight(c, h->norm), h->eps);
    for (int64_t i = 0; i < S; i += h->chunk) {
        int64_t k = S - i < h->chunk ? S - i : h->chunk;
        chunk.first_row = i;
        chunk_loss(&chunk, h, (HeadChunk){ .n = t_rows(n, i, k), .dn = rows_of(dn, i, k), .scale = scale,
                                           .labels = t_rows(labels, i, k), .each = rows_of(c->row_loss, i, k),
                                           .loss = mesh_at(c->env->mesh, AX_TP) ? none : loss }, back);
    }
    if (t_has(dn)) norm_bwd(c, h, dx, dn, xs, rstd, rows);
    arena_reset(c->scratch, mark);
}

/* y (n, V) from the vocabulary parts of all ranks, one below the other; the last ones may reach past V. */
static void join_vocab_parts(const Pass *c, Tensor y, Tensor parts)
{
    int64_t n = y.n[0], V = y.n[1], wide = parts.n[1];
    for (int64_t from = 0, i = 0; from < V; from += wide, i++) {
        int64_t cols = V - from < wide ? V - from : wide;
        op_copy(c->be, t_cols(y, from, cols), t_cols(t_rows(parts, i * n, n), 0, cols));
    }
}

void head_logits(const Pass *c, const Head *h, Tensor y, Tensor x, int64_t from)
{
    bool cut = mesh_size(c->env->mesh, AX_TP) > 1;
    Tensor none = { 0 };
    ArenaMark mark = arena_mark(c->scratch);
    Tensor rows = t_rows(x, from, y.n[0]);
    Tensor n = scratch2(c, c->env->dtype, y.n[0], x.n[1]), rstd = scratch2(c, F32, y.n[0], 1);
    Tensor z = cut ? scratch2(c, (DType)y.dtype, y.n[0], h->w->shard.shape[0]) : y;
    op_rmsnorm_fwd(c->be, n, rstd, none, rows, none, norm_weight(c, h->norm), h->eps);
    linear_fwd(c, z, n, h->w, NULL);
    if (cut) join_vocab_parts(c, y, all_rows(c, z));
    arena_reset(c->scratch, mark);
}

void head_describe(Description *d, const TextShape *t)
{
    describe_vector(d, offsetof(Head, norm), (double)t->D);
    describe_step(d, (LayerStep){ .linear = t->tied ? LINEAR_NO : LINEAR_HEAD, .rows = ROWS_GATHERED,
                                  .param = offsetof(Head, w), .in = (double)t->D, .out = (double)t->V,
                                  .out_cut = CUT_TP });
}
