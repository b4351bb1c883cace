/* plan/analytic_memory.c -- the analytic model of memory: bytes of parameters and their state on a rank,
 * bytes that its layers keep for backward, how many micro-batches keep them at once. What a layer keeps is in
 * the descriptions of its kinds (nn/layer_kind.h); everything is two bytes wide unless they say otherwise. */
#include "nn/head.h"
#include "ops/ops.h"
#include "plan/analytic_private.h"

#include <string.h>

static double least(double a, double b) { return a < b ? a : b; }
static double most(double a, double b)  { return a > b ? a : b; }

/* Whether ranks may get more rows than their buffers hold, so that layers run in chunks of tokens
 * (nn/moe.h). */
static bool rows_bounded(const Task *t, const Candidate *c)
{
    double K = (double)t->model->text.K, local = (double)t->model->text.E / c->ep;
    return c->ep * c->etp > 1 && task_imbalance(t, c) * K < c->ep * least(K, local);
}

static double value_bytes(const KeptValue *v, const RankShape *r)
{
    double cols = v->cols / rank_cut(r, v->cut) + v->kv_cols / r->kv;
    return r->rows[v->rows] * cols * (v->bytes ? v->bytes : 2);
}

/* A frozen weight does not read its input in backward; inputs of experts are kept all the same where chunks
 * of tokens use their buffers. */
static bool is_read(const KeptValue *v, const LoraLayer *x, bool bounded)
{
    if (!x || !v->only || (v->rows == ROWS_EXPERTS && bounded)) return true;
    return weight_trains(&x->weight[v->read_by]);
}

/* Rows that weight gradients of experts read, but not where they read codes that backward makes. */
static bool is_gathered_anew(const KeptValue *v, const RankShape *r)
{
    return r->coded_dw && v->rows == ROWS_EXPERTS && (v->label == L_DISPATCH || v->label == L_ACT);
}

/* Statistics of norms, a few bytes a row, are left out; so is in other trainers what follows from the
 * router's choice, of which they keep logits, probabilities and a map: 9 bytes where the trainer here has
 * 4. */
static bool is_counted(const KeptValue *v, const Description *d, const Task *t)
{
    if (v->label == L_STAT) return v->read_by >= 0 && d->step[v->read_by].type == STEP_CORE;
    return !(t->foreign && v->label == L_ROUTE);
}

void layer_bytes(LayerBytes *b, const Task *t, const Candidate *c, LayerClass k)
{
    const Description *d = class_description(t, k);
    RankShape r = task_rank(t, c);
    bool      bounded = k.lora && rows_bounded(t, c);
    *b = (LayerBytes){ 0 };
    for (int i = 0; i < d->values; i++) {
        const KeptValue *v = &d->value[i];
        double bytes = value_bytes(v, &r);
        if (!is_counted(v, d, t)) continue;
        if (t->foreign && v->label == L_LOGITS) bytes *= 9.0 / 4;
        if (!is_read(v, k.lora, bounded) || is_gathered_anew(v, &r)) {
            b->unread += bytes;
            continue;
        }
        b->of[v->label] += bytes;
        if (v->read_by >= 0 && d->step[v->read_by].type == STEP_PRODUCT) b->inputs[v->label] += bytes;
    }
    if (k.kinds.ffn != FFN_MOE) return;
    if (t->keep_fc2) b->fc2 = 2 * r.rows[ROWS_EXPERTS] * (double)t->model->text.D;
    if (k.lora) b->of[L_LORA] = 2 * r.rows[ROWS_EXPERTS] * k.lora->expert_rank;
}

/* Full recompute keeps what is pinned. Other trainers drop the log-sum-exps of attention with its output,
 * which some of them keep. */
double layer_kept(const LayerBytes *b, const Task *t, unsigned re)
{
    uint32_t dropped = dropped_labels(t->layers, re);
    double   narrow = t->fp8_stash ? 1 - 0.52 : 0;           /* 8 bits, scales, and some that stay wide */
    double   kept = re & (RE_MOE | RE_FULL) ? 0 : b->fc2;
    if (t->foreign && dropped >> L_CORE & 1) dropped |= 1u << L_STAT;
    if (t->keep_core && !(re & RE_FULL)) dropped &= ~(1u << L_CORE);
    for (int l = 0; l < LABEL_N; l++)
        if (!(dropped >> l & 1)) kept += b->of[l] - narrow * b->inputs[l];
    return kept;
}

void analytic_layer(LayerBytes *b, const Task *t, const Candidate *c, LayerClass k)
{
    LayerTable table;
    Task       own = task_with_layers(t, &table);
    layer_bytes(b, &own, c, k);
}

double analytic_layer_kept(const LayerBytes *b, const Task *t, unsigned recompute)
{
    LayerTable table;
    Task       own = task_with_layers(t, &table);
    return layer_kept(b, &own, recompute);
}

double analytic_in_flight(const Task *t, const Candidate *c, int stage)
{
    double M = task_micros(t, c), over = c->overlap ? 1 : 0;
    if (c->pp == 1) return 1 + (t->thin_overlap ? 0.1 : 1) * over;
    if (c->vpp == 1) return least(c->pp - stage, M);         /* the rules refuse overlap there */
    return least(2.0 * (c->pp - 1 - stage) + (double)(c->vpp - 1) * c->pp + over + 1, M * c->vpp);
}

/* A piece is one micro-batch of one chunk. Of the first n pieces of a stage, those of its v-th chunk: PP
 * micro-batches take turns in each. */
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
    double all = (double)t->patches * c->mbs / (double)merged_patches(&t->model->vision);
    return c->tp * c->cp > 1 ? least(all, task_tokens(t, c) / c->tp) : all;
}

double vision_block_bytes(const Task *t, unsigned re)
{
    const Description *d = &t->layers->block;
    uint32_t dropped = dropped_labels(t->layers, re & (RE_NORM | RE_CORE));
    double   bytes = 0;
    for (int i = 0; i < d->values; i++) {
        const KeptValue *v = &d->value[i];
        if (v->label != L_V_STAT && !(dropped >> v->label & 1)) bytes += 2 * v->cols;
    }
    return bytes;
}

/* What the tower keeps of a micro-batch until its backward; work: and the block that is being computed or
 * recomputed. tp and cp divide pictures, but one rank may have to take them all. Pixels are there as
 * bytes and as numbers; where nothing is kept two buffers of patches take turns, and mergers that train keep
 * theirs. */
static double vision_bytes(double *work, const Task *t, const Candidate *c)
{
    const VisionShape *v = &t->model->vision;
    bool   frozen = t->frozen_vision && !t->lora, recomputed = c->recompute & (RE_VISION | RE_FULL);
    double D = (double)v->D, depth = (double)v->depth, merged = (double)merged_patches(v);
    double P = (double)t->patches * c->mbs, tokens = P / merged;
    double block = P * vision_block_bytes(t, c->recompute), input = P * 2 * D;
    double blocks = frozen ? 0 : t->lora ? t->lora->tower.blocks : depth;
    double mergers = frozen ? 0 : t->lora ? t->lora->tower.mergers : 1 + v->deepstacks;
    double out = 2.0 * (1 + v->deepstacks) * (double)v->out, pixels = 3.0 * (double)vision_patch_dim(v) * P;
    double rows = (blocks + mergers > 0) + (c->tp * c->cp > 1);      /* gradients; rows of other ranks */
    *work = recomputed || blocks < depth ? block : 0;
    if (blocks > 0) *work += 2 * P * (6 * D + (double)v->I);
    return blocks * (recomputed ? input : block) + (recomputed ? 0 : mergers * tokens * merged * D * 2 * 3)
         + pixels + out * (tokens + rows * visual_rows(t, c))
         + (blocks < depth ? (2 + mergers) * input : 0);
}

static double logits_bytes(const Task *t, const Candidate *c)
{
    int64_t V = t->model->text.V;
    double  T = task_tokens(t, c), own = (double)V / c->tp;
    if (t->unfused_logits) return T * own * 6;
    BackendTraits gpu = backend_traits("cuda");
    return least(T, (double)head_chunk_rows(V, gpu.logits)) * own * (gpu.logits_in_act_dtype ? 2 : 6);
}

/* Rows of a token that leave the rank: one for each of its experts, or one for each node that has some. */
static double copies(const Task *t, const Candidate *c)
{
    double nodes = most((double)c->ep * c->etp / t->hw.domain, 1), K = (double)t->model->text.K;
    return dispatcher_rows[c->dispatch].two_level ? least(K, nodes) : K;
}

/* What passes states between ranks of cp: maps of all chunks, those of this rank, three states. */
static double state_work(const Task *t, const Candidate *c, LayerClass k)
{
    const Description *d = class_description(t, k);
    double numbers = 0;
    for (int i = 0; i < d->steps; i++) numbers += d->step[i].state;
    return c->cp > 1 && !t->foreign ? 4 * numbers / c->tp * (2 * c->cp + 4) : 0;
}

/* Scratch of one layer: gradients of what it has between its products; without a backward the outputs of its
 * experts alone. */
static double layer_work(const Task *t, const Candidate *c, LayerClass k)
{
    const TextShape *s = &t->model->text;
    RankShape r = task_rank(t, c);
    double T = r.rows[ROWS_GATHERED], heads = (double)s->H / r.tp + (double)s->G / r.kv, D = (double)s->D;
    double attention = T * 3 * heads * (double)s->C, ffn = T * 3 * (double)s->I / r.tp;
    double rows = k.kinds.ffn == FFN_MOE ? r.rows[ROWS_EXPERTS] : 0;
    if (!class_has_backward(k)) return 2 * rows * D + state_work(t, c, k);
    if (rows > 0) ffn = rows * (D + 2 * (double)s->F / r.etp);
    return 2 * (most(attention, ffn) + 2 * r.rows[ROWS_TOKENS] * D) + state_work(t, c, k);
}

/* What one layer of a class keeps, and what it works in: what it drops is recomputed there. */
typedef struct ClassBytes { double kept[MOST_LAYERS], work[MOST_LAYERS]; } ClassBytes;

static void fill_classes(ClassBytes *k, const Task *t, const Candidate *c)
{
    for (int i = 0; i < task_classes(t); i++) {
        LayerClass class = task_class(t, i);
        LayerBytes b;
        k->kept[i] = k->work[i] = 0;
        if (!task_has_class(t, class)) continue;
        layer_bytes(&b, t, c, class);
        if (!class.lora || class.lora->kept) k->kept[i] = layer_kept(&b, t, c->recompute);
        k->work[i] = layer_kept(&b, t, 0) + b.unread - k->kept[i];
        if (!t->foreign) k->work[i] += layer_work(t, c, class);
    }
}

static double buffer_bytes(const Task *t, const Candidate *c, const StageLayers *s, const ClassBytes *k)
{
    double T = task_tokens(t, c), D = (double)t->model->text.D, bytes = c->tp > 1 ? 4 * T * D : 0, worst = 0;
    bool   moe = false;
    for (int i = 0; i < task_classes(t); i++) {
        if (!s->n[i]) continue;
        moe |= task_class(t, i).kinds.ffn == FFN_MOE;
        worst = most(worst, k->work[i]);
    }
    double rows = T / c->tp * copies(t, c) + task_rank(t, c).rows[ROWS_EXPERTS];
    if (moe && c->ep * c->etp > 1) bytes += 2 * D * rows * (c->overlap ? 2 : 1);
    return bytes + worst;
}

/* Whether attention has a backward in some layer of a stage. */
static bool cores_have_backward(const Task *t, const StageLayers *l)
{
    bool any = false;
    for (int i = 0; i < task_classes(t); i++) any |= l->n[i] && class_core_has_backward(task_class(t, i));
    return any;
}

static bool tower_core_has_backward(const Task *t)
{
    return t->lora ? t->lora->tower.core > 0 : !t->frozen_vision;
}

/* What backward attention takes while it runs (ops/ops.h); keys of other ranks need none. */
static double workspace_bytes(const Task *t, const Candidate *c, const StageLayers *l)
{
    const ModelRow *m = t->model;
    bool    sees = m->vision.depth && l->first && tower_core_has_backward(t);
    int64_t T = (int64_t)task_tokens(t, c), patches = sees ? t->patches * c->mbs : 0;
    AttentionWork text = { .T = T, .docs = T / t->seq + 1, .longest = t->seq, .H = m->text.H / c->tp,
                           .G = (m->text.G + c->tp - 1) / c->tp, .C = m->text.C, .causal = true };
    AttentionWork tower = { .T = patches, .docs = 1, .longest = patches, .H = m->vision.H, .G = m->vision.H,
                            .C = patches ? m->vision.D / m->vision.H : 0 };
    if (t->foreign || !strcmp(t->hw.backend, "cpu")) return 0;
    return (double)most(c->cp > 1 || !cores_have_backward(t, l) ? 0 : attention_bwd_workspace(&text),
                        patches ? attention_bwd_workspace(&tower) : 0);
}

/* Rows between stages, two in each direction and one that is being sent: with them the deepstack features
 * that join layers of later stages. */
static double border_bytes(const Task *t, const Candidate *c, bool first)
{
    const ModelRow *m = t->model;
    double visual = m->vision.depth && first ? visual_rows(t, c) : 0;
    return c->pp > 1 ? 5 * 2 * (double)m->text.D * (task_tokens(t, c) / c->tp + m->vision.deepstacks * visual)
                     : 0;
}

/* What fp8_block adds to weights of two bytes (docs/memory.md): codes in both layouts, gathered ones in place
 * of weights; frozen ones, which have adapters here, are codes alone. Embedding, head and what no rank cuts,
 * norms and routers, have none. */
static double fp8_code_bytes(const Task *t, const Candidate *c, const StageParams *p, const StageLayers *l)
{
    double table = (double)(t->model->text.V * t->model->text.D) / c->tp, bytes = 0;
    if (t->foreign || t->precision != PREC_FP8) return 0;
    for (int i = BY_DP; i < SHARERS; i++) {
        double n = c->zero ? task_sharers(t, c, i) : 1;
        double tables = i == BY_DP ? table * (l->first + l->last) : 0;
        double trained = most(p->trained[i] - tables, 0), frozen = most(p->frozen[i] - tables, 0);
        bytes += trained * (n > 1 ? (c->zero == 3 ? 1 : 2) / n : 2);
        bytes -= frozen / (c->zero == 3 ? n : 1);
    }
    return bytes - (c->zero == 3 ? most(p->gathered - table * (l->first + l->last), 0) : 0);
}

/* What model.base_quant saves of the frozen weights, of which adapters are beside; as above all but tables
 * and what no rank cuts. */
static double base_saved(const Task *t, const Candidate *c, const StageParams *p, const StageLayers *l)
{
    double table = (double)(t->model->text.V * t->model->text.D) / c->tp, saved = 0;
    for (int i = BY_DP; i < SHARERS && t->lora && t->base_bytes > 0; i++) {
        double n      = c->zero == 3 ? task_sharers(t, c, i) : 1,
               tables = i == BY_DP ? table * (l->first + l->last) : 0;
        saved += most(p->frozen[i] - tables, 0) / n * (2 - t->base_bytes);
    }
    return saved;
}

/* What gradients take beyond grad_bytes each: our own trainer has those of tables, norms and routers in
 * f32. */
static double wide_grads(const Task *t, const Candidate *c, const StageParams *p, const StageLayers *l)
{
    double table = (double)(t->model->text.V * t->model->text.D) / c->tp * (l->first + l->last);
    if (t->foreign || t->lora || t->grad_bytes == 4) return 0;
    if (c->zero < 2) return 2 * (p->trained[BY_STAGE] + table);
    return 2 * (p->trained[BY_STAGE] / task_sharers(t, c, BY_STAGE) + table / task_sharers(t, c, BY_DP) +
                table);
}

static void static_bytes(StageMemory *s, const Task *t, const Candidate *c, const StageLayers *l)
{
    StageParams p;
    stage_params(&p, t, c, l);
    double w = stage_weight_bytes(t), g = t->grad_bytes, moments = 2.0 * t->moment_bytes;
    double all = params_here(p.trained), owned = c->zero ? params_owned(p.trained, t, c) : all;
    double frozen = c->zero == 3 ? params_owned(p.frozen, t, c) : params_here(p.frozen);
    double away = c->offload * (moments + (t->keep_master ? 0 : t->master_bytes));
    s->weights   = w * ((c->zero == 3 ? owned + p.gathered : all) + frozen) + fp8_code_bytes(t, c, &p, l) -
                   base_saved(t, c, &p, l);
    s->grads     = g * (c->zero >= 2 ? owned + p.summed : all) + wide_grads(t, c, &p, l);
    s->optimizer = owned * (t->master_bytes + moments - away);
}

static double layers_kept(const Task *t, const StageLayers *l, const ClassBytes *k)
{
    double sum = 0;
    for (int i = 0; i < task_classes(t); i++) sum += l->n[i] * k->kept[i];
    return sum;
}

/* What a stage keeps of all pieces in flight, with `tower` in its first chunk. Chunks share buffers as large
 * as the largest of them, or have their own, whatever takes less; in other trainers they take what they need,
 * layers on the mean. Beside its layers a piece has its output, its gradient and rotary angles. */
static double kept_bytes(const Task *t, const Candidate *c, int stage, const ClassBytes *k, double tower)
{
    double pieces = analytic_in_flight(t, c, stage), largest = 0, apart = 0, sum = 0, layers = 0, longest = 0;
    double first = 0, other = 0, T = task_tokens(t, c);
    const TextShape *m = &t->model->text;
    double piece = t->foreign ? 0 : 2 * (2 * T / c->tp * (double)m->D) + 4 * T * (double)m->C;
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

static void stage_bytes(StageMemory *s, const Task *t, const Candidate *c, int stage, const ClassBytes *k)
{
    StageLayers l;
    double tower = 0;
    *s = (StageMemory){ .fixed = t->hw.fixed };
    stage_layers(&l, t, c, stage);
    static_bytes(s, t, c, &l);
    s->activations = kept_bytes(t, c, stage, k, 0);
    if (l.last) s->logits = logits_bytes(t, c);
    if (l.first && t->model->vision.depth && t->patches)
        s->vision = kept_bytes(t, c, stage, k, vision_bytes(&tower, t, c)) - s->activations;
    s->buffers = most(buffer_bytes(t, c, &l, k), tower);                      /* logits are in them */
    if (!t->foreign) s->buffers = most(s->buffers - s->logits, 0) + border_bytes(t, c, l.first);
    s->buffers += workspace_bytes(t, c, &l);
    s->total = s->weights + s->grads + s->optimizer + s->activations + s->logits + s->vision + s->buffers
             + s->fixed;
}

void analytic_memory(StageMemory *s, const Task *t, const Candidate *c, int stage)
{
    LayerTable table;
    Task       own = task_with_layers(t, &table);
    ClassBytes k;
    fill_classes(&k, &own, c);
    stage_bytes(s, &own, c, stage, &k);
}

double analytic_peak(const Task *t, const Candidate *c, int *stage)
{
    LayerTable table;
    Task       own = task_with_layers(t, &table);
    double     peak = 0;
    ClassBytes k;
    fill_classes(&k, &own, c);
    for (int p = 0; p < c->pp; p++) {
        StageMemory s;
        stage_bytes(&s, &own, c, p, &k);
        if (s.total <= peak) continue;
        peak = s.total;
        if (stage) *stage = p;
    }
    return peak;
}
