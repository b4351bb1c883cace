/* plan/analytic_memory.c -- bytes of a rank by formula: what it holds of the model, what its layers leave for
 * backward, how many of those leavings live at once.
 *
 * A rank's T tokens are those of a micro-batch over CP; outside attention and dense products TP cuts them
 * once more. R rows enter the local experts. Everything is two bytes wide unless said. */
#include "nn/head.h"
#include "ops/backend.h"
#include "plan/analytic_private.h"

static double least(double a, double b) { return a < b ? a : b; }
static double most(double a, double b)  { return a > b ? a : b; }

static double task_tokens(const Task *t, const Candidate *c) { return (double)t->seq * c->mbs / c->cp; }

static double task_rows(const Task *t, const Candidate *c)
{
    return task_tokens(t, c) / c->tp * t->model->k * c->etp * task_uneven(t, c);
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

/* Whether ranks may get more rows than there is room for, so that layers are done in slices (nn/moe.h). */
static bool rows_bounded(const Task *t, const Candidate *c)
{
    double K = t->model->k, local = (double)t->model->E / c->ep;
    return c->ep * c->etp > 1 && task_uneven(t, c) * K < c->ep * least(K, local);
}

/* A frozen weight does not read its input again; that of experts is kept all the same where slices of them
 * would need the room. Dense layers keep gate, up and their product. */
static void adapted_bytes(LayerBytes *b, const Task *t, const Candidate *c, const LoraLayer *x, double R)
{
    bool   slices = rows_bounded(t, c);
    double norm = weight_trains(&x->qkv) ? 0 : b->norm / 2, mlp = weight_trains(&x->down) ? 0 : b->mlp / 3;
    double input = weight_trains(&x->up) || slices ? 0 : b->input;
    double act = weight_trains(&x->down) || slices ? 0 : b->act;
    b->norm -= norm, b->mlp -= mlp, b->input -= input, b->act -= act;
    b->unread = norm + mlp + input + act;
    if (x->moe) b->pairs = 2 * R * (x->up.r + x->down.r);
}

void analytic_layer(LayerBytes *b, const Task *t, const Candidate *c, LayerKind k)
{
    const ModelRow *m = t->model;
    double T = task_tokens(t, c), Ts = T / c->tp, R = task_rows(t, c);
    *b = (LayerBytes){ .residual = 2 * (2 * Ts * m->h), .norm = 2 * (2 * Ts * m->h) };
    if (k.gdn) b->gdn = gdn_bytes(m, c, T);
    else attention_bytes(b, m, c, T);
    if (!k.moe) b->mlp = 2 * T * 3.0 * m->fd / c->tp;
    else {
        b->router = Ts * m->E * 9;
        b->input  = 2 * R * m->h;
        b->fc1    = 2 * R * 2.0 * m->f / c->etp;
        b->act    = 2 * R * m->f / c->etp;
        b->fc2    = t->keep_fc2 ? 2 * R * m->h : 0;
        b->shared = 2 * T * 3.0 * m->fs / c->tp;
    }
    if (k.lora) adapted_bytes(b, t, c, k.lora, R);
}

double analytic_layer_kept(const LayerBytes *b, const Task *t, unsigned re)
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
    kept += b->router + b->fc1 + b->fc2 + b->pairs;
    if (!(re & RE_MOE_DISPATCH)) kept += q * b->input;
    if (!(re & (RE_MOE_ACT | RE_MOE_DISPATCH))) kept += q * b->act;
    if (!(re & RE_SHARED))       kept += b->shared * (2 + q) / 3;
    return kept;
}

double analytic_in_flight(const Task *t, const Candidate *c, int stage)
{
    double M = task_micros(t, c), over = c->overlap ? 1 : 0;
    if (c->pp == 1) return 1 + (t->thin_overlap ? 0.1 : 1) * over;
    if (c->vpp == 1) return least(c->pp - stage, M);         /* there overlap is refused */
    return least(2.0 * (c->pp - 1 - stage) + (double)(c->vpp - 1) * c->pp + over + 1, M * c->vpp);
}

/* Of the first n pieces of a stage those of its v-th chunk: PP micro-batches take turns in each. */
static int pieces_of(const Candidate *c, int n, int v)
{
    int round = c->pp * c->vpp, rest = n % round - v * c->pp;
    return n / round * c->pp + (rest < 0 ? 0 : rest < c->pp ? rest : c->pp);
}

/* Micro-batches that chunk v has in flight at most, of `pieces` that its stage has; backward begins with the
 * last chunk, so that the first fills up meanwhile. The most are there when a turn of its forward ends, or
 * when one of its backward begins. */
static double chunk_in_flight(const Task *t, const Candidate *c, int pieces, int v)
{
    int round = c->pp * c->vpp, back = c->vpp - 1 - v, done = (v + 1) * c->pp;
    while (done < pieces) done += round;
    int ends = pieces_of(c, done, v) - pieces_of(c, done - pieces, back);
    int begins = pieces_of(c, pieces + back * c->pp, v) - pieces_of(c, back * c->pp, back);
    return least(most(ends, begins), task_micros(t, c));
}

/* Visual tokens among a rank's own, at most. */
static double visual_rows(const Task *t, const Candidate *c)
{
    double all = (double)t->patches * c->mbs / t->model->merged;
    return c->tp * c->cp > 1 ? least(all, task_tokens(t, c) / c->tp) : all;
}

/* What a block leaves for its backward. */
static double block_bytes(const ModelRow *m, double P, unsigned re)
{
    int widths = 20 - (re & RE_NORM ? 4 : 0) - (re & RE_CORE ? 2 : 0);
    return P * ((double)widths * m->hv + 4.0 * m->fv);
}

/* What the tower keeps of a micro-batch until its backward; work: and the block that is being computed,
 * perhaps again. tp and cp share pictures out, but one rank may have to take them all. Pixels are there as
 * bytes and as numbers; where nothing is kept two buffers of patches take turns, and mergers that train keep
 * theirs. */
static double vision_bytes(double *work, const Task *t, const Candidate *c)
{
    const ModelRow *m = t->model;
    bool   frozen = t->frozen_vision && !t->lora, again = c->recompute & (RE_VISION | RE_FULL);
    double P = (double)t->patches * c->mbs, tokens = P / m->merged, W = (double)m->merged * m->hv;
    double block = block_bytes(m, P, c->recompute), input = P * 2.0 * m->hv;
    double blocks = frozen ? 0 : t->lora ? t->lora->tower.blocks : m->depth;
    double mergers = frozen ? 0 : t->lora ? t->lora->tower.mergers : 1 + m->taps;
    double out = 2.0 * (1 + m->taps) * m->h, pixels = 3.0 * PATCH_IN * P;
    double rows = (blocks + mergers > 0) + (c->tp * c->cp > 1);      /* gradients; what came from others */
    *work = again || blocks < m->depth ? block : 0;
    if (blocks > 0) *work += 2 * P * (6.0 * m->hv + m->fv);
    return blocks * (again ? input : block) + (again ? 0 : mergers * tokens * W * 2 * 3) + pixels
         + out * (tokens + rows * visual_rows(t, c))
         + (blocks < m->depth ? (2 + mergers) * input : 0);
}

static double logits_bytes(const Task *t, const Candidate *c)
{
    double T = task_tokens(t, c), V = (double)t->model->V / c->tp;
    if (t->unfused_logits) return T * V * 6;
    BackendTraits card = backend_traits("cuda");
    return least(T, (double)head_chunk_rows(t->model->V, card.logits)) * V * (card.logits_in_act_dtype ? 2 : 6);
}

/* Rows of a token that leave the rank: one for each of its experts, or one for each node that has some. */
static double copies(const Task *t, const Candidate *c)
{
    double nodes = most((double)c->ep * c->etp / t->hw.domain, 1), k = t->model->k;
    return dispatcher_rows[c->dispatch].two_level ? least(k, nodes) : k;
}

/* Bytes that one layer works in and then leaves: gradients of what it has between its products. */
static double layer_work(const Task *t, const Candidate *c, LayerKind k)
{
    const ModelRow *m = t->model;
    double T = task_tokens(t, c), q = (double)m->nq / c->tp, kv = most((double)m->nkv / c->tp, 1);
    double attention = T * 3 * (q + kv) * m->d, feed = T * 3.0 * m->fd / c->tp;
    if (k.moe) feed = task_rows(t, c) * (m->h + 2.0 * m->f / c->etp);
    return 2 * (most(attention, feed) + 2 * T / c->tp * m->h);
}

/* What one layer of a kind keeps, and what it works in: what it drops is there again meanwhile. */
typedef struct Kinds { double kept[MOST_LAYERS], work[MOST_LAYERS]; } Kinds;

static void kinds_bytes(Kinds *k, const Task *t, const Candidate *c)
{
    for (int i = 0; i < task_kinds(t); i++) {
        LayerKind  kind = task_kind(t, i);
        LayerBytes b;
        k->kept[i] = k->work[i] = 0;
        if (!task_has_kind(t, kind)) continue;
        analytic_layer(&b, t, c, kind);
        if (!kind.lora || kind.lora->kept) k->kept[i] = analytic_layer_kept(&b, t, c->recompute);
        k->work[i] = analytic_layer_kept(&b, t, 0) + b.unread - k->kept[i];
        if (!t->foreign) k->work[i] += layer_work(t, c, kind);
    }
}

static double buffer_bytes(const Task *t, const Candidate *c, const StageLayers *s, const Kinds *k)
{
    const ModelRow *m = t->model;
    double T = task_tokens(t, c), bytes = c->tp > 1 ? 4 * T * m->h : 0, worst = 0;
    bool   moe = false;
    for (int i = 0; i < task_kinds(t); i++) {
        if (!s->n[i]) continue;
        moe |= task_kind(t, i).moe;
        worst = most(worst, k->work[i]);
    }
    if (moe && c->ep * c->etp > 1)
        bytes += 2 * m->h * (T / c->tp * copies(t, c) + task_rows(t, c)) * (c->overlap ? 2 : 1);
    return bytes + worst;
}

/* Rows on their way from stage to stage, two of each way and one that is sent back: with them, before they
 * have joined, what mergers made for the first layers. */
static double wire_bytes(const Task *t, const Candidate *c, bool first)
{
    const ModelRow *m = t->model;
    double visual = m->depth && first ? visual_rows(t, c) : 0;
    return c->pp > 1 ? 5 * 2 * m->h * (task_tokens(t, c) / c->tp + m->taps * visual) : 0;
}

static void static_bytes(StageMemory *s, const Task *t, const Candidate *c, const StageLayers *l)
{
    StageParams p;
    stage_params(&p, t, c, l);
    double w = stage_weight_bytes(t), g = t->grad_bytes, moments = 2.0 * t->moment_bytes;
    double all = params_here(p.trained), owned = c->zero ? params_owned(p.trained, t, c) : all;
    double still = c->zero == 3 ? params_owned(p.still, t, c) : params_here(p.still);
    double away = c->offload * (moments + (t->keep_master ? 0 : t->master_bytes));
    s->weights   = w * ((c->zero == 3 ? owned + p.gathered : all) + still);
    s->grads     = g * (c->zero >= 2 ? owned + p.summed : all);
    s->optimizer = owned * (t->master_bytes + moments - away);
}

static double layers_kept(const Task *t, const StageLayers *l, const Kinds *k)
{
    double sum = 0;
    for (int i = 0; i < task_kinds(t); i++) sum += l->n[i] * k->kept[i];
    return sum;
}

/* What a stage keeps of all that is in flight, with `tower` in its first chunk. Chunks share buffers that
 * have room for the largest that comes there, or have their own, whatever takes less; elsewhere they take
 * what they need, layers on the mean. Beside its layers a piece has its output, its gradient and angles. */
static double kept_bytes(const Task *t, const Candidate *c, int stage, const Kinds *k, double tower)
{
    double pieces = analytic_in_flight(t, c, stage), largest = 0, apart = 0, sum = 0, layers = 0, longest = 0;
    double first = 0, other = 0, T = task_tokens(t, c);
    double piece = t->foreign ? 0 : 2 * (2 * T / c->tp * t->model->h) + 4 * T * t->model->d;
    for (int v = 0; v < c->vpp; v++) {
        StageLayers l;
        chunk_layers(&l, t, c, stage, v);
        double bytes = layers_kept(t, &l, k) + (v ? 0 : tower) + piece;
        largest = most(largest, bytes), longest = most(longest, l.all);
        if (v) other = most(other, bytes);
        else   first = bytes;
        sum += bytes, layers += l.all;
        if (c->vpp > 1) apart += bytes * chunk_in_flight(t, c, (int)pieces, v);
    }
    if (t->foreign) return layers > 0 ? pieces * longest * sum / layers : pieces * sum;
    if (c->vpp == 1) return pieces * largest;
    double n = first > other ? chunk_in_flight(t, c, (int)pieces, 0) : pieces;
    return least(n * largest + (pieces - n) * other, apart);
}

static void stage_bytes(StageMemory *s, const Task *t, const Candidate *c, int stage, const Kinds *k)
{
    StageLayers l;
    double tower = 0;
    *s = (StageMemory){ .fixed = t->hw.fixed };
    stage_layers(&l, t, c, stage);
    static_bytes(s, t, c, &l);
    s->activations = kept_bytes(t, c, stage, k, 0);
    if (l.last) s->logits = logits_bytes(t, c);
    if (l.first && t->model->depth && t->patches)
        s->vision = kept_bytes(t, c, stage, k, vision_bytes(&tower, t, c)) - s->activations;
    s->buffers = most(buffer_bytes(t, c, &l, k), tower);                      /* logits lie there too */
    if (!t->foreign) s->buffers = most(s->buffers - s->logits, 0) + wire_bytes(t, c, l.first);
    s->total = s->weights + s->grads + s->optimizer + s->activations + s->logits + s->vision + s->buffers
             + s->fixed;
}

void analytic_memory(StageMemory *s, const Task *t, const Candidate *c, int stage)
{
    Kinds k;
    kinds_bytes(&k, t, c);
    stage_bytes(s, t, c, stage, &k);
}

double analytic_peak(const Task *t, const Candidate *c, int *stage)
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
