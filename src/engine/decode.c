/* engine/decode.c -- see decode.h. */
#include "engine/decode.h"

#include <stdlib.h>

Status decode_open(Decode *d, Engine *e)
{
    int64_t docs = e->conf.decode.docs, T = e->conf.budget.tokens;
    *d = (Decode){ .e = e };
    REQUIRE(docs > 0, "decode: the engine was opened without EngineConf.decode");
    d->slot   = calloc((size_t)docs, sizeof *d->slot);
    d->len    = calloc((size_t)docs, sizeof *d->len);
    d->next   = calloc((size_t)docs, sizeof *d->next);
    d->host   = calloc((size_t)(T + 7 * docs + 1), sizeof *d->host);
    d->logits = calloc((size_t)(docs * e->model.head.V), sizeof *d->logits);
    if (d->slot && d->len && d->next && d->host && d->logits) return OK;
    decode_close(d);
    return fail(E_FIT, "no host memory for the logits of %lld documents", (long long)docs);
}

void decode_close(Decode *d)
{
    free(d->slot), free(d->len), free(d->next), free(d->host), free(d->logits);
    *d = (Decode){ 0 };
}

/* Places what all passes share at the bottom of the activation arena. */
static void lay_out(Decode *d)
{
    Engine *e = d->e;
    const TextShape *t = &e->model.shape.text;
    Arena  *a = &e->arena[A_ACT];
    int64_t docs = e->conf.decode.docs, T = e->conf.budget.tokens;
    arena_clear(a), arena_clear(&e->arena[A_SCRATCH]);
    d->cache = (Cache){ .docs = docs, .rows = T + docs * e->conf.decode.tokens,
                        .tokens = T > docs ? T : docs };
    cache_layout(&d->cache, a, e->conf.dtype, t->L, t->G * t->C);
    d->row  = (Batch){ .ids = t1(a, "ids", I32, docs), .pos = t2(a, "positions", I32, 3, docs) };
    d->last = t1(a, "rows", I32, docs);
    d->loss = t1(a, "loss", F64, 1);
    d->mark = arena_mark(a);
    d->pass = engine_pass(e, EVAL, e->at, 0, &e->arena[e->plan.eval_scratch]);
    d->pass.cache = &d->cache, d->pass.batch = &d->batch, d->pass.row_loss = (Tensor){ 0 };
}

/* Hidden states of d->batch, then logits of n of its rows: those in `last`, or the first n. */
static void run_pass(Decode *d, int64_t n, bool gather)
{
    Engine *e = d->e;
    const Pass *c = &d->pass;
    const TextShape *t = &e->model.shape.text;
    int64_t L = t->L, D = t->D, V = t->V, chunk = e->model.head.chunk;
    arena_reset(c->act, d->mark);
    model_hidden_states(c, &e->model, &e->act[0]);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor x = e->act[0].x[L];
    if (gather) {
        x = t2(c->scratch, "scratch", e->conf.dtype, n, D);
        op_gather_rows(c->be, x, e->act[0].x[L], t_rows(d->last, 0, n), 1);
    }
    Tensor y = t2(c->scratch, "scratch", F32, n < chunk ? n : chunk, V);
    ledger_enter(&c->be->ledger, PART_HEAD);
    for (int64_t i = 0; i < n; i += chunk) {
        Tensor z = t_rows(y, 0, n - i < chunk ? n - i : chunk);
        model_rows_logits(c, &e->model, z, x, i);
        if (d->logits) backend_fetch(c->be, d->logits + i * V, z);
    }
    arena_reset(c->scratch, mark);
}

/* Gives each document adjacent cache rows, with decode.tokens to grow. */
static void assign_rows(Decode *d, const Stream *s)
{
    int64_t row = 0;
    d->n = s->docs;
    for (int64_t i = 0; i < s->docs; i++) {
        d->slot[i] = (int32_t)row, d->len[i] = s->start[i + 1] - s->start[i];
        row += d->len[i] + d->e->conf.decode.tokens;
    }
}

/* Cuts documents to their prompts: cache rows after them are not read, and later tokens overwrite them. The
 * next position is one past the largest of the prompt, which after a picture is that of its longer side. */
static void cut_to_prompts(Decode *d, const Stream *s, const int32_t *tokens)
{
    int64_t T = s->budget.tokens;
    for (int64_t i = 0; i < s->docs; i++) {
        int32_t top = -1, n = tokens ? tokens[i] : d->len[i];
        REQUIRE(n >= 1 && n <= d->len[i], "decode: a prompt of %d tokens of %d", n, d->len[i]);
        for (int64_t t = s->start[i]; t < s->start[i] + n; t++)
            for (int axis = 0; axis < 3; axis++)
                if (s->pos[axis * T + t] > top) top = s->pos[axis * T + t];
        d->len[i] = n, d->next[i] = top + 1;
    }
}

Status decode_prompts(Decode *d, const Stream *s, const int32_t *tokens)
{
    Engine *e = d->e;
    int64_t docs = e->conf.decode.docs;
    int32_t *last = d->host, *at = last + docs;
    REQUIRE(s->docs >= 1 && s->docs <= docs && s->budget.tokens == e->conf.budget.tokens &&
            s->budget.patches == e->conf.budget.patches, "decode: %lld prompts of %lld", (long long)s->docs,
            (long long)docs);
    lay_out(d);
    assign_rows(d, s);
    for (int64_t i = 0; i < s->docs; i++) {
        last[i] = (tokens ? s->start[i] + tokens[i] : s->start[i + 1]) - 1;
        for (int32_t t = s->start[i]; t < s->start[i + 1]; t++) at[t] = d->slot[i] + t - s->start[i];
    }
    engine_upload(e, s);
    d->batch = batch_trim(engine_batch(e), s);
    backend_upload(&e->be, t_rows(d->last, 0, s->docs), last);
    cache_upload(&d->cache, &e->be, &(CachePass){ s->docs, s->tokens, s->start, d->slot, d->len, at });
    run_pass(d, s->docs, true);
    cut_to_prompts(d, s, tokens);
    return backend_sync(&e->be);
}

Status decode_loss(Decode *d, int64_t from, int64_t n, double *ce)
{
    Engine *e = d->e;
    Batch   some = d->batch;
    Pass    pass = d->pass;
    some.supervised = n;
    some.sup_row = t_rows(some.sup_row, from, n), some.sup_label = t_rows(some.sup_label, from, n);
    pass.batch = &some;
    op_fill(&e->be, d->loss, 0.0f);
    head_loss(&pass, &e->model.head, d->loss, (Tensor){ 0 }, e->act[0].x[e->model.shape.text.L], 1.0f,
              false);
    backend_fetch(&e->be, ce, d->loss);
    return backend_sync(&e->be);
}

/* A batch of one token for each of n documents. */
static Batch token_batch(Decode *d, int64_t n, const int32_t *id, const int32_t *pos)
{
    Batch b = { .T = n, .Ta = n, .real = n, .groups = 1, .ids = t_rows(d->row.ids, 0, n) };
    b.pos = t_wrap(d->row.pos.data, I32, 2, (int64_t[]){ 3, n });
    if (!id) return b;
    backend_upload(&d->e->be, b.ids, id);
    backend_upload(&d->e->be, b.pos, pos);
    return b;
}

Status decode_step(Decode *d, int64_t n, const int32_t *doc, const int32_t *id)
{
    int32_t *pos = d->host, *start = pos + 3 * n, *slot = start + n + 1, *used = slot + n, *at = used + n;
    REQUIRE(n >= 1 && n <= d->n, "decode: %lld documents of %lld", (long long)n, (long long)d->n);
    for (int64_t i = 0; i < n; i++) {
        int32_t k = doc[i];
        int64_t end = k + 1 < d->n ? d->slot[k + 1] : d->cache.rows;
        REQUIRE(k >= 0 && k < d->n && (!i || k > doc[i - 1]) && d->slot[k] + d->len[k] < end,
                "decode: document %d is at its capacity", k);
        for (int axis = 0; axis < 3; axis++) pos[axis * n + i] = d->next[k];
        start[i] = (int32_t)i, slot[i] = d->slot[k], at[i] = d->slot[k] + d->len[k];
        used[i] = ++d->len[k], d->next[k]++;
    }
    start[n] = (int32_t)n;
    d->batch = token_batch(d, n, id, pos);
    cache_upload(&d->cache, &d->e->be, &(CachePass){ n, n, start, slot, used, at });
    run_pass(d, n, false);
    return backend_sync(&d->e->be);
}

void decode_plan(Engine *e)
{
    Decode  d = { .e = e };
    int64_t docs = e->conf.decode.docs;
    lay_out(&d);
    d.batch = *engine_batch(e);
    cache_upload(&d.cache, &e->be, &(CachePass){ .n = docs, .T = engine_batch(e)->T });
    run_pass(&d, docs, true);
    head_loss(&d.pass, &e->model.head, d.loss, (Tensor){ 0 }, e->act[0].x[e->model.shape.text.L], 1.0f,
              false);
    d.batch = token_batch(&d, docs, NULL, NULL);
    cache_upload(&d.cache, &e->be, &(CachePass){ .n = docs, .T = docs });
    run_pass(&d, docs, false);
}
