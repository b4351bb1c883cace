/* plan/closed_params.c -- what a model weighs and how much work a token is, from its row alone.
 *
 * Work is six times the multiply-adds of matrix products and attention cores, forward and backward; causal
 * attention counts the half that exists. Routers, norms, softmax and rotations are left out, as everybody
 * does. Prediction of further tokens (MTP) counts as layers and as logits. */
#include "plan/closed_private.h"

enum { PATCH_IN = 3 * 2 * 16 * 16, POSITIONS = 2304 };       /* of every tower here */

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
static void count_layers(StageLayers *s, const ModelRow *m, int from, int to)
{
    int a = from < m->nd ? from : m->nd, b = to < m->nd ? to : m->nd;
    int dense = b - a, dense_full = full_below(m, b) - full_below(m, a);
    int full = full_below(m, to) - full_below(m, from);
    s->n[0][0] += dense_full;
    s->n[1][0] += dense - dense_full;
    s->n[0][1] += full - dense_full;
    s->n[1][1] += to - from - full - (dense - dense_full);
    s->all += to - from;
}

/* First layer of a piece, as layout_suggest cuts: the ends get the fewer layers, longer pieces come first. */
static int piece_from(int layers, int pieces, int i)
{
    int each = layers / pieces, more = layers % pieces;
    if (i <= 1 || pieces == 1) return each * i;
    int longer = i - 1 < more ? i - 1 : more;
    return i == pieces ? layers : each * i + longer;
}

void stage_layers(StageLayers *s, const ModelRow *m, const Candidate *c, int stage)
{
    int pieces = c->pp * c->vpp;
    *s = (StageLayers){ .first = stage == 0, .last = stage == c->pp - 1 };
    for (int i = stage; i < pieces; i += c->pp) {
        int from = piece_from(m->L, pieces, i), to = piece_from(m->L, pieces, i + 1);
        int here = to - from + (i == pieces - 1 ? m->mtp : 0);
        count_layers(s, m, from, to);
        if (s->most < here) s->most = here;
    }
    if (!s->last) return;
    s->mtp = m->mtp;
    s->n[0][1] += m->mtp;
    s->all += m->mtp;
}

/* What a layer has beside its experts and its dense product: cut by TP, and whole. */
static AttnParams layer_params(const ModelRow *m, bool gdn, bool moe)
{
    AttnParams p = attn_params(m, gdn);
    p.cut += 3.0 * m->h * (moe ? m->fs : m->fd);
    p.whole += 2.0 * m->h;
    if (moe) p.whole += (double)m->h * m->E + (m->gated && m->fs ? m->h : 0);
    return p;
}

double vision_params(const ModelRow *m)
{
    if (!m->depth) return 0;
    double D = m->hv, F = m->fv, W = (double)m->merged * D;
    double block = 4 * D + 3 * D * D + 3 * D + D * D + D + D * F + F + F * D + D;
    double merger = W * W + W + W * m->h + m->h;
    return PATCH_IN * D + D + POSITIONS * D + m->depth * block + (1 + m->taps) * merger + 2 * D
         + m->taps * 2 * W;
}

ModelCounts closed_params(const ModelRow *m)
{
    Candidate one = { .pp = 1, .vpp = 1 };
    ModelCounts n = { .embed = (double)m->V * m->h * (m->tied ? 1 : 2), .vision = vision_params(m) };
    StageLayers s;
    stage_layers(&s, m, &one, 0);
    for (int gdn = 0; gdn < 2; gdn++)
        for (int moe = 0; moe < 2; moe++) {
            AttnParams p = layer_params(m, gdn, moe);
            n.dense += s.n[gdn][moe] * (p.cut + p.kv + p.whole);
        }
    n.dense += m->h + m->mtp * (2.0 * m->h * m->h + 3 * m->h);
    n.experts = (double)(s.n[0][1] + s.n[1][1]) * m->E * 3 * m->h * m->f;
    n.total = n.dense + n.experts + n.embed + n.vision;
    n.active = n.dense + (m->E ? n.experts * m->k / m->E : 0) + n.embed;
    return n;
}

void stage_params(StageParams *p, const Task *t, const Candidate *c, const StageLayers *s)
{
    const ModelRow *m = t->model;
    double expert = m->E ? (double)m->E / c->ep * 3 * m->h * m->f / c->etp : 0;
    double kv = c->tp < m->nkv ? c->tp : m->nkv, table = (double)m->V * m->h / c->tp;
    *p = (StageParams){ 0 };
    for (int gdn = 0; gdn < 2; gdn++)
        for (int moe = 0; moe < 2; moe++) {
            if (!s->n[gdn][moe]) continue;
            AttnParams a = layer_params(m, gdn, moe);
            double dense = a.cut / c->tp + a.kv / kv + a.whole, unit = dense + moe * expert;
            p->dense += s->n[gdn][moe] * dense;
            p->expert += s->n[gdn][moe] * moe * expert;
            if (p->unit < unit) p->unit = unit;
        }
    if (s->first) p->dense += table;
    if (s->last) p->dense += (m->tied && s->first ? 0 : table) + m->h
                           + s->mtp * (2.0 * m->h * m->h + 3 * m->h);
    if (!s->first || !m->depth) return;
    if (t->frozen_vision) p->frozen = vision_params(m);
    else p->dense += vision_params(m);
}

double core_macs(const ModelRow *m, int64_t seq, bool gdn, bool windowed)
{
    double s = (double)seq, w = m->window;
    if (gdn) return 4.0 * m->gdn_nv * m->gdn_dv * m->gdn_dv;
    if (m->kv_lora) return s / 2 * m->nq * (m->nope + m->rope + m->v);
    if (windowed && w < s) return 2.0 * m->nq * m->d * (w - w * (w - 1) / (2 * s));
    return s / 2 * m->nq * m->d * 2;
}

double closed_flops_token(const ModelRow *m, int64_t seq)
{
    Candidate one = { .pp = 1, .vpp = 1 };
    StageLayers s;
    stage_layers(&s, m, &one, 0);
    double macs = (double)m->h * m->V * (1 + m->mtp) + m->mtp * (3.0 * m->h + 2.0 * m->h * m->h);
    for (int gdn = 0; gdn < 2; gdn++) {
        AttnParams a = attn_params(m, gdn);
        int layers = s.n[gdn][0] + s.n[gdn][1], windowed = m->window ? layers / 2 : 0;
        double whole = m->kv_lora && !gdn ? a.whole : 0;              /* the rest of it are norms */
        macs += layers * (a.cut + a.kv + whole) + windowed * core_macs(m, seq, gdn, true)
              + (layers - windowed) * core_macs(m, seq, gdn, false);
    }
    macs += (s.n[0][0] + s.n[1][0]) * 3.0 * m->h * m->fd;
    macs += (s.n[0][1] + s.n[1][1]) * 3.0 * m->h * ((double)m->k * m->f + m->fs);
    return 6 * macs;
}

double closed_flops_full(const ModelRow *m, int64_t seq)
{
    ModelCounts n = closed_params(m);
    double macs = n.active + n.vision - (m->tied ? 0 : n.embed / 2);
    return 6 * (macs + m->L * 2.0 * core_macs(m, seq, false, false));
}

double closed_flops_vision(const ModelRow *m, int64_t patches, bool frozen)
{
    if (!m->depth) return 0;
    double P = (double)patches, D = m->hv, W = m->merged * D;
    double tower = m->depth * ((8 * D * D + 4 * D * m->fv) * P + 4 * D * P * P);
    double mergers = (1 + m->taps) * (P / m->merged) * (2 * W * W + 2 * W * m->h);
    return (frozen ? 1 : 3) * (tower + mergers);
}
