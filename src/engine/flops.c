/* engine/flops.c -- see flops.h. One multiply-add is two FLOPs; only matrix products and attention cores
 * count. */
#include "engine/flops.h"

#include "model/walk.h"

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

typedef struct Counter {
    Rates  r;
    bool   back;                         /* a backward follows */
    double K;                            /* experts per token */
} Counter;

/* The adapters of a weight for one row: forward, their own gradients, and through them to x. */
static double adapter_flops(const Counter *k, const Param *w, bool before)
{
    double sum = 0, in = (double)w->shape[w->ndim - 1], x = before;
    for (int i = 0; w->lora && i < w->lora->parts; i++) {
        const LoraPart *p = &w->lora->part[i];
        double g = k->back && param_gets_grad(w->lora->a), r = (double)p->r;
        double out = (double)p->b->shape[p->b->ndim - 2];
        sum += 2 * r * (in * (1 + g + x) + out * (1 + g + (g > x ? g : x)));
    }
    return sum;
}

static Part ledger_part(WalkPart p)
{
    if (p == WALK_MERGER) return PART_MERGER;
    return p == WALK_HEAD || p == WALK_MTP_HEAD ? PART_HEAD : p < WALK_EMBED ? PART_VISION : PART_DECODER;
}

static void count_step(void *self, WalkPlace at, const LayerStep *s, Param *w, bool before)
{
    Counter *k = self;
    Rates   *r = &k->r;
    Part     part = ledger_part(at.part);
    bool     tower = at.part < WALK_EMBED, input = k->back && before;
    if (s->type == STEP_VECTOR || (at.part >= WALK_MTP && !k->back)) return;
    if (s->type == STEP_CORE) {
        (tower ? &r->vpair : &r->pair)->part[part] += 2 * step_macs(s) * (input ? 3 : 1);
        r->token.part[part] += 2 * s->macs_token * (input ? 3 : 1);
        return;
    }
    Flops *rate = tower ? &r->patch : part == PART_HEAD ? &r->supervised : &r->token;
    double rows = at.rows * (s->rows == ROWS_EXPERTS ? k->K : 1);
    double grads = 1 + (k->back && param_gets_grad(w)) + input;
    rate->part[part] += rows * (2 * step_macs(s) * grads + adapter_flops(k, w, input));
}

static Rates count(const Model *m, bool pictures, bool back)
{
    Counter k = { .back = back, .K = (double)m->shape.text.K };
    model_walk(m, pictures, &(Walker){ .step = count_step, .self = &k });
    return k.r;
}

Status work_open(ModelWork *w, const ModelShape *s, const bool *frozen, const LoraConf *lora)
{
    Model m;
    Status st = model_open_whole(&m, s, frozen, lora);
    *w = (ModelWork){ 0 };
    if (!st) *w = (ModelWork){ count(&m, true, false), count(&m, false, true), count(&m, true, true) };
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
