/* plan/lora_cost.c -- see lora_cost.h. */
#include "plan/lora_cost.h"

#include "model/walk.h"
#include "plan/dryrun.h"
#include "train/recipe_check.h"

#include <string.h>

/* ---- what trains, and what divides it ---- */

static CutBy cut_of(const Param *p)
{
    bool tp = false, ep = false, etp = false;
    for (int i = 0; i < p->cuts; i++) {
        tp  |= p->cut[i].axis == AX_TP;
        ep  |= p->cut[i].axis == AX_EP;
        etp |= p->cut[i].axis == AX_ETP;
    }
    return ep && etp ? CUT_EP_ETP : ep ? CUT_EP : etp ? CUT_ETP : tp ? CUT_TP : CUT_NONE;
}

/* Rows that are heads are divided by how many heads there are. */
static void count_param(Trained *t, const Param *p, int64_t H)
{
    double *to = p->adapter_of ? t->adapters : t->whole;
    double  all = (double)param_count(p), rows = 0;
    if (p->frozen || p->tied_copy) return;
    if (!p->head_width) {
        to[cut_of(p)] += all;
        return;
    }
    for (int i = 0; i < p->pieces; i++) rows += (double)p->piece[i].shape[0];
    for (int i = 0; i < p->pieces; i++) {
        int64_t part = p->piece[i].shape[0];
        to[part / p->head_width < H ? CUT_KV : CUT_TP] += all * (double)part / rows;
    }
}

static void count_unit(Trained *t, const Model *m, int unit)
{
    for (int i = 0; i < m->params.n; i++)
        if (m->params.p[i]->unit == unit) count_param(t, m->params.p[i], m->shape.text.H);
}

/* Parameters outside the layers are those of the head or lie before the first layer. */
static void count_ends(LoraCost *a, const Model *m)
{
    for (int i = 0; i < m->params.n; i++) {
        const Param *p = m->params.p[i];
        int64_t l = 0;
        while (l < m->shape.text.L && m->layer[l].norm->unit != p->unit) l++;
        if (l == m->shape.text.L)
            count_param(p->unit == m->head.norm->unit ? &a->last : &a->first, p, m->shape.text.H);
    }
}

/* ---- a walk over the built model ---- */

static LoraWeight weight_of(const Param *w, bool input)
{
    LoraWeight x = { .whole = !w->frozen, .input = input };
    for (int i = 0; w->lora && i < w->lora->parts; i++) {
        const LoraPart *p = &w->lora->part[i];
        x.r += (double)p->r, x.out += (double)p->b->shape[p->b->ndim - 2];
    }
    x.learns = w->lora && !w->lora->a->frozen, x.drops = w->lora && w->lora->dropout > 0;
    return x;
}

LoraTraffic lora_traffic(const LoraWeight *w, bool grouped)
{
    double drop = w->drops ? 2 : 0;                          /* the dropped input is read and written */
    LoraTraffic v = { 0 };
    if (!w->r) return v;
    v.in[0] = 1 + drop, v.out[0] = grouped ? 0 : 2;          /* x A'; y is added to */
    if (w->learns || w->input) v.out[1] += 1;                /* dy B */
    if (w->learns) v.out[1] += 1, v.in[1] += (grouped ? 1 : 2) + drop;   /* of B and of A; x A' recomputed */
    if (w->input)  v.in[1] += grouped ? 2 * drop : 2 + drop;
    return v;
}

typedef struct LoraWalk {
    LoraCost  *a;
    const Model *m;
    LoraLayer  now;                      /* the layer that the walk is in */
    bool       kept[MOST_LAYERS];        /* layers that keep values for a backward */
} LoraWalk;

static bool same_weight(const LoraWeight *a, const LoraWeight *b)
{
    return a->r == b->r && a->out == b->out && a->learns == b->learns && a->whole == b->whole &&
           a->input == b->input && a->drops == b->drops;
}

static bool same_layer(const LoraLayer *a, const LoraLayer *b)
{
    bool same = a->kinds.attention == b->kinds.attention && a->kinds.ffn == b->kinds.ffn &&
                a->kept == b->kept && a->back == b->back && a->core == b->core &&
                !memcmp(&a->trained, &b->trained, sizeof a->trained);
    for (int i = 0; i < MAX_STEPS; i++) same = same && same_weight(&a->weight[i], &b->weight[i]);
    return same;
}

static int class_of(LoraCost *a, const LoraLayer *x)
{
    int i = 0;
    while (i < a->classes && !same_layer(&a->layer[i], x)) i++;
    if (i == a->classes) a->layer[a->classes++] = *x;
    return i;
}

/* The first walk is with pictures: which layers keep values does not depend on whether a micro-batch has
 * some. */
static void count_tower(void *self, WalkPlace at, const LayerStep *s, Param *w, bool before)
{
    LoraWalk *k = self;
    if (s->type != STEP_PRODUCT || (at.part != WALK_BLOCK && at.part != WALK_MERGER)) return;
    LoraWeight  x = weight_of(w, true);
    LoraTraffic v = lora_traffic(&x, false);
    k->a->tower.values += at.rows * (s->in * (v.in[0] + v.in[1]) + x.out * (v.out[0] + v.out[1]));
}

static void note_kept(void *self, WalkPlace at, bool before, bool after)
{
    LoraWalk *k = self;
    k->a->tower.blocks  += at.part == WALK_BLOCK && after;
    k->a->tower.mergers += at.part == WALK_MERGER && after;
    if (at.part == WALK_LAYER) k->kept[at.index] = after;
}

/* The second walk is of the micro-batch. */
static void take_step(void *self, WalkPlace at, const LayerStep *s, Param *w, bool before)
{
    LoraWalk *k = self;
    if (at.part == WALK_LAYER && s->type == STEP_CORE) k->now.core = before;
    if (s->type != STEP_PRODUCT) return;
    if (at.part == WALK_HEAD) k->a->head = weight_of(w, before);
    if (at.part != WALK_LAYER) return;
    k->now.weight[s->index] = weight_of(w, before);
    if (s->linear == LINEAR_EXPERTS) k->now.expert_rank += k->now.weight[s->index].r;
}

/* A layer has a backward if something up to its output trains. */
static void take_layer(void *self, WalkPlace at, bool before, bool after)
{
    LoraWalk *k = self;
    if (at.part != WALK_LAYER) return;
    k->now.kinds = layer_kinds(&k->m->shape.text, at.index);
    k->now.kept = k->kept[at.index], k->now.back = after;
    count_unit(&k->now.trained, k->m, k->m->layer[at.index].norm->unit);
    k->a->of[at.index] = (uint8_t)class_of(k->a, &k->now);
    k->now = (LoraLayer){ 0 };
}

static void fill_layers(LoraCost *a, const Model *m, bool pictures)
{
    LoraWalk k = { .a = a, .m = m };
    model_walk(m, true, &(Walker){ count_tower, note_kept, &k });
    model_walk(m, pictures, &(Walker){ take_step, take_layer, &k });
}

static void fill_tower(LoraCost *a)
{
    LoraTower *t = &a->tower;
    for (int p = PART_VISION; p <= PART_MERGER; p++) {
        t->back += a->work.sees.patch.part[p] - a->work.forward.patch.part[p];
        t->core += a->work.sees.vpair.part[p] - a->work.forward.vpair.part[p];
    }
}

/* ---- opening ---- */

static Status fill(LoraCost *a, const ModelShape *s, const bool *frozen, bool pictures)
{
    Model m;
    Status st = model_open_whole(&m, s, frozen, &a->conf);
    if (!st) st = work_open(&a->work, s, frozen, &a->conf);
    if (!st) st = trainable_open(&a->trains, s, frozen, &a->conf);
    if (!st) fill_layers(a, &m, pictures), count_ends(a, &m), fill_tower(a);
    model_close(&m);
    return st;
}

static Status refuse(const ModelRow *m)
{
    if (!m->preset)
        return fail(E_CONFIG, "%s with adapters: no family here trains it, so the modules that "
                    "lora.target_modules reaches are not known; plan it without lora.*, which trains all",
                    m->name);
    REQUIRE(m->text.L <= MOST_LAYERS, "%s: %lld layers", m->name, (long long)m->text.L);
    return OK;
}

static Status open_all(LoraCost *a, const ModelRow *m, const Config *recipe, bool pictures)
{
    const struct cfg_model named = { .preset = m->preset, .path = "" };
    const bool frozen[GROUP_N] = { recipe->model.freeze_vit, recipe->model.freeze_aligner,
                                   recipe->model.freeze_llm };
    const char *path = recipe->lora.path;
    ModelShape  shape;
    char        from[160];
    TRY(refuse(m));
    TRY(recipe_check_lora(recipe));
    TRY(dryrun_shape(&shape, from, sizeof from, &named));
    shape.text.mtp = 0;                                  /* adapters leave it out, see recipe_shape */
    if (*path) TRY_CTX(lora_source_open(&a->source, path, &shape), "lora.path");
    TRY(recipe_lora(&a->conf, &recipe->lora, *path ? &a->source.conf : NULL));
    return fill(a, &shape, frozen, pictures);
}

Status lora_cost_open(LoraCost *a, const ModelRow *m, const Config *recipe, bool pictures)
{
    memset(a, 0, sizeof *a);
    Status st = open_all(a, m, recipe, pictures);
    if (st) lora_cost_close(a);
    return st;
}

void lora_cost_close(LoraCost *a)
{
    lora_source_close(&a->source);
    trainable_close(&a->trains);
    a->classes = 0;
}
