/* model/peft_merge.c -- merges adapters into their base model; see peft.h. One parameter is processed at a
 * time: memory holds the largest parameter in f32, twice, and one adapter. */
#include "model/peft_private.h"
#include "model/weights_private.h"

#include <stdlib.h>
#include <string.h>

typedef struct PeftMerge {
    Model             *adapted;
    const SafeTensors *base;
    ParamSource        from;
    Arena              a, b;
} PeftMerge;

/* Fills all of q in f32, in its own arena. */
static Status fill_param(PeftMerge *x, Backend *be, Arena *arena, Param *q)
{
    return weights_fill_param(x->adapted, be, x->from, arena, peft_param_index(x->adapted, q));
}

/* w (out, in) += s b a with a (r, in), b (out, r). b a is summed over r in order, then added to w once. */
static void add_product(float *w, const float *a, const float *b, int64_t out, int64_t in, int64_t r, float s)
{
    #pragma omp parallel for
    for (int64_t o = 0; o < out; o++) {
        enum { BLOCK = 256 };
        float sum[BLOCK];
        for (int64_t at = 0; at < in; at += BLOCK) {
            int64_t n = in - at < BLOCK ? in - at : BLOCK;
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
                    (float *)a->shard.w.data + (a->shape[0] == 1 ? 0 : e * r * in),
                    (float *)b->shard.w.data + e * out * r, out, in, r, part->scale);
}

/* w: weight of the base, filled; q: the same weight of the model with adapters. */
static Status add_adapters(PeftMerge *x, Backend *be, const Param *w, const Param *q)
{
    const Lora *l = q->lora;
    TRY(fill_param(x, be, &x->a, l->a));
    for (int k = 0; k < l->parts; k++) {
        const LoraPart *part = &l->part[k];
        TRY(fill_param(x, be, &x->b, part->b));
        if (w->linear == LINEAR_EXPERTS) add_experts(w, l->a, part);
        else
            add_product((float *)w->shard.w.data + piece_at(w, part->piece),
                        (float *)l->a->shard.w.data + part->from * w->shape[1], part->b->shard.w.data,
                        w->piece[part->piece].shape[0], w->shape[1], part->r, part->scale);
    }
    return OK;
}

/* A ParamFillFn: the merged weight. */
static Status fill_merged(void *self, Model *m, Backend *be, int i)
{
    PeftMerge *x = self;
    const Param *w = m->params.p[i];
    Param *q = x->adapted->params.p[i];
    REQUIRE(!strcmp(w->piece[0].name, q->piece[0].name), "%s is not %s", w->piece[0].name, q->piece[0].name);
    if (lora_trains_in_full(x->adapted, q)) {
        q->shard.w = w->shard.w;
        return x->from.fill(x->from.self, x->adapted, be, i);
    }
    TRY(weights_load_one(m, be, x->base, "", i));
    return q->lora ? add_adapters(x, be, w, q) : OK;
}

static Status open_arenas(PeftMerge *x, Backend *be)
{
    int64_t largest = 0;
    for (int i = 0; i < x->adapted->params.n; i++) {
        const Param *p = x->adapted->params.p[i];
        if (p->adapter_of && param_count(p) > largest) largest = param_count(p);
    }
    TRY(backend_arena_open(be, &x->a, "adapter", (size_t)largest * sizeof(float) + ARENA_ALIGN));
    return backend_arena_open(be, &x->b, "adapter", (size_t)largest * sizeof(float) + ARENA_ALIGN);
}

Status peft_merge(Model *m, Model *adapted, Backend *be, const SafeTensors *base, ParamSource from,
                     const char *dir, DType dtype, int64_t max_shard)
{
    PeftMerge x = { .adapted = adapted, .base = base, .from = from };
    REQUIRE(be->device->host_memory, "a model is merged in host memory");
    Meter  meter;
    Status st = open_arenas(&x, be);
    meter_open(&meter, NULL, "merging", METER_BYTES, 4.0 * (double)params_count(&m->params));
    if (!st) st = weights_assemble(m, be, (ParamSource){ fill_merged, &x, &meter }, dir, dtype, max_shard);
    meter_close(&meter);
    for (int i = 0; i < adapted->params.n; i++) adapted->params.p[i]->shard.w = (Tensor){ 0 };
    backend_arena_close(be, &x.a), backend_arena_close(be, &x.b);
    return st;
}
