/* plan/analytic_time.c -- seconds of a step by formula: the slowest stage's micro-batches one after the other,
 * the bubble of the pipeline, what of communication nothing hides, the optimizer. */
#include "plan/analytic_time.h"

/* Kernels that the host starts for a layer and a micro-batch, there and back. */
enum { KERNELS_MOE = 150, KERNELS_DENSE = 60, KERNELS_BLOCK = 50, KERNELS_PAIR = 10, COMM_SMS = 24 };

/* Most of the road to the experts that overlap hides: a public profile of plain all-to-alls, and what the
 * published steps of the fused kernels leave over. */
static double most_hidden(DispatcherId d) { return dispatcher_rows[d].two_level ? 0.60 : 0.45; }

/* One micro-batch: of a layer, then of a stage. Numbers only: they are added as one vector. */
typedef struct Micro {
    double gemm, experts, attention, memory, vision, replay, tp, cp, ep, launch;
    double forward, backward;                    /* work that gradients and weights can hide behind */
} Micro;

static double micro_sum(const Micro *m)
{
    return m->gemm + m->experts + m->attention + m->memory + m->vision + m->tp + m->cp + m->ep + m->launch;
}

/* Kernels of a layer: a third of them forward, and beside a pair its own few. */
static double kernels(LayerKind k)
{
    const LoraLayer *x = k.lora;
    double n = k.moe ? KERNELS_MOE : KERNELS_DENSE;
    if (!x) return n;
    const LoraWeight *w[] = { &x->qkv, &x->o, &x->router, &x->up, &x->down };
    if (!x->back) n /= 3;
    for (size_t i = 0; i < sizeof w / sizeof *w; i++) n += w[i]->r > 0 ? x->back ? KERNELS_PAIR : 2 : 0;
    return n;
}

/* One layer of a kind; all of them are alike. */
static void kind_time(Micro *m, const Task *t, const Candidate *c, LayerKind k)
{
    LayerTime l;
    bool full = c->recompute & RE_FULL && (!k.lora || k.lora->back);
    layer_time(&l, t, c, k);
    double work = l.gemm[0] + l.gemm[1] + l.experts[0] + l.experts[1] + l.attention[0] + l.attention[1]
                + l.memory + l.replay;
    double road = k.moe ? l.passes * ep_pass(t, c) : 0, slower = 0;
    if (c->overlap && road > 0) {
        double hidden = fmin(most_hidden(c->dispatch) * road, work);
        slower = hidden * fmin(COMM_SMS / (double)t->hw.sms, 0.25);     /* what moves rows does not compute */
        road -= hidden;
    }
    double wires = tp_layer(t, c, k, true) * (full ? 2 : 1) + tp_layer(t, c, k, false);
    double ring = k.gdn ? 0 : cp_layer(t, c, l.attention[0], l.attention[1]);
    double host = kernels(k) * (t->launch > 0 ? t->launch : t->hw.launch);
    *m = (Micro){ .gemm = l.gemm[0] + l.gemm[1], .experts = l.experts[0] + l.experts[1],
                  .attention = l.attention[0] + l.attention[1], .memory = l.memory + l.replay + slower,
                  .replay = l.replay, .tp = wires, .cp = ring, .ep = road,
                  .launch = fmax(0, host - work - slower - wires - ring - road),
                  .forward = l.gemm[0] + l.experts[0] + l.attention[0] + l.memory / 3 };
    m->backward = work - m->forward;
}

static void micro_add(Micro *to, const Micro *m, double n)
{
    double *a = (double *)to;
    const double *b = (const double *)m;
    for (size_t i = 0; i < sizeof *m / sizeof *a; i++) a[i] += n * b[i];
}

/* Layers by kind, and what the ends have besides. */
typedef struct Kinds { Micro layer[MOST_LAYERS], first, last; } Kinds;

static void kinds_time(Kinds *k, const Task *t, const Candidate *c)
{
    k->first = k->last = (Micro){ 0 };
    for (int i = 0; i < task_kinds(t); i++) {
        LayerKind kind = task_kind(t, i);
        if (task_has_kind(t, kind)) kind_time(&k->layer[i], t, c, kind);
    }
    k->last.gemm = head_time(&k->last.memory, t, c);
    k->first.vision = vision_time(&k->first.replay, t, c);
}

static void stage_time(Micro *m, const Task *t, const Kinds *k, const StageLayers *s)
{
    *m = (Micro){ 0 };
    for (int i = 0; i < task_kinds(t); i++)
        if (s->n[i]) micro_add(m, &k->layer[i], s->n[i]);
    if (s->last)  micro_add(m, &k->last, 1);
    if (s->first) micro_add(m, &k->first, 1);
}

/* State is read and written once; what is on the host comes and goes over its link meanwhile. */
static double optimizer_time(const Task *t, const Candidate *c, const StageParams *p)
{
    double o = t->master_bytes + 2.0 * t->moment_bytes, owned = params_here(p->trained);
    if (c->zero) owned = params_owned(p->trained, t, c);
    double here = owned * (2 * o + t->grad_bytes + stage_weight_bytes(t))
                / (t->hw.memory_bw * t->hw.work[WORK_MEMORY].flat);
    double away = c->offload > 0 ? c->offload * owned * o / (t->hw.host_bw * t->hw.host_share) : 0;
    return fmax(here, away);
}

/* The model's own work, of a sequence. */
static double sequence_flops(const Task *t)
{
    const ModelRow *m = t->model;
    double seq = (double)t->seq, one = task_picture(t), pictures = m->depth && t->patches;
    if (t->lora) {
        Load  l = { t->seq, t->patches, t->seq, seq * seq / 2, one * (double)t->patches };
        Flops f = flops_train(&t->lora->work, &l);
        return flops_sum(&f);
    }
    if (pictures) pictures = (double)t->patches / one;
    return seq * analytic_flops_token(m, t->seq)
         + pictures * analytic_flops_vision(m, (int64_t)one, t->frozen_vision);
}

static void rates(StepTime *s, const Task *t)
{
    double tokens = (double)t->seq * (double)t->gbs, flops = (double)t->gbs * sequence_flops(t);
    s->tokens_s = tokens / s->step;
    s->model_tflops = flops / s->step / t->gpus / 1e12;
    s->mfu = s->model_tflops * 1e12 / (t->precision == PREC_BF16 || t->hw.fp8 <= 0 ? t->hw.bf16 : t->hw.fp8);
}

void analytic_time(StepTime *s, const Task *t, const Candidate *c)
{
    Micro slow = { 0 };
    StageParams params = { 0 };
    double M = task_micros(t, c), each = -1;
    Kinds kinds;
    kinds_time(&kinds, t, c);
    for (int p = 0; p < c->pp; p++) {
        Micro m;
        StageLayers l;
        stage_layers(&l, t, c, p);
        stage_time(&m, t, &kinds, &l);
        if (micro_sum(&m) <= each) continue;
        each = micro_sum(&m), slow = m;
        stage_params(&params, t, c, &l);
    }
    *s = (StepTime){ .gemm = M * slow.gemm, .experts = M * slow.experts, .attention = M * slow.attention,
                     .memory = M * slow.memory, .vision = M * slow.vision, .replay = M * slow.replay,
                     .tp = M * slow.tp, .cp = M * slow.cp, .ep = M * slow.ep, .pp = M * pp_micro(t, c),
                     .launch = M * slow.launch, .bubble = (double)(c->pp - 1) / c->vpp * each };
    s->dp = dp_exposed(t, c, &params, slow.forward, slow.backward);
    s->optimizer = optimizer_time(t, c, &params);
    s->step = M * each + s->pp + s->bubble + s->dp + s->optimizer;
    rates(s, t);
}
