/* model/lora.c -- declares adapters; see lora.h. The role of a module depends on its name only and is checked
 * over the whole model, so every pipeline stage reports the same errors. */
#include "model/lora_private.h"

#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- roles of modules ---- */

const LoraTarget *lora_find_target(const LoraConf *c, const char *module)
{
    for (int i = 0; i < c->exacts; i++)
        if (!strcmp(c->exact[i].module, module)) return &c->exact[i];
    return NULL;
}

double lora_module_alpha(const LoraConf *c, const char *module)
{
    const LoraTarget *t = lora_find_target(c, module);
    return t ? t->alpha : c->alpha;
}

static bool any(bool (*test)(const char *, const Param *, int), const WordList *l, const Param *p, int i)
{
    bool yes = false;
    for (int k = 0; l && k < l->n && !yes; k++) yes = test(l->item[k], p, i);
    return yes;
}

bool lora_freeze_blocks(const LoraConf *c, const bool frozen[GROUP_N], Group g)
{
    return frozen[g] && !c->exact && !(frozen[G_VIT] && frozen[G_ALIGNER] && frozen[G_LLM]);
}

LoraRole lora_role(const LoraConf *c, const bool frozen[GROUP_N], const Param *p, int i)
{
    char name[sizeof p->piece->name];
    lora_module_name(name, sizeof name, p, i);
    if (p->buffer || lora_freeze_blocks(c, frozen, p->group)) return LORA_NONE;
    if (any(lora_entry_covers, c->save, p, i)) return LORA_FULL;
    if (!p->linear) return LORA_NONE;
    if (c->exact) return lora_find_target(c, name) ? LORA_ADAPTED : LORA_NONE;
    bool excluded = any(lora_entry_covers, c->exclude, p, i) || any(lora_entry_targets, c->exclude, p, i);
    return any(lora_entry_targets, c->target, p, i) && !excluded ? LORA_ADAPTED : LORA_NONE;
}

bool lora_trains_in_full(const Model *m, const Param *p)
{
    for (int i = 0; !p->adapter_of && i < p->pieces; i++)
        if (lora_role(m->lora, m->frozen, p, i) == LORA_FULL) return true;
    return false;
}

/* ---- declaring ---- */

typedef struct Attach { Model *m; const LoraConf *c; bool frozen[GROUP_N]; } Attach;

static LoraRole role_of(const Attach *a, const Param *p, int i)
{
    return lora_role(a->c, a->frozen, p, i);
}

typedef struct RankScale { int64_t r; float scale; } RankScale;

static RankScale rank_scale(const Attach *a, const char *module)
{
    const LoraTarget *x = lora_find_target(a->c, module);
    int64_t r = x ? x->rank : a->c->rank;
    double alpha = lora_module_alpha(a->c, module);
    return (RankScale){ r, (float)(alpha / (a->c->rslora ? sqrt((double)r) : (double)r)) };
}

/* Prefix of the names of an expert parameter's A and B. If both parameters have adapters, PEFT wraps the
 * module twice, with gate_up_proj inside ("base_layer"). */
static void experts_prefix(const Attach *a, char *out, size_t n, const Param *p)
{
    const ParamSet *s = &a->m->params;
    int len = (int)(strrchr(p->piece[0].name, '.') - p->piece[0].name);
    bool inner = false;
    for (int i = 0; i < s->n && p->form == FORM_EXPERT_GATE_UP; i++)
        inner |= s->p[i]->form == FORM_EXPERT_DOWN && s->p[i]->unit == p->unit &&
                 role_of(a, s->p[i], 0) == LORA_ADAPTED;
    snprintf(out, n, "%.*s%s", len, p->piece[0].name, inner ? ".base_layer" : "");
}

/* Adapter x of w is in the same unit as w, and frozen if the group of w is. */
static void set_adapter_of(const Attach *a, Param *x, const Param *w)
{
    x->adapter_of = w, x->unit = w->unit, x->unused = w->unused, x->frozen = a->frozen[w->group];
}

/* A is cut as the columns (and, unless it is shared, the experts) of its weight are. */
static void cut_a(const ParamSet *s, Param *a, const Param *w)
{
    for (int i = 0; i < w->cuts; i++) {
        AxisCut k = w->cut[i];
        if (k.dim == w->ndim - 1 || (k.dim == 0 && a->shape[0] == w->shape[0] && w->ndim == 3))
            param_cut(s, a, k.axis, k.dim);
    }
}

/* B is cut as the rows (and experts) of its weight are. */
static void cut_b(const ParamSet *s, Param *b, const Param *w)
{
    if (w->head_width) param_cut_heads(s, b, w->head_width);
    for (int i = 0; i < w->cuts; i++)
        if (w->cut[i].dim < w->ndim - 1) param_cut(s, b, w->cut[i].axis, w->cut[i].dim);
}

static Init init_a(const LoraConf *c) { return c->gaussian ? INIT_LORA_A_NORMAL : INIT_LORA_A_UNIFORM; }

#define PEFT "base_model.model."

/* In a PEFT file the experts are fused into one matrix. */
static void set_fused_shape(Param *p, int64_t rows, int64_t cols)
{
    p->piece[0].rank = 2, p->piece[0].shape[0] = rows, p->piece[0].shape[1] = cols;
}

static void attach_experts(const Attach *a, Param *w, Lora *l)
{
    ParamSet *s = &a->m->params;
    char module[sizeof w->piece->name], prefix[sizeof w->piece->name];
    int64_t E = w->shape[0], out = w->shape[1], in = w->shape[2], each = a->c->shared_a ? 1 : E;
    lora_module_name(module, sizeof module, w, 0);
    experts_prefix(a, prefix, sizeof prefix, w);
    RankScale x = rank_scale(a, module);
    l->a = param_experts(s, FORM_LORA_A, each, x.r, in, PEFT "%s.lora_A.weight", prefix);
    Param *b = param_experts(s, FORM_LORA_B, E, out, x.r, PEFT "%s.lora_B.weight", prefix);
    set_fused_shape(l->a, each * x.r, in), set_fused_shape(b, out, x.r * E);
    l->a->init = init_a(a->c), b->init = INIT_ZERO;
    set_adapter_of(a, l->a, w), set_adapter_of(a, b, w);
    cut_a(s, l->a, w), cut_b(s, b, w);
    l->parts = 1;
    l->part[0] = (LoraPart){ .b = b, .rows = b->shard.shape[1], .r = x.r, .scale = x.scale };
    l->stream = rng_stream(module);
}

/* The A matrices of a weight's pieces are stacked into one parameter; each piece has its own B. */
static void attach_pieces(const Attach *a, Param *w, Lora *l)
{
    ParamSet *s = &a->m->params;
    char module[sizeof w->piece->name];
    int64_t at = 0;
    for (int i = 0; i < w->pieces; at += w->piece[i++].rows) {
        if (role_of(a, w, i) != LORA_ADAPTED) continue;
        lora_module_name(module, sizeof module, w, i);
        RankScale x = rank_scale(a, module);
        int64_t from = l->a ? l->a->shape[0] : 0;
        if (l->a) param_piece(l->a, x.r, PEFT "%s.lora_A.weight", module);
        else l->a = param_matrix(s, w->group, x.r, w->shape[1], PEFT "%s.lora_A.weight", module);
        if (!l->parts) l->stream = rng_stream(module);
        l->part[l->parts++] = (LoraPart){ .piece = i, .at = at, .from = from, .r = x.r, .scale = x.scale };
    }
    l->a->init = init_a(a->c);
    set_adapter_of(a, l->a, w);
    cut_a(s, l->a, w);
    for (int k = 0; k < l->parts; k++) {
        LoraPart *x = &l->part[k];
        lora_module_name(module, sizeof module, w, x->piece);
        x->b = param_matrix(s, w->group, w->piece[x->piece].shape[0], x->r, PEFT "%s.lora_B.weight", module);
        x->b->init = INIT_ZERO;
        const Piece *q = &w->piece[x->piece];
        if (q->sections) param_sections(x->b, q->sections, q->section);
        set_adapter_of(a, x->b, w);
        cut_b(s, x->b, w);
        x->rows = x->b->shard.shape[0];
    }
}

static void attach_param(const Attach *a, Param *w)
{
    int adapters = 0;
    w->frozen = true;
    for (int i = 0; i < w->pieces; i++) {
        LoraRole role = role_of(a, w, i);
        if (role == LORA_FULL) w->frozen = a->frozen[w->group];
        adapters += role == LORA_ADAPTED;
    }
    if (!adapters) return;
    w->lora = calloc(1, sizeof *w->lora);
    REQUIRE(w->lora, "no memory for the adapters of %s", w->piece[0].name);
    w->lora->dropout = (float)a->c->dropout;
    if (w->linear == LINEAR_EXPERTS) attach_experts(a, w, w->lora);
    else                             attach_pieces(a, w, w->lora);
}

static int64_t layer_of(const Model *whole, const Param *p)
{
    int64_t l = p->unit == whole->embed->unit ? -1 : 0, L = whole->shape.text.L;
    while (l >= 0 && l < L && whole->layer[l].norm->unit != p->unit) l++;
    return l;
}

static int64_t block_of(const Vision *whole, const Param *p)
{
    int64_t b = p->unit == whole->w_patch->unit ? -1 : 0;
    while (b >= 0 && b < whole->depth && whole->block[b].w_qkv->unit != p->unit) b++;
    return b;
}

/* The lowest layer with something trainable, in the decoder and in the vision tower: backward stops there. */
static void find_lowest(const Attach *a, const Model *whole)
{
    Model *m = a->m;
    m->first_trainable = whole->shape.text.L + 1, m->vision.first_trainable = whole->vision.depth;
    FOR_EACH_PIECE(p, i, whole) {
        if (role_of(a, p, i) == LORA_NONE || a->frozen[p->group]) continue;
        int64_t  at = p->group == G_LLM ? layer_of(whole, p) : block_of(&whole->vision, p);
        int64_t *low = p->group == G_LLM ? &m->first_trainable : &m->vision.first_trainable;
        if (at < *low) *low = at;
    }
}

static void freeze_groups(const Attach *a, const Model *whole)
{
    Model *m = a->m;
    for (int g = 0; g < GROUP_N; g++) m->frozen[g] = true;
    FOR_EACH_PIECE(p, i, whole)
        if (role_of(a, p, i) != LORA_NONE) m->frozen[p->group] &= a->frozen[p->group];
}

Status lora_attach(Model *m, const LoraConf *c)
{
    Attach a = { .m = m, .c = c };
    Model  whole;
    int    n = m->params.n;
    memcpy(a.frozen, m->frozen, sizeof a.frozen);
    TRY(model_open(&whole, &m->shape, m->frozen));
    Status st = lora_check(c, &whole);
    if (!st) {
        m->lora = c;
        for (int i = 0; i < n; i++) attach_param(&a, m->params.p[i]);
        freeze_groups(&a, &whole);
        find_lowest(&a, &whole);
    }
    model_close(&whole);
    return st;
}

void lora_close(Model *m)
{
    for (int i = 0; i < m->params.n; i++) {
        free(m->params.p[i]->lora);
        m->params.p[i]->lora = NULL;
    }
    m->lora = NULL;
}
