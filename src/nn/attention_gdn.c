/* nn/attention_gdn.c -- see attention_gdn.h. */
#include "nn/attention_gdn.h"

#include "nn/attention.h"
#include "nn/rows.h"

#include <math.h>

static const float norm_eps = 1e-6f;     /* of lengths; no file has it */

/* Of this rank: key heads, value heads, value heads of a key head, widths, columns of all keys and values. */
typedef struct GdnShare { int64_t Hk, Hv, M, dk, dv, K, V; } GdnShare;

static GdnShare share_of(const Pass *c, const Gdn *m)
{
    const GdnShape *s = &m->shape;
    int64_t tp = mesh_size(c->env->mesh, AX_TP), Hk = s->key_heads / tp, Hv = s->value_heads / tp;
    return (GdnShare){ Hk, Hv, Hv / Hk, s->key_dim, s->value_dim, Hk * s->key_dim, Hv * s->value_dim };
}

static int64_t in_cols(GdnShare s) { return 2 * s.K + 2 * s.V + 2 * s.Hv; }

/* Rows of w_in's output, or of its gradient, by key heads. */
typedef struct GdnParts { Tensor q, k, v, z, b, a; } GdnParts;     /* (Ta, Hk, dk | M dv | M) */

static GdnParts grouped_parts(GdnShare s, Tensor in)
{
    int64_t wide = s.M * s.dv, block = 2 * s.dk + 2 * wide;
    Tensor heads = t_heads(in, 0, s.Hk, block), steps = t_heads(in, s.Hk * block, s.Hk, 2 * s.M);
    return (GdnParts){ t_cols(heads, 0, s.dk), t_cols(heads, s.dk, s.dk), t_cols(heads, 2 * s.dk, wide),
                       t_cols(heads, 2 * s.dk + wide, wide), t_cols(steps, 0, s.M), t_cols(steps, s.M, s.M) };
}

static GdnParts flat_parts(GdnShare s, Tensor in)
{
    int64_t wide = s.M * s.dv, steps = 2 * s.K + 2 * s.V;
    return (GdnParts){ t_heads(in, 0, s.Hk, s.dk), t_heads(in, s.K, s.Hk, s.dk),
                       t_heads(in, 2 * s.K, s.Hk, wide), t_heads(in, 2 * s.K + s.V, s.Hk, wide),
                       t_heads(in, steps, s.Hk, s.M), t_heads(in, steps + s.Hv, s.Hk, s.M) };
}

static GdnParts parts_of(const Gdn *m, GdnShare s, Tensor in)
{
    return m->shape.grouped ? grouped_parts(s, in) : flat_parts(s, in);
}

/* Columns of qkv, or of its gradient. */
static Tensor queries(GdnShare s, Tensor qkv) { return t_heads(qkv, 0, s.Hk, s.dk); }
static Tensor keys(GdnShare s, Tensor qkv)    { return t_heads(qkv, s.K, s.Hk, s.dk); }
static Tensor values(GdnShare s, Tensor qkv)  { return t_heads(qkv, 2 * s.K, s.Hv, s.dv); }
static Tensor both(GdnShare s, Tensor qkv)    { return t_heads(qkv, 0, 2 * s.Hk, s.dk); }

static float scale_of(GdnShare s) { return 1.0f / sqrtf((float)s.dk); }

/* ---- forward ---- */

/* What the convolution reads and makes: q, k and v, each with its rows of the taps. */
typedef struct Section { Tensor in, out; int64_t row, rows; } Section;

static void sections_of(Section to[3], GdnShare s, GdnParts in, Tensor qkv)
{
    to[0] = (Section){ in.q, queries(s, qkv), 0, s.K };
    to[1] = (Section){ in.k, keys(s, qkv), s.K, s.K };
    to[2] = (Section){ in.v, t_heads(qkv, 2 * s.K, s.Hk, s.M * s.dv), 2 * s.K, s.V };
}


/* Of documents that are being decoded. */
static void section_step(const Pass *c, const Gdn *m, Section *x)
{
    const Cache *k = c->cache;
    Tensor tail = t_cols(cache_tail(k, m->index), x->row, x->rows);
    op_short_conv_step(c->be, x->out, tail, x->in, t_rows(param_w(m->conv), x->row, x->rows), k->full.seg,
                       t_rows(k->doc, 0, k->full.seg.n), t_rows(k->kept, 0, k->full.seg.n));
}

static bool is_cut(const Pass *c) { return !c->cache && mesh_size(c->env->mesh, AX_CP) > 1; }

/* The chunk of a section that a cp rank has as its first or second. */
static Section section_chunk(const Section *x, int half)
{
    return (Section){ gdn_context_chunk(x->in, half), gdn_context_chunk(x->out, half), x->row, x->rows };
}

static Tensor taps_of(const Gdn *m, const Section *x) { return t_rows(param_w(m->conv), x->row, x->rows); }

static void section_fwd(const Pass *c, const Gdn *m, const GdnAct *a, Section *x)
{
    Tensor none = { 0 };
    for (int half = 0; is_cut(c) && half < 2; half++) {
        Section k = section_chunk(x, half);
        op_short_conv_fwd(c->be, k.out, k.in, taps_of(m, x),
                          gdn_context_before(c, a->before, half, x->row, x->in),
                          c->batch->context.chunk[half]);
    }
    if (c->cache) section_step(c, m, x);
    else if (!is_cut(c)) op_short_conv_fwd(c->be, x->out, x->in, taps_of(m, x), none, c->batch->seg);
}

static void fetch_before(const Pass *c, GdnAct *a, const Section part[3])
{
    ArenaMark mark = arena_mark(c->scratch);
    Tensor    tail = scratch2(c, (DType)a->before.dtype, a->before.n[0], a->before.n[1]);
    for (int i = 0; i < 3; i++) gdn_context_tails_put(c, tail, part[i].row, part[i].in);
    gdn_context_tails_send(c, a->before, tail);
    arena_reset(c->scratch, mark);
}

static void convolve(const Pass *c, const Gdn *m, GdnAct *a)
{
    GdnShare s = share_of(c, m);
    Section  part[3];
    sections_of(part, s, parts_of(m, s, a->in), a->qkv);
    if (is_cut(c)) fetch_before(c, a, part);
    for (int i = 0; i < 3; i++) section_fwd(c, m, a, &part[i]);
    op_l2norm_fwd(c->be, both(s, a->qkv), a->qk_rstd, both(s, a->qkv), norm_eps);
}

static void rule_step(const Pass *c, const Gdn *m, GdnAct *a)
{
    const Cache *x = c->cache;
    GdnShare s = share_of(c, m);
    op_delta_rule_step(c->be, t_heads(a->o, 0, s.Hv, s.dv), cache_state(x, m->index),
                       queries(s, a->qkv), keys(s, a->qkv), values(s, a->qkv), a->g, a->beta, x->full.seg,
                       t_rows(x->doc, 0, x->full.seg.n), t_rows(x->kept, 0, x->full.seg.n), scale_of(s));
}

static GdnRule rule_of(GdnShare s, const GdnAct *a)
{
    return (GdnRule){ queries(s, a->qkv), keys(s, a->qkv), values(s, a->qkv), a->g, a->beta, scale_of(s) };
}

static void run_rule(const Pass *c, const Gdn *m, GdnAct *a)
{
    GdnShare s = share_of(c, m);
    Tensor   none = { 0 };
    if (c->cache) {
        rule_step(c, m, a);
        return;
    }
    GdnRule x = rule_of(s, a);
    Tensor  o = t_heads(a->o, 0, s.Hv, s.dv);
    if (is_cut(c)) gdn_context_rule_fwd(c, o, a->states, &x);
    else op_delta_rule_fwd(c->be, o, none, x.q, x.k, x.v, x.g, x.beta, none, c->batch->seg, x.scale);
}

/* The normed and gated output of the rule, in scratch; rstd (Ta, Hv) too. */
static Tensor gated_output(const Pass *c, const Gdn *m, const GdnAct *a, Tensor rstd)
{
    GdnShare s = share_of(c, m);
    Tensor   y = scratch2(c, (DType)a->o.dtype, a->o.n[0], s.V);
    op_gated_norm_fwd(c->be, t_heads(y, 0, s.Hv, s.dv), rstd, t_heads(a->o, 0, s.Hv, s.dv),
                      parts_of(m, s, a->in).z, param_w(m->out_norm), m->eps);
    return y;
}

static void project(const Pass *c, const Gdn *m, GdnAct *a, Tensor x)
{
    GdnShare s = share_of(c, m);
    int64_t  Ta = all_rows_count(c, x);
    Tensor   none = { 0 };
    need(c, L_STAT, &a->rstd, F32, x.n[0], 1);
    if (need_if(c, is_trainable(m->w_in), c->policy[L_GDN] == DROP, L_NORM, &a->n, x.dtype, x.n[0], x.n[1]))
        op_rmsnorm_fwd(c->be, a->n, a->rstd, none, x, none, norm_weight(c, m->norm), m->eps);
    if (need(c, L_GDN, &a->in, x.dtype, Ta, in_cols(s))) column_linear_fwd(c, a->in, a->n, m->w_in, NULL);
    GdnParts in = parts_of(m, s, a->in);
    bool     fresh = need(c, L_STAT, &a->g, F32, Ta, s.Hv);
    need(c, L_STAT, &a->beta, F32, Ta, s.Hv);
    if (fresh) op_delta_gates_fwd(c->be, a->g, a->beta, in.a, in.b, param_w(m->decay), param_w(m->shift));
}

/* Under cp: what backward reads beside the rows. */
static void keep_borders(const Pass *c, const Gdn *m, GdnAct *a, DType d)
{
    GdnShare s = share_of(c, m);
    if (!is_cut(c)) return;
    need(c, L_GDN_CONV, &a->before, d, 2 * (m->shape.conv - 1), 2 * s.K + s.V);
    need(c, L_CORE, &a->states.first, F32, 2, s.Hv * s.dk * s.dv);
    need(c, L_CORE, &a->states.pass, F32, 2, s.Hv * s.dk * s.dk);
}

static void fwd(const Pass *c, const void *module, void *act, Tensor y, Tensor x, Tensor cs)
{
    const Gdn *m = module;
    GdnAct    *a = act;
    GdnShare   s = share_of(c, m);
    int64_t    Ta = all_rows_count(c, x);
    Tensor     none = { 0 };
    project(c, m, a, x);
    need(c, L_STAT, &a->qk_rstd, F32, Ta, 2 * s.Hk);
    keep_borders(c, m, a, (DType)x.dtype);
    if (need(c, L_GDN_CONV, &a->qkv, x.dtype, Ta, 2 * s.K + s.V)) convolve(c, m, a);
    if (need(c, L_CORE, &a->o, x.dtype, Ta, s.V)) run_rule(c, m, a);
    if (t_has(y))
        row_linear_fwd(c, y, gated_output(c, m, a, scratch2(c, F32, Ta, s.Hv)), m->w_o, NULL, none);
}

/* ---- backward ---- */

static bool inputs_train(const Gdn *m)
{
    const Param *p[] = { m->norm, m->w_in, m->conv, m->decay, m->shift, m->out_norm };
    bool any = false;
    for (size_t i = 0; i < sizeof p / sizeof *p; i++) any |= is_trainable(p[i]);
    return any;
}

static bool trains(const void *module)
{
    const Gdn *m = module;
    return inputs_train(m) || is_trainable(m->w_o);
}

static void whole_rule_bwd(const Pass *c, const GdnRuleGrads *to, Tensor dout, const GdnRule *x)
{
    int64_t tiles = (x->q.n[0] + GDN_TILE - 1) / GDN_TILE;
    Tensor  none = { 0 };
    Tensor  states = scratch2(c, (DType)x->q.dtype, tiles, x->v.n[1] * x->q.n[2] * x->v.n[2]);
    op_delta_rule_bwd(c->be, to->dq, to->dk, to->dv, to->dg, to->dbeta, none, states, dout, none, x->q, x->k,
                      x->v, x->g, x->beta, none, c->batch->seg, x->scale);
}

/* dqkv of the convolved values; dg and dbeta to those of a and b. */
static void rule_bwd(const Pass *c, const Gdn *m, const GdnAct *a, Tensor dqkv, GdnParts din, Tensor dout)
{
    GdnShare s = share_of(c, m);
    int64_t  Ta = a->qkv.n[0];
    Tensor   dg = scratch2(c, F32, Ta, s.Hv), dbeta = scratch2(c, F32, Ta, s.Hv);
    GdnRule  x = rule_of(s, a);
    GdnRuleGrads to = { queries(s, dqkv), keys(s, dqkv), values(s, dqkv), dg, dbeta };
    if (is_cut(c)) gdn_context_rule_bwd(c, &to, t_heads(dout, 0, s.Hv, s.dv), a->states, &x);
    else           whole_rule_bwd(c, &to, t_heads(dout, 0, s.Hv, s.dv), &x);
    op_delta_gates_bwd(c->be, din.a, din.b, param_g(m->decay), param_g(m->shift), dg, dbeta, a->g, a->beta,
                       parts_of(m, s, a->in).a, param_w(m->decay), param_w(m->shift));
}

/* One section: gradient `grad` of its output to that of its input, under cp also to dbefore. */
static void section_bwd(const Pass *c, const Gdn *m, const GdnAct *a, const Section *x, const Section *grad,
                        Tensor dw, Tensor dbefore)
{
    Tensor none = { 0 };
    if (t_has(dw)) dw = t_rows(dw, x->row, x->rows);
    for (int half = 0; is_cut(c) && half < 2; half++) {
        Section k = section_chunk(x, half), d = section_chunk(grad, half);
        op_short_conv_bwd(c->be, d.in, dw, gdn_context_before(c, dbefore, half, x->row, x->in), d.out, k.in,
                          taps_of(m, x), gdn_context_before(c, a->before, half, x->row, x->in),
                          c->batch->context.chunk[half]);
    }
    if (!is_cut(c))
        op_short_conv_bwd(c->be, grad->in, dw, none, grad->out, x->in, taps_of(m, x), none, c->batch->seg);
}

static void return_before(const Pass *c, const Section grad[3], Tensor dbefore)
{
    Tensor dtail = scratch2(c, (DType)dbefore.dtype, dbefore.n[0], dbefore.n[1]);
    gdn_context_tails_return(c, dtail, dbefore);
    for (int i = 0; i < 3; i++) gdn_context_tails_add(c, grad[i].in, dtail, grad[i].row);
}

static void convolve_bwd(const Pass *c, const Gdn *m, const GdnAct *a, Tensor dqkv, GdnParts din)
{
    GdnShare s = share_of(c, m);
    Section  part[3], grad[3];
    Tensor   dw = param_sum(c, m->conv), dbefore = { 0 };
    op_l2norm_bwd(c->be, both(s, dqkv), both(s, dqkv), both(s, a->qkv), a->qk_rstd);
    sections_of(part, s, parts_of(m, s, a->in), a->qkv);
    sections_of(grad, s, din, dqkv);
    if (is_cut(c)) {
        dbefore = scratch2(c, (DType)a->before.dtype, a->before.n[0], a->before.n[1]);
        op_fill(c->be, dbefore, 0.0f);
    }
    for (int i = 0; i < 3; i++) section_bwd(c, m, a, &part[i], &grad[i], dw, dbefore);
    if (is_cut(c)) return_before(c, grad, dbefore);
}

/* Of the gradient of what w_o reads, which is overwritten: that of w_in's output. */
static void core_bwd(const Pass *c, const Gdn *m, const GdnAct *a, Tensor din, Tensor dout, Tensor rstd)
{
    GdnShare s = share_of(c, m);
    GdnParts to = parts_of(m, s, din);
    Tensor   dqkv = scratch2(c, (DType)a->qkv.dtype, a->qkv.n[0], a->qkv.n[1]),
           d3     = t_heads(dout, 0, s.Hv, s.dv);
    op_gated_norm_bwd(c->be, d3, to.z, param_g(m->out_norm), d3, t_heads(a->o, 0, s.Hv, s.dv),
                      parts_of(m, s, a->in).z, param_w(m->out_norm), rstd);
    rule_bwd(c, m, a, dqkv, to, dout);
    convolve_bwd(c, m, a, dqkv, to);
}

static void bwd(const Pass *c, const void *module, void *act, Tensor dx, Tensor dy, Tensor x, Tensor cs,
                Tensor dres)
{
    const Gdn *m = module;
    GdnAct    *a = act;
    GdnShare   s = share_of(c, m);
    bool       deeper = t_has(dx) || inputs_train(m), normed = t_has(dx) || is_trainable(m->norm);
    DType      d = (DType)x.dtype;
    int64_t    Ta = a->o.n[0];
    Tensor     none = { 0 };
    ArenaMark  mark = arena_mark(c->scratch);
    Tensor     dout = scratch2(c, d, Ta, s.V), din = scratch2(c, d, Ta, in_cols(s));
    Tensor     dn = scratch2(c, d, x.n[0], x.n[1]), rstd = scratch2(c, F32, Ta, s.Hv);
    row_linear_bwd(c, deeper ? dout : none, dy, gated_output(c, m, a, rstd), m->w_o, NULL);
    if (deeper) core_bwd(c, m, a, din, dout, rstd);
    if (deeper) column_linear_bwd(c, normed ? dn : none, din, a->n, m->w_in, NULL);
    if (normed) op_rmsnorm_bwd(c->be, dx, m->norm->shard.g, dn, x, norm_weight(c, m->norm), a->rstd, dres);
    arena_reset(c->scratch, mark);
}

/* ---- the kind ---- */

static int64_t layers_below(const TextShape *t, int64_t x)
{
    return t->gdn.every ? x - attention_full_below(t, x) : 0;
}

#define PARAM(name) ((int)offsetof(Gdn, name))

/* Of a chunk: what it makes of a state, and the state that enters. */
static double state_numbers(const GdnShape *g)
{
    return (double)(g->value_heads * g->key_dim) * (double)(g->key_dim + g->value_dim);
}

static void describe_kept(Description *d, const TextShape *t, int in, int o)
{
    const GdnShape *g = &t->gdn;
    double K = (double)(g->key_heads * g->key_dim), V = (double)(g->value_heads * g->value_dim);
    double heads = (double)g->value_heads;
    KeptValue wide = { .rows = ROWS_GATHERED, .cut = CUT_TP, .read_by = -1 };
    describe_value(d, (KeptValue){ .label = L_STAT, .cols = 1, .bytes = 4, .read_by = -1 });
    describe_value(d, (KeptValue){ .label = L_NORM, .cols = (double)t->D, .read_by = in, .only = true });
    wide.label = L_GDN, wide.cols = 2 * K + 2 * V + 2 * heads;
    describe_value(d, wide);
    wide.label = L_GDN_CONV, wide.cols = 2 * K + V;
    describe_value(d, wide);
    wide.label = L_CORE, wide.cols = V, wide.read_by = o;
    describe_value(d, wide);
    describe_value(d, (KeptValue){ .label = L_GDN_CONV, .rows = ROWS_CHUNKS, .cut = CUT_TP, .read_by = -1,
                                   .cols = (double)(g->conv - 1) * (2 * K + V) });
    describe_value(d, (KeptValue){ .label = L_CORE, .rows = ROWS_CHUNKS, .cut = CUT_TP, .bytes = 4,
                                   .read_by = -1, .cols = state_numbers(g) });
    wide.label = L_STAT, wide.cols = 2 * heads + 2 * (double)g->key_heads, wide.bytes = 4, wide.read_by = -1;
    describe_value(d, wide);
}

/* The gates z go from w_in to the norm of the output. */
static void describe(Description *d, const TextShape *t)
{
    const GdnShape *g = &t->gdn;
    double D = (double)t->D, K = (double)(g->key_heads * g->key_dim), heads = (double)g->value_heads;
    double V = (double)(g->value_heads * g->value_dim), state = heads * (double)(g->key_dim * g->value_dim);
    LayerStep head = { .type = STEP_VECTOR, .in = 1, .out = heads, .out_cut = CUT_TP };
    describe_vector(d, PARAM(norm), D);
    int in = describe_step(d, (LayerStep){ .linear = LINEAR_ATTENTION, .rows = ROWS_GATHERED, .makes = L_GDN,
        .param = PARAM(w_in), .in = D, .out = 2 * K + 2 * V + 2 * heads, .out_cut = CUT_TP });
    int conv = describe_step(d, (LayerStep){ .type = STEP_DEPTHWISE, .rows = ROWS_GATHERED,
        .makes = L_GDN_CONV, .param = PARAM(conv), .in = (double)g->conv, .out = 2 * K + V,
        .out_cut = CUT_TP });
    head.reads = 1u << in, head.param = PARAM(decay);
    int decay = describe_step(d, head);
    head.param = PARAM(shift);
    int shift = describe_step(d, head);
    int core = describe_step(d, (LayerStep){ .type = STEP_CORE, .in = K, .out = V, .kv_out = K + V,
        .macs_token = 4 * state, .state = state_numbers(g),
        .reads = 1u << conv | 1u << decay | 1u << shift });
    describe_step(d, (LayerStep){ .type = STEP_VECTOR, .param = PARAM(out_norm), .in = 1,
        .out = (double)g->value_dim, .reads = 1u << core | 1u << in });
    int o = describe_step(d, (LayerStep){ .linear = LINEAR_ATTENTION, .rows = ROWS_GATHERED,
        .param = PARAM(w_o), .in = V, .out = D, .in_cut = CUT_TP });
    describe_kept(d, t, in, o);
}

const AttentionKind attention_gdn = {
    .name = "gated delta net", .describe = describe, .layers_below = layers_below,
    .module_size = sizeof(Gdn), .act_size = sizeof(GdnAct), .fwd = fwd, .bwd = bwd, .trains = trains,
};
