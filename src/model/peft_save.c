/* model/peft_save.c -- an adapter's tensors into a folder; see adapter_files.h. Its configuration is
 * peft_describe.c's.
 *
 * The same walk first declares every tensor and then writes its bytes, a parameter in memory at a time. */
#include "model/peft_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Writer {
    Model      *m;
    Backend    *be;
    ParamSource from;
    StWriter    out;
    bool        writing;                 /* second walk */
    bool        each;                    /* experts have names of their own */
    Arena       room;
    float      *row;
} Writer;

/* ---- elements ---- */

static Status put(Writer *w, const float *x, int64_t n)
{
    return st_writer_write(&w->out, x, (size_t)n * sizeof *x);
}

static Status declare(Writer *w, const char *name, int64_t rows, int64_t cols)
{
    int64_t shape[2] = { rows, cols };
    return st_writer_declare(&w->out, name, F32, 2, shape);
}

/* Parameter q comes from its source just before it is written. */
static Status borrow(Writer *w, Param *q)
{
    int64_t n[3] = { q->shape[0], q->shape[1], q->shape[2] };
    int at = 0;
    if (!w->writing) return OK;
    if (q->rank == 1) n[0] = 1, n[1] = q->shape[0];
    while (w->m->params.p[at] != q) at++;
    arena_clear(&w->room);
    q->shard.w = t_new(&w->room, "adapter", F32, q->rank == 1 ? 2 : q->rank, n);
    TRY(backend_sync(w->be));
    return w->from.fill(w->from.self, w->m, w->be, at);
}

/* ---- experts ---- */

/* A (E, r, in), or one for all, which the file has E times. */
static Status put_fused_a(Writer *w, const Param *a, int64_t E)
{
    int64_t n = a->shape[1] * a->shape[2];
    if (!w->writing) return declare(w, a->piece[0].name, E * a->shape[1], a->shape[2]);
    for (int64_t e = 0; e < E; e++) TRY(put(w, (float *)a->shard.w.data + (a->shape[0] == 1 ? 0 : e * n), n));
    return OK;
}

/* B (E, out, r) with column j E + e of a row. */
static Status put_fused_b(Writer *w, const Param *b)
{
    int64_t E = b->full[0], out = b->full[1], r = b->full[2];
    const float *x = b->w.data;
    if (!w->writing) return declare(w, b->piece[0].name, out, r * E);
    for (int64_t o = 0; o < out; o++) {
        for (int64_t j = 0; j < r; j++)
            for (int64_t e = 0; e < E; e++) w->row[j * E + e] = x[(e * out + o) * r + j];
        TRY(put(w, w->row, r * E));
    }
    return OK;
}

/* Gate and up have the same A. */
static Status put_each(Writer *w, const Param *base, const Param *q, bool b)
{
    static const char *const part[3] = { "gate_proj", "up_proj", "down_proj" };
    bool gate_up = base->form == FORM_EXPERT_GATE_UP;
    const char *name = base->piece[0].name;
    int64_t rows = q->shape[1] / (gate_up && b ? 2 : 1), cols = q->shape[2], n = q->shape[1] * cols;
    for (int64_t e = 0; e < base->shape[0]; e++)
        for (int k = 0; k < (gate_up ? 2 : 1); k++) {
            char full[300];
            snprintf(full, sizeof full, PEFT_PREFIX "%.*s.%lld.%s.lora_%c.weight",
                     (int)(strrchr(name, '.') - name), name, (long long)e, part[gate_up ? k : 2],
                     b ? 'B' : 'A');
            const float *x = (float *)q->shard.w.data + (q->shape[0] == 1 ? 0 : e * n) + (b ? k * rows * cols : 0);
            TRY(w->writing ? put(w, x, rows * cols) : declare(w, full, rows, cols));
        }
    return OK;
}

/* ---- the walk ---- */

static Status put_pieces(Writer *w, const Param *q, const char *prefix)
{
    for (int i = 0; i < q->pieces; i++) {
        const Piece *p = &q->piece[i];
        char name[300];
        int64_t n = 1;
        for (int d = 0; d < p->rank; d++) n *= p->shape[d];
        snprintf(name, sizeof name, "%s%s", prefix, p->name);
        TRY(w->writing ? put(w, (float *)q->shard.w.data + piece_at(q, i), n)
                       : st_writer_declare(&w->out, name, F32, p->rank, p->shape));
    }
    return OK;
}

/* A tied head is the embedding, but has a name of its own there. */
static Status put_tied_head(Writer *w, const Param *q)
{
    const Piece *p = &q->piece[0];
    if (!peft_ties_head(w->m, q)) return OK;
    if (!w->writing) return st_writer_declare(&w->out, PEFT_HEAD, F32, p->rank, p->shape);
    return put(w, q->shard.w.data, p->shape[0] * p->shape[1]);
}

static Status put_one(Writer *w, const Param *base, Param *q, bool b)
{
    TRY(borrow(w, q));
    if (base->linear != LINEAR_EXPERTS) return put_pieces(w, q, "");
    if (w->each) return put_each(w, base, q, b);
    return b ? put_fused_b(w, q) : put_fused_a(w, q, base->shape[0]);
}

static Status walk(Writer *w)
{
    for (int i = 0; i < w->m->params.n; i++) {
        Param *p = w->m->params.p[i];
        if (lora_trains_in_full(w->m, p)) {
            TRY(borrow(w, p));
            TRY(put_pieces(w, p, PEFT_PREFIX));
            TRY(put_tied_head(w, p));
        }
        if (!p->lora) continue;
        TRY(put_one(w, p, p->lora->a, false));
        for (int k = 0; k < p->lora->parts; k++) TRY(put_one(w, p, p->lora->part[k].b, true));
    }
    return OK;
}

static Status write_tensors(Writer *w, const char *dir)
{
    Path path;
    TRY(folder_make(dir));
    TRY(path_join(path, dir, PEFT_WEIGHTS));
    TRY(st_writer_open(&w->out, path, 0));
    Status st = walk(w);
    if (!st) st = st_writer_begin(&w->out);
    w->writing = true;
    if (!st) st = walk(w);
    if (!st) st = st_writer_finish(&w->out);
    st_writer_close(&w->out);
    return st;
}

static Status rooms(Writer *w)
{
    int64_t most = 0, row = 1;
    for (int i = 0; i < w->m->params.n; i++) {
        const Param *p = w->m->params.p[i];
        if (p->form == FORM_LORA_B && p->shape[0] * p->shape[2] > row) row = p->shape[0] * p->shape[2];
        if ((p->beside || lora_trains_in_full(w->m, p)) && param_count(p) > most) most = param_count(p);
    }
    if (!(w->row = malloc((size_t)row * sizeof *w->row)))
        return fail(E_FIT, "no host memory for a row of adapters");
    return backend_arena_open(w->be, &w->room, "adapter", (size_t)most * sizeof(float) + ARENA_ALIGN);
}

Status peft_save(Model *m, Backend *be, ParamSource from, const char *dir, const char *base)
{
    Writer w = { .m = m, .be = be, .from = from };
    REQUIRE(be->device->host_memory && m->lora, "adapters are written from host memory");
    Status st = rooms(&w);
    if (!st) st = peft_describe(m, base, &w.each, NULL);
    if (!st) st = write_tensors(&w, dir);
    if (!st) st = peft_describe(m, base, &w.each, dir);
    backend_arena_close(be, &w.room);
    free(w.row);
    for (int i = 0; i < m->params.n; i++) m->params.p[i]->w = (Tensor){ 0 };
    return st;
}
