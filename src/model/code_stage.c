/* model/code_stage.c -- see code_stage.h. */
#include "model/code_stage.h"

#include "base/num.h"
#include "ops/weight_code.h"

#include <stdlib.h>

bool code_stage_takes(const Param *p)
{
    CodeFormat f = p->shard.codes.format;
    return f == CODE_INT8 || f == CODE_NF4;
}

/* ---- memory ---- */

static int64_t amaxes_of(CodeFormat f, const CodeMatrix *m)
{
    return f == CODE_INT8 ? m->rows : nf4_blocks(m->rows * m->K);
}

static size_t stage_bytes(const Param *p, DType d)
{
    size_t most = 0;
    for (int64_t i = 0; i < code_matrices(p); i++) {
        CodeMatrix m = code_matrix(p, i);
        size_t n = (size_t)(m.rows * m.K) * dtype_size(d) + 4 * (size_t)amaxes_of(p->shard.codes.format, &m);
        most = n > most ? n : most;
    }
    return most + 2 * ARENA_ALIGN;
}

Status code_stage_open(CodeStage *s, Backend *be, const ParamSet *params)
{
    size_t bytes = 0;
    *s = (CodeStage){ .be = be, .dtype = params_dtype(params) };
    for (int i = 0; i < params->n; i++) {
        if (!code_stage_takes(params->p[i])) continue;
        size_t n = stage_bytes(params->p[i], s->dtype);
        bytes = n > bytes ? n : bytes;
    }
    if (!bytes) return OK;
    TRY(backend_arena_open(be, &s->arena, "quantisation", bytes));
    s->opened = !pthread_mutex_init(&s->lock, NULL);
    if (!s->opened) backend_arena_close(be, &s->arena);
    return s->opened ? OK : fail(E_FIT, "no memory to quantise weights");
}

void code_stage_close(CodeStage *s)
{
    if (!s->opened) return;
    backend_arena_close(s->be, &s->arena);
    pthread_mutex_destroy(&s->lock);
}

/* ---- one matrix ---- */

/* A matrix that is filled, and its statistics. */
typedef struct Staged { CodeMatrix m; Tensor w, amax, group; } Staged;

static Tensor at_byte(Tensor t, int64_t byte, DType d, int64_t rows, int64_t cols)
{
    int64_t n[2] = { rows, cols };
    return t_wrap((char *)t.data + byte, d, 2, n);
}

/* Scales of all of the shard's part of the matrix. */
static void put_scales(CodeStage *s, const WeightCodes *z, const Staged *x, int64_t wide)
{
    const StridedRange *c = &x->m.range;
    if (z->format == CODE_INT8) {
        bool    rows = c->len % x->m.K == 0;             /* whole ones, or one part of a row a run */
        int64_t runs = rows ? c->count : 1, n = c->count * c->len / wide / runs;
        op_code_scales(s->be, CODE_INT8, at_byte(z->scale, 4 * (c->local / wide), F32, runs, n), x->amax,
                       x->group, c->at / x->m.K, rows ? c->stride / x->m.K : 0);
        return;
    }
    op_code_scales(s->be, CODE_NF4, at_byte(z->scale, c->local / NF4_BLOCK, U8, c->count, c->len / NF4_BLOCK),
                   x->amax, x->group, c->at / NF4_BLOCK, c->stride / NF4_BLOCK);
}

/* Codes of the slice of it that this rank keeps. */
static void put_codes(CodeStage *s, const Param *p, const Staged *x)
{
    const WeightCodes *z = &p->shard.codes;
    bool         whole = t_count(z->q) == code_bytes(z->format, param_local(p));
    StridedRange part[3];
    int                n =
        ranges_clip(part, &x->m.range, 1, whole ? 0 : p->shard.offset, whole ? param_local(p) : p->shard.len);
    for (int i = 0; i < n; i++) {
        const StridedRange *c = &part[i];
        Tensor q = at_byte(z->q, code_bytes(z->format, c->local), (DType)z->q.dtype, c->count,
                           code_bytes(z->format, c->len));
        op_code_weight(s->be, z->format, q, x->w, x->amax, c->at, c->stride, x->m.K);
    }
}

static Status put_matrix(CodeStage *s, const Param *p, CodeMatrix m, FillWeight *fill, void *self)
{
    const WeightCodes *z = &p->shard.codes;
    int64_t n = m.rows * m.K, amaxes = amaxes_of(z->format, &m);
    Staged  x = { .m = m, .w = t2(&s->arena, "weight", s->dtype, m.rows, m.K),
                  .amax = t1(&s->arena, "amax", F32, amaxes) };
    if (z->format == CODE_NF4) x.group = t_rows(z->group, m.group, nf4_groups(n));
    TRY(fill(self, s->be, p, t_wrap(x.w.data, s->dtype, 1, &n), m.at));
    op_weight_stats(s->be, z->format, x.amax, x.group, x.w);
    put_scales(s, z, &x, p->shard.shape[p->ndim - 1]);
    put_codes(s, p, &x);
    return OK;
}

/* ---- positions of rows ---- */

static void first_of_run(int32_t *first, int64_t wide, int64_t local, int64_t len, int64_t at)
{
    for (int64_t row = ceil_div(local, wide); row * wide < local + len; row++)
        first[row] = (int32_t)((at + row * wide - local) / 2);
}

static Status put_first(CodeStage *s, const Param *p)
{
    Tensor   t = p->shard.codes.first;
    int32_t *first = calloc((size_t)t_count(t) + 1, sizeof *first);
    int64_t  wide = p->shard.shape[p->ndim - 1];
    if (!first) return fail(E_FIT, "%s: no host memory to quantise it", p->piece[0].name);
    for (int64_t i = 0; i < code_matrices(p); i++) {
        CodeMatrix m = code_matrix(p, i);
        for (int64_t k = 0; k < m.range.count; k++)
            first_of_run(first, wide, m.range.local + k * m.range.len, m.range.len,
                         m.group * NF4_GROUP_ELEMS + m.range.at + k * m.range.stride);
    }
    backend_upload(s->be, t, first);
    Status st = backend_sync(s->be);
    free(first);
    return st;
}

static Status put_all(CodeStage *s, const Param *p, FillWeight *fill, void *self)
{
    for (int64_t i = 0; i < code_matrices(p); i++) {
        CodeMatrix m = code_matrix(p, i);
        ArenaMark  mark = arena_mark(&s->arena);
        if (m.range.count) TRY(put_matrix(s, p, m, fill, self));
        arena_reset(&s->arena, mark);
    }
    return p->shard.codes.format == CODE_NF4 ? put_first(s, p) : OK;
}

Status code_stage_put(CodeStage *s, const Param *p, FillWeight *fill, void *self)
{
    pthread_mutex_lock(&s->lock);
    Status st = put_all(s, p, fill, self);
    pthread_mutex_unlock(&s->lock);
    return st;
}
