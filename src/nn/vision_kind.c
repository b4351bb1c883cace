/* nn/vision_kind.c -- the parts of the vision tower describe themselves (nn/layer_kind.h); their
 * passes are in nn/vision.c. Rows are patches, of a merger visual tokens. */
#include "nn/vision.h"

#define BLOCK(name)  ((int)offsetof(VisionBlock, name))
#define MERGER(name) ((int)offsetof(Merger, name))

static int product(Description *d, Linear linear, Label makes, int param, double in, double out)
{
    return describe_step(d, (LayerStep){ .linear = linear, .makes = makes, .param = param, .in = in,
                                         .out = out });
}

static void keep(Description *d, Label label, double cols, int bytes)
{
    describe_value(d, (KeptValue){ .label = label, .cols = cols, .bytes = bytes, .read_by = -1 });
}

void vision_describe_stem(Description *d, const VisionShape *v)
{
    product(d, LINEAR_NO, L_INPUT, offsetof(Vision, w_patch), (double)vision_patch_dim(v), (double)v->D);
    describe_vector(d, offsetof(Vision, b_patch), (double)v->D);
    describe_vector(d, offsetof(Vision, pos), (double)(v->grid * v->grid * v->D));
}

void vision_describe_block(Description *d, const VisionShape *v)
{
    double D = (double)v->D, I = (double)v->I, H = (double)v->H;
    describe_vector(d, BLOCK(norm1_w), D), describe_vector(d, BLOCK(norm1_b), D);
    product(d, LINEAR_ATTENTION, L_V_QKV, BLOCK(w_qkv), D, 3 * D);
    describe_vector(d, BLOCK(b_qkv), 3 * D);
    describe_step(d, (LayerStep){ .type = STEP_CORE, .macs_pair = 2 * D });
    product(d, LINEAR_ATTENTION, L_V_RESID, BLOCK(w_o), D, D);
    describe_vector(d, BLOCK(b_o), D);
    describe_vector(d, BLOCK(norm2_w), D), describe_vector(d, BLOCK(norm2_b), D);
    product(d, LINEAR_FEED, L_V_UP, BLOCK(w_up), D, I);
    describe_vector(d, BLOCK(b_up), I);
    product(d, LINEAR_FEED, L_INPUT, BLOCK(w_down), I, D);
    describe_vector(d, BLOCK(b_down), D);
    keep(d, L_INPUT, D, 0), keep(d, L_V_NORM, 2 * D, 0), keep(d, L_V_STAT, 4 + H, 4);
    keep(d, L_V_QKV, 3 * D, 0), keep(d, L_V_CORE, D, 0);
    keep(d, L_V_RESID, D, 0), keep(d, L_V_UP, I, 0), keep(d, L_V_ACT, I, 0);
}

/* deepstack: its norm is over the merged row. */
void vision_describe_merger(Description *d, const VisionShape *v, bool deepstack)
{
    double wide = (double)(v->D * v->merge * v->merge), norm = deepstack ? wide : (double)v->D;
    double out = (double)v->out;
    describe_vector(d, MERGER(norm_w), norm), describe_vector(d, MERGER(norm_b), norm);
    product(d, LINEAR_FEED, L_MERGER, MERGER(w1), wide, wide);
    describe_vector(d, MERGER(b1), wide);
    product(d, LINEAR_FEED, L_INPUT, MERGER(w2), wide, out);
    describe_vector(d, MERGER(b2), out);
    keep(d, L_MERGER, 3 * wide, 0);
}
