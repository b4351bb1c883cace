/* plan/analytic_work.c -- seconds of a layer's work.
 *
 * A product takes its FLOPs at the share of the peak that large ones reach, less what idles in the last wave
 * of tiles and what a short inner dimension costs. Products of experts lose what their last tiles lack of
 * rows. Everything between products is bandwidth: six times what the layer keeps for backward, and the rows
 * that are sorted by expert and back. */
#include "plan/analytic_time.h"

enum { TILE_M = 128, TILE_N = 256, INNER = 512, ROWS = 128, UNFUSED = 45 };

/* wide: a product in the dtype of the weights. */
static double peak(const Task *t, bool wide)
{
    const Hardware *h = &t->hw;
    const EngineRow *e = task_engine(t);
    double           rate = hardware_rate(h, t->precision);
    if (wide || t->precision == PREC_BF16 || rate <= 0) return hardware_rate(h, PREC_BF16) / e->gemm;
    return rate / e->fp8;
}

static double waves(const Hardware *h, double m, double n)       /* share of multiprocessors at work */
{
    double tiles = ceil(m / TILE_M) * ceil(n / TILE_N);
    return tiles / (ceil(tiles / h->sms) * h->sms);
}

static double product(const Task *t, double m, double n, double k, bool wide)
{
    return 2 * m * n * k / (peak(t, wide) * waves(&t->hw, m, n) * k / (k + INNER));
}

static double bytes_time(const Task *t, double bytes)
{
    return bytes * task_engine(t)->memory / (t->hw.memory_bw * t->hw.work[WORK_MEMORY].flat);
}

/* Products with the r columns of adapters that move so many values: their bytes, unless r is large. */
static double narrow(const Task *t, double values, double r)
{
    return fmax(bytes_time(t, 2 * values), 2 * values * r / peak(t, true));
}

/* Adds the adapters of a weight of which a rank has k inputs and a share of the outputs. */
static void add_adapters(double to[2], const Task *t, double m, double k, double share, const LoraWeight *w,
                         bool grouped)
{
    LoraTraffic v = lora_traffic(w, grouped);
    for (int i = 0; i < 2; i++) to[i] += narrow(t, m * (k * v.in[i] + share * w->out * v.out[i]), w->r);
}

/* Adds y (m, n) = x (m, k) w', and backward the gradients of x and of w, where they are wanted: without w
 * both are. This trainer computes the gradients of weights in their own dtype, but for coded_dw
 * (nn/precision.def). Returns the forward. */
static double add_product(double to[2], const Task *t, double m, double n, double k, const LoraWeight *w,
                          bool coded_dw)
{
    bool   wide = task_engine(t) == engine_row_at(0) && !coded_dw;
    double forward = product(t, m, n, k, false);
    to[0] += forward;
    if (!w || w->input) to[1] += product(t, m, k, n, false);
    if (!w || w->whole) to[1] += product(t, n, k, m, wide);
    return forward;
}

/* A product of experts idles in the last tile of rows of each expert on the rank, `lost` of its time. */
static void step_time(LayerTime *l, const Task *t, const RankShape *r, const LayerStep *s,
                      const LoraWeight *w, double lost)
{
    bool   grouped = s->rows == ROWS_EXPERTS;
    double m = r->rows[s->rows], k = s->in / rank_cut(r, s->in_cut), share = 1 / rank_cut(r, s->out_cut);
    double n = s->out * share + s->kv_out / r->kv, both[2] = { 0 }, *to = grouped ? l->experts : l->gemm;
    l->made[s->makes] += add_product(both, t, m, n, k, w, grouped && r->coded_dw);
    for (int i = 0; i < 2; i++) to[i] += both[i] * (grouped ? lost : 1);
    if (w) add_adapters(to, t, m, k, share, w, grouped);
}

static void core_time(LayerTime *l, const Task *t, const Candidate *c, const LayerStep *s, bool back)
{
    double           macs = task_tokens(t, c) * core_macs(s, (double)t->seq) / c->tp;
    const EngineRow *e    = task_engine(t);
    double           bf16 = t->hw.bf16 / (s->macs_pair > 0 ? e->attention : e->delta);
    l->attention[0] += 2 * macs / (bf16 * t->hw.work[WORK_ATTENTION].flat);
    if (back) l->attention[1] += 4 * macs / (bf16 * t->hw.work[WORK_ATTENTION_BACK].flat);
}

/* Routers are left out. */
static void steps_time(LayerTime *l, const Task *t, const Candidate *c, LayerClass k)
{
    const Description *d = class_description(t, k);
    RankShape r = task_rank(t, c);
    double each = r.rows[ROWS_EXPERTS] * c->ep / (double)(t->model->text.E ? t->model->text.E : 1);
    double lost = (each + ROWS) / each * t->hw.work[WORK_GEMM].flat / t->hw.work[WORK_GROUPED].flat *
                  task_engine(t)->grouped;
    for (int i = 0; i < d->steps; i++) {
        const LayerStep *s = &d->step[i];
        if (s->type == STEP_CORE) core_time(l, t, c, s, class_core_has_backward(k));
        else if (s->type == STEP_PRODUCT && s->linear != LINEAR_ROUTER)
            step_time(l, t, &r, s, k.lora ? &k.lora->weight[i] : NULL, lost);
    }
}

static void add_moe_replay(LayerTime *l, const LayerBytes *b, const Task *t, unsigned re)
{
    double input = b->of[L_DISPATCH], act = b->of[L_ACT], up = b->of[L_GATE_UP];
    if (re & RE_MOE) {
        double rows = input + up + act + b->of[L_LOGITS] + b->unread;
        l->replay += l->experts[0] + l->made[L_SHARED_UP] + bytes_time(t, 2 * rows);
        l->passes += 2;
        return;
    }
    if ((re & RE_MOE_DISPATCH) && input > 0) l->replay += bytes_time(t, 2 * input), l->passes += 1;
    if (re & (RE_MOE_ACT | RE_MOE_DISPATCH)) l->replay += bytes_time(t, up + act);
    if (re & RE_SHARED) l->replay += l->made[L_SHARED_UP];
}

static void add_replay(LayerTime *l, const LayerBytes *b, const Task *t, unsigned re, bool moe)
{
    if (re & RE_FULL) {
        l->replay = l->gemm[0] + l->experts[0] + l->attention[0] + l->memory / 3;
        if (moe) l->passes += 2;
        return;
    }
    if (re & RE_CORE)    l->replay += l->attention[0];
    if (re & RE_NORM)    l->replay += bytes_time(t, 2 * (b->of[L_NORM] + b->of[L_MLP_NORM]));
    if (re & RE_UP_PROJ) l->replay += l->made[L_UP_PROJ];
    if (re & RE_MLP)     l->replay += l->made[L_MLP_UP];
    if (moe) add_moe_replay(l, b, t, re);
}

static bool up_wants_input(const Task *t, LayerClass k)
{
    const Description *d = class_description(t, k);
    for (int i = 0; k.lora && i < d->steps; i++)
        if (d->step[i].makes == L_GATE_UP) return k.lora->weight[i].input;
    return true;
}

static void slow_down(LayerTime *l, double factor)
{
    for (int i = 0; i < 2; i++) l->gemm[i] *= factor, l->experts[i] *= factor, l->attention[i] *= factor;
    l->memory *= factor, l->replay *= factor;
}

/* A layer without a backward moves a third of its bytes, and half of the dispatches of one with it. */
void layer_time(LayerTime *l, const Task *t, const Candidate *c, LayerClass k)
{
    const TextShape *m = &t->model->text;
    RankShape  r = task_rank(t, c);
    bool       back = class_has_backward(k), moe = k.kinds.ffn == FFN_MOE;
    LayerBytes b;
    *l = (LayerTime){ 0 };
    layer_bytes(&b, t, c, k);
    l->memory = bytes_time(t, (back ? 6 : 2) * (layer_kept(&b, t, 0) + b.unread));
    steps_time(l, t, c, k);
    if (moe) {
        double passes = dispatcher_rows[c->dispatch].maps ? 2 : 4; /* mapped: rows are written in place */
        double rows =
            passes * r.rows[ROWS_EXPERTS] * (double)m->D * 2 + r.rows[ROWS_TOKENS] * (double)m->E * 20;
        l->memory += bytes_time(t, rows * (back ? 1 : 0.5));
        l->passes = back ? 3 + up_wants_input(t, k) : 2;
    }
    if (back) add_replay(l, &b, t, c->recompute, moe);
    if (m->window) slow_down(l, task_engine(t)->sinks);
}

double head_time(double *memory, const Task *t, const Candidate *c)
{
    const TextShape *m = &t->model->text;
    double T = task_tokens(t, c), V = (double)m->V / c->tp, D = (double)m->D, mtp = (double)m->mtp;
    double to[2] = { 0 };
    Task wide = *t;
    wide.precision = PREC_BF16;
    add_product(to, &wide, T, V, D, t->lora ? &t->lora->head : NULL, false);
    if (t->lora) add_adapters(to, t, T, D, 1.0 / c->tp, &t->lora->head, false);
    *memory = (1 + mtp) * bytes_time(t, (t->unfused_logits ? UNFUSED : 4 * 2) * T * V);
    return (1 + mtp) * (to[0] + to[1]);
}

/* What the tower takes beside its forward. */
static double lora_tower_time(double *replay, const Task *t, const Candidate *c, double P, double forward,
                              double block)
{
    const LoraTower *x = &t->lora->tower;
    double kept = (double)x->blocks / (double)t->model->vision.depth;
    if (c->recompute & (RE_VISION | RE_FULL)) *replay = kept * forward;
    return P * x->back / (t->hw.bf16 * t->hw.work[WORK_GEMM].flat)
         + P * task_picture(t) * x->core / (t->hw.bf16 * t->hw.work[WORK_VISION_BACK].flat)
         + bytes_time(t, 4 * x->blocks * block) + bytes_time(t, 2 * P * x->values) + *replay;
}

double vision_time(double *replay, const Task *t, const Candidate *c)
{
    const VisionShape *v = &t->model->vision;
    *replay = 0;
    if (!v->depth || !t->patches) return 0;
    double P = (double)t->patches * c->mbs / ((double)c->tp * c->cp), one = task_picture(t);
    double linear = 2 * P * t->layers->tower.patch, core = 2 * P * one * t->layers->tower.pair;
    double bf16 = t->hw.bf16, gemm = bf16 * t->hw.work[WORK_GEMM].flat, depth = (double)v->depth;
    double block = P * vision_block_bytes(t, 0);
    double forward = linear / gemm + core / (bf16 * t->hw.work[WORK_VISION].flat)
                   + bytes_time(t, 2 * depth * block);
    if (t->lora) return forward + lora_tower_time(replay, t, c, P, forward, block);
    if (t->frozen_vision) return forward;
    if (c->recompute & (RE_VISION | RE_FULL)) *replay = forward;
    return forward + 2 * linear / gemm + 2 * core / (bf16 * t->hw.work[WORK_VISION_BACK].flat)
         + bytes_time(t, 4 * depth * block) + *replay;
}
