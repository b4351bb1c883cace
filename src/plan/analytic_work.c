/* plan/analytic_work.c -- seconds of a layer's work by formula.
 *
 * A product takes its FLOPs at the share of the peak that large ones reach, less what idles in the last wave
 * of tiles and what a short inner dimension costs. Products of experts lose what their last tiles lack of
 * rows. Everything between products is bandwidth: six times what the layer leaves for backward, and the rows
 * that are sorted by expert and back. */
#include "plan/analytic_time.h"

enum { TILE_M = 128, TILE_N = 256, INNER = 512, ROWS = 128 };

static double peak(const Task *t)
{
    const Hardware *h = &t->hw;
    if (t->precision == PREC_BF16 || h->fp8 <= 0) return h->bf16 * h->work[WORK_GEMM].flat;
    return h->fp8 * h->fp8_share;
}

static double waves(const Hardware *h, double m, double n)       /* share of multiprocessors at work */
{
    double tiles = ceil(m / TILE_M) * ceil(n / TILE_N);
    return tiles / (ceil(tiles / h->sms) * h->sms);
}

static double product(const Task *t, double m, double n, double k)
{
    return 2 * m * n * k / (peak(t) * waves(&t->hw, m, n) * k / (k + INNER));
}

static double bytes_time(const Task *t, double bytes)
{
    return bytes / (t->hw.memory_bw * t->hw.work[WORK_MEMORY].flat);
}

/* Products with the r columns of pairs that move so many values: their bytes, unless r is large. */
static double narrow(const Task *t, double values, double r)
{
    return fmax(bytes_time(t, 2 * values), 2 * values * r / peak(t));
}

/* Adds the pairs of a weight of which a rank has k inputs and a share of the outputs. */
static void pairs(double to[2], const Task *t, double m, double k, double share, const LoraWeight *w,
                  bool grouped)
{
    LoraTraffic v = lora_traffic(w, grouped);
    for (int i = 0; i < 2; i++) to[i] += narrow(t, m * (k * v.in[i] + share * w->out * v.out[i]), w->r);
}

/* Adds y (m, n) = x (m, k) w', and backward the gradients of x and of w, where they are wanted: without w
 * both are. Returns the forward. */
static double products(double to[2], const Task *t, double m, double n, double k, const LoraWeight *w)
{
    double forward = product(t, m, n, k);
    to[0] += forward;
    if (!w || w->input) to[1] += product(t, m, k, n);
    if (!w || w->whole) to[1] += product(t, n, k, m);
    return forward;
}

static void attention_products(LayerTime *l, const Task *t, const Candidate *c, double T, LayerKind kind)
{
    const LoraLayer *x = kind.lora;
    const ModelRow *m = t->model;
    double h = m->h, tp = c->tp, q = m->nq / tp;
    if (kind.gdn) {
        double K = (double)m->gdn_nk * m->gdn_dk, Vd = (double)m->gdn_nv * m->gdn_dv;
        products(l->gemm, t, T, (2 * K + 2 * Vd + 2 * m->gdn_nv) / tp, h, NULL);
        products(l->gemm, t, T, h, Vd / tp, NULL);
    } else if (m->kv_lora) {
        if (m->q_lora) products(l->gemm, t, T, m->q_lora, h, NULL);
        l->up = products(l->gemm, t, T, q * (m->nope + m->rope), m->q_lora ? m->q_lora : h, NULL);
        products(l->gemm, t, T, m->kv_lora + m->rope, h, NULL);
        l->up += products(l->gemm, t, T, q * (m->nope + m->v), m->kv_lora, NULL);
        products(l->gemm, t, T, h, q * m->v, NULL);
    } else {
        double kv = fmax(m->nkv / tp, 1);
        products(l->gemm, t, T, (q * (m->gated ? 2 : 1) + 2 * kv) * m->d, h, x ? &x->qkv : NULL);
        products(l->gemm, t, T, h, q * m->d, x ? &x->o : NULL);
        if (x) pairs(l->gemm, t, T, h, 1 / tp, &x->qkv, false);
        if (x) pairs(l->gemm, t, T, q * m->d, 1, &x->o, false);
    }
}

static void attention_core(LayerTime *l, const Task *t, const Candidate *c, double T, LayerKind kind)
{
    const ModelRow *m = t->model;
    bool   gdn = kind.gdn;
    double macs = core_macs(m, t->seq, gdn, false), bf16 = t->hw.bf16;
    if (m->window && !gdn) macs = (macs + core_macs(m, t->seq, gdn, true)) / 2;      /* every second layer */
    l->attention[0] = 2 * T * macs / c->tp / (bf16 * t->hw.work[WORK_ATTENTION].flat);
    if (kind.lora && !kind.lora->core) return;
    l->attention[1] = 4 * T * macs / c->tp / (bf16 * t->hw.work[WORK_ATTENTION_BACK].flat);
}

static void expert_products(LayerTime *l, const Task *t, const Candidate *c, double R, const LoraLayer *x)
{
    const ModelRow *m = t->model;
    double each = R / ((double)m->E / c->ep), f = (double)m->f / c->etp, part[2] = { 0 };
    double lost = (each + ROWS) / each * t->hw.work[WORK_GEMM].flat / t->hw.work[WORK_GROUPED].flat;
    products(part, t, R, 2 * f, m->h, x ? &x->up : NULL);
    products(part, t, R, m->h, f, x ? &x->down : NULL);
    l->experts[0] = part[0] * lost;
    l->experts[1] = part[1] * lost;
    if (!x) return;
    pairs(l->experts, t, R, m->h, 1.0 / c->etp, &x->up, true);
    pairs(l->experts, t, R, f, 1, &x->down, true);
}

/* The product of a dense layer, or of experts that all tokens share; returns its first one's forward. */
static double feed_products(LayerTime *l, const Task *t, double T, double f, const LoraLayer *x)
{
    double h = t->model->h, first = products(l->gemm, t, T, 2 * f, h, x ? &x->up : NULL);
    products(l->gemm, t, T, h, f, x ? &x->down : NULL);
    if (!x) return first;
    pairs(l->gemm, t, T, h, f / t->model->fd, &x->up, false);
    pairs(l->gemm, t, T, f, 1, &x->down, false);
    return first;
}

static void replays(LayerTime *l, const LayerBytes *b, const Task *t, unsigned re, bool moe)
{
    if (re & RE_FULL) {
        l->replay = l->gemm[0] + l->experts[0] + l->attention[0] + l->memory / 3;
        if (moe) l->passes += 2;
        return;
    }
    if (re & RE_CORE)             l->replay += l->attention[0];
    if (re & RE_NORM)             l->replay += bytes_time(t, 2 * b->norm);
    if (re & RE_UP_PROJ)          l->replay += l->up;
    if ((re & RE_MLP) && !moe)    l->replay += l->mlp;
    if (!moe) return;
    if (re & RE_MOE) {
        double rows = b->input + b->fc1 + b->act + b->router + b->unread;
        l->replay += l->experts[0] + l->shared + bytes_time(t, 2 * rows);
        l->passes += 2;
        return;
    }
    if ((re & RE_MOE_DISPATCH) && b->input > 0) l->replay += bytes_time(t, 2 * b->input), l->passes += 1;
    if (re & (RE_MOE_ACT | RE_MOE_DISPATCH)) l->replay += bytes_time(t, b->fc1 + b->act);
    if (re & RE_SHARED)       l->replay += l->shared;
}

/* A layer without a backward is a third of its bytes, and half of the way to the experts. */
void layer_time(LayerTime *l, const Task *t, const Candidate *c, LayerKind k)
{
    const ModelRow *m = t->model;
    const LoraLayer *x = k.lora;
    bool   back = !x || x->back;
    double T = (double)t->seq * c->mbs / c->cp, Ts = T / c->tp;
    LayerBytes b;
    *l = (LayerTime){ 0 };
    analytic_layer(&b, t, c, k);
    l->memory = bytes_time(t, (back ? 6 : 2) * (analytic_layer_kept(&b, t, 0) + b.unread));
    attention_products(l, t, c, T, k);
    attention_core(l, t, c, T, k);
    if (k.moe) {
        double R = Ts * m->k * c->etp * task_uneven(t, c);
        expert_products(l, t, c, R, x);
        l->memory += bytes_time(t, (4 * R * m->h * 2 + Ts * m->E * 20) * (back ? 1 : 0.5));
        if (m->fs) l->shared = feed_products(l, t, T, (double)m->fs / c->tp, NULL);
        l->passes = back ? 3 + (!x || x->up.input) : 2;
    } else l->mlp = feed_products(l, t, T, (double)m->fd / c->tp, x);
    if (back) replays(l, &b, t, c->recompute, k.moe);
}

double head_time(double *memory, const Task *t, const Candidate *c)
{
    const ModelRow *m = t->model;
    double T = (double)t->seq * c->mbs / c->cp, V = (double)m->V / c->tp, to[2] = { 0 };
    Task wide = *t;
    wide.precision = PREC_BF16;
    products(to, &wide, T, V, m->h, t->lora ? &t->lora->head : NULL);
    if (t->lora) pairs(to, t, T, m->h, 1.0 / c->tp, &t->lora->head, false);
    *memory = (1 + m->mtp) * bytes_time(t, 4 * 2 * T * V);
    return (1 + m->mtp) * (to[0] + to[1]);
}

/* What the tower takes beside its forward. */
static double adapted_tower(double *replay, const Task *t, const Candidate *c, double P, double forward)
{
    const LoraTower *x = &t->lora->tower;
    const ModelRow     *m = t->model;
    double kept = (double)x->blocks / m->depth, block = P * (20.0 * m->hv + 4.0 * m->fv);
    if (c->recompute & (RE_VISION | RE_FULL)) *replay = kept * forward;
    return P * x->back / (t->hw.bf16 * t->hw.work[WORK_GEMM].flat)
         + P * task_picture(t) * x->core / (t->hw.bf16 * t->hw.work[WORK_VISION_BACK].flat)
         + bytes_time(t, 4 * x->blocks * block) + bytes_time(t, 2 * P * x->pairs) + *replay;
}

double vision_time(double *replay, const Task *t, const Candidate *c)
{
    const ModelRow *m = t->model;
    *replay = 0;
    if (!m->depth || !t->patches) return 0;
    double P = (double)t->patches * c->mbs / ((double)c->tp * c->cp), D = m->hv, W = m->merged * D;
    double one = task_picture(t);
    double linear = m->depth * (8 * D * D + 4 * D * m->fv) * P
                  + (1 + m->taps) * (P / m->merged) * (2 * W * W + 2 * W * m->h);
    double core = m->depth * 4 * D * P * one, bf16 = t->hw.bf16, gemm = bf16 * t->hw.work[WORK_GEMM].flat;
    double block = P * (20.0 * m->hv + 4.0 * m->fv);
    double forward = linear / gemm + core / (bf16 * t->hw.work[WORK_VISION].flat)
                   + bytes_time(t, 2 * m->depth * block);
    if (t->lora) return forward + adapted_tower(replay, t, c, P, forward);
    if (t->frozen_vision) return forward;
    if (c->recompute & (RE_VISION | RE_FULL)) *replay = forward;
    return forward + 2 * linear / gemm + 2 * core / (bf16 * t->hw.work[WORK_VISION_BACK].flat)
         + bytes_time(t, 4 * m->depth * block) + *replay;
}
