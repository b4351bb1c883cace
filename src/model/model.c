/* model/model.c -- opening a model: parameters into arenas, constants, random weights. */
#include "model/model.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>

Status model_open(Model *m, const ModelShape *s, const bool *frozen)
{
    const Family *f;
    *m = (Model){ .shape = *s };
    for (int g = 0; frozen && g < GROUP_N; g++) m->frozen[g] = frozen[g];
    TRY(family_find(&f, s->family));
    f->build(m);
    return OK;
}

void model_close(Model *m)
{
    params_close(&m->params);
    free(m->vision.block), free(m->layer);
    *m = (Model){ 0 };
}

static size_t room(int64_t n, DType d)
{
    size_t b = (size_t)n * dtype_size(d);
    return (b + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

ModelSizes model_sizes(const Model *m, DType dtype)
{
    ModelSizes z = { 0 };
    for (int i = 0; i < m->params.n; i++) {
        const Param *p = m->params.p[i];
        int64_t n = param_count(p);
        z.param += room(n, dtype);
        if (m->frozen[p->group]) continue;
        z.grad  += room(n, F32);
        z.optim += room(n, F32) * (dtype == F32 ? 2 : 3);
    }
    z.param += 2 * room(m->shape.text.C / 2, F32);
    if (m->vision.depth) z.param += 2 * room(m->vision.D / m->vision.H / 2, F32);
    return z;
}

/* Vectors are bound as one row, which is what ops over rows want. */
static Tensor bind(Arena *a, const char *label, DType d, const Param *p)
{
    int64_t n[3] = { p->full[0], p->full[1], p->full[2] };
    if (p->rank == 1) n[0] = 1, n[1] = p->full[0];
    return t_new(a, label, d, p->rank == 1 ? 2 : p->rank, n);
}

static const char *const group_names[GROUP_N] = { "vision", "merger", "decoder" };

void model_bind(Model *m, DType dtype, Arena *param, Arena *grad, Arena *optim)
{
    for (int i = 0; i < m->params.n; i++) {
        Param *p = m->params.p[i];
        const char *label = p->form == FORM_ROWS ? group_names[p->group] : "experts";
        p->w = bind(param, label, dtype, p);
        if (m->frozen[p->group]) continue;
        p->g = bind(grad, label, F32, p);
        if (dtype != F32) p->master = bind(optim, label, F32, p);
        p->m = bind(optim, label, F32, p);
        p->v = bind(optim, label, F32, p);
    }
    m->inv  = t1(param, "rope", F32, m->shape.text.C / 2);
    m->axis = t1(param, "rope", I32, m->shape.text.C / 2);
    if (!m->vision.depth) return;
    m->vision.inv  = t1(param, "rope", F32, m->vision.D / m->vision.H / 2);
    m->vision.axis = t1(param, "rope", I32, m->vision.D / m->vision.H / 2);
}

/* Interleaved MRoPE: frequencies go time, row, column, time, … while a section lasts, the rest are time. */
static int32_t text_axis(const int64_t section[3], int64_t j)
{
    if (j % 3 == 1 && j < 3 * section[1]) return 1;
    if (j % 3 == 2 && j < 3 * section[2]) return 2;
    return 0;
}

void model_constants(Model *m, Backend *be)
{
    float   inv[512];
    int32_t axis[512];
    int64_t half = m->shape.text.C / 2;
    for (int64_t j = 0; j < half; j++) {
        inv[j]  = 1.0f / powf((float)m->shape.text.theta, (float)(2 * j) / (float)(2 * half));
        axis[j] = text_axis(m->shape.text.mrope, j);
    }
    backend_upload(be, m->inv, inv);
    backend_upload(be, m->axis, axis);
    if (!m->vision.depth) return;
    half = m->vision.D / m->vision.H / 2;                    /* half of it rows, then as many columns */
    for (int64_t j = 0; j < half; j++) {
        inv[j]  = 1.0f / powf(m->vision.theta, (float)(2 * (j % (half / 2))) / (float)half);
        axis[j] = j >= half / 2;
    }
    backend_upload(be, m->vision.inv, inv);
    backend_upload(be, m->vision.axis, axis);
}

/* The table of positions is added to patches, which are sums over patch_dim pixels of about a half. Drawn
 * like a weight it would be a few percent of them, and a tower that starts from nothing would be blind to
 * where things are for hundreds of steps. */
static float spread(const Model *m, const Param *p)
{
    float std = (float)m->shape.text.init_std;
    return p->init == INIT_POSITION ? 0.5f * sqrtf((float)m->vision.patch_dim) * std : std;
}

/* Values are a function of (seed, name, index): the same on any backend and layout. */
Status model_init(Model *m, Backend *be, uint64_t seed)
{
    for (int i = 0; i < m->params.n; i++) {
        Param *p = m->params.p[i];
        Tensor w = t_has(p->master) ? p->master : p->w;
        if (p->init == INIT_ZERO || p->init == INIT_ONE)
            op_fill(be, w, p->init == INIT_ONE ? 1.0f : 0.0f);
        else
            op_normal(be, w, seed, rng_stream(p->piece[0].name), spread(m, p));
        if (t_has(p->master)) op_copy(be, p->w, p->master);
    }
    return OK;
}

/* Whether the first to touch a gradient is a product, which can write instead of adding: all matrices but the
 * tables that rows are scattered into. */
static bool made_by_product(const Model *m, const Param *p)
{
    return t_has(p->g) && p->rank >= 2 && p != m->embed && p != m->vision.pos;
}

void model_zero_grad(Model *m, Backend *be)
{
    for (int i = 0; i < m->params.n; i++) {
        Param *p = m->params.p[i];
        p->live = false, p->fresh = made_by_product(m, p);
        if (t_has(p->g) && !p->fresh) op_fill(be, p->g, 0.0f);
    }
}

Status model_act_open(ModelAct *a, const Model *m)
{
    int64_t L = m->shape.text.L;
    *a = (ModelAct){ 0 };
    a->layer = calloc((size_t)L, sizeof *a->layer);
    a->x     = calloc((size_t)L + 1, sizeof *a->x);
    a->vision.block = calloc((size_t)m->vision.depth + 1, sizeof *a->vision.block);
    if (a->layer && a->x && a->vision.block) return OK;
    model_act_close(a);
    return fail(E_FIT, "no host memory for %lld layers", (long long)L);
}

void model_act_close(ModelAct *a)
{
    free(a->layer), free(a->x), free(a->vision.block);
    *a = (ModelAct){ 0 };
}
