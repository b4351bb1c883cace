/* nn/attention_mla.c -- multi-head latent attention (DeepSeek-V2). The planner knows it; it has no forward
 * here.
 *
 *   q = up_q(norm(down_q(n)))      k, v = up_kv(norm(down_kv(n)))      n = norm(x)
 *
 * The down projections are whole on every rank of tp, the up projections are cut by heads; down_kv makes the
 * rotary part of the keys too, which all heads share. */
#include "nn/attention.h"

static int64_t layers_below(const TextShape *t, int64_t x)
{
    return t->mla.kv_rank ? attention_full_below(t, x) : 0;
}

static void describe_kept(Description *d, const TextShape *t, int norm, int core, int o)
{
    const MlaShape *m = &t->mla;
    double D = (double)t->D, H = (double)t->H, q = (double)m->q_rank, kv = (double)m->kv_rank;
    double qk = (double)(m->nope + m->rope), v = (double)m->v, rope = (double)m->rope;
    describe_value(d, (KeptValue){ .label = L_NORM, .cols = D, .read_by = norm + 1, .only = true });
    /* The projections are kept before and after their norms; queries and keys before and after rotation. */
    describe_value(d, (KeptValue){ .label = L_LATENT, .rows = ROWS_GATHERED, .cols = 2 * q + 2 * kv + rope,
                                   .read_by = -1 });
    describe_value(d, (KeptValue){ .label = L_UP_PROJ, .rows = ROWS_GATHERED, .cols = H * (2 * qk + v),
                                   .cut = CUT_TP, .read_by = -1 });
    describe_value(d, (KeptValue){ .label = L_CORE, .rows = ROWS_GATHERED, .cols = H * v, .cut = CUT_TP,
                                   .read_by = o });
    describe_value(d, (KeptValue){ .label = L_STAT, .rows = ROWS_GATHERED, .cols = H, .cut = CUT_TP,
                                   .bytes = 4, .read_by = core });
}

static void describe(Description *d, const TextShape *t)
{
    const MlaShape *m = &t->mla;
    double D = (double)t->D, H = (double)t->H, q = (double)m->q_rank, kv = (double)m->kv_rank;
    double qk = (double)(m->nope + m->rope), v = (double)m->v, rope = (double)m->rope;
    LayerStep down = { .linear = LINEAR_ATTENTION, .rows = ROWS_GATHERED, .makes = L_LATENT,
                       .param = NO_PARAM, .in = D };
    LayerStep up = { .linear = LINEAR_ATTENTION, .rows = ROWS_GATHERED, .makes = L_UP_PROJ,
                     .param = NO_PARAM, .out_cut = CUT_TP };
    int norm = describe_vector(d, NO_PARAM, D), down_q = norm;
    if (q) {
        down.out = q;
        describe_step(d, down);
        down_q = describe_vector(d, NO_PARAM, q);
    }
    up.in = q ? q : D, up.out = H * qk, up.reads = 1u << down_q;
    int up_q = describe_step(d, up);
    down.out = kv + rope, down.reads = 1u << norm;
    describe_step(d, down);
    describe_vector(d, NO_PARAM, kv);
    up.in = kv, up.out = H * (double)(m->nope + m->v), up.reads = 0;
    int up_kv = describe_step(d, up);
    int core = describe_step(d, (LayerStep){ .type = STEP_CORE, .in = H * qk, .out = H * v,
        .kv_out = H * (qk + v), .macs_pair = H * (qk + v), .reads = 1u << up_q | 1u << up_kv });
    int o = describe_step(d, (LayerStep){ .linear = LINEAR_ATTENTION, .rows = ROWS_GATHERED,
                                             .param = NO_PARAM, .in = H * v, .out = D, .in_cut = CUT_TP });
    describe_kept(d, t, norm, core, o);
}

const AttentionKind attention_mla = { .name = "multi-head latent (MLA)", .describe = describe,
                                      .layers_below = layers_below };
