/* model/fp8_stage.c -- see fp8_stage.h. */
#include "model/fp8_stage.h"

#include "base/num.h"
#include "ops/quant.h"

#include <stdlib.h>

bool fp8_stage_takes(const Param *p)
{
    return p->frozen && t_has(p->shard.fp8.scale) && !t_has(p->shard.w);
}

static int64_t rows_of(const Param *p) { return p->shard.shape[p->ndim - 2]; }
static int64_t cols_of(const Param *p) { return p->shard.shape[p->ndim - 1]; }

static bool is_on_device(const Fp8Stage *s, const Param *p)
{
    return !s->be->device->host_memory && p->shard.fp8.q.rank == p->ndim;
}

int64_t fp8_stage_parts(const Fp8Stage *s, const Param *p)
{
    return is_on_device(s, p) && p->ndim == 3 ? p->shard.shape[0] : 1;
}

Backend *fp8_stage_backend(Fp8Stage *s, const Param *p) { return is_on_device(s, p) ? s->be : &s->host; }

Status fp8_stage_open(Fp8Stage *s, Backend *be, const ParamSet *params)
{
    *s = (Fp8Stage){ .be = be, .dtype = params_dtype(params) };
    size_t bytes = 0;
    for (int i = 0; i < params->n; i++) {
        const Param *p = params->p[i];
        if (!fp8_stage_takes(p)) continue;
        size_t n = (size_t)(rows_of(p) * cols_of(p)) * dtype_size(s->dtype) + ARENA_ALIGN;
        s->opened = true, bytes = n > bytes && is_on_device(s, p) ? n : bytes;
    }
    if (!s->opened) return OK;
    if (pthread_mutex_init(&s->lock, NULL)) return fail(E_FIT, "no memory to load weights in 8 bits");
    TRY(backend_open(&s->host, "cpu"));
    return bytes ? backend_arena_open(be, &s->arena, "quantisation", bytes) : OK;
}

void fp8_stage_close(Fp8Stage *s)
{
    if (!s->opened) return;
    if (s->arena.base) backend_arena_close(s->be, &s->arena);
    backend_close(&s->host);
    pthread_mutex_destroy(&s->lock);
}


/* The row of blocks, over all matrices of a stack, that a row of the weight lies in, and the row that the row
 * of blocks begins with. */
static int64_t block_row(const Param *p, int64_t row)
{
    return row / rows_of(p) * quant_groups(rows_of(p)) + row % rows_of(p) / QUANT_GROUP;
}

static int64_t first_row(const Param *p, int64_t block)
{
    int64_t down = quant_groups(rows_of(p));
    return block / down * rows_of(p) + min_i64(block % down * QUANT_GROUP, rows_of(p));
}

/* Rows of blocks [from, to) that the slice touches; none where it is empty. */
typedef struct Bands { int64_t from, to; } Bands;

static Bands bands_of(const Param *p)
{
    int64_t last = (p->shard.offset + p->shard.len - 1) / cols_of(p);
    if (!p->shard.len) return (Bands){ 0 };
    return (Bands){ block_row(p, p->shard.offset / cols_of(p)), block_row(p, last) + 1 };
}

static ShardView matrix_view(Fp8Stage *s, const Param *p, int64_t part)
{
    int64_t n = rows_of(p) * cols_of(p);
    return (ShardView){ .t = t1(&s->arena, "weight", s->dtype, n), .at = part * n, .n = n };
}

Status fp8_stage_view(Fp8Stage *s, const Param *p, int64_t part, ShardView *out)
{
    if (is_on_device(s, p)) {
        *out = matrix_view(s, p, part);
        return OK;
    }
    Bands   b = bands_of(p);
    int64_t at = first_row(p, b.from) * cols_of(p), n = first_row(p, b.to) * cols_of(p) - at;
    void   *data = malloc((size_t)n * dtype_size(s->dtype) + 1);
    if (!data) return fail(E_FIT, "%s: no host memory to quantise it", p->piece[0].name);
    *out = (ShardView){ .t = t_wrap(data, s->dtype, 1, &n), .at = at, .n = n };
    return OK;
}

/* Codes of the slice and scales of all blocks on the host. */
typedef struct Coded { Tensor q, scale; } Coded;

static Status coded_alloc(Coded *c, const Param *p)
{
    int64_t n[1] = { p->shard.len };
    Tensor  s = p->shard.fp8.scale;
    *c = (Coded){ t_wrap(malloc((size_t)n[0] + 1), E4M3, 1, n),
                  t_wrap(calloc((size_t)t_count(s), sizeof(float)), F32, s.rank, s.n) };
    return c->q.data && c->scale.data ? OK : fail(E_FIT, "%s: no host memory for its codes",
                                                  p->piece[0].name);
}

static void quantize(Fp8Stage *s, const Param *p, ShardView from, const Coded *c)
{
    Bands       b = bands_of(p);
    int64_t     across = quant_groups(cols_of(p)), all = t_count(c->scale);
    Tensor      used = t_rows(t_wrap(c->scale.data, F32, 1, &all), b.from * across, (b.to - b.from) * across);
    WeightSlice of = { from.at, rows_of(p), cols_of(p) }, own = { p->shard.offset, of.N, of.K };
    if (!p->shard.len) return;
    pthread_mutex_lock(&s->lock);
    op_weight_amax(&s->host, c->scale, from.t, of);
    op_amax_scales(&s->host, used, used, true);
    op_quantize_slice(&s->host, c->q, t_rows(from.t, own.at - from.at, p->shard.len), c->scale, own);
    pthread_mutex_unlock(&s->lock);
}

static Status upload(Fp8Stage *s, const Param *p, const Coded *c)
{
    int64_t n = p->shard.len;
    backend_upload(s->be, t_wrap(p->shard.fp8.q.data, E4M3, 1, &n), c->q.data);
    backend_upload(s->be, p->shard.fp8.scale, c->scale.data);
    return backend_sync(s->be);
}

static Status put_matrix(Fp8Stage *s, const Param *p, int64_t part, Tensor w, Status st)
{
    static const Tensor none;
    const QuantizedWeight *z = &p->shard.fp8;
    Tensor q = p->ndim == 3 ? t_at(z->q, part) : z->q, scale = p->ndim == 3 ? t_at(z->scale, part) : z->scale;
    if (!st) op_quantize_weight(s->be, q, scale, none, none, t_as2(w, rows_of(p), cols_of(p)), true);
    arena_clear(&s->arena);
    return st;
}

Status fp8_stage_put(Fp8Stage *s, const Param *p, int64_t part, ShardView from, Status st)
{
    if (is_on_device(s, p)) return put_matrix(s, p, part, from.t, st);
    Coded c = { 0 };
    if (!st) st = coded_alloc(&c, p);
    if (!st) {
        quantize(s, p, from, &c);
        st = upload(s, p, &c);
    }
    free(c.q.data), free(c.scale.data), free(from.t.data);
    return st;
}
