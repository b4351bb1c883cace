/* plan/analytic_layers.c -- the layers of a model as the analytic model sees them: each class of them once,
 * with its description and its parameters, and how many of each a stage has. */
#include "plan/analytic_private.h"

#include "nn/decoder.h"
#include "nn/vision.h"

#include <stdlib.h>

/* ---- words of memory.recompute ---- */

const RecomputeBit recompute_bits[] = {
    { RE_FULL, "full" },       { RE_CORE, "core_attn" }, { RE_NORM, "layernorm" }, { RE_MOE_ACT, "moe_act" },
    { RE_MOE, "moe" },         { RE_MLP, "mlp" },        { RE_SHARED, "shared_experts" },
    { RE_UP_PROJ, "mla_up_proj" }, { RE_VISION, "vision" }, { RE_MOE_DISPATCH, "moe_dispatch" },
};

/* Labels that each word drops, as memory.recompute does in the trainer. */
static void fill_dropped(uint32_t dropped[RE_BITS])
{
    for (int i = 0; i < RE_BITS; i++) {
        uint8_t policy[LABEL_N];
        int bit = 0;
        policy_default(policy);
        Status st = policy_drop(policy, recompute_bits[i].word);
        REQUIRE(!st, "%s", status_text());
        while (!(recompute_bits[i].bit >> bit & 1)) bit++;
        dropped[bit] = 0;
        for (int l = 0; l < LABEL_N; l++) dropped[bit] |= (uint32_t)(policy[l] == DROP) << l;
    }
}

uint32_t dropped_labels(const LayerTable *t, unsigned recompute)
{
    uint32_t labels = 0;
    for (int i = 0; i < RE_BITS; i++)
        if (recompute >> i & 1) labels |= t->dropped[i];
    return labels;
}

/* ---- classes of layers ---- */

static void count_params(LayerParams *p, const Description *d)
{
    *p = (LayerParams){ 0 };
    for (int i = 0; i < d->steps; i++) {
        const LayerStep *s = &d->step[i];
        double n = s->count * s->in * s->out;
        if (s->type == STEP_CORE) continue;
        if (s->rows == ROWS_EXPERTS) p->experts += n;
        else if (s->in_cut == CUT_TP || s->out_cut == CUT_TP) p->tp += n;
        else p->whole += n;
        p->kv += s->count * s->in * s->kv_out;
    }
}

static void describe_class(LayerTable *t, const TextShape *s, LayerKinds k)
{
    int i = plain_class(k);
    if (t->has[i]) return;
    t->has[i] = true;
    decoder_describe(&t->layer[i], s, k);
    count_params(&t->params[i], &t->layer[i]);
}

static void fill_table(LayerTable *t, const ModelRow *m)
{
    const TextShape *s = &m->text;
    REQUIRE(s->L <= MOST_LAYERS, "%s: %lld layers", m->name, (long long)s->L);
    fill_dropped(t->dropped);
    for (int i = 0; i < PLAIN_CLASSES; i++) t->has[i] = false, t->below[0][i] = 0;
    for (int64_t l = 0; l < s->L; l++) {
        LayerKinds k = layer_kinds(s, l);
        describe_class(t, s, k);
        for (int i = 0; i < PLAIN_CLASSES; i++)
            t->below[l + 1][i] = (int16_t)(t->below[l][i] + (i == plain_class(k)));
    }
    describe_begin(&t->block);
    vision_describe_block(&t->block, &m->vision);
    t->tower_params = vision_params(&m->vision), t->tower_gathered = vision_gathered(&m->vision);
    t->tower = m->vision.depth ? vision_macs(&m->vision) : (VisionMacs){ 0 };
    t->last = plain_class(layer_kinds(s, s->L - 1));
}

Status layer_table_open(LayerTable **t, const ModelRow *m)
{
    *t = malloc(sizeof **t);
    if (!*t) return fail(E_FIT, "no memory for the layers of %s", m->name);
    fill_table(*t, m);
    return OK;
}

Task task_with_layers(const Task *t, LayerTable *table)
{
    Task own = *t;
    if (own.layers) return own;
    fill_table(table, t->model);
    own.layers = table;
    return own;
}

/* ---- layers of a stage ---- */

static void count_layers(StageLayers *n, const Task *t, int from, int to)
{
    n->all += to - from;
    for (int i = 0; !t->lora && i < PLAIN_CLASSES; i++)
        n->n[i] += t->layers->below[to][i] - t->layers->below[from][i];
    for (int l = from; t->lora && l < to; l++) n->n[t->lora->of[l]]++;
}

/* First layer of a pipeline chunk, as layout_suggest cuts: the first and the last chunk get the fewer layers,
 * longer chunks come first. */
static int chunk_from(int layers, int chunks, int i)
{
    int each = layers / chunks, more = layers % chunks;
    if (i <= 1 || chunks == 1) return each * i;
    int longer = i - 1 < more ? i - 1 : more;
    return i == chunks ? layers : each * i + longer;
}

/* Adds chunk i of all stages. MTP layers are like the last layer and lie behind it. */
static void add_chunk(StageLayers *s, const Task *t, const Candidate *c, int i)
{
    int chunks = c->pp * c->vpp, L = (int)t->model->text.L;
    count_layers(s, t, chunk_from(L, chunks, i), chunk_from(L, chunks, i + 1));
    if (i < chunks - 1) return;
    s->mtp = (int)t->model->text.mtp;
    s->n[t->lora ? t->lora->of[L - 1] : t->layers->last] += s->mtp;
    s->all += s->mtp;
}

void chunk_layers(StageLayers *s, const Task *t, const Candidate *c, int stage, int v)
{
    *s = (StageLayers){ .first = !stage && !v, .last = stage == c->pp - 1 && v == c->vpp - 1 };
    add_chunk(s, t, c, stage + v * c->pp);
}

void stage_layers(StageLayers *s, const Task *t, const Candidate *c, int stage)
{
    *s = (StageLayers){ .first = stage == 0, .last = stage == c->pp - 1 };
    for (int v = 0; v < c->vpp; v++) add_chunk(s, t, c, stage + v * c->pp);
}
