/* model/init.c -- random weights for training from scratch.
 *
 * A value is a function of seed, name and index in the whole parameter, so the ranks of
 * any layout draw the same model. */
#include "model/model.h"

#include "base/rng.h"
#include "model/code_stage.h"
#include "model/fp8_stage.h"

#include <math.h>

/* Deviation or half width of the distribution. The table of positions is added to patches, which are sums
 * over patch_dim pixels of about 0.5. Drawn like a weight it would be a few percent of them, and a tower
 * trained from scratch would not use positions for hundreds of steps. */
static float init_scale(const Model *m, const Param *p)
{
    float std = (float)m->shape.text.init_std;
    switch (p->init) {
    case INIT_POSITION:     return 0.5f * sqrtf((float)m->vision.patch_dim) * std;
    case INIT_LORA_A_UNIFORM: return 1.0f / sqrtf((float)p->shape[p->ndim - 1]);
    case INIT_LORA_A_NORMAL:  return 1.0f / (float)(p->ndim == 3 ? p->shape[1] : p->piece[0].shape[0]);
    default:                return std;
    }
}

/* Draws the decay of each head of a delta net on the host. */
static void draw_decay(Backend *be, Tensor rows, uint64_t seed, uint64_t stream, uint64_t at)
{
    enum { MOST = 4096 };                /* heads */
    float    value[MOST];
    uint16_t narrow[MOST];
    int64_t  n = t_count(rows);
    REQUIRE(n <= MOST, "%lld heads", (long long)n);
    for (int64_t i = 0; i < n; i++)
        value[i] = logf(0.01f + 15.99f * rng_uniform(seed, stream, at + (uint64_t)i));
    if (rows.dtype != F32) dtype_convert(narrow, (DType)rows.dtype, value, F32, n);
    backend_upload(be, t_as2(rows, 1, n), rows.dtype == F32 ? (void *)value : narrow);
}

static void init_rows(const Model *m, Backend *be, const Param *p, Tensor rows, uint64_t seed, uint64_t at,
                      int64_t stride)
{
    uint64_t stream = rng_stream(p->piece[0].name);
    float    scale = init_scale(m, p);
    if (p->init == INIT_ZERO || p->init == INIT_ONE) op_fill(be, rows, p->init == INIT_ONE ? 1.0f : 0.0f);
    else if (p->init == INIT_DECAY) draw_decay(be, rows, seed, stream, at);
    else if (p->init == INIT_LORA_A_UNIFORM) op_uniform(be, rows, seed, stream, at, stride, scale);
    else op_normal(be, rows, seed, stream, at, stride, scale);
}

static void init_view(const Model *m, Backend *be, const Param *p, ShardView h, uint64_t seed)
{
    StridedRange c[SHARD_VIEW_RANGES];
    int n = shard_view_ranges(c, p, h);
    if (p->shard.real_rows < p->shard.shape[0]) op_fill(be, h.t, 0.0f);
    for (int i = 0; i < n; i++)
        init_rows(m, be, p, shard_view_rows(h, &c[i]), seed, (uint64_t)c[i].at, c[i].stride);
}

/* A base in codes is drawn a matrix at a time. */
typedef struct BaseDraw { const Model *m; uint64_t seed; } BaseDraw;

static Status draw_weight(void *self, Backend *be, const Param *p, Tensor t, int64_t at)
{
    const BaseDraw *d = self;
    init_rows(d->m, be, p, t, d->seed, (uint64_t)at, t.n[0]);
    return OK;
}

static Status init_codes(const Model *m, Fp8Stage *stage, const Param *p, uint64_t seed)
{
    ShardView h;
    for (int64_t part = 0; part < fp8_stage_parts(stage, p); part++) {
        TRY(fp8_stage_view(stage, p, part, &h));
        init_view(m, fp8_stage_backend(stage, p), p, h, seed);
        TRY(fp8_stage_put(stage, p, part, h, OK));
    }
    return OK;
}

/* A split master is drawn in f32 in the memory of the gradient, which is free then, as much at a time as that
 * holds. */
static void init_split(const Model *m, Backend *be, const Param *p, ShardView own, uint64_t seed)
{
    int64_t room = t_bytes(p->shard.g) / (int64_t)sizeof(float);
    if (room < 1) room = 1;                                  /* tensors are aligned to more than that */
    for (int64_t at = 0, n; at < own.n; at += n) {
        n = own.n - at < room ? own.n - at : room;
        ShardView part = { .t = t_wrap(p->shard.g.data, F32, 1, &n), .at = own.at + at, .n = n };
        init_view(m, be, p, part, seed);
        op_set_weight(be, t_rows(own.t, at, n), t_rows(own.rest, at, n), part.t);
    }
}

static void init_param(const Model *m, Backend *be, const Param *p, uint64_t seed)
{
    ShardView w = param_weight_view(p), own = param_load_view(p);
    bool      same = t_has(own.t) && t_has(w.t) && own.at == w.at && own.n == w.n;
    if (t_has(w.t) && !same) init_view(m, be, p, w, seed);
    if (t_has(own.rest))     init_split(m, be, p, own, seed);
    else if (t_has(own.t))   init_view(m, be, p, own, seed);
    if (same && !t_has(own.rest)) op_copy(be, w.t, own.t);
}

static Status init_all(Model *m, Backend *be, Fp8Stage *fp8, CodeStage *codes, uint64_t seed)
{
    BaseDraw draw = { m, seed };
    for (int i = 0; i < m->params.n; i++) {
        const Param *p = m->params.p[i];
        if (fp8_stage_takes(p))       TRY(init_codes(m, fp8, p, seed));
        else if (code_stage_takes(p)) TRY(code_stage_put(codes, p, draw_weight, &draw));
        else                          init_param(m, be, p, seed);
    }
    return OK;
}

Status model_init(Model *m, Backend *be, uint64_t seed)
{
    Fp8Stage  fp8;
    CodeStage codes;
    TRY(fp8_stage_open(&fp8, be, &m->params));
    Status st = code_stage_open(&codes, be, &m->params);
    if (!st) st = init_all(m, be, &fp8, &codes, seed), code_stage_close(&codes);
    fp8_stage_close(&fp8);
    return st;
}

Status lora_init(Model *m, Backend *be, uint64_t seed)
{
    for (int i = 0; i < m->params.n; i++)
        if (m->params.p[i]->adapter_of) init_param(m, be, m->params.p[i], seed);
    return OK;
}
