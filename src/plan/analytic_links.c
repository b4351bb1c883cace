/* plan/analytic_links.c -- seconds of communication: collectives, token dispatch, the ring of CP, the
 * pipeline, gradients and weights once a step.
 *
 * Ranks of TP are neighbours, then CP, then DP, with stages outermost; so are ETP, EP and EDP. A group that
 * spans more than one NVLink domain pays the network for what crosses it. */
#include "plan/analytic_time.h"

static double intra_rate(const Hardware *h) { return h->intra_bw * h->intra_share; }
static double inter_rate(const Hardware *h) { return h->inter_bw * h->inter_share; }

/* Bytes a second into one rank of a group of n whose members are `stride` ranks apart: a ring leaves a domain
 * once for all members inside it, each over its own GPU's network, which many nodes slow down. */
static double group_rate(const Hardware *h, double n, double stride)
{
    if (n * stride <= h->domain) return intra_rate(h);
    double inside = h->domain / stride, nodes = n / fmax(inside, 1);
    return fmin(intra_rate(h), inter_rate(h) * ring_share(nodes) * fmax(inside, 1));
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

/* Probability that k different ones of n miss all of `part` among them. */
static double misses(double n, double part, int64_t k)
{
    double p = 1;
    for (int64_t i = 0; i < k; i++) p *= fmax(n - part - (double)i, 0) / (n - (double)i);
    return p;
}

/* Of `parts` equal parts of the experts, how many a token's K are in. A router that picks groups first stays
 * within those: a part is missed if its groups are, or else by the K, of which it has its mean share. */
static double parts_touched(const TextShape *m, double parts)
{
    double E = (double)m->E, groups = (double)m->groups, here = groups / parts, top = (double)m->top_groups;
    if (parts <= 1) return 1;
    if (!m->groups || here < 1) return parts * (1 - misses(E, E / parts, m->K));
    double none = misses(groups, here, m->top_groups), in = E * top / groups;
    return parts * (1 - none) * (1 - misses(in, in * here / groups / (1 - none), m->K));
}

double ep_pass(const Task *t, const Candidate *c)
{
    const TextShape *m = &t->model->text;
    const Hardware  *h = &t->hw;
    double n = (double)c->ep * c->etp, rows = (double)t->seq * c->mbs / c->cp / c->tp * t->imbalance;
    double row = 2 * rows * (double)m->D, inside = fmin(n, h->domain), nodes = n / inside;
    if (n <= 1) return 0;
    double intra, inter, delay = nodes > 1 ? h->inter_delay : h->intra_delay;
    if (!dispatcher_rows[c->dispatch].two_level) {
        double sent = row * (double)m->K * c->etp;
        intra = sent * (inside - 1) / n;
        inter = sent * (n - inside) / n;
        delay *= fmin(n - 1, 16);                            /* messages to all, posted at once */
    } else {
        double rows_of = dispatcher_rows[c->dispatch].maps ? (double)m->K : parts_touched(m, c->ep);
        intra          = row * rows_of * c->etp * (inside - 1) / inside; /* mapped: a row for each expert */
        inter = nodes > 1 ? row * parts_touched(m, nodes) * (nodes - 1) / nodes : 0;
    }
    return (intra / intra_rate(h) + inter / inter_rate(h)) *
               task_engine(t)->dispatch[dispatcher_rows[c->dispatch].two_level] +
           delay;
}

/* Backward gathers rows for the gradient of the second weight and for that of the first, and reduces the
 * gradient of the input: where they are wanted. */
static double calls_back(const LoraWeight *first)
{
    return 1 + weight_trains(first) + first->input;
}

/* Collectives of the residual stream: modules that tp cuts have two forward and three backward. */
double tp_layer(const Task *t, const Candidate *c, LayerClass k, bool forward)
{
    const Description *d = class_description(t, k);
    const LoraLayer   *x = k.lora;
    double calls = 0;
    if (c->tp == 1 || (x && !forward && !x->back)) return 0;
    for (int i = 0, module = -1; i < d->steps; i++) {
        const LayerStep *s = &d->step[i];
        if (s->type != STEP_PRODUCT || s->out_cut != CUT_TP || s->module == module) continue;
        calls += forward ? 2 : x ? calls_back(&x->weight[i]) : 3;
        module = s->module;                          /* the first of its products that are cut */
    }
    return calls * collective(&t->hw, 2 * task_tokens(t, c) * (double)t->model->text.D, c->tp, 1);
}

int analytic_cp_inner(const Task *t, int tp, int cp)
{
    int G = (int)t->model->text.G, inner = 1, kv = G > tp ? G / tp : 1;
    if (tp * cp <= t->hw.domain) return 1;
    while (cp % (2 * inner) == 0 && tp * 2 * inner <= t->hw.domain && kv % (2 * inner) == 0) inner *= 2;
    return inner;
}

/* Keys and values go round, backward with their gradients; what a step computes hides it. Ranks that exchange
 * heads for tokens first, all rows of attention, make a ring of fewer, larger steps. back: the core has a
 * backward, as below. */
static double core_ring(const Task *t, const Candidate *c, const LayerStep *core, const LayerTime *l,
                        bool back)
{
    const Hardware *h = &t->hw;
    RankShape r = task_rank(t, c);
    double T = r.rows[ROWS_GATHERED], inner = c->cp_inner > 1 ? c->cp_inner : 1, ring = c->cp / inner;
    bool   local = c->tp * c->cp <= h->domain;
    double kv = 2 * T * core->kv_out / r.kv, swap = kv + 2 * T * (core->in + core->out) / r.tp;
    double hop = kv / (local ? intra_rate(h) : inter_rate(h)) + (local ? h->intra_delay : h->inter_delay);
    double exposed = (ring - 1) * fmax(0, hop - l->attention[0] / ring);
    if (back) exposed += (ring - 1) * fmax(0, 2 * hop - l->attention[1] / ring);
    if (inner == 1) return exposed;
    return exposed + (back ? 3 : 1) * (swap * (inner - 1) / inner / intra_rate(h) + 2 * h->intra_delay);
}

/* Windows that reach no further than the chunk before take keys and values from neighbours, longer ones from
 * all ranks; gradients go back the same way. Nothing hides it. */
static double core_window(const Task *t, const Candidate *c, const LayerStep *core, bool back)
{
    const Hardware *h = &t->hw;
    RankShape r = task_rank(t, c);
    double T = r.rows[ROWS_GATHERED], hops = core->window - 1 <= T / 2 ? 1 : c->cp - 1;
    bool   local = c->tp * c->cp <= h->domain;
    return (back ? 3 : 1) * hops * (2 * T * core->kv_out / r.kv / (local ? intra_rate(h) : inter_rate(h)) +
                                    (local ? h->intra_delay : h->inter_delay));
}

/* States pass by gathering what chunks make of them, forward and backward. A chunk in the midst of a sequence
 * computes that besides its outputs: two passes more forward, one more backward (nn/gdn_context.h). */
static double core_states(const Task *t, const Candidate *c, const LayerStep *core, const LayerTime *l,
                          bool back)
{
    double bytes = 4 * core->state / c->tp * 2 * c->cp;
    double read = bytes / (t->hw.memory_bw * t->hw.work[WORK_MEMORY].flat);
    double pass = collective(&t->hw, bytes, c->cp, c->tp) + read;
    return (back ? 2 : 1) * pass + 2 * l->attention[0] + l->attention[1];
}

double cp_layer(const Task *t, const Candidate *c, LayerClass k, const LayerTime *l)
{
    const Description *d = class_description(t, k);
    bool   back = class_core_has_backward(k);
    double seconds = 0;
    for (int i = 0; c->cp > 1 && i < d->steps; i++) {
        const LayerStep *s = &d->step[i];
        if (s->type != STEP_CORE) continue;
        if (s->window > 0)          seconds += core_window(t, c, s, back);
        else if (s->macs_pair > 0)  seconds += core_ring(t, c, s, l, back);
        else if (!t->foreign)       seconds += core_states(t, c, s, l, back);
    }
    return seconds;
}

/* Gradients go back where something before the head trains. */
double pp_micro(const Task *t, const Candidate *c)
{
    const Hardware *h = &t->hw;
    double bytes = 2 * task_tokens(t, c) / c->tp * (double)t->model->text.D;
    if (c->pp == 1) return 0;
    bool   local = t->gpus <= h->domain;
    double once = bytes / (local ? intra_rate(h) : inter_rate(h));
    double delay = local ? h->intra_delay : h->inter_delay;
    return (!t->lora || t->lora->head.input ? 2 : 1) * c->vpp * (once + delay);
}

/* What communication beside `window` seconds of compute adds to them: what does not hide, and the slow-down
 * of compute meanwhile. */
static double beside(const Task *t, double seconds, double window)
{
    const EngineRow *e      = task_engine(t);
    double           hidden = fmin(e->dp_hides * seconds, window);
    return seconds - hidden + e->held * hidden;
}

double dp_exposed(const Task *t, const Candidate *c, const StageParams *p, double forward, double backward)
{
    const Hardware *h = &t->hw;
    const double stride[SHARERS] = { 1, c->tp, (double)c->ep * c->etp };
    bool   codes = !t->foreign && t->precision == PREC_FP8;          /* are gathered in place of weights */
    double g = t->grad_bytes, w = codes ? 1 : stage_weight_bytes(t), M = task_micros(t, c);
    double          reduce = 0, gather = 0, frozen = 0, across = 0, sets = c->replicas > 1 ? c->replicas : 1;
    for (int i = 0; i < SHARERS; i++) {
        double n = task_sharers(t, c, i);
        reduce += collective(h, g * p->trained[i], n, stride[i]);
        gather += collective(h, w * p->trained[i], n, stride[i]);
        frozen += collective(h, w * p->frozen[i], n, stride[i]);
        across += 2 * collective(h, g * p->trained[i] / n, sets, stride[i] * n);
    }
    if (c->zero == 0) return beside(t, 2 * reduce, backward); /* an all-reduce is both halves */
    double once = beside(t, reduce, backward), first = beside(t, gather, forward);
    double sum = beside(t, across, backward); /* over sets of shards, once a step */
    if (c->zero == 1) return sum + once + first;
    if (c->zero == 2) return sum + M * once + first;
    gather += frozen;                                                  /* frozen weights are sharded too */
    return sum + M * (beside(t, gather, forward) + beside(t, p->again * gather + reduce, backward));
}
