/* engine/flops.c -- see flops.h. One multiply-add is two FLOPs; only matrix products and attention count. The
 * model is walked in the order of its forward, with what trains before the place that the walk has come
 * to. */
#include "engine/flops.h"

Load load_of(const Stream *s)
{
    return (Load){ s->tokens, s->patches, s->supervised, s->pairs, s->vpairs };
}

void flops_add(Flops *sum, const Flops *f)
{
    for (int i = 0; i < PART_N; i++) sum->part[i] += f->part[i];
}

double flops_sum(const Flops *f)
{
    double sum = 0;
    for (int i = 0; i < PART_N; i++) sum += f->part[i];
    return sum;
}

typedef struct Walk {
    bool back;                           /* a backward follows */
    bool below;                          /* something before this place trains */
    Part part;
} Walk;

static bool steps(const Walk *k, const Param *p) { return k->back && p && !p->frozen && !p->unused; }

/* A norm, a bias, a table: no product, but a gradient that has to get there. */
static void pass(Walk *k, const Param *p) { k->below |= steps(k, p); }

/* The pairs of a weight for one row: there, their own gradients, and through them to x. */
static double pairs(const Walk *k, const Param *w)
{
    double sum = 0, in = (double)w->shape[w->ndim - 1], x = k->below;
    for (int i = 0; w->lora && i < w->lora->parts; i++) {
        const LoraPart *p = &w->lora->part[i];
        double g = steps(k, w->lora->a), out = (double)p->b->shape[p->b->ndim - 2], r = (double)p->r;
        sum += 2 * r * (in * (1 + g + x) + out * (1 + g + (g > x ? g : x)));
    }
    return sum;
}

/* x w' of `rows` rows for each of what `rate` counts. */
static void product(Walk *k, Flops *rate, double rows, const Param *w)
{
    double in = (double)w->shape[w->ndim - 1], out = (double)w->shape[w->ndim - 2];
    bool   lora = w->lora && steps(k, w->lora->a);
    rate->part[k->part] += rows * (2 * in * out * (1 + steps(k, w) + k->below) + pairs(k, w));
    k->below |= steps(k, w) || lora;
}

static void core(const Walk *k, Flops *rate, double each)
{
    rate->part[k->part] += k->below ? 3 * each : each;
}

static void attention(Walk *k, Rates *r, const Attention *a)
{
    pass(k, a->norm);
    product(k, &r->token, 1, a->w_qkv);
    pass(k, a->b_qkv), pass(k, a->q_norm), pass(k, a->k_norm);
    core(k, &r->pair, 4 * (double)(a->H * a->C));
    product(k, &r->token, 1, a->w_o);
    pass(k, a->b_o);
}

/* Router and experts read the same rows: what trains in one does not lie before the other. */
static void feed(Walk *k, Rates *r, const Decoder *d)
{
    pass(k, d->norm);
    Walk router = *k;
    if (d->sparse) product(&router, &r->token, 1, d->moe.w_router);
    product(k, &r->token, d->sparse ? (double)d->moe.K : 1, d->sparse ? d->moe.w_gu : d->mlp.w_gu);
    k->below |= router.below;
    product(k, &r->token, d->sparse ? (double)d->moe.K : 1, d->sparse ? d->moe.w_d : d->mlp.w_d);
}

static void block(Walk *k, Rates *r, const VisionBlock *b, int64_t D)
{
    pass(k, b->norm1_w), pass(k, b->norm1_b);
    product(k, &r->patch, 1, b->w_qkv);
    pass(k, b->b_qkv);
    core(k, &r->vpair, 4 * (double)D);
    product(k, &r->patch, 1, b->w_o);
    pass(k, b->b_o), pass(k, b->norm2_w), pass(k, b->norm2_b);
    product(k, &r->patch, 1, b->w_up);
    pass(k, b->b_up);
    product(k, &r->patch, 1, b->w_down);
    pass(k, b->b_down);
}

/* What of a merger nobody reads has no gradient. Returns whether something up to its output trains. */
static bool merge(Walk k, Rates *r, const Merger *m, double rows)
{
    k.part = PART_MERGER, k.back &= !m->w1->unused, k.below &= !m->w1->unused;
    pass(&k, m->norm_w), pass(&k, m->norm_b);
    product(&k, &r->patch, rows, m->w1);
    pass(&k, m->b1);
    product(&k, &r->patch, rows, m->w2);
    pass(&k, m->b2);
    return k.below;
}

static bool see(Walk k, Rates *r, const Vision *v)
{
    double rows = 1 / (double)(v->merge * v->merge);
    bool   any = false;
    k.part = PART_VISION;
    product(&k, &r->patch, 1, v->w_patch);
    pass(&k, v->b_patch), pass(&k, v->pos);
    for (int64_t i = 0; i < v->depth; i++) {
        block(&k, r, &v->block[i], v->D);
        for (int f = 0; f < v->deepstacks; f++)
            if (v->after[f] == i) any |= merge(k, r, &v->stack[v->weights[f]], rows);
    }
    return any | merge(k, r, &v->merger, rows);
}

static Rates rates(const Model *m, bool sees, bool back)
{
    Rates r = { 0 };
    Walk  k = { .back = back };
    if (sees && m->vision.depth) k.below = see(k, &r, &m->vision);
    k.part = PART_DECODER;
    pass(&k, m->embed);
    for (int64_t l = 0; l < m->shape.text.L; l++) {
        attention(&k, &r, &m->layer[l].attn);
        feed(&k, &r, &m->layer[l]);
    }
    k.part = PART_HEAD;
    pass(&k, m->head.norm);
    product(&k, &r.supervised, 1, m->head.w);
    return r;
}

Status work_open(ModelWork *w, const ModelShape *s, const bool *frozen, const LoraConf *lora)
{
    Model m;
    Chunk whole = { 0, s->text.L, true, true };
    Status st = model_open_part(&m, s, frozen, lora, NULL, &whole, 1);
    *w = (ModelWork){ 0 };
    if (!st) *w = (ModelWork){ rates(&m, true, false), rates(&m, false, true), rates(&m, true, true) };
    model_close(&m);
    return st;
}

static Flops times(const Rates *r, const Load *l)
{
    Flops f;
    for (int i = 0; i < PART_N; i++)
        f.part[i] = r->token.part[i] * (double)l->tokens + r->patch.part[i] * (double)l->patches +
                    r->supervised.part[i] * (double)l->supervised + r->pair.part[i] * l->pairs +
                    r->vpair.part[i] * l->vpairs;
    return f;
}

Flops flops_forward(const ModelWork *w, const Load *l) { return times(&w->forward, l); }
Flops flops_train(const ModelWork *w, const Load *l) { return times(l->patches ? &w->sees : &w->text, l); }
