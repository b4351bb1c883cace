/* nn/attention_gdn.c -- gated delta nets (Qwen3-Next): linear attention by chunks of 64 tokens. The planner
 * knows it; it has no forward here.
 *
 * One product makes queries, keys, values, their gate, and two numbers a head (decay and step); a depthwise
 * convolution runs over the first three. */
#include "nn/attention.h"

enum { CHUNK = 64 };                     /* tokens between two states that are kept */

static int64_t layers_below(const TextShape *t, int64_t x)
{
    return t->gdn.every ? x - x / t->gdn.every : 0;
}

static void describe(Description *d, const TextShape *t)
{
    const GdnShape *g = &t->gdn;
    double D = (double)t->D, K = (double)(g->key_heads * g->key_dim);
    double V = (double)(g->value_heads * g->value_dim);
    double heads = (double)g->value_heads, state = heads * (double)(g->key_dim * g->value_dim);
    LayerStep in = { .linear = LINEAR_ATTENTION, .rows = ROWS_GATHERED, .makes = L_GDN, .param = NO_PARAM,
                     .in = D, .out = 2 * K + 2 * V + 2 * heads, .out_cut = CUT_TP };
    int norm = describe_vector(d, NO_PARAM, D);
    describe_step(d, in);
    describe_step(d, (LayerStep){ .type = STEP_DEPTHWISE, .rows = ROWS_GATHERED, .makes = L_GDN,
                                     .param = NO_PARAM, .in = (double)g->conv, .out = 2 * K + V,
                                     .out_cut = CUT_TP });
    describe_step(d, (LayerStep){ .type = STEP_CORE, .macs_token = 4 * V * (double)g->value_dim });
    describe_step(d, (LayerStep){ .linear = LINEAR_ATTENTION, .rows = ROWS_GATHERED, .param = NO_PARAM,
                                     .in = V, .out = D, .in_cut = CUT_TP });
    describe_value(d, (KeptValue){ .label = L_NORM, .cols = D, .read_by = norm + 1, .only = true });
    /* Projections, the output of the convolution, the core's output and its gated norm. */
    describe_value(d, (KeptValue){ .label = L_GDN, .rows = ROWS_GATHERED, .cut = CUT_TP,
                                   .cols = (2 * K + 2 * V) + (2 * K + V) + 2 * V, .read_by = -1 });
    describe_value(d, (KeptValue){ .label = L_GDN, .rows = ROWS_GATHERED, .cut = CUT_TP,
                                   .cols = state / CHUNK, .bytes = 4, .read_by = -1 });
}

const AttentionKind attention_gdn = { .name = "gated delta net", .describe = describe,
                                      .layers_below = layers_below };
