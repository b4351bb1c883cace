/* plan/closed_memory.c -- bytes of a rank by formula: what it holds of the model, what its layers leave for
 * backward, how many of those leavings live at once.
 *
 * A rank's T tokens are those of a micro-batch over CP; outside attention and dense products TP cuts them
 * once more. R rows enter the local experts. Everything is two bytes wide unless said. */
#include "nn/head.h"
#include "ops/backend.h"
#include "plan/closed_private.h"

static double least(double a, double b) { return a < b ? a : b; }
static double most(double a, double b)  { return a > b ? a : b; }

static double task_tokens(const Task *t, const Candidate *c) { return (double)t->seq * c->mbs / c->cp; }

static double task_rows(const Task *t, const Candidate *c)
{
    return task_tokens(t, c) / c->tp * t->model->k * c->etp * t->imbalance;
}

static void attention_bytes(LayerBytes *b, const ModelRow *m, const Candidate *c, double T)
{
    double tp = c->tp, q = (double)m->nq / tp, kv = most((double)m->nkv / tp, 1);
    b->lse = 4 * T * q;
    if (m->kv_lora) {
        b->low  = 2 * T * (2.0 * m->q_lora + 2.0 * m->kv_lora + m->rope);
        b->up   = 2 * T * q * (2.0 * (m->nope + m->rope) + m->v);
        b->core = 2 * T * q * m->v;
        return;
    }
    b->qkv     = 2 * T * (q * (m->gated ? 2 : 1) + 2 * kv) * m->d;
    b->rotated = m->qk_norm ? 2 * T * (q + m->nkv / tp) * m->d : 0;
    b->core    = 2 * T * q * m->d;
}

static double gdn_bytes(const ModelRow *m, const Candidate *c, double T)
{
    double K = (double)m->gdn_nk * m->gdn_dk, Vd = (double)m->gdn_nv * m->gdn_dv;
    double states = 4 * (T / 64) * m->gdn_nv * m->gdn_dk * m->gdn_dv;
    return (2 * T * (2 * K + 2 * Vd) + 2 * T * (2 * K + Vd) + 2 * T * Vd * 2 + states) / c->tp;
}

void closed_layer(LayerBytes *b, const Task *t, const Candidate *c, bool gdn, bool moe)
{
    const ModelRow *m = t->model;
    double T = task_tokens(t, c), Ts = T / c->tp, R = task_rows(t, c);
    *b = (LayerBytes){ .residual = 2 * (2 * Ts * m->h), .norm = 2 * (2 * Ts * m->h) };
    if (gdn) b->gdn = gdn_bytes(m, c, T);
    else attention_bytes(b, m, c, T);
    if (!moe) {
        b->mlp = 2 * T * 3.0 * m->fd / c->tp;
        return;
    }
    b->router = Ts * m->E * 9;
    b->input  = 2 * R * m->h;
    b->fc1    = 2 * R * 2.0 * m->f / c->etp;
    b->act    = 2 * R * m->f / c->etp;
    b->fc2    = t->keep_fc2 ? 2 * R * m->h : 0;
    b->shared = 2 * T * 3.0 * m->fs / c->tp;
}

double closed_layer_kept(const LayerBytes *b, const Task *t, unsigned re)
{
    double q = t->fp8_stash ? 0.52 : 1;          /* 8 bits, their scales, and some that stay wide */
    if (re & RE_FULL) return b->residual / 2;
    double kept = b->residual + b->qkv + b->rotated + b->low + b->gdn;
    if (!(re & RE_CORE))    kept += b->lse;
    if (!(re & RE_CORE) || t->keep_core) kept += q * b->core;
    if (!(re & RE_NORM))    kept += q * b->norm;
    if (!(re & RE_UP_PROJ)) kept += b->up;
    if (!(re & RE_MLP))     kept += b->mlp * (2 + q) / 3;     /* gate, up, and their product */
    if (re & RE_MOE) return kept;
    kept += b->router + b->fc1 + b->fc2;
    if (!(re & RE_MOE_DISPATCH)) kept += q * b->input;
    if (!(re & (RE_MOE_ACT | RE_MOE_DISPATCH))) kept += q * b->act;
    if (!(re & RE_SHARED))       kept += b->shared * (2 + q) / 3;
    return kept;
}

double closed_in_flight(const Task *t, const Candidate *c, int stage)
{
    double M = task_micros(t, c), over = c->overlap ? 1 : 0;
    if (c->pp == 1) return 1 + (t->thin_overlap ? 0.1 : 1) * over;
    if (c->vpp == 1) return least(c->pp - stage, M);         /* there overlap is refused */
    return least(2.0 * (c->pp - 1 - stage) + (double)(c->vpp - 1) * c->pp + over + 1, M * c->vpp);
}

/* Micro-batches whose pictures stage 0 still holds: pieces are passed in groups of PP micro-batches. */
static double pictures_in_flight(const Task *t, const Candidate *c)
{
    double pieces = closed_in_flight(t, c, 0), round = (double)c->pp * c->vpp, whole = (int)(pieces / round);
    return least(whole * c->pp + least(pieces - whole * round, c->pp), task_micros(t, c));
}

static double vision_bytes(const Task *t, const Candidate *c)
{
    const ModelRow *m = t->model;
    double P = (double)t->patches * c->mbs / ((double)c->tp * c->cp);        /* spread over both */
    unsigned re = c->recompute;
    int widths = 20 - (re & RE_NORM ? 4 : 0) - (re & RE_CORE ? 2 : 0);
    double block = P * ((double)widths * m->hv + 4.0 * m->fv), tokens = P / m->merged;
    double W = (double)m->merged * m->hv;
    double mergers = (1 + m->taps) * tokens * W * 2 * 3, out = 2.0 * (1 + m->taps) * tokens * m->h;
    double n = pictures_in_flight(t, c);
    if (t->frozen_vision) return block + n * out;
    if (re & (RE_VISION | RE_FULL)) return block + n * (m->depth * P * 2.0 * m->hv + mergers);
    return n * (m->depth * block + mergers);
}

static double logits_bytes(const Task *t, const Candidate *c)
{
    double T = task_tokens(t, c), V = (double)t->model->V / c->tp;
    if (t->unfused_logits) return T * V * 6;
    Traits card = backend_traits("cuda");
    return least(T, (double)head_chunk_rows(t->model->V, card.logits)) * V * (card.narrow_logits ? 2 : 6);
}

/* Rows of a token that leave the rank: one for each of its experts, or one for each node that has some. */
static double copies(const Task *t, const Candidate *c)
{
    double nodes = most((double)c->ep * c->etp / t->hw.domain, 1), k = t->model->k;
    return c->dispatch == DISPATCH_ALLTOALL ? k : least(k, nodes);
}

/* What one layer of a kind keeps, and what it drops. */
typedef struct Kinds { double kept[2][2], dropped[2][2]; } Kinds;

static void kinds_bytes(Kinds *k, const Task *t, const Candidate *c)
{
    const ModelRow *m = t->model;
    *k = (Kinds){ 0 };
    for (int gdn = 0; gdn <= (m->gdn_every > 0); gdn++)
        for (int moe = m->nd == 0; moe <= (m->E > 0); moe++) {
            LayerBytes b;
            closed_layer(&b, t, c, gdn, moe);
            k->kept[gdn][moe]    = closed_layer_kept(&b, t, c->recompute);
            k->dropped[gdn][moe] = closed_layer_kept(&b, t, 0) - k->kept[gdn][moe];
        }
}

static double buffer_bytes(const Task *t, const Candidate *c, const StageLayers *s, const Kinds *k)
{
    const ModelRow *m = t->model;
    double T = task_tokens(t, c), bytes = c->tp > 1 ? 4 * T * m->h : 0, worst = 0;
    if (s->n[0][1] + s->n[1][1] && c->ep * c->etp > 1)
        bytes += 2 * m->h * (T / c->tp * copies(t, c) + task_rows(t, c)) * (c->overlap ? 2 : 1);
    for (int gdn = 0; gdn < 2; gdn++)
        for (int moe = 0; moe < 2; moe++)
            if (s->n[gdn][moe]) worst = most(worst, k->dropped[gdn][moe]);
    return bytes + worst;
}

static void static_bytes(StageMemory *s, const Task *t, const Candidate *c, const StageLayers *l)
{
    StageParams p;
    stage_params(&p, t, c, l);
    double w = stage_weight_bytes(t), g = t->grad_bytes, moments = 2.0 * t->moment_bytes;
    double all = p.dense + p.expert;
    double owned = c->zero ? p.dense / (task_dp(t, c) * c->cp) + p.expert / task_edp(t, c) : all;
    double away = c->offload * (moments + (t->keep_master ? 0 : t->master_bytes));
    s->weights   = w * ((c->zero == 3 ? owned + 2 * p.unit : all) + p.frozen);
    s->grads     = g * (c->zero >= 2 ? owned + p.unit : all);
    s->optimizer = owned * (t->master_bytes + moments - away);
}

static void stage_bytes(StageMemory *s, const Task *t, const Candidate *c, int stage, const Kinds *k)
{
    StageLayers l;
    *s = (StageMemory){ .fixed = t->hw.fixed };
    stage_layers(&l, t->model, c, stage);
    static_bytes(s, t, c, &l);
    for (int gdn = 0; gdn < 2; gdn++)
        for (int moe = 0; moe < 2; moe++) s->activations += l.n[gdn][moe] * k->kept[gdn][moe];
    if (l.all) s->activations *= closed_in_flight(t, c, stage) * l.most / l.all;
    if (l.last) s->logits = logits_bytes(t, c);
    if (l.first && t->model->depth && t->patches) s->vision = vision_bytes(t, c);
    s->buffers = buffer_bytes(t, c, &l, k);
    s->total = s->weights + s->grads + s->optimizer + s->activations + s->logits + s->vision + s->buffers
             + s->fixed;
}

void closed_memory(StageMemory *s, const Task *t, const Candidate *c, int stage)
{
    Kinds k;
    kinds_bytes(&k, t, c);
    stage_bytes(s, t, c, stage, &k);
}

double closed_peak(const Task *t, const Candidate *c, int *stage)
{
    double peak = 0;
    Kinds k;
    kinds_bytes(&k, t, c);
    for (int p = 0; p < c->pp; p++) {
        StageMemory s;
        stage_bytes(&s, t, c, p, &k);
        if (s.total <= peak) continue;
        peak = s.total;
        if (stage) *stage = p;
    }
    return peak;
}
