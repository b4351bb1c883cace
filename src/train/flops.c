/* train/flops.c -- see flops.h. One multiply-add is two FLOPs; only matrix products and attention count. */
#include "train/flops.h"

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

/* How many times its forward a part costs: its products, attention's core, products whose input needs no
 * gradient. Merger i > 0 makes a deepstack feature, which only a decoder that has layer i - 1 reads. */
typedef struct Times { double gemm, core, first, unread; } Times;

static void add_vision(Flops *f, const VisionShape *v, const Load *l, Times tower, Times merger,
                       int64_t layers)
{
    double P = (double)l->patches, D = (double)v->D, F = (double)v->F, m2 = (double)(v->merge * v->merge);
    double pixels = (double)(v->channels * v->frames * v->patch * v->patch), depth = (double)v->depth;
    double each = P / m2 * (2 * (m2 * D) * (m2 * D) + 2 * m2 * D * (double)v->out);
    double all = 1 + (double)v->deepstacks, read = v->deepstacks < layers ? all : 1 + (double)layers;
    f->part[PART_VISION] = tower.first * 2 * P * pixels * D + tower.gemm * depth * P *
        (8 * D * D + 4 * D * F) +
                           tower.core * depth * 4 * D * l->vpairs;
    f->part[PART_MERGER] = each * (merger.gemm * read + merger.unread * (all - read));
}

static void add_text(Flops *f, const TextShape *t, const Load *l, Times x)
{
    double T = (double)l->tokens, D = (double)t->D, sparse = (double)shape_sparse_layers(t), L = (double)t->L;
    double gemm = L * T * 4 * D * (double)t->C * (double)(t->H + t->G) + sparse * 2 * T * D * (double)t->E +
                  sparse * 6 * T * (double)t->K * D * (double)t->I + (L - sparse) * 6 * T * D * (double)t->F;
    f->part[PART_DECODER] = x.gemm * gemm + x.core * L * 4 * (double)(t->H * t->C) * l->pairs;
    f->part[PART_HEAD]    = x.gemm * 2 * (double)l->supervised * D * (double)t->V;
}

static const Times once = { 1, 1, 1, 1 }, through = { 2, 3, 2, 1 }, trained = { 3, 3, 2, 1 };

Flops flops_forward(const ModelShape *m, const Load *l)
{
    Flops f = { 0 };
    if (m->vision.depth && l->patches) add_vision(&f, &m->vision, l, once, once, m->text.L);
    add_text(&f, &m->text, l, once);
    return f;
}

Flops flops_train(const ModelShape *m, const bool frozen[GROUP_N], const Load *l)
{
    Flops f = { 0 };
    bool  sees = m->vision.depth && l->patches;
    bool  vit = sees && !frozen[G_VIT], aligner = sees && !frozen[G_ALIGNER];
    Times tower = vit ? trained : once, merger = aligner ? trained : vit ? through : once;
    if (sees) add_vision(&f, &m->vision, l, tower, merger, m->text.L);
    add_text(&f, &m->text, l, !frozen[G_LLM] ? trained : vit || aligner ? through : once);
    return f;
}
