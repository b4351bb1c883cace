/* model/peft_merge.c -- a base with its adapters added in; see adapter_files.h. Tensors pass through one
 * at a time: what is in memory is the largest parameter in f32, twice, and a pair. */
#include "model/peft_private.h"
#include "model/weights_private.h"

#include <stdlib.h>
#include <string.h>

typedef struct Merge {
    Model             *with;
    const SafeTensors *base;
    ParamSource        from;
    Arena              a, b;
} Merge;

static int index_of(const Model *m, const Param *p)
{
    int i = 0;
    while (m->params.p[i] != p) i++;
    return i;
}

/* All of q, in f32, in an arena of its own. */
static Status fetch(Merge *x, Backend *be, Arena *room, Param *q)
{
    arena_clear(room);
    q->shard.w = t_new(room, "adapter", F32, q->ndim, q->shape);
    TRY(backend_sync(be));
    return x->from.fill(x->from.self, x->with, be, index_of(x->with, q));
}

/* w (out, in) += s b a with a (r, in), b (out, r): in order of j, then once onto w. */
static void add_product(float *w, const float *a, const float *b, int64_t out, int64_t in, int64_t r, float s)
{
    #pragma omp parallel for
    for (int64_t o = 0; o < out; o++) {
        enum { PART = 256 };
        float sum[PART];
        for (int64_t at = 0; at < in; at += PART) {
            int64_t n = in - at < PART ? in - at : PART;
            memset(sum, 0, sizeof sum);
            for (int64_t j = 0; j < r; j++)
                for (int64_t i = 0; i < n; i++) sum[i] += b[o * r + j] * a[j * in + at + i];
            for (int64_t i = 0; i < n; i++) w[o * in + at + i] += s * sum[i];
        }
    }
}

static void add_experts(const Param *w, const Param *a, const LoraPart *part)
{
    const Param *b = part->b;
    int64_t out = w->shape[1], in = w->shape[2], r = part->r;
    for (int64_t e = 0; e < w->shape[0]; e++)
        add_product((float *)w->shard.w.data + e * out * in,
                    (float *)a->shard.w.data + (a->shape[0] == 1 ? 0 : e * r * in), (float *)b->shard.w.data + e * out * r,
                    out, in, r, part->scale);
}

/* w: of the base, filled; q: the same of the model with adapters. */
static Status add_pairs(Merge *x, Backend *be, const Param *w, const Param *q)
{
    const Lora *l = q->lora;
    TRY(fetch(x, be, &x->a, l->a));
    for (int k = 0; k < l->parts; k++) {
        const LoraPart *part = &l->part[k];
        TRY(fetch(x, be, &x->b, part->b));
        if (w->linear == LINEAR_EXPERTS) add_experts(w, l->a, part);
        else
            add_product((float *)w->shard.w.data + piece_at(w, part->piece),
                        (float *)l->a->shard.w.data + part->from * w->shape[1], part->b->shard.w.data,
                        w->piece[part->piece].shape[0], w->shape[1], part->r, part->scale);
    }
    return OK;
}

static Status fill(void *self, Model *m, Backend *be, int i)
{
    Merge *x = self;
    const Param *w = m->params.p[i];
    Param *q = x->with->params.p[i];
    REQUIRE(!strcmp(w->piece[0].name, q->piece[0].name), "%s is not %s", w->piece[0].name, q->piece[0].name);
    if (lora_trains_in_full(x->with, q)) {
        q->shard.w = w->shard.w;
        return x->from.fill(x->from.self, x->with, be, i);
    }
    TRY(weights_load_one(m, be, x->base, "", i));
    return q->lora ? add_pairs(x, be, w, q) : OK;
}

static Status rooms(Merge *x, Backend *be)
{
    int64_t most = 0;
    for (int i = 0; i < x->with->params.n; i++) {
        const Param *p = x->with->params.p[i];
        if (p->adapter_of && param_count(p) > most) most = param_count(p);
    }
    TRY(backend_arena_open(be, &x->a, "adapter", (size_t)most * sizeof(float) + ARENA_ALIGN));
    return backend_arena_open(be, &x->b, "adapter", (size_t)most * sizeof(float) + ARENA_ALIGN);
}

Status peft_merge(Model *m, Model *with, Backend *be, const SafeTensors *base, ParamSource from,
                     const char *dir, DType dtype, int64_t max_shard)
{
    Merge x = { .with = with, .base = base, .from = from };
    REQUIRE(be->device->host_memory, "a model is merged in host memory");
    Status st = rooms(&x, be);
    if (!st) st = weights_assemble(m, be, (ParamSource){ fill, &x }, dir, dtype, max_shard);
    for (int i = 0; i < with->params.n; i++) with->params.p[i]->w = (Tensor){ 0 };
    backend_arena_close(be, &x.a), backend_arena_close(be, &x.b);
    return st;
}
