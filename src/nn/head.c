/* nn/head.c -- see head.h. */
#include "nn/head.h"

int64_t head_chunk_rows(int64_t V, int64_t logits)
{
    int64_t rows = logits / V, most = logits >> 12;   /* a small vocabulary wants no more rows than a large */
    return rows < 16 ? 16 : rows > most ? most : rows;
}

/* One chunk: logits, their loss, and in training the gradient of its rows (dn) and of the weights. */
static void chunk_loss(Ctx *c, const Head *h, Tensor loss, Tensor each, Tensor dn, Tensor n, Tensor labels,
                       float scale)
{
    int64_t rows = n.n[0];
    Tensor none = { 0 };
    ArenaMark mark = arena_mark(c->scratch);
    Tensor logits = scratch2(c, c->logits, rows, h->V), lse = scratch2(c, F32, rows, 1);
    op_gemm(c->be, logits, n, h->w->w, none, GEMM_NT);
    op_ce_fwd(c->be, loss, lse, logits, labels, scale);
    if (t_has(each)) op_ce_rows(c->be, each, logits, lse, labels);
    if (t_has(dn)) {
        Tensor dz = c->dtype == c->logits ? logits : scratch2(c, c->dtype, rows, h->V);
        op_ce_bwd(c->be, dz, logits, lse, labels, scale);
        linear_bwd(c, dn, dz, n, h->w, NULL);
    }
    arena_reset(c->scratch, mark);
}

static Tensor rows_of(Tensor t, int64_t from, int64_t n) { return t_has(t) ? t_rows(t, from, n) : t; }

void head_loss(Ctx *c, const Head *h, Tensor loss, Tensor dx, Tensor x, float scale)
{
    int64_t S = c->batch->supervised, D = x.n[1];
    Tensor none = { 0 };
    ArenaMark mark = arena_mark(c->scratch);
    ledger_enter(&c->be->ledger, PART_HEAD);
    Tensor rows = t_rows(c->batch->sup_row, 0, S), labels = t_rows(c->batch->sup_label, 0, S);
    Tensor xs = scratch2(c, c->dtype, S, D), n = scratch2(c, c->dtype, S, D), rstd = scratch2(c, F32, S, 1);
    Tensor dn = t_has(dx) ? scratch2(c, c->dtype, S, D) : none;
    op_gather_rows(c->be, xs, x, rows, 1);
    op_rmsnorm_fwd(c->be, n, rstd, none, xs, none, h->norm->w, h->eps);
    for (int64_t i = 0; i < S; i += h->chunk) {
        int64_t k = S - i < h->chunk ? S - i : h->chunk;
        chunk_loss(c, h, loss, rows_of(c->each, i, k), rows_of(dn, i, k), t_rows(n, i, k),
                   t_rows(labels, i, k), scale);
    }
    if (t_has(dx)) {
        op_rmsnorm_bwd(c->be, dn, h->norm->g, dn, xs, h->norm->w, rstd, none);
        op_fill(c->be, dx, 0.0f);
        op_scatter_rows(c->be, dx, dn, rows, false);
    }
    arena_reset(c->scratch, mark);
}

void head_logits(Ctx *c, const Head *h, Tensor y, Tensor x, int64_t from)
{
    Tensor none = { 0 };
    ArenaMark mark = arena_mark(c->scratch);
    Tensor rows = t_rows(x, from, y.n[0]);
    Tensor n = scratch2(c, c->dtype, y.n[0], x.n[1]), rstd = scratch2(c, F32, y.n[0], 1);
    op_rmsnorm_fwd(c->be, n, rstd, none, rows, none, h->norm->w, h->eps);
    op_gemm(c->be, y, n, h->w->w, none, GEMM_NT);
    arena_reset(c->scratch, mark);
}
