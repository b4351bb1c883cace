/* plan/analytic_params.c -- parameters of a model and of a stage, and the FLOPs of a token, from the
 * descriptions of its layer kinds.
 *
 * FLOPs are six times the multiply-adds of matrix products and attention cores, forward and backward; causal
 * attention counts the half that exists. Routers, norms, softmax and rotations are left out, as is usual.
 * Layers that predict further tokens (MTP) count as layers and as logits. */
#include "plan/analytic_private.h"

#include "nn/vision.h"

#include <math.h>
#include <string.h>

/* ---- the vision tower ---- */

static double description_params(const Description *d)
{
    double n = 0;
    for (int i = 0; i < d->steps; i++) n += step_params(&d->step[i]);
    return n;
}

static double block_params(const VisionShape *v)
{
    Description d;
    describe_begin(&d);
    vision_describe_block(&d, v);
    return description_params(&d);
}

static double merger_params(const VisionShape *v, bool deepstack)
{
    Description d;
    describe_begin(&d);
    vision_describe_merger(&d, v, deepstack);
    return description_params(&d);
}

static double stem_params(const VisionShape *v)
{
    Description d;
    describe_begin(&d);
    vision_describe_stem(&d, v);
    return description_params(&d);
}

double vision_params(const VisionShape *v)
{
    if (!v->depth) return 0;
    return stem_params(v) + (double)v->depth * block_params(v) + merger_params(v, false)
         + v->deepstacks * merger_params(v, true);
}

/* Two blocks, two deepstack mergers and the last one, the stem. */
double vision_gathered(const VisionShape *v)
{
    int deep = v->deepstacks < 2 ? v->deepstacks : 2;
    if (!v->depth) return 0;
    return 2 * block_params(v) + merger_params(v, false) + deep * merger_params(v, true) + stem_params(v);
}

/* ---- the whole model ---- */

/* MTP: a product of two hidden states into one, and norms, for each such layer. */
static double mtp_params(const TextShape *s)
{
    double D = (double)s->D;
    return (double)s->mtp * (2 * D * D + 3 * D);
}

/* How many layers of each class the model has. */
static void all_layers(StageLayers *s, const Task *t)
{
    Candidate one = { .pp = 1, .vpp = 1 };
    stage_layers(s, t, &one, 0);
}

ModelCounts analytic_params(const ModelRow *m)
{
    const TextShape *s = &m->text;
    LayerTable  table;
    Task        own = task_with_layers(&(Task){ .model = m }, &table);
    StageLayers l;
    ModelCounts n = { .embed = (double)(s->V * s->D) * (s->tied ? 1 : 2),
                      .vision = vision_params(&m->vision) };
    all_layers(&l, &own);
    for (int i = 0; i < PLAIN_CLASSES; i++) {
        const LayerParams *p = &table.params[i];
        if (!l.n[i]) continue;
        n.dense   += l.n[i] * (p->tp + p->kv + p->whole);
        n.experts += l.n[i] * p->experts;
    }
    n.dense += (double)s->D + mtp_params(s);
    n.total  = n.dense + n.experts + n.embed + n.vision;
    n.active = n.dense + (s->E ? n.experts * (double)s->K / (double)s->E : 0) + n.embed;
    return n;
}

/* Multiply-adds of a token in one layer. */
static double layer_macs(const Description *d, double K, double seq)
{
    double macs = 0;
    for (int i = 0; i < d->steps; i++) {
        const LayerStep *s = &d->step[i];
        if (s->linear == LINEAR_ROUTER) continue;
        if (s->type == STEP_CORE) macs += core_macs(s, seq);
        else macs += step_macs(s) * (s->rows == ROWS_EXPERTS ? K : 1);
    }
    return macs;
}

double analytic_flops_token(const ModelRow *m, int64_t seq)
{
    const TextShape *s = &m->text;
    LayerTable  table;
    Task        own = task_with_layers(&(Task){ .model = m }, &table);
    StageLayers l;
    double      macs = (double)(s->D * s->V * (1 + s->mtp)) + mtp_params(s);
    all_layers(&l, &own);
    for (int i = 0; i < PLAIN_CLASSES; i++)
        if (l.n[i]) macs += l.n[i] * layer_macs(&table.layer[i], (double)s->K, (double)seq);
    return 6 * macs;
}

/* The core of layers that attend to all tokens before. */
static double full_core_macs(const TextShape *s, double seq)
{
    const AttentionKind *kind = attention_kinds[s->mla.kv_rank ? ATTENTION_MLA : ATTENTION_GQA];
    Description d;
    double      macs = 0;
    describe_begin(&d);
    kind->describe(&d, s);
    for (int i = 0; i < d.steps; i++)
        if (d.step[i].type == STEP_CORE) macs += core_macs(&d.step[i], seq);
    return macs;
}

double analytic_flops_full(const ModelRow *m, int64_t seq)
{
    ModelCounts n = analytic_params(m);
    double macs = n.active + n.vision - (m->text.tied ? 0 : n.embed / 2);
    return 6 * (macs + (double)m->text.L * 2 * full_core_macs(&m->text, (double)seq));
}

/* Products of a row, and the core of a pair. */
static double module_macs(const Description *d, double pairs)
{
    double macs = 0;
    for (int i = 0; i < d->steps; i++)
        macs += step_macs(&d->step[i]) * (d->step[i].type == STEP_CORE ? pairs : 1);
    return macs;
}

VisionMacs vision_macs(const VisionShape *v)
{
    Description block, merger;
    describe_begin(&block), describe_begin(&merger);
    vision_describe_block(&block, v), vision_describe_merger(&merger, v, false);
    double rows = (1 + v->deepstacks) / (double)merged_patches(v), depth = (double)v->depth;
    double linear = module_macs(&block, 0);
    return (VisionMacs){ .patch = depth * linear + rows * module_macs(&merger, 0),
                         .pair = depth * (module_macs(&block, 1) - linear) };
}

double analytic_flops_vision(const ModelRow *m, int64_t patches, bool frozen)
{
    if (!m->vision.depth) return 0;
    VisionMacs v = vision_macs(&m->vision);
    double P = (double)patches;
    return (frozen ? 1 : 3) * 2 * (P * v.patch + P * P * v.pair);
}

/* ---- a stage ---- */

/* The part of a rank of what trains with adapters. */
static void trained_here(double to[SHARERS], const double n[CUT_N], const ModelRow *m, const Candidate *c)
{
    double kv = c->tp < m->text.G ? c->tp : (double)m->text.G;
    to[BY_STAGE] = n[CUT_NONE];
    to[BY_DP]    = n[CUT_TP] / c->tp + n[CUT_KV] / kv;
    to[BY_EDP]   = n[CUT_EP] / c->ep + n[CUT_ETP] / c->etp + n[CUT_EP_ETP] / ((double)c->ep * c->etp);
}

/* What of a unit a rank has: base weights; adapters; base weights that train. */
typedef struct UnitParams { double all[SHARERS], adapters[SHARERS], whole[SHARERS]; } UnitParams;

/* Adds n of them. trained NULL: all of it trains. What no other rank has needs no buffer. */
static void add_units(StageParams *p, const Task *t, const Candidate *c, double n, UnitParams u,
                      const Trained *trained, StageParams *most)
{
    double gathered = 0, summed = 0;
    memcpy(u.whole, u.all, sizeof u.all);
    if (trained) trained_here(u.adapters, trained->adapters, t->model, c);
    if (trained) trained_here(u.whole, trained->whole, t->model, c);
    for (int i = 0; i < SHARERS; i++) {
        bool shared = task_sharers(t, c, i) > 1;
        p->trained[i] += n * (u.adapters[i] + u.whole[i]);
        p->frozen[i]  += n * (u.all[i] - u.whole[i]);
        gathered += shared * (u.all[i] + u.adapters[i]);
        summed   += shared * (u.whole[i] + u.adapters[i]);
    }
    most->gathered = fmax(most->gathered, gathered);
    most->summed   = fmax(most->summed, summed);
}

static UnitParams layer_unit(const Task *t, const Candidate *c, LayerClass k)
{
    const LayerParams *p = &t->layers->params[plain_class(k.kinds)];
    double kv = c->tp < t->model->text.G ? c->tp : (double)t->model->text.G;
    return (UnitParams){ .all = { [BY_STAGE] = p->whole, [BY_DP] = p->tp / c->tp + p->kv / kv,
                                  [BY_EDP] = p->experts / ((double)c->ep * c->etp) } };
}

/* The embedding with the tower, and the head. */
static void add_ends(StageParams *p, const Task *t, const Candidate *c, const StageLayers *s)
{
    const TextShape *m = &t->model->text;
    const LoraCost  *x = t->lora;
    StageParams first = { 0 }, last = { 0 };
    if (!s->first && !s->last) return;
    double table = (double)(m->V * m->D) / c->tp, tower = t->layers->tower_params;
    double tables = table + t->layers->tower_gathered;
    bool   frozen = t->frozen_vision && !x;
    UnitParams embed = { .all = { [BY_STAGE] = frozen ? 0 : tower, [BY_DP] = table } };
    UnitParams head = { .all = { [BY_STAGE] = (double)m->D, [BY_DP] = (m->tied && s->first ? 0 : table)
                                                                    + (s->mtp ? mtp_params(m) : 0) } };
    if (s->first) add_units(p, t, c, 1, embed, x ? &x->first : NULL, &first);
    if (s->first && frozen) p->frozen[BY_STAGE] += tower;
    if (s->last) add_units(p, t, c, 1, head, x ? &x->last : NULL, &last);
    p->gathered += fmin(first.gathered, tables) + last.gathered;
    p->summed   += fmin(first.summed, tables) + last.summed;
}

/* Whether layers of two classes take turns in the same buffers: as much of them is gathered and trained. */
static bool same_buffers(const Task *t, int i, int j)
{
    const LayerParams *p = t->layers->params;
    if (!t->lora) return !memcmp(&p[i], &p[j], sizeof *p);
    return !memcmp(&t->lora->layer[i].trained, &t->lora->layer[j].trained, sizeof(Trained));
}

/* Buffers for layers of class i: `most` for all classes that share them, counted for the last such class of
 * the stage. */
static int buffers_of(const Task *t, const StageLayers *s, int i, int most)
{
    int n = s->n[i];
    for (int j = 0; j < task_classes(t); j++) {
        if (j == i || !s->n[j] || !same_buffers(t, i, j)) continue;
        if (j > i) return 0;
        n += s->n[j];
    }
    return n < most ? n : most;
}

void stage_params(StageParams *p, const Task *t, const Candidate *c, const StageLayers *s)
{
    StageParams layer = { 0 };
    *p = (StageParams){ 0 };
    for (int i = 0; i < task_classes(t); i++) {
        LayerClass k = task_class(t, i);
        StageParams one = { 0 };
        if (!s->n[i]) continue;
        add_units(p, t, c, s->n[i], layer_unit(t, c, k), k.lora ? &k.lora->trained : NULL, &one);
        if (class_has_backward(k)) p->again += (double)s->n[i] / s->all;
        p->gathered += buffers_of(t, s, i, c->overlap ? 4 : 2) * one.gathered;
        p->summed   += buffers_of(t, s, i, 2) * one.summed;
        layer = (StageParams){ .gathered = fmax(layer.gathered, one.gathered),
                               .summed = fmax(layer.summed, one.summed) };
    }
    add_ends(p, t, c, s);
    if (t->foreign) p->gathered = 2 * layer.gathered, p->summed = layer.summed;
}
