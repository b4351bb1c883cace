/* plan/analytic_time.c -- the analytic model of time: seconds of a step are the slowest stage's micro-batches
 * one after the other, the bubble of the pipeline, exposed communication, the optimizer. */
#include "plan/analytic_time.h"

/* Share of a layer's host time that a word of memory.recompute adds. */
static const double HOST_WORD = 0.03;

/* Kernels that the host starts for a layer and a micro-batch, forward and backward. */
enum { KERNELS_MOE = 150, KERNELS_DENSE = 60, KERNELS_ADAPTER = 10 };

/* One micro-batch: of a layer, then of a stage. Numbers only: they are added as one vector. */
typedef struct Micro {
    double gemm, experts, attention, memory, vision, replay, tp, cp, ep, launch;
    double forward, backward;                    /* work that hides the communication of dp */
} Micro;

static double micro_sum(const Micro *m)
{
    return m->gemm + m->experts + m->attention + m->memory + m->vision + m->tp + m->cp + m->ep + m->launch;
}

/* Kernels of a layer over those of a MoE layer: a third of them forward; and those of its adapters. */
static double kernels(LayerClass k)
{
    const LoraLayer *x = k.lora;
    double n = k.kinds.ffn == FFN_MOE ? KERNELS_MOE : KERNELS_DENSE;
    if (!x) return n;
    if (!x->back) n /= 3;
    for (int i = 0; i < MAX_STEPS; i++) n += x->weight[i].r > 0 ? x->back ? KERNELS_ADAPTER : 2 : 0;
    return n;
}

/* One layer of a class. */
static void class_time(Micro *m, const Task *t, const Candidate *c, LayerClass k)
{
    LayerTime l;
    bool full = c->recompute & RE_FULL && class_has_backward(k);
    const EngineRow *e    = task_engine(t);
    layer_time(&l, t, c, k);
    double work = l.gemm[0] + l.gemm[1] + l.experts[0] + l.experts[1] + l.attention[0] + l.attention[1]
                + l.memory + l.replay;
    double dispatch = l.passes > 0 ? l.passes * ep_pass(t, c) : 0, slower = 0;
    if (c->overlap && dispatch > 0) {
        double hidden = fmin(e->hides * dispatch, work);
        slower        = hidden * e->held;
        dispatch -= hidden;
    }
    double tp = tp_layer(t, c, k, true) * (full ? 2 : 1) + tp_layer(t, c, k, false);
    double ring = cp_layer(t, c, k, &l), host = 1e-3 * e->host[t->graphs] * kernels(k) / KERNELS_MOE;
    double wait = dispatch > 0 ? 1e-3 * e->wait * e->host[t->graphs] / e->host[GRAPHS_NONE] : 0;
    if (dispatcher_rows[c->dispatch].two_level) wait = 0;
    host *= full ? 4.0 / 3 : 1 + HOST_WORD * __builtin_popcount(c->recompute);
    *m          = (Micro){ .gemm      = l.gemm[0] + l.gemm[1],
                           .experts   = l.experts[0] + l.experts[1],
                           .attention = l.attention[0] + l.attention[1],
                           .memory    = l.memory + l.replay + slower,
                           .replay    = l.replay,
                           .tp        = tp,
                           .cp        = ring,
                           .ep        = dispatch,
                           .launch    = fmax(wait, host - work - slower - tp - ring - dispatch),
                           .forward   = l.gemm[0] + l.experts[0] + l.attention[0] + l.memory / 3 };
    m->backward = work - m->forward;
}

static void micro_add(Micro *to, const Micro *m, double n)
{
    double *a = (double *)to;
    const double *b = (const double *)m;
    for (size_t i = 0; i < sizeof *m / sizeof *a; i++) a[i] += n * b[i];
}

/* Layers by class, and what the first and the last stage have besides. */
typedef struct ClassTimes { Micro layer[MOST_LAYERS], first, last; } ClassTimes;

static void fill_classes(ClassTimes *k, const Task *t, const Candidate *c)
{
    k->first = k->last = (Micro){ 0 };
    for (int i = 0; i < task_classes(t); i++) {
        LayerClass class = task_class(t, i);
        if (task_has_class(t, class)) class_time(&k->layer[i], t, c, class);
    }
    k->last.gemm = head_time(&k->last.memory, t, c);
    k->first.vision = vision_time(&k->first.replay, t, c);
}

static void stage_time(Micro *m, const Task *t, const ClassTimes *k, const StageLayers *s)
{
    *m = (Micro){ 0 };
    for (int i = 0; i < task_classes(t); i++)
        if (s->n[i]) micro_add(m, &k->layer[i], s->n[i]);
    if (s->last)  micro_add(m, &k->last, 1);
    if (s->first) micro_add(m, &k->first, 1);
}

/* State is read and written once; the offloaded share moves over the host's link at the same time. */
static double optimizer_time(const Task *t, const Candidate *c, const StageParams *p)
{
    double o = t->master_bytes + 2.0 * t->moment_bytes, owned = params_here(p->trained);
    if (c->zero) owned = params_owned(p->trained, t, c);
    double here = owned * (2 * o + t->grad_bytes + stage_weight_bytes(t))
                / (t->hw.memory_bw * t->hw.work[WORK_MEMORY].flat);
    double host = c->offload > 0 ? c->offload * owned * o / (t->hw.host_bw * t->hw.host_share) : 0;
    return fmax(here, host);
}

/* Model FLOPs of a sequence. */
static double sequence_flops(const Task *t)
{
    const ModelRow *m = t->model;
    double seq = (double)t->seq, one = task_picture(t), pictures = m->vision.depth && t->patches;
    if (t->lora) {
        Load  l = { t->seq, t->patches, t->seq, seq * seq / 2, one * (double)t->patches };
        Flops f = flops_train(&t->lora->work, &l);
        return flops_sum(&f);
    }
    if (pictures) pictures = (double)t->patches / one;
    return seq * analytic_flops_token(m, t->seq)
         + pictures * analytic_flops_vision(m, (int64_t)one, t->frozen_vision);
}

/* Of a GPU, that MFU is a share of. */
static double task_peak(const Task *t)
{
    double peak = hardware_peak(&t->hw, t->precision);
    return peak > 0 ? peak : t->hw.bf16;
}

static void rates(StepTime *s, const Task *t)
{
    double tokens = (double)t->seq * (double)t->gbs, flops = (double)t->gbs * sequence_flops(t);
    s->tokens_s = tokens / s->step;
    s->model_tflops = flops / s->step / t->gpus / 1e12;
    s->mfu = s->model_tflops * 1e12 / task_peak(t);
}

void analytic_time(StepTime *s, const Task *task, const Candidate *c)
{
    Micro slow = { 0 };
    StageParams params = { 0 };
    LayerTable  table;
    Task        own = task_with_layers(task, &table), *t = &own;
    double      M = task_micros(t, c), each = -1;
    ClassTimes  classes;
    fill_classes(&classes, t, c);
    for (int p = 0; p < c->pp; p++) {
        Micro m;
        StageLayers l;
        stage_layers(&l, t, c, p);
        stage_time(&m, t, &classes, &l);
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
