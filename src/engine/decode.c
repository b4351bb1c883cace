/* engine/decode.c -- see decode.h. */
#include "engine/decode.h"

#include "nn/attention.h"
#include "nn/rows.h"

#include <stdlib.h>
#include <string.h>

static bool has_head(const Engine *e) { return e->model.chunk[e->model.chunks - 1].heads; }

bool decode_in_lockstep(const Engine *e)
{
    return e->mesh.size[AX_DP] > 1 && (e->dispatch.ops || e->conf.ranks.zero == 3);
}

bool decode_draws(const Decode *d) { return has_head(d->e) && d->e->mesh.at[AX_TP] == 0; }

/* Rows of a pass over n of them: tp cuts them in equal parts, and a pass has one at least. */
static int64_t padded(const Engine *e, int64_t n)
{
    int64_t tp = e->mesh.size[AX_TP];
    return n > 0 ? (n + tp - 1) / tp * tp : tp;
}

static size_t shared_bytes(const Engine *e)
{
    int64_t rows = e->conf.budget.supervised, docs = e->conf.decode.docs;
    return (size_t)(rows > docs ? rows : docs) * sizeof(float);
}

static Status allocate(Decode *d)
{
    const Engine *e = d->e;
    int64_t docs = e->conf.decode.docs, T = e->conf.budget.tokens;
    int     stages = e->mesh.size[AX_PP];
    d->slot = calloc((size_t)docs, sizeof *d->slot);
    d->len  = calloc((size_t)docs, sizeof *d->len);
    d->window_slot = calloc((size_t)docs + 1, sizeof *d->window_slot);
    d->next = calloc((size_t)docs, sizeof *d->next);
    d->host = calloc((size_t)(2 * T + 6 * padded(e, docs) + 7 * docs + 4), sizeof *d->host);
    if (has_head(e)) d->logits = calloc((size_t)(docs * e->model.head.V), sizeof *d->logits);
    if (stages > 1) d->stages = malloc((size_t)stages * shared_bytes(e));
    bool all = d->slot && d->window_slot && d->len && d->next && d->host && (d->logits || !has_head(e)) &&
               (d->stages || stages == 1);
    return all ? OK : fail(E_FIT, "no host memory for the logits of %lld documents", (long long)docs);
}

Status decode_open(Decode *d, Engine *e)
{
    *d = (Decode){ .e = e };
    REQUIRE(e->conf.decode.docs > 0, "decode: the engine was opened without EngineConf.decode");
    REQUIRE(e->mesh.size[AX_CP] == 1, "decode: cp %d", e->mesh.size[AX_CP]);
    Status st = allocate(d);
    if (st) decode_close(d);
    return st;
}

void decode_close(Decode *d)
{
    free(d->slot), free(d->window_slot), free(d->len), free(d->next), free(d->host);
    free(d->logits), free(d->stages);
    *d = (Decode){ 0 };
}

/* Latents have no memory for keys and values of heads. Attention must take heads as wide as a latent, and the
 * up projection be in the dtype of the model. */
static bool caches_latents(const Engine *e)
{
    const MlaShape *m = &e->model.shape.text.mla;
    return m->kv_rank && m->kv_rank + m->rope <= attention_widest_head(e->conf.backend) &&
           !precision_any(&e->conf.precision);
}

/* Columns of the keys of a tp rank: with fewer kv heads than ranks each has one, see nn/attention.h. Every
 * rank has whole latents. */
static int64_t row_width(const Engine *e)
{
    const TextShape *t = &e->model.shape.text;
    int64_t tp = e->mesh.size[AX_TP];
    if (caches_latents(e)) return t->mla.kv_rank + t->mla.rope;
    if (t->mla.kv_rank) return t->H / tp * (t->mla.nope + t->mla.rope);
    return (t->G < tp ? 1 : t->G / tp) * t->C;
}

/* Layers among [from, to) that cache all tokens, that cache a window of them, and delta nets. */
static int64_t of_kind(const Engine *e, const AttentionKind *k, int64_t from, int64_t to)
{
    return k->layers_below(&e->model.shape.text, to) - k->layers_below(&e->model.shape.text, from);
}
static int64_t full_layers(const Engine *e, int64_t from, int64_t to)
{
    return of_kind(e, &attention_gqa, from, to) + of_kind(e, &attention_mla, from, to);
}
static int64_t window_layers(const Engine *e, int64_t from, int64_t to)
{
    return of_kind(e, &attention_window, from, to);
}
static int64_t delta_nets(const Engine *e, int64_t from, int64_t to)
{
    return of_kind(e, &attention_gdn, from, to);
}

static int64_t layers_here(const Engine *e, int64_t (*of)(const Engine *e, int64_t from, int64_t to))
{
    int64_t n = 0;
    for (int k = 0; k < e->model.chunks; k++) n += of(e, e->model.chunk[k].from, e->model.chunk[k].to);
    return n;
}

/* Of all documents: none has more than the window, or than all its tokens. */
static int64_t window_rows(const Engine *e, int64_t rows)
{
    int64_t docs = e->conf.decode.docs, window = e->model.shape.text.window;
    return !window ? 0 : window < rows / docs + 1 ? docs * window : rows;
}

static void lay_out_rows(Decode *d, Arena *a)
{
    const Engine *e = d->e;
    Cache  *c = &d->cache;
    DType   dtype = e->conf.dtype;
    int64_t full = layers_here(e, full_layers);
    c->latent = caches_latents(e);
    cache_layout(c, a);
    cache_layout_rows(c, &c->full, a, dtype, c->latent ? full : 2 * full, row_width(e));
    cache_layout_rows(c, &c->window, a, dtype, 2 * layers_here(e, window_layers), row_width(e));
}

static void lay_out_states(Decode *d, Arena *a)
{
    const Engine   *e = d->e;
    const GdnShape *g = &e->model.shape.text.gdn;
    int64_t tp = e->mesh.size[AX_TP], K = g->key_heads / tp * g->key_dim;
    int64_t heads = g->value_heads / tp, V = heads * g->value_dim;
    if (g->every) cache_layout_states(&d->cache, a, e->conf.dtype, layers_here(e, delta_nets), heads,
                                      g->key_dim * g->value_dim, g->conv - 1, 2 * K + V);
}

/* Places what all passes share at the bottom of the activation arena. */
static void lay_out(Decode *d)
{
    Engine *e = d->e;
    Arena  *a = &e->arena[A_ACT];
    int64_t docs = e->conf.decode.docs, T = e->conf.budget.tokens, rows = padded(e, docs);
    arena_clear(a), arena_clear(&e->arena[A_SCRATCH]);
    d->cache = (Cache){ .docs = docs, .tokens = T > rows ? T : rows };
    d->cache.full.rows = T + docs * e->conf.decode.tokens;
    d->cache.window.rows = window_rows(e, d->cache.full.rows);
    lay_out_rows(d, a);
    lay_out_states(d, a);
    d->row  = (Batch){ .ids = t1(a, "ids", I32, rows), .pos = t2(a, "positions", I32, 3, rows) };
    d->last = t1(a, "rows", I32, docs);
    d->loss = t1(a, "loss", F64, 1), d->row_loss = t2(a, "loss", F32, e->conf.budget.supervised, 1);
    d->mark = arena_mark(a);
    d->pass = engine_pass(e, EVAL, e->at, 0, &e->arena[e->plan.eval_scratch]);
    d->pass.cache = &d->cache, d->pass.batch = &d->batch, d->pass.row_loss = (Tensor){ 0 };
}

size_t decode_cache_bytes(const Decode *d)
{
    const Tensor of[] = { d->cache.full.kv, d->cache.window.kv, d->cache.state, d->cache.tail };
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) bytes += t_has(of[i]) ? (size_t)t_bytes(of[i]) : 0;
    return bytes;
}

/* ---- a pass ---- */

static Tensor receive_input(Decode *d, const Chunk *k)
{
    Engine *e = d->e;
    int     n = e->mesh.size[AX_PP], at = e->mesh.at[AX_PP];
    if (k->embeds) return (Tensor){ 0 };
    Tensor  in = t_rows(e->recv[0][0], 0, model_boundary_rows(&d->batch, &e->model, k->from));
    comm_recv(e->mesh.comm[GR_pp], in, (at + n - 1) % n);
    return in;
}

/* d->batch through the chunks of this stage, each after its input has arrived. */
static void run_chunks(Decode *d)
{
    Engine *e = d->e;
    int     n = e->mesh.size[AX_PP], at = e->mesh.at[AX_PP];
    int64_t full = 0, window = 0, linear = 0;
    for (int i = 0; i < e->model.chunks; i++) {
        const Chunk *k = &e->model.chunk[i];
        arena_reset(d->pass.act, d->mark);
        d->cache.full.first   = full_layers(e, 0, k->from) - full;
        d->cache.window.first = window_layers(e, 0, k->from) - window;
        d->cache.first_linear = delta_nets(e, 0, k->from) - linear;
        full += full_layers(e, k->from, k->to), window += window_layers(e, k->from, k->to);
        linear += delta_nets(e, k->from, k->to);
        model_hidden_states(&d->pass, &e->model, i, &e->act[0], receive_input(d, k));
        if (!k->heads)
            comm_send(e->mesh.comm[GR_pp], model_output(&d->pass, &e->model, i, &e->act[0]), (at + 1) % n);
    }
}

/* The head's input for the n rows in `last`, or for the first n rows. */
static Tensor head_input(Decode *d, int64_t n, bool gather)
{
    Engine *e = d->e;
    Tensor  all = all_rows(&d->pass, e->act[0].x[e->model.shape.text.L]), some;
    if (!gather) return all;
    some = t2(d->pass.scratch, "scratch", e->conf.dtype, n, e->model.shape.text.D);
    op_gather_rows(&e->be, some, all, t_rows(d->last, 0, n), 1);
    return some;
}

static void compute_logits(Decode *d, int64_t n, bool gather)
{
    Engine *e = d->e;
    const Pass *c = &d->pass;
    int64_t V = e->model.head.V, chunk = e->model.head.chunk;
    Tensor  x = head_input(d, n, gather), y = t2(c->scratch, "scratch", F32, n < chunk ? n : chunk, V);
    for (int64_t i = 0; i < n; i += chunk) {
        Tensor z = t_rows(y, 0, n - i < chunk ? n - i : chunk);
        head_logits(c, &e->model.head, z, x, i);
        if (d->logits) backend_fetch(c->be, d->logits + i * V, z);
    }
}

/* Hidden states of d->batch, then logits of n of its rows. An error of the device is reported by the caller's
 * engine_finish_eval. */
static void run_pass(Decode *d, int64_t n, bool gather)
{
    const Pass *c = &d->pass;
    run_chunks(d);
    if (engine_wait_for_peers(d->e) || !has_head(d->e)) return;
    ArenaMark mark = arena_mark(c->scratch);
    ledger_enter(&c->be->ledger, PART_HEAD);
    model_head_begin(c, &d->e->model);
    if (n) compute_logits(d, n, gather);
    model_head_end(c, &d->e->model);
    arena_reset(c->scratch, mark);
}

/* The most that a replica has, where all replicas make the same passes; else this one's. */
static void agree_most(const Decode *d, double *x, int n)
{
    if (decode_in_lockstep(d->e)) comm_host_max(d->e->mesh.comm[GR_dp], x, n);
}

/* ---- prompts ---- */

/* Gives each document adjacent cache rows, with decode.tokens to grow, or as many as a window has. */
static void assign_rows(Decode *d, const Stream *s)
{
    int64_t row = 0, in_window = 0, window = d->e->model.shape.text.window;
    d->n = s->docs;
    for (int64_t i = 0; i < s->docs; i++) {
        d->slot[i] = (int32_t)row, d->len[i] = s->start[i + 1] - s->start[i];
        d->window_slot[i] = (int32_t)in_window;
        int64_t most = d->len[i] + d->e->conf.decode.tokens;
        row += most, in_window += most < window ? most : window;
    }
    d->window_slot[s->docs] = (int32_t)in_window;
}

/* The row of token t of document i, and how many rows are filled after `tokens` of them. */
static int32_t window_row(const Decode *d, int64_t i, int32_t t)
{
    int32_t rows = d->window_slot[i + 1] - d->window_slot[i];
    return rows ? d->window_slot[i] + t % rows : -1;
}
static int32_t window_used(const Decode *d, int64_t i, int32_t tokens)
{
    int32_t rows = d->window_slot[i + 1] - d->window_slot[i];
    return tokens < rows ? tokens : rows;
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

static void upload_prompts(Decode *d, const Stream *s)
{
    double most[2] = { (double)s->tokens, s->patches > 0 };
    engine_upload(d->e, s);
    agree_most(d, most, 2);
    d->batch = batch_trim(engine_batch(d->e), s, padded(d->e, (int64_t)most[0]));
    d->batch.pictures = most[1] > 0;
}

/* Where the borders of a pass are, behind the tokens of a step. */
static int32_t *host_borders(const Decode *d) { return d->host + 4 * padded(d->e, d->e->conf.decode.docs); }

/* A replica without a document takes part with one of a single row, which no logits are computed for. */
static void upload_empty_cache(Decode *d, bool prompts)
{
    static const int32_t start[2] = { 0, 1 }, slot[1] = { 0 }, used[1] = { 1 };    /* slot: document 0 too */
    int32_t *at = host_borders(d);
    CacheSlots first = { slot, used, at };
    for (int64_t t = 0; t < d->batch.Ta; t++) at[t] = t ? -1 : 0;
    cache_upload(&d->cache, &d->e->be,
                 &(CachePass){ .n = 1, .T = d->batch.Ta, .prompts = prompts, .start = start,
                               .full = first, .window = first, .doc = slot, .kept = used });
}

/* Rows of document i in the caches; a window takes the last ones of the `kept` tokens of its prompt. */
static void place_prompt(const Decode *d, const Stream *s, int64_t i, int32_t kept, int32_t *at,
                         int32_t *in_window)
{
    int32_t used = window_used(d, i, kept);
    for (int32_t t = 0, from = s->start[i]; from + t < s->start[i + 1]; t++) {
        at[from + t] = d->slot[i] + t;
        if (t < kept && t >= kept - used) in_window[from + t] = window_row(d, i, t);
    }
}

static void upload_prompt_cache(Decode *d, const Stream *s, const int32_t *tokens)
{
    int64_t  n = s->docs, T = d->batch.Ta;
    int32_t *last = host_borders(d), *doc = last + n, *kept = doc + n, *used = kept + n, *at = used + n;
    int32_t *in_window = at + T;
    for (int64_t t = 0; t < T; t++) at[t] = in_window[t] = -1;
    for (int64_t i = 0; i < n; i++) {
        last[i] = (tokens ? s->start[i] + tokens[i] : s->start[i + 1]) - 1;
        doc[i] = (int32_t)i, kept[i] = last[i] + 1 - s->start[i], used[i] = window_used(d, i, kept[i]);
        place_prompt(d, s, i, kept[i], at, in_window);
    }
    backend_upload(&d->e->be, t_rows(d->last, 0, n), last);
    cache_upload(&d->cache, &d->e->be,
                 &(CachePass){ .n = n, .T = T, .prompts = true, .start = s->start,
                               .full = { d->slot, d->len, at },
                               .window = { d->window_slot, used, in_window }, .doc = doc, .kept = kept });
}

Status decode_prompts(Decode *d, const Stream *s, const int32_t *tokens)
{
    Engine *e = d->e;
    int64_t docs = e->conf.decode.docs;
    REQUIRE(s->docs >= 0 && s->docs <= docs && s->budget.tokens == e->conf.budget.tokens &&
            s->budget.patches == e->conf.budget.patches, "decode: %lld prompts of %lld", (long long)s->docs,
            (long long)docs);
    lay_out(d);
    assign_rows(d, s);
    upload_prompts(d, s);
    if (s->docs) upload_prompt_cache(d, s, tokens);
    else         upload_empty_cache(d, true);
    run_pass(d, s->docs, true);
    cut_to_prompts(d, s, tokens);
    d->finished = false;
    return engine_finish_eval(e);
}

/* ---- losses, tokens ---- */

static void compute_losses(Decode *d)
{
    Engine *e = d->e;
    Pass    pass = d->pass;
    pass.row_loss = t_rows(d->row_loss, 0, d->batch.supervised);
    op_fill(&e->be, d->loss, 0.0f);
    head_loss(&pass, &e->model.head, d->loss, (Tensor){ 0 }, e->act[0].x[e->model.shape.text.L], factor(1),
              false);
}

Status decode_row_losses(Decode *d, float *loss)
{
    Engine *e = d->e;
    int64_t n = d->batch.supervised;
    if (has_head(e)) {
        model_head_begin(&d->pass, &e->model);
        if (n) compute_losses(d);
        if (n) backend_fetch(&e->be, loss, t_rows(d->row_loss, 0, n));
        model_head_end(&d->pass, &e->model);
    }
    TRY(backend_sync(&e->be));
    return decode_share(d, loss, (size_t)n * sizeof *loss);
}

Status decode_share(Decode *d, void *data, size_t bytes)
{
    Comm *tp = d->e->mesh.comm[GR_tp], *pp = d->e->mesh.comm[GR_pp];
    REQUIRE(bytes <= shared_bytes(d->e), "decode: %zu bytes to share", bytes);
    if (bytes && has_head(d->e)) TRY(comm_host_broadcast(tp, data, bytes));
    if (!bytes || pp->size == 1) return OK;
    comm_host_gather(pp, d->stages, data, bytes);
    memcpy(data, (char *)d->stages + (size_t)(pp->size - 1) * bytes, bytes);
    return backend_sync(&d->e->be);
}

/* ---- steps ---- */

/* A batch of one token for each of n documents, on `rows` rows. */
static Batch token_batch(Decode *d, int64_t rows, int64_t n, const int32_t *id, const int32_t *pos)
{
    Batch b = { .T = rows / d->e->mesh.size[AX_TP], .Ta = rows, .real = n, .groups = 1,
                .mesh = &d->e->mesh, .ids = t_rows(d->row.ids, 0, rows) };
    b.pos = t_wrap(d->row.pos.data, I32, 2, (int64_t[]){ 3, rows });
    if (!id) return b;
    backend_upload(&d->e->be, b.ids, id);
    backend_upload(&d->e->be, b.pos, pos);
    return b;
}

static void upload_tokens(Decode *d, int64_t rows, int64_t n, const int32_t *doc, const int32_t *id)
{
    int32_t *ids = d->host, *pos = ids + rows;
    for (int64_t i = 0; i < rows; i++) {
        ids[i] = i < n ? id[i] : -1;
        for (int axis = 0; axis < 3; axis++) pos[axis * rows + i] = i < n ? d->next[doc[i]] : 0;
    }
    d->batch = token_batch(d, rows, n, ids, pos);
}

/* Each document brings one row, which the row after its last one of the cache takes, or the oldest one of its
 * window. */
static void upload_step_cache(Decode *d, int64_t n, const int32_t *doc)
{
    int64_t  T = d->batch.Ta;
    int32_t *start = host_borders(d), *slot = start + n + 1, *used = slot + n, *kept = used + n;
    int32_t *slot_w = kept + n, *used_w = slot_w + n, *at = used_w + n, *at_w = at + T;
    for (int64_t i = 0; i < T; i++) at[i] = at_w[i] = -1;
    for (int64_t i = 0; i < n; i++) {
        int32_t k = doc[i];
        int64_t end = k + 1 < d->n ? d->slot[k + 1] : d->cache.full.rows;
        REQUIRE(k >= 0 && k < d->n && (!i || k > doc[i - 1]) && d->slot[k] + d->len[k] < end,
                "decode: document %d is at its capacity", k);
        start[i] = (int32_t)i, slot[i] = d->slot[k], at[i] = d->slot[k] + d->len[k], kept[i] = 1;
        slot_w[i] = d->window_slot[k], at_w[i] = window_row(d, k, d->len[k]);
        used[i] = ++d->len[k], used_w[i] = window_used(d, k, used[i]), d->next[k]++;
    }
    start[n] = (int32_t)n;
    cache_upload(&d->cache, &d->e->be,
                 &(CachePass){ .n = n, .T = T, .start = start, .full = { slot, used, at },
                               .window = { slot_w, used_w, at_w }, .doc = doc, .kept = kept });
}

Status decode_step(Decode *d, int64_t n, const int32_t *doc, const int32_t *id)
{
    double most = (double)n;
    REQUIRE(n >= 0 && n <= d->n, "decode: %lld documents of %lld", (long long)n, (long long)d->n);
    agree_most(d, &most, 1);
    d->finished = !(most > 0);
    if (d->finished) return OK;
    upload_tokens(d, padded(d->e, (int64_t)most), n, doc, id);
    if (n) upload_step_cache(d, n, doc);
    else   upload_empty_cache(d, false);
    run_pass(d, n, false);
    return engine_finish_eval(d->e);
}

static void plan_losses(Decode *d)
{
    if (!has_head(d->e)) return;
    model_head_begin(&d->pass, &d->e->model);
    compute_losses(d);
    model_head_end(&d->pass, &d->e->model);
}

void decode_plan(Engine *e)
{
    Decode  d = { .e = e };
    int64_t docs = e->conf.decode.docs, rows = padded(e, docs);
    lay_out(&d);
    d.batch = *engine_batch(e);
    cache_upload(&d.cache, &e->be, &(CachePass){ .n = docs, .T = d.batch.Ta, .prompts = true });
    run_pass(&d, docs, true);
    plan_losses(&d);
    d.batch = token_batch(&d, rows, docs, NULL, NULL);
    cache_upload(&d.cache, &e->be, &(CachePass){ .n = docs, .T = rows });
    run_pass(&d, docs, false);
}
