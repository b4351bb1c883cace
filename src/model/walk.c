/* model/walk.c -- see walk.h. */
#include "model/walk.h"

typedef struct At { const Walker *walker; WalkPlace place; } At;

static void pass_step(void *self, const LayerStep *s, Param *w, bool before)
{
    const At *a = self;
    a->walker->step(a->walker->self, a->place, s, w, before);
}

static bool walk_module(const Walker *w, WalkPlace place, const Description *d,
                        void *const modules[MAX_MODULES], bool before)
{
    At   at = { w, place };
    bool after = describe_walk(d, modules, before, pass_step, &at);
    if (w->end) w->end(w->self, place, before, after);
    return after;
}

/* A part that is one module. */
static bool walk_one(const Walker *w, WalkPlace place, const Description *d, const void *module, bool before)
{
    return walk_module(w, place, d, (void *[MAX_MODULES]){ (void *)module }, before);
}

/* A merger whose feature no layer reads has no gradient. */
static bool walk_merger(const Walker *w, const Model *m, const Merger *g, int64_t index, bool before)
{
    WalkPlace   at = { WALK_MERGER, index, 1 / (double)(m->vision.merge * m->vision.merge) };
    Description d;
    describe_begin(&d);
    vision_describe_merger(&d, &m->shape.vision, g->norm_after);
    return walk_one(w, at, &d, g, before && !g->w1->unused);
}

/* Returns whether something up to the visual tokens or a feature trains. */
static bool walk_tower(const Walker *w, const Model *m)
{
    const Vision *v = &m->vision;
    Description stem, block;
    describe_begin(&stem), describe_begin(&block);
    vision_describe_stem(&stem, &m->shape.vision), vision_describe_block(&block, &m->shape.vision);
    bool before = walk_one(w, (WalkPlace){ WALK_STEM, 0, 1 }, &stem, v, false);
    bool any = false;
    for (int64_t i = 0; i < v->depth; i++) {
        before = walk_one(w, (WalkPlace){ WALK_BLOCK, i, 1 }, &block, &v->block[i], before);
        for (int f = 0; f < v->deepstacks; f++)
            if (v->after[f] == i) any |= walk_merger(w, m, &v->stack[v->weights[f]], f, before);
    }
    return any | walk_merger(w, m, &v->merger, v->deepstacks, before);
}

static bool walk_layer(const Walker *w, const Model *m, int64_t l, bool before)
{
    const TextShape *t = &m->shape.text;
    const Decoder   *d = &m->layer[l];
    Description      layer;
    if (!d->norm) return before;                     /* another stage has it */
    decoder_describe(&layer, t, d->kinds);
    void *modules[MAX_MODULES];
    decoder_modules(d, modules);
    WalkPart part = l < t->L ? WALK_LAYER : WALK_MTP_LAYER;
    return walk_module(w, (WalkPlace){ part, l, 1 }, &layer, modules, before);
}

/* The product before the layer behind the last, the layer, and the head again. */
static void walk_mtp(const Walker *w, const Model *m, bool before)
{
    const TextShape *t = &m->shape.text;
    Description join, head;
    Head second = m->head;
    second.norm = m->mtp.norm;
    describe_begin(&join), describe_begin(&head);
    describe_vector(&join, offsetof(Mtp, enorm), (double)t->D);
    describe_vector(&join, offsetof(Mtp, hnorm), (double)t->D);
    describe_step(&join, (LayerStep){ .rows = ROWS_TOKENS, .param = offsetof(Mtp, w), .in = 2 * (double)t->D,
                                      .out = (double)t->D });
    head_describe(&head, t);
    before = walk_one(w, (WalkPlace){ WALK_MTP, 0, 1 }, &join, &m->mtp, before);
    before = walk_layer(w, m, t->L, before);
    walk_one(w, (WalkPlace){ WALK_MTP_HEAD, 0, 1 }, &head, &second, before);
}

void model_walk(const Model *m, bool pictures, const Walker *w)
{
    const TextShape *t = &m->shape.text;
    Description      embed, head;
    bool before = pictures && m->vision.depth && walk_tower(w, m);
    describe_begin(&embed), describe_begin(&head);
    describe_vector(&embed, offsetof(Model, embed), (double)(t->V * t->D));
    head_describe(&head, t);
    if (m->embed) before = walk_one(w, (WalkPlace){ WALK_EMBED, 0, 1 }, &embed, m, before);
    for (int64_t l = 0; l < t->L; l++) before = walk_layer(w, m, l, before);
    if (m->head.w) walk_one(w, (WalkPlace){ WALK_HEAD, 0, 1 }, &head, &m->head, before);
    if (m->mtp.w) walk_mtp(w, m, before);
}
