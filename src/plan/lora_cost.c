/* plan/lora_cost.c -- see lora.h. What a layer's backward does is what decoder_bwd, attention_bwd, moe_bwd
 * and mlp_bwd decide, by the same questions of the same parameters. */
#include "plan/lora_cost.h"

#include "plan/dryrun.h"
#include "train/recipe_check.h"

#include <string.h>

/* ---- what trains, and how it is cut ---- */

static CutOf cut_of(const Param *p)
{
    bool tp = false, ep = false, etp = false;
    for (int i = 0; i < p->cuts; i++) {
        tp  |= p->cut[i].axis == AX_TP;
        ep  |= p->cut[i].axis == AX_EP;
        etp |= p->cut[i].axis == AX_ETP;
    }
    return ep && etp ? CUT_BOTH : ep ? CUT_EP : etp ? CUT_ETP : tp ? CUT_TP : CUT_WHOLE;
}

/* Rows that are heads are cut by how many of them there are. */
static void count_param(Trained *t, const Param *p, const ModelRow *m)
{
    double *to = p->adapter_of ? t->pairs : t->whole;
    double  all = (double)param_count(p), rows = 0;
    if (p->frozen || p->tied_copy) return;
    if (!p->head_width) {
        to[cut_of(p)] += all;
        return;
    }
    for (int i = 0; i < p->pieces; i++) rows += (double)p->piece[i].shape[0];
    for (int i = 0; i < p->pieces; i++) {
        int64_t part = p->piece[i].shape[0];
        to[part / p->head_width < m->nq ? CUT_KV : CUT_TP] += all * (double)part / rows;
    }
}

static void count_unit(Trained *t, const Model *m, int unit, const ModelRow *row)
{
    for (int i = 0; i < m->params.n; i++)
        if (m->params.p[i]->unit == unit) count_param(t, m->params.p[i], row);
}

/* What is no layer's is the head's, or lies before the first layer. */
static void count_ends(LoraCost *a, const Model *m, const ModelRow *row)
{
    for (int i = 0; i < m->params.n; i++) {
        const Param *p = m->params.p[i];
        int64_t l = 0;
        while (l < m->shape.text.L && m->layer[l].norm->unit != p->unit) l++;
        if (l == m->shape.text.L) count_param(p->unit == m->head.norm->unit ? &a->last : &a->first, p, row);
    }
}

/* ---- layers ---- */

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

static bool before_core(const Attention *a)
{
    return is_trainable(a->norm) || is_trainable(a->w_qkv) || is_trainable(a->b_qkv) || is_trainable(a->q_norm) || is_trainable(a->k_norm);
}

/* on: something before the layer trains. */
static void fill_layer(LoraLayer *x, const Decoder *d, bool back, bool on)
{
    const Attention *a = &d->attn;
    const Param *up = d->sparse ? d->moe.w_gu : d->mlp.w_gu, *down = d->sparse ? d->moe.w_d : d->mlp.w_d;
    bool normed = on || attention_trains(a) || is_trainable(d->norm);
    bool routes = d->sparse && is_trainable(d->moe.w_router);
    x->moe  = d->sparse, x->back = back;
    x->core = back && (on || before_core(a));
    x->qkv  = weight_of(a->w_qkv, back && (on || is_trainable(a->norm)));
    x->o    = weight_of(a->w_o, x->core);
    x->up   = weight_of(up, back && normed);
    x->down = weight_of(down, back && (normed || routes || is_trainable(up)));
    if (d->sparse) x->router = weight_of(d->moe.w_router, back && normed);
}

static bool same_weight(const LoraWeight *a, const LoraWeight *b)
{
    return a->r == b->r && a->out == b->out && a->learns == b->learns && a->whole == b->whole &&
           a->input == b->input && a->drops == b->drops;
}

static bool same_layer(const LoraLayer *a, const LoraLayer *b)
{
    return a->moe == b->moe && a->kept == b->kept && a->back == b->back && a->core == b->core &&
           same_weight(&a->qkv, &b->qkv) && same_weight(&a->o, &b->o) &&
           same_weight(&a->router, &b->router) && same_weight(&a->up, &b->up) &&
           same_weight(&a->down, &b->down) && !memcmp(&a->trained, &b->trained, sizeof a->trained);
}

static int kind_of(LoraCost *a, const LoraLayer *x)
{
    int i = 0;
    while (i < a->kinds && !same_layer(&a->kind[i], x)) i++;
    if (i == a->kinds) a->kind[a->kinds++] = *x;
    return i;
}

/* The lowest layer with a backward is as in model/step.c: pictures whose tower trains are below all. */
static void fill_layers(LoraCost *a, const Model *m, const ModelRow *row, bool pictures)
{
    bool    sees = m->shape.vision.depth && (!m->frozen[G_VIT] || !m->frozen[G_ALIGNER]);
    int64_t L = m->shape.text.L, keeps = sees ? -1 : m->first_trainable, lowest = sees && pictures ? -1 : m->first_trainable;
    for (int64_t l = 0; l < L; l++) {
        LoraLayer x = { .kept = l >= keeps };
        fill_layer(&x, &m->layer[l], l >= lowest, l > lowest);
        count_unit(&x.trained, m, m->layer[l].norm->unit, row);
        a->of[l] = (uint8_t)kind_of(a, &x);
    }
    a->head = weight_of(m->head.w, lowest < L || is_trainable(m->head.norm));
}

/* ---- the tower ---- */

LoraTraffic lora_traffic(const LoraWeight *w, bool grouped)
{
    double drop = w->drops ? 2 : 0;                          /* what is dropped is read and written besides */
    LoraTraffic v = { 0 };
    if (!w->r) return v;
    v.in[0] = 1 + drop, v.out[0] = grouped ? 0 : 2;          /* low; y is added to */
    if (w->learns || w->input) v.out[1] += 1;                /* back */
    if (w->learns) v.out[1] += 1, v.in[1] += (grouped ? 1 : 2) + drop;       /* of B and of A; low again */
    if (w->input)  v.in[1] += grouped ? 2 * drop : 2 + drop;
    return v;
}

static double pairs_of(const Param *w, bool input)
{
    LoraWeight x = weight_of(w, input);
    LoraTraffic    v = lora_traffic(&x, false);
    return (double)w->shape[1] * (v.in[0] + v.in[1]) + x.out * (v.out[0] + v.out[1]);
}

static double merger_pairs(const Merger *m) { return pairs_of(m->w1, true) + pairs_of(m->w2, true); }

static bool merger_trains(const Merger *m)
{
    return is_trainable(m->norm_w) || is_trainable(m->norm_b) || is_trainable(m->w1) || is_trainable(m->b1) || is_trainable(m->w2) ||
           is_trainable(m->b2);
}

static void fill_tower(LoraCost *a, const Vision *v)
{
    LoraTower *t = &a->tower;
    double rows = 1 / (double)(v->merge * v->merge);
    int64_t low = v->first_trainable > 0 ? v->first_trainable : 0;
    if (!v->depth) return;
    t->blocks = (int)(v->depth - (low < v->depth ? low : v->depth));
    for (int64_t i = 0; i < v->depth; i++) {
        const VisionBlock *b = &v->block[i];
        t->pairs += pairs_of(b->w_qkv, true) + pairs_of(b->w_o, true) + pairs_of(b->w_up, true) +
                    pairs_of(b->w_down, true);
    }
    for (int f = 0; f < v->deepstacks; f++) {
        const Merger *m = &v->stack[v->weights[f]];
        t->mergers += v->after[f] >= v->first_trainable || merger_trains(m);
        t->pairs += rows * merger_pairs(m);
    }
    t->mergers += v->depth - 1 >= v->first_trainable || merger_trains(&v->merger);
    t->pairs += rows * merger_pairs(&v->merger);
    for (int p = PART_VISION; p <= PART_MERGER; p++) {
        t->back += a->work.sees.patch.part[p] - a->work.forward.patch.part[p];
        t->core += a->work.sees.vpair.part[p] - a->work.forward.vpair.part[p];
    }
}

/* ---- opening ---- */

static Status fill(LoraCost *a, const ModelShape *s, const ModelRow *row, const bool *frozen, bool pictures)
{
    Model m;
    Chunk whole = { 0, s->text.L, true, true };
    Status st = model_open_part(&m, s, frozen, &a->conf, NULL, &whole, 1);
    if (!st) st = work_open(&a->work, s, frozen, &a->conf);
    if (!st) st = trainable_open(&a->trains, s, frozen, &a->conf, BF16);
    if (!st) fill_layers(a, &m, row, pictures), count_ends(a, &m, row), fill_tower(a, &m.vision);
    model_close(&m);
    return st;
}

static Status refuse(const ModelRow *m)
{
    if (!m->preset)
        return fail(E_CONFIG, "%s with adapters: no family here builds it, so what lora.target_modules "
                    "reaches is not known; plan it without lora.*, which trains all of it", m->name);
    REQUIRE(m->L <= MOST_LAYERS, "%s: %d layers", m->name, m->L);
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
    if (*path) TRY_CTX(lora_source_open(&a->source, path, &shape), "lora.path");
    TRY(recipe_lora(&a->conf, &recipe->lora, *path ? &a->source.conf : NULL));
    return fill(a, &shape, m, frozen, pictures);
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
    a->kinds = 0;
}
