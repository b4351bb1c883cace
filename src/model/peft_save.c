/* model/peft_save.c -- writes adapters as PEFT files; see peft.h. peft_describe.c writes the configuration.
 *
 * The same walk runs twice: it declares all tensors, then writes their data, one parameter in memory at a
 * time. */
#include "model/peft_private.h"
#include "model/weights_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct PeftWriter {
    Model      *m;
    Backend    *be;
    ParamSource from;
    StWriter    out;
    bool        writing;                 /* second walk */
    bool        per_expert;              /* experts are written one by one */
    Arena       arena;                   /* of the parameter being written */
    float      *row;                     /* scratch */
} PeftWriter;

/* ---- tensors ---- */

static Status write_floats(PeftWriter *w, const float *x, int64_t n)
{
    return st_writer_write(&w->out, x, (size_t)n * sizeof *x);
}

static Status declare(PeftWriter *w, const char *name, int64_t rows, int64_t cols)
{
    int64_t shape[2] = { rows, cols };
    return st_writer_declare(&w->out, name, F32, 2, shape);
}

/* In the second walk: fills q from its source. */
static Status fill_param(PeftWriter *w, Param *q)
{
    if (!w->writing) return OK;
    return weights_fill_param(w->m, w->be, w->from, &w->arena, peft_param_index(w->m, q));
}

/* ---- experts ---- */

/* A (E, r, in), or (1, r, in), which is written E times. */
static Status write_fused_a(PeftWriter *w, const Param *a, int64_t E)
{
    int64_t n = a->shape[1] * a->shape[2];
    if (!w->writing) return declare(w, a->piece[0].name, E * a->shape[1], a->shape[2]);
    for (int64_t e = 0; e < E; e++)
        TRY(write_floats(w, (float *)a->shard.w.data + (a->shape[0] == 1 ? 0 : e * n), n));
    return OK;
}

/* B (E, out, r) as (out, r E), with element j of expert e in column j E + e. */
static Status write_fused_b(PeftWriter *w, const Param *b)
{
    int64_t E = b->shape[0], out = b->shape[1], r = b->shape[2];
    const float *x = b->shard.w.data;
    if (!w->writing) return declare(w, b->piece[0].name, out, r * E);
    for (int64_t o = 0; o < out; o++) {
        for (int64_t j = 0; j < r; j++)
            for (int64_t e = 0; e < E; e++) w->row[j * E + e] = x[(e * out + o) * r + j];
        TRY(write_floats(w, w->row, r * E));
    }
    return OK;
}

/* One tensor per expert and part; gate and up have the same A. */
static Status write_per_expert(PeftWriter *w, const Param *base, const Param *q, bool b)
{
    bool gate_up = base->form == FORM_EXPERT_GATE_UP;
    const char *name = base->piece[0].name;
    int64_t rows = q->shape[1] / (gate_up && b ? 2 : 1), cols = q->shape[2], n = q->shape[1] * cols;
    for (int64_t e = 0; e < base->shape[0]; e++)
        for (int k = 0; k < (gate_up ? 2 : 1); k++) {
            char full[300];
            snprintf(full, sizeof full, PEFT_PREFIX "%.*s.%lld.%s.lora_%c.weight",
                     (int)(strrchr(name, '.') - name), name, (long long)e,
                     names_usual.expert_part[gate_up ? k : 2], b ? 'B' : 'A');
            int64_t at = (q->shape[0] == 1 ? 0 : e * n) + (b ? k * rows * cols : 0);
            const float *x = (float *)q->shard.w.data + at;
            TRY(w->writing ? write_floats(w, x, rows * cols) : declare(w, full, rows, cols));
        }
    return OK;
}

/* ---- the walk ---- */

static Status write_pieces(PeftWriter *w, const Param *q, const char *prefix)
{
    for (int i = 0; i < q->pieces; i++) {
        const Piece *p = &q->piece[i];
        char name[300];
        int64_t n = 1;
        for (int d = 0; d < p->rank; d++) n *= p->shape[d];
        snprintf(name, sizeof name, "%s%s", prefix, p->name);
        TRY(w->writing ? write_floats(w, (float *)q->shard.w.data + piece_at(q, i), n)
                       : st_writer_declare(&w->out, name, F32, p->rank, p->shape));
    }
    return OK;
}

/* PEFT files of a tied model have the embedding a second time, under the name of the head. */
static Status write_tied_head(PeftWriter *w, const Param *q)
{
    const Piece *p = &q->piece[0];
    if (!peft_ties_head(w->m, q)) return OK;
    if (!w->writing) return st_writer_declare(&w->out, PEFT_HEAD, F32, p->rank, p->shape);
    return write_floats(w, q->shard.w.data, p->shape[0] * p->shape[1]);
}

static Status write_adapter(PeftWriter *w, const Param *base, Param *q, bool b)
{
    TRY(fill_param(w, q));
    if (base->linear != LINEAR_EXPERTS) return write_pieces(w, q, "");
    if (w->per_expert) return write_per_expert(w, base, q, b);
    return b ? write_fused_b(w, q) : write_fused_a(w, q, base->shape[0]);
}

static Status write_adapters(PeftWriter *w)
{
    for (int i = 0; i < w->m->params.n; i++) {
        Param *p = w->m->params.p[i];
        if (lora_trains_in_full(w->m, p)) {
            TRY(fill_param(w, p));
            TRY(write_pieces(w, p, PEFT_PREFIX));
            TRY(write_tied_head(w, p));
        }
        if (!p->lora) continue;
        TRY(write_adapter(w, p, p->lora->a, false));
        for (int k = 0; k < p->lora->parts; k++) TRY(write_adapter(w, p, p->lora->part[k].b, true));
    }
    return OK;
}

static Status write_tensors(PeftWriter *w, const char *dir)
{
    Path path;
    TRY(folder_make(dir));
    TRY(path_join(path, dir, PEFT_WEIGHTS));
    TRY(st_writer_open(&w->out, path, 0));
    Status st = write_adapters(w);
    if (!st) st = st_writer_begin(&w->out);
    w->writing = true;
    if (!st) st = write_adapters(w);
    if (!st) st = st_writer_finish(&w->out);
    st_writer_close(&w->out);
    return st;
}

static Status open_buffers(PeftWriter *w)
{
    int64_t largest = 0, row = 1;
    for (int i = 0; i < w->m->params.n; i++) {
        const Param *p = w->m->params.p[i];
        if (p->form == FORM_LORA_B && p->shape[0] * p->shape[2] > row) row = p->shape[0] * p->shape[2];
        if ((p->adapter_of || lora_trains_in_full(w->m, p)) && param_count(p) > largest)
            largest = param_count(p);
    }
    if (!(w->row = malloc((size_t)row * sizeof *w->row)))
        return fail(E_FIT, "no host memory to write adapters");
    return backend_arena_open(w->be, &w->arena, "adapter", (size_t)largest * sizeof(float) + ARENA_ALIGN);
}

Status peft_save(Model *m, Backend *be, ParamSource from, const char *dir, const char *base)
{
    PeftWriter w = { .m = m, .be = be, .from = from };
    REQUIRE(be->device->host_memory && m->lora, "adapters are written from host memory");
    Status st = open_buffers(&w);
    if (!st) st = peft_describe(m, base, &w.per_expert, NULL);
    if (!st) st = write_tensors(&w, dir);
    if (!st) st = peft_describe(m, base, &w.per_expert, dir);
    backend_arena_close(be, &w.arena);
    free(w.row);
    for (int i = 0; i < m->params.n; i++) m->params.p[i]->shard.w = (Tensor){ 0 };
    return st;
}
