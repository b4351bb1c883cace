/* plan/analytic_links.c -- seconds on the wire by formula: collectives, the road to the experts, the ring of
 * CP, the pipeline, gradients and weights once a step.
 *
 * Ranks of TP are neighbours, then CP, then DP, with stages outermost; so are ETP, EP and EDP. A group that
 * spans more than the fast domain pays the network for what crosses it. */
#include "plan/analytic_time.h"

static double near_rate(const Hardware *h) { return h->intra_bw * h->intra_share; }
static double far_rate(const Hardware *h)  { return h->inter_bw * h->inter_share; }

/* Bytes a second into one rank of a group of n whose members are `stride` ranks apart: a ring leaves a domain
 * once for all members inside it, each over its own card's network. */
static double group_rate(const Hardware *h, double n, double stride)
{
    if (n * stride <= h->domain) return near_rate(h);
    double inside = h->domain / stride;
    return fmin(near_rate(h), far_rate(h) * (inside > 1 ? inside : 1));
}

static double group_delay(const Hardware *h, double n, double stride)
{
    double hops = n > 64 ? log2(n) : n - 1;                  /* a tree where a ring would be long */
    return hops * (n * stride <= h->domain ? h->intra_delay : h->inter_delay);
}

/* All-gather or reduce-scatter of `bytes`. */
static double collective(const Hardware *h, double bytes, double n, double stride)
{
    if (n <= 1) return 0;
    return (n - 1) / n * bytes / group_rate(h, n, stride) + group_delay(h, n, stride);
}

/* Chance that k different ones of n miss all of `part` among them. */
static double misses(double n, double part, int k)
{
    double p = 1;
    for (int i = 0; i < k; i++) p *= fmax(n - part - i, 0) / (n - i);
    return p;
}

/* Of G equal parts of the experts, how many a token's k are in. A router that picks groups first stays within
 * those: a part is missed if its groups are, or else by the k, of which it has its mean share. */
static double parts_touched(const ModelRow *m, double G)
{
    double g = m->groups, here = g / G, top = m->top_groups;
    if (G <= 1) return 1;
    if (!m->groups || here < 1) return G * (1 - misses(m->E, m->E / G, m->k));
    double none = misses(g, here, m->top_groups), E = m->E * top / g;
    return G * (1 - none) * (1 - misses(E, E * here / g / (1 - none), m->k));
}

double ep_pass(const Task *t, const Candidate *c)
{
    const ModelRow *m = t->model;
    const Hardware *h = &t->hw;
    double n = (double)c->ep * c->etp, rows = (double)t->seq * c->mbs / c->cp / c->tp * t->imbalance;
    double row = 2.0 * rows * m->h, inside = fmin(n, h->domain), nodes = n / inside;
    if (n <= 1) return 0;
    double near, far, delay = nodes > 1 ? h->inter_delay : h->intra_delay;
    if (!dispatcher_rows[c->dispatch].two_level) {
        double sent = row * m->k * c->etp;
        near = sent * (inside - 1) / n;
        far  = sent * (n - inside) / n;
        delay *= fmin(n - 1, 16);                            /* messages to all, posted at once */
    } else {
        near = row * parts_touched(m, c->ep) * c->etp * (inside - 1) / inside;
        far  = nodes > 1 ? row * parts_touched(m, nodes) * (nodes - 1) / nodes : 0;
    }
    return near / near_rate(h) + far / far_rate(h) + delay;
}

/* Backward, rows come in for the gradient of what is behind and for that of the first weight, and the sums
 * of the gradient go out: where they are wanted. */
static double calls_back(const LoraWeight *first)
{
    return 1 + weight_trains(first) + first->input;
}

/* One collective of the residual stream. A layer with dense products has four forward and six backward, one
 * with experts two and three, a shared expert as many again. */
double tp_layer(const Task *t, const Candidate *c, LayerKind k, bool forward)
{
    const ModelRow *m = t->model;
    const LoraLayer *x = k.lora;
    double T = (double)t->seq * c->mbs / c->cp;
    if (c->tp == 1) return 0;
    double calls = (forward ? 2 : 3) * (k.moe && !m->fs ? 1 : 2);
    if (x && !forward) calls = x->back ? calls_back(&x->qkv) + (k.moe ? 0 : calls_back(&x->up)) : 0;
    return calls * collective(&t->hw, 2 * T * m->h, c->tp, 1);
}

int analytic_cp_inner(const Task *t, int tp, int cp)
{
    const ModelRow *m = t->model;
    int near = 1, kv = m->nkv > tp ? m->nkv / tp : 1;
    if (tp * cp <= t->hw.domain) return 1;
    while (cp % (2 * near) == 0 && tp * 2 * near <= t->hw.domain && kv % (2 * near) == 0) near *= 2;
    return near;
}

/* Widths of keys and values, and of queries and outputs, that a rank of TP has for a token. */
static double kv_width(const ModelRow *m, int tp)
{
    if (m->kv_lora) return (double)m->nq * (m->nope + m->rope + m->v) / tp;
    return 2 * fmax((double)m->nkv / tp, 1) * m->d;
}

static double q_width(const ModelRow *m, int tp)
{
    return (double)m->nq / tp * (m->kv_lora ? m->nope + m->rope + m->v : 2 * m->d);
}

/* Keys and values go round, backward with their gradients; what a step computes hides it. Ranks that exchange
 * heads for tokens first, all of attention's rows, make a ring of fewer, larger steps. */
double cp_layer(const Task *t, const Candidate *c, double forward, double backward)
{
    const ModelRow *m = t->model;
    const Hardware *h = &t->hw;
    double T = (double)t->seq * c->mbs / c->cp, inner = c->cp_inner > 1 ? c->cp_inner : 1, ring = c->cp / inner;
    if (c->cp == 1) return 0;
    bool   near = c->tp * c->cp <= h->domain;
    double kv = 2 * T * kv_width(m, c->tp), swap = 2 * T * (kv_width(m, c->tp) + q_width(m, c->tp));
    double hop = kv / (near ? near_rate(h) : far_rate(h)) + (near ? h->intra_delay : h->inter_delay);
    double exposed = (ring - 1) * (fmax(0, hop - forward / ring) + fmax(0, 2 * hop - backward / ring));
    if (inner == 1) return exposed;
    return exposed + 3 * (swap * (inner - 1) / inner / near_rate(h) + 2 * h->intra_delay);
}

double pp_micro(const Task *t, const Candidate *c)
{
    const Hardware *h = &t->hw;
    double bytes = 2.0 * (double)t->seq * c->mbs / c->cp / c->tp * t->model->h;
    if (c->pp == 1) return 0;
    bool   near = t->gpus <= h->domain;
    double once = bytes / (near ? near_rate(h) : far_rate(h)), delay = near ? h->intra_delay : h->inter_delay;
    return c->vpp == 1 ? 2 * (once + delay) : 2 * c->vpp * delay;      /* interleaved: sent ahead */
}

double dp_exposed(const Task *t, const Candidate *c, const StageParams *p, double forward, double backward)
{
    const Hardware *h = &t->hw;
    const double stride[SHARERS] = { 1, c->tp, (double)c->ep * c->etp };
    double g = t->grad_bytes, w = stage_weight_bytes(t), M = task_micros(t, c);
    double reduce = 0, gather = 0, still = 0;
    for (int i = 0; i < SHARERS; i++) {
        double n = task_sharers(t, c, i);
        reduce += collective(h, g * p->trained[i], n, stride[i]);
        gather += collective(h, w * p->trained[i], n, stride[i]);
        still  += collective(h, w * p->still[i], n, stride[i]);
    }
    if (c->zero == 0) return fmax(0, 2 * reduce - backward);           /* an all-reduce is both halves */
    double once = fmax(0, reduce - backward), first = fmax(0, gather - forward);
    if (c->zero == 1) return once + first;
    if (c->zero == 2) return M * once + first;
    gather += still;                                                   /* what is frozen is sharded too */
    return M * (fmax(0, gather - forward) + fmax(0, p->again * gather + reduce - backward));
}
