/* plan/analytic_params.c -- what a model weighs and how much work a token is, from its row alone.
 *
 * Work is six times the multiply-adds of matrix products and attention cores, forward and backward; causal
 * attention counts the half that exists. Routers, norms, softmax and rotations are left out, as everybody
 * does. Prediction of further tokens (MTP) counts as layers and as logits. */
#include "plan/analytic_private.h"

#include <math.h>
#include <string.h>

enum { POSITIONS = 2304 };                                  /* of every tower here */

AttnParams attn_params(const ModelRow *m, bool gdn)
{
    double h = m->h, nq = m->nq;
    if (gdn) {
        double K = (double)m->gdn_nk * m->gdn_dk, Vd = (double)m->gdn_nv * m->gdn_dv;
        return (AttnParams){ .cut = h * (2 * K + 2 * Vd + 2 * m->gdn_nv) + Vd * h
                                  + m->gdn_conv * (2 * K + Vd) };
    }
    if (m->kv_lora) {
        double up = nq * (m->nope + m->rope);
        return (AttnParams){ .cut = (m->q_lora ? m->q_lora * up : h * up) + m->kv_lora * nq * (m->nope + m->v)
                                  + nq * m->v * h,
                             .whole = (double)m->q_lora * h + m->kv_lora * h + h * m->rope };
    }
    return (AttnParams){ .cut = h * nq * m->d * (m->gated ? 2 : 1) + nq * m->d * h,
                         .kv = 2 * h * m->nkv * m->d, .whole = m->qk_norm ? 2 * m->d : 0 };
}

/* Layers [0, x) that have full attention. */
static int full_below(const ModelRow *m, int x) { return m->gdn_every ? x / m->gdn_every : x; }

/* Adds layers [from, to) to the counts by kind. */
static void count_layers(StageLayers *s, const Task *t, int from, int to)
{
    const ModelRow *m = t->model;
    s->all += to - from;
    if (t->lora) {
        for (int l = from; l < to; l++) s->n[t->lora->of[l]]++;
        return;
    }
    int a = from < m->nd ? from : m->nd, b = to < m->nd ? to : m->nd;
    int dense = b - a, dense_full = full_below(m, b) - full_below(m, a);
    int full = full_below(m, to) - full_below(m, from);
    s->n[0]                   += dense_full;
    s->n[KIND_GDN]            += dense - dense_full;
    s->n[KIND_MOE]            += full - dense_full;
    s->n[KIND_GDN | KIND_MOE] += to - from - full - (dense - dense_full);
}

/* First layer of a piece, as pipe_layout_suggest cuts: the ends get the fewer layers, longer pieces come first. */
static int piece_from(int layers, int pieces, int i)
{
    int each = layers / pieces, more = layers % pieces;
    if (i <= 1 || pieces == 1) return each * i;
    int longer = i - 1 < more ? i - 1 : more;
    return i == pieces ? layers : each * i + longer;
}

/* Adds piece i, counted over all stages. */
static void add_piece(StageLayers *s, const Task *t, const Candidate *c, int i)
{
    const ModelRow *m = t->model;
    int pieces = c->pp * c->vpp;
    count_layers(s, t, piece_from(m->L, pieces, i), piece_from(m->L, pieces, i + 1));
    if (i < pieces - 1) return;
    s->mtp = m->mtp;
    s->n[KIND_MOE] += m->mtp;
    s->all += m->mtp;
}

void chunk_layers(StageLayers *s, const Task *t, const Candidate *c, int stage, int v)
{
    *s = (StageLayers){ .first = !stage && !v, .last = stage == c->pp - 1 && v == c->vpp - 1 };
    add_piece(s, t, c, stage + v * c->pp);
}

void stage_layers(StageLayers *s, const Task *t, const Candidate *c, int stage)
{
    *s = (StageLayers){ .first = stage == 0, .last = stage == c->pp - 1 };
    for (int v = 0; v < c->vpp; v++) add_piece(s, t, c, stage + v * c->pp);
}

/* What a layer has beside its experts and its dense product: cut by TP, and whole. */
static AttnParams layer_params(const ModelRow *m, LayerKind k)
{
    AttnParams p = attn_params(m, k.gdn);
    p.cut += 3.0 * m->h * (k.moe ? m->fs : m->fd);
    p.whole += 2.0 * m->h;
    if (k.moe) p.whole += (double)m->h * m->E + (m->gated && m->fs ? m->h : 0);
    return p;
}

static double block_params(const ModelRow *m)
{
    double D = m->hv, F = m->fv;
    return 4 * D + 3 * D * D + 3 * D + D * D + D + D * F + F + F * D + D;
}

static double merger_params(const ModelRow *m)
{
    double W = (double)m->merged * m->hv;
    return W * W + W + W * m->h + m->h;
}

double vision_params(const ModelRow *m)
{
    if (!m->depth) return 0;
    double D = m->hv, W = (double)m->merged * D;
    return PATCH_IN * D + D + POSITIONS * D + m->depth * block_params(m) + (1 + m->taps) * merger_params(m)
         + 2 * D + m->taps * 2 * W;
}

/* Of those, what is gathered at a time: two blocks, two mergers of features and the last one, what is before
 * the first block. */
static double vision_gathered(const ModelRow *m)
{
    double mergers = 1 + (m->taps < 2 ? m->taps : 2);
    return m->depth ? 2 * block_params(m) + mergers * merger_params(m) + (PATCH_IN + POSITIONS) * m->hv : 0;
}

ModelCounts analytic_params(const ModelRow *m)
{
    Candidate one = { .pp = 1, .vpp = 1 };
    Task all = { .model = m };
    ModelCounts n = { .embed = (double)m->V * m->h * (m->tied ? 1 : 2), .vision = vision_params(m) };
    StageLayers s;
    stage_layers(&s, &all, &one, 0);
    for (int i = 0; i < PLAIN_KINDS; i++) {
        LayerKind  k = task_kind(&all, i);
        AttnParams p = layer_params(m, k);
        n.dense += s.n[i] * (p.cut + p.kv + p.whole);
        n.experts += (double)s.n[i] * k.moe * m->E * 3 * m->h * m->f;
    }
    n.dense += m->h + m->mtp * (2.0 * m->h * m->h + 3 * m->h);
    n.total = n.dense + n.experts + n.embed + n.vision;
    n.active = n.dense + (m->E ? n.experts * m->k / m->E : 0) + n.embed;
    return n;
}

/* Of what adapters make train, the part of a rank. */
static void trained_here(double to[SHARERS], const double n[CUT_N], const ModelRow *m, const Candidate *c)
{
    double kv = c->tp < m->nkv ? c->tp : m->nkv;
    to[BY_STAGE] = n[CUT_WHOLE];
    to[BY_DP]    = n[CUT_TP] / c->tp + n[CUT_KV] / kv;
    to[BY_EDP]   = n[CUT_EP] / c->ep + n[CUT_ETP] / c->etp + n[CUT_BOTH] / ((double)c->ep * c->etp);
}

/* What of a unit a rank has: of the model, and of that or beside it what trains. */
typedef struct Unit { double all[SHARERS], pairs[SHARERS], whole[SHARERS]; } Unit;

/* Adds n of them. trained NULL: all of it trains. What nobody shares with this rank needs no buffer. */
static void add_units(StageParams *p, const Task *t, const Candidate *c, double n, Unit u,
                      const Trained *trained, StageParams *most)
{
    double gathered = 0, summed = 0;
    memcpy(u.whole, u.all, sizeof u.all);
    if (trained) trained_here(u.pairs, trained->pairs, t->model, c);
    if (trained) trained_here(u.whole, trained->whole, t->model, c);
    for (int i = 0; i < SHARERS; i++) {
        bool shared = task_sharers(t, c, i) > 1;
        p->trained[i] += n * (u.pairs[i] + u.whole[i]);
        p->still[i]   += n * (u.all[i] - u.whole[i]);
        gathered += shared * (u.all[i] + u.pairs[i]);
        summed   += shared * (u.whole[i] + u.pairs[i]);
    }
    most->gathered = fmax(most->gathered, gathered);
    most->summed   = fmax(most->summed, summed);
}

static Unit layer_unit(const ModelRow *m, const Candidate *c, LayerKind k)
{
    AttnParams a = layer_params(m, k);
    double kv = c->tp < m->nkv ? c->tp : m->nkv;
    double expert = k.moe ? (double)m->E / c->ep * 3 * m->h * m->f / c->etp : 0;
    return (Unit){ .all = { [BY_STAGE] = a.whole, [BY_DP] = a.cut / c->tp + a.kv / kv, [BY_EDP] = expert } };
}

/* The embedding with the tower, and the head. */
static void add_ends(StageParams *p, const Task *t, const Candidate *c, const StageLayers *s)
{
    const ModelRow *m = t->model;
    const LoraCost  *x = t->lora;
    StageParams first = { 0 }, last = { 0 };
    double table = (double)m->V * m->h / c->tp, tower = vision_params(m);
    bool   still = t->frozen_vision && !x;
    Unit   embed = { .all = { [BY_STAGE] = still ? 0 : tower, [BY_DP] = table } };
    Unit   head = { .all = { [BY_STAGE] = m->h, [BY_DP] = (m->tied && s->first ? 0 : table) +
                                                         s->mtp * (2.0 * m->h * m->h + 3 * m->h) } };
    if (s->first) add_units(p, t, c, 1, embed, x ? &x->first : NULL, &first);
    if (s->first && still) p->still[BY_STAGE] += tower;
    if (s->last) add_units(p, t, c, 1, head, x ? &x->last : NULL, &last);
    p->gathered += fmin(first.gathered, table + vision_gathered(m)) + last.gathered;
    p->summed   += fmin(first.summed, table + vision_gathered(m)) + last.summed;
}

/* Buffers for layers of kind i: those in which as much trains take turns in two, and the last such kind of
 * the stage speaks for all. */
static int buffers_of(const Task *t, const StageLayers *s, int i)
{
    int n = s->n[i];
    for (int j = 0; t->lora && j < t->lora->kinds; j++) {
        const Trained *a = &t->lora->kind[i].trained, *b = &t->lora->kind[j].trained;
        if (j == i || !s->n[j] || memcmp(a, b, sizeof *a)) continue;
        if (j > i) return 0;
        n += s->n[j];
    }
    return n < 2 ? n : 2;
}

void stage_params(StageParams *p, const Task *t, const Candidate *c, const StageLayers *s)
{
    StageParams layer = { 0 };
    *p = (StageParams){ 0 };
    for (int i = 0; i < task_kinds(t); i++) {
        LayerKind k = task_kind(t, i);
        StageParams one = { 0 };
        if (!s->n[i]) continue;
        add_units(p, t, c, s->n[i], layer_unit(t->model, c, k), k.lora ? &k.lora->trained : NULL, &one);
        if (!k.lora || k.lora->back) p->again += (double)s->n[i] / s->all;
        p->gathered += buffers_of(t, s, i) * one.gathered;
        p->summed   += buffers_of(t, s, i) * one.summed;
        layer = (StageParams){ .gathered = fmax(layer.gathered, one.gathered),
                               .summed = fmax(layer.summed, one.summed) };
    }
    add_ends(p, t, c, s);
    if (t->foreign) p->gathered = 2 * layer.gathered, p->summed = layer.summed;
}

double core_macs(const ModelRow *m, int64_t seq, bool gdn, bool windowed)
{
    double s = (double)seq, w = m->window;
    if (gdn) return 4.0 * m->gdn_nv * m->gdn_dv * m->gdn_dv;
    if (m->kv_lora) return s / 2 * m->nq * (m->nope + m->rope + m->v);
    if (windowed && w < s) return 2.0 * m->nq * m->d * (w - w * (w - 1) / (2 * s));
    return s / 2 * m->nq * m->d * 2;
}

double analytic_flops_token(const ModelRow *m, int64_t seq)
{
    Candidate one = { .pp = 1, .vpp = 1 };
    Task all = { .model = m };
    StageLayers s;
    stage_layers(&s, &all, &one, 0);
    double macs = (double)m->h * m->V * (1 + m->mtp) + m->mtp * (3.0 * m->h + 2.0 * m->h * m->h);
    for (int gdn = 0; gdn < 2; gdn++) {
        AttnParams a = attn_params(m, gdn);
        int layers = s.n[gdn * KIND_GDN] + s.n[gdn * KIND_GDN + KIND_MOE];
        int windowed = m->window ? layers / 2 : 0;
        double whole = m->kv_lora && !gdn ? a.whole : 0;              /* the rest of it are norms */
        macs += layers * (a.cut + a.kv + whole) + windowed * core_macs(m, seq, gdn, true)
              + (layers - windowed) * core_macs(m, seq, gdn, false);
    }
    macs += (s.n[0] + s.n[KIND_GDN]) * 3.0 * m->h * m->fd;
    macs += (s.n[KIND_MOE] + s.n[KIND_GDN | KIND_MOE]) * 3.0 * m->h * ((double)m->k * m->f + m->fs);
    return 6 * macs;
}

double analytic_flops_full(const ModelRow *m, int64_t seq)
{
    ModelCounts n = analytic_params(m);
    double macs = n.active + n.vision - (m->tied ? 0 : n.embed / 2);
    return 6 * (macs + m->L * 2.0 * core_macs(m, seq, false, false));
}

double analytic_flops_vision(const ModelRow *m, int64_t patches, bool frozen)
{
    if (!m->depth) return 0;
    double P = (double)patches, D = m->hv, W = m->merged * D;
    double tower = m->depth * ((8 * D * D + 4 * D * m->fv) * P + 4 * D * P * P);
    double mergers = (1 + m->taps) * (P / m->merged) * (2 * W * W + 2 * W * m->h);
    return (frozen ? 1 : 3) * (tower + mergers);
}
