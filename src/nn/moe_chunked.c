/* nn/moe_chunked.c -- an MoE layer whose rows do not fit at once, processed in chunks of its tokens. */
#include "nn/lora.h"
#include "nn/moe_private.h"

typedef struct MoeChunk {
    Pass    pass;
    MoeAct  act;
    int64_t from, n;                     /* its tokens */
} MoeChunk;

/* The buffers of expert rows hold `rows` rows while a chunk is at work. */
static Tensor with_rows(Tensor t, int64_t rows)
{
    t.n[0] = t_has(t) ? rows : 0;
    return t;
}

/* Builds the routing of chunk w; false: the group lost a rank, which is the backend's error then. It yields
 * to another micro-batch as often as a layer that runs at once, in the first chunk: ranks of other groups,
 * which may run this layer at once, must see the same turns. */
static bool chunk_open(MoeChunk *k, const Pass *c, const Moe *m, const MoeAct *a, int64_t w)
{
    Dispatcher *d = c->env->dispatcher;
    int64_t T = a->idx.n[0], rows = d->row_capacity;
    k->from = T * w / a->token_chunks, k->n = T * (w + 1) / a->token_chunks - k->from;
    k->pass = *c, k->act = *a;
    k->pass.first_row = w * rows;
    if (w) k->pass.yielder = NULL;
    k->act.is_chunk = true, k->act.weight = t_rows(a->weight, k->from, k->n);
    k->act.x = with_rows(a->x, rows), k->act.gu = with_rows(a->gu, rows), k->act.h = with_rows(a->h, rows);
    k->act.a_out_gu = with_rows(a->a_out_gu, rows), k->act.a_out_d = with_rows(a->a_out_d, rows);
    bool fits = d->ops->build_routing(&k->pass, m, &k->act, t_rows(a->kept, k->from, k->n));
    REQUIRE(fits || c->be->sticky, "MoE layer %d: a chunk of %lld tokens has %lld rows", m->index,
            (long long)k->n, (long long)d->max_rows);
    return fits;
}

static Tensor chunk_rows(const MoeChunk *k, Tensor t) { return t_has(t) ? t_rows(t, k->from, k->n) : t; }

/* The buffers that all chunks share, as large as those of a layer that runs at once; a replay has them too,
 * and backward fills them. None of their rows outlives its chunk, so none is left for an offload to copy. */
static void need_buffers(const Pass *c, const Moe *m, MoeAct *a, Tensor x)
{
    int64_t rows = c->env->dispatcher->row_capacity, F = m->w_gu->shard.shape[1] / 2;
    need(c, L_DISPATCH, &a->x, x.dtype, rows, x.n[1]);
    if (m->w_gu->lora) need(c, L_LORA, &a->a_out_gu, x.dtype, rows, lora_a_cols(m->w_gu));
    need(c, L_GATE_UP, &a->gu, x.dtype, rows, 2 * F);
    need(c, L_ACT, &a->h, x.dtype, rows, F);
    if (m->w_d->lora) need(c, L_LORA, &a->a_out_d, x.dtype, rows, lora_a_cols(m->w_d));
    a->x = with_rows(a->x, 0), a->gu = with_rows(a->gu, 0), a->h = with_rows(a->h, 0);
    a->a_out_gu = with_rows(a->a_out_gu, 0), a->a_out_d = with_rows(a->a_out_d, 0);
}

void moe_chunked_fwd(const Pass *c, const Moe *m, MoeAct *a, Tensor y, Tensor x, Tensor res, bool fresh)
{
    need_buffers(c, m, a, x);
    c->be->ledger.chunked_layers += fresh;
    for (int64_t w = 0; w < a->token_chunks && t_has(y); w++) {
        MoeChunk k;
        ArenaMark mark = arena_mark(c->scratch);
        if (!chunk_open(&k, c, m, a, w)) break;
        moe_experts_fwd(&k.pass, m, &k.act, chunk_rows(&k, y), chunk_rows(&k, x), chunk_rows(&k, res),
                        fresh && w == 0);
        arena_reset(c->scratch, mark);
    }
}

/* Recomputes the rows of a chunk, which yields to no other micro-batch. */
static void recompute_chunk(const Pass *c, const Moe *m, MoeChunk *k, Tensor x)
{
    Tensor none = { 0 };
    Pass replay = k->pass;
    replay.yielder = NULL;
    moe_experts_fwd(&replay, m, &k->act, none, chunk_rows(k, x), none, false);
    c->be->ledger.replay = false;
}

void moe_chunked_bwd(const Pass *c, const Moe *m, MoeAct *a, Tensor dx, Tensor dweight, Tensor dy, Tensor x)
{
    for (int64_t w = 0; w < a->token_chunks; w++) {
        MoeChunk k;
        ArenaMark mark = arena_mark(c->scratch);
        c->be->ledger.replay = true;
        if (!chunk_open(&k, c, m, a, w)) break;
        recompute_chunk(c, m, &k, x);
        moe_experts_bwd(&k.pass, m, &k.act, chunk_rows(&k, dx), chunk_rows(&k, dweight), chunk_rows(&k, dy),
                        chunk_rows(&k, x));
        arena_reset(c->scratch, mark);
    }
    c->be->ledger.replay = false;
}
