/* nn/decoder.c -- see decoder.h. */
#include "nn/decoder.h"

#include <stdlib.h>

static const AttentionKind *attention_of(const Decoder *m) { return attention_kinds[m->kinds.attention]; }
static const FfnKind *ffn_of(const Decoder *m) { return ffn_kinds[m->kinds.ffn]; }

Status decoder_open(Decoder *m, LayerKinds k)
{
    *m = (Decoder){ .kinds = k };
    m->attention = calloc(1, attention_of(m)->module_size), m->ffn = calloc(1, ffn_of(m)->module_size);
    return m->attention && m->ffn ? OK : fail(E_FIT, "no host memory for a layer");
}

void decoder_close(Decoder *m)
{
    free(m->attention), free(m->ffn);
    *m = (Decoder){ 0 };
}

Status decoder_act_open(DecoderAct *a, LayerKinds k)
{
    *a = (DecoderAct){ .attention = calloc(1, attention_kinds[k.attention]->act_size),
                       .ffn = calloc(1, ffn_kinds[k.ffn]->act_size) };
    return a->attention && a->ffn ? OK : fail(E_FIT, "no host memory for the activations of a layer");
}

void decoder_act_close(DecoderAct *a)
{
    free(a->attention), free(a->ffn);
    *a = (DecoderAct){ 0 };
}

/* h = x + attention(norm(x)), in whose place attention writes first, and its norm n. The policy may have
 * dropped either: a replay with h kept recomputes the norm alone. */
static void attention_branch_fwd(const Pass *c, const Decoder *m, DecoderAct *a, Tensor x, Tensor cs)
{
    int64_t T = x.n[0], D = x.n[1];
    Tensor none = { 0 };
    need(c, L_STAT, &a->rstd, F32, T, 1);
    bool fresh = need(c, L_RESID, &a->h, x.dtype, T, D);
    bool missing = need(c, L_MLP_NORM, &a->n, x.dtype, T, D);
    attention_of(m)->fwd(c, m->attention, a->attention, fresh ? a->h : none, x, cs);
    if (fresh) tap(c, "decoder.mixer", m->index, a->h);
    if (fresh)        op_rmsnorm_fwd(c->be, a->n, a->rstd, a->h, x, a->h, norm_weight(c, m->norm), m->eps);
    else if (missing) op_rmsnorm_fwd(c->be, a->n, a->rstd, none, a->h, none, norm_weight(c, m->norm), m->eps);
}

void decoder_fwd(const Pass *c, const Decoder *m, DecoderAct *a, Tensor y, Tensor x, Tensor cs)
{
    pass_scope(c, GRAPH_ATTN);
    attention_branch_fwd(c, m, a, x, cs);
    ffn_of(m)->fwd(c, m->ffn, a->ffn, y, a->n, a->h);
    pass_scope(c, GRAPH_EAGER);
}

void decoder_replay(const Pass *c, const Decoder *m, DecoderAct *a, Tensor y, Tensor x, Tensor cs)
{
    Pass replay;
    if (!replay_begin(&replay, c, L_STAT, L_MLP_ACT)) return;
    decoder_fwd(&replay, m, a, y, x, cs);
    replay_end(c);
}

void decoder_bwd(const Pass *c, const Decoder *m, DecoderAct *a, Tensor dx, Tensor dy, Tensor x, Tensor cs)
{
    bool below = t_has(dx) || attention_of(m)->trains(m->attention), normed = below || is_trainable(m->norm);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor none = { 0 };
    Tensor dn = scratch2(c, x.dtype, x.n[0], x.n[1]), dh = scratch2(c, x.dtype, x.n[0], x.n[1]);
    ffn_of(m)->bwd(c, m->ffn, a->ffn, normed ? dn : none, dy, a->n);
    pass_scope(c, GRAPH_ATTN);
    if (normed) op_rmsnorm_bwd(c->be, dh, m->norm->shard.g, dn, a->h, norm_weight(c, m->norm), a->rstd, dy);
    if (below)  attention_of(m)->bwd(c, m->attention, a->attention, dx, dh, x, cs, dh);
    pass_scope(c, GRAPH_EAGER);
    arena_reset(c->scratch, mark);
}

void decoder_describe(Description *d, const TextShape *t, LayerKinds k)
{
    double D = (double)t->D;
    describe_begin(d);
    describe_value(d, (KeptValue){ .label = L_INPUT, .cols = D, .read_by = -1 });
    attention_kinds[k.attention]->describe(d, t);
    d->module = 1;
    d->input  = 1u << describe_vector(d, offsetof(Decoder, norm), D);
    int first = d->steps;
    d->module = 2;
    describe_value(d, (KeptValue){ .label = L_STAT, .cols = 1, .bytes = 4, .read_by = -1 });
    describe_value(d, (KeptValue){ .label = L_RESID, .cols = D, .read_by = -1 });
    describe_value(d, (KeptValue){ .label = L_MLP_NORM, .cols = D, .read_by = first });
    ffn_kinds[k.ffn]->describe(d, t);
}

void decoder_modules(const Decoder *m, void *modules[MAX_MODULES])
{
    modules[0] = m->attention, modules[1] = (void *)m, modules[2] = m->ffn;
}
