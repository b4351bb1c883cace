/* nn/moe_kind.c -- the mixture of experts as a layer kind (nn/layer_kind.h); its passes are in nn/moe.c. */
#include "nn/moe.h"

#include "nn/activation.h"

static bool is_moe(const TextShape *t, int64_t l)
{
    return t->E > 0 && l >= t->dense_first && (l + 1) % (t->sparse_step > 0 ? t->sparse_step : 1) == 0;
}

static int64_t layers_below(const TextShape *t, int64_t x)
{
    int64_t step = t->sparse_step > 0 ? t->sparse_step : 1, first = t->dense_first < x ? t->dense_first : x;
    int64_t n = t->E > 0 ? x / step - first / step : 0;
    for (int i = 0; i < t->dense_onlys; i++) n -= t->dense_only[i] < x && is_moe(t, t->dense_only[i]);
    return n;
}

#define PARAM(name) ((int)offsetof(Moe, name))

/* Experts that every token passes: a dense FFN beside the routed ones. */
static void describe_shared(Description *d, const TextShape *t)
{
    double D = (double)t->D, width = (double)t->shared;
    LayerStep up = { .linear = LINEAR_FEED, .rows = ROWS_GATHERED, .makes = L_SHARED_UP,
                     .param = PARAM(shared.w_gu), .reads = READS_INPUT, .in = D, .out = 2 * width,
                         .out_cut = CUT_TP };
    LayerStep down = { .linear = LINEAR_FEED, .rows = ROWS_GATHERED, .param = PARAM(shared.w_d),
                       .in = width, .out = D, .in_cut = CUT_TP };
    if (!t->shared) return;
    if (t->gated) describe_step(d, (LayerStep){ .param = PARAM(w_shared_gate), .reads = READS_INPUT,
                                                .in = D, .out = 1 });
    describe_step(d, up);
    int last = describe_step(d, down);
    describe_value(d, (KeptValue){ .label = L_SHARED_UP, .rows = ROWS_GATHERED, .cut = CUT_TP,
                                   .cols = 2 * width, .read_by = -1 });
    describe_value(d, (KeptValue){ .label = L_SHARED_ACT, .rows = ROWS_GATHERED, .cut = CUT_TP,
                                   .cols = width, .read_by = last, .only = true });
    if (!t->gated) return;
    describe_value(d, (KeptValue){ .label = L_SHARED_UP, .cols = 1, .read_by = -1 });
    describe_value(d, (KeptValue){ .label = L_SHARED_ACT, .cols = D, .read_by = -1 });
}

/* Router and experts read the same rows; the gradient of the gate comes out of the experts' last product.
 * What a dispatcher keeps besides is its own (nn/dispatch.h). */
static void describe(Description *d, const TextShape *t)
{
    double D = (double)t->D, E = (double)t->E, K = (double)t->K, F = (double)t->F;
    LayerStep expert = { .linear = LINEAR_EXPERTS, .rows = ROWS_EXPERTS, .count = E };
    KeptValue rows = { .rows = ROWS_EXPERTS, .cut = CUT_ETP, .read_by = -1, .only = true };
    int router = describe_step(d, (LayerStep){ .linear = LINEAR_ROUTER, .makes = L_LOGITS,
                                               .param = PARAM(w_router), .in = D, .out = E });
    if (t->router_bias) describe_vector(d, PARAM(b_router), E);
    if (t->score_bias)  describe_vector(d, PARAM(score_bias), E);
    expert.makes = L_GATE_UP, expert.param = PARAM(w_gu), expert.reads = READS_INPUT;
    expert.in = D, expert.out = 2 * F, expert.out_cut = CUT_ETP;
    int up = describe_step(d, expert), last = up;
    LayerStep bias = { .type = STEP_VECTOR, .rows = ROWS_EXPERTS, .count = E, .in = 1 };
    bias.param = PARAM(b_gu), bias.out = 2 * F;
    if (t->expert_bias) last = describe_step(d, bias);
    expert.makes = L_INPUT, expert.param = PARAM(w_d), expert.reads = 1u << router | 1u << last;
    expert.in = F, expert.out = D, expert.in_cut = CUT_ETP, expert.out_cut = CUT_NONE;
    int down = describe_step(d, expert);
    bias.param = PARAM(b_d), bias.out = D;
    if (t->expert_bias) describe_step(d, bias);
    describe_value(d, (KeptValue){ .label = L_ROUTE, .cols = 2 * K + 1, .bytes = 4, .read_by = -1 });
    describe_value(d, (KeptValue){ .label = L_LOGITS, .cols = E, .bytes = 4, .read_by = -1 });
    rows.label = L_DISPATCH, rows.cols = D, rows.cut = CUT_NONE, rows.read_by = up;
    describe_value(d, rows);
    rows.label = L_ACT, rows.cols = F, rows.cut = CUT_ETP, rows.read_by = down;
    describe_value(d, rows);
    rows.label = L_GATE_UP, rows.cols = 2 * F, rows.read_by = -1, rows.only = false;
    describe_value(d, rows);
    describe_shared(d, t);
}

static void kind_fwd(const Pass *c, const void *m, void *act, Tensor y, Tensor x, Tensor res)
{
    moe_fwd(c, m, act, y, x, res);
}

static void kind_bwd(const Pass *c, const void *m, void *act, Tensor dx, Tensor dy, Tensor x)
{
    moe_bwd(c, m, act, dx, dy, x);
}

const FfnKind ffn_moe = { .name = "mixture of experts", .describe = describe, .layers_below = layers_below,
                          .module_size = sizeof(Moe), .act_size = sizeof(MoeAct),
                          .fwd = kind_fwd, .bwd = kind_bwd };
