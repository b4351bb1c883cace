/* profile/classify.c -- see classify.h. */
#include "profile/classify.h"

#include "base/graph_scopes.h"
#include "ops/ops.h"

#include <string.h>

/* A word in a name decides; the first row that fits counts. */
typedef struct WordRow { const char *word; Category category; } WordRow;

static Category by_words(const WordRow *row, const char *name, Category otherwise)
{
    for (; row->word; row++)
        if (strstr(name, row->word)) return row->category;
    return otherwise;
}

static const WordRow op_words[] = {
    { "adamw", CAT_OPTIMIZER },      { "set_weight", CAT_OPTIMIZER }, { "squares", CAT_OPTIMIZER },
    { "peer_push", CAT_COMM },       { "peer_pull", CAT_COMM },       { "peer_wait", CAT_COMM },
    { "peer_", CAT_PERMUTE },        { "moe_", CAT_PERMUTE },         { "expert", CAT_PERMUTE },
    { "router", CAT_PERMUTE },       { "gather_rows", CAT_PERMUTE },  { "scatter_rows", CAT_PERMUTE },
    { "expand", CAT_PERMUTE },       { "combine", CAT_PERMUTE },      { "aux_loss", CAT_PERMUTE },
    { "attention_merge", CAT_ELEMENTWISE }, { "attention", CAT_ATTENTION },
    { "grouped", CAT_GROUPED_GEMM }, { "gemm", CAT_GEMM },            { NULL, CAT_N },
};

/* Of kernels of this build (ops/cuda), of cuBLASLt, cuDNN and NCCL. */
static const WordRow kernel_words[] = {
    { "nccl", CAT_COMM },            { "adamw", CAT_OPTIMIZER },      { "squares", CAT_OPTIMIZER },
    { "push_", CAT_COMM },           { "pull_", CAT_COMM },           { "wait_", CAT_COMM },
    { "grouped", CAT_GROUPED_GEMM }, { "attention", CAT_ATTENTION },  { "sdpa", CAT_ATTENTION },
    { "flash", CAT_ATTENTION },      { "cudnn", CAT_ATTENTION },      { "nvjet", CAT_GEMM },
    { "gemm", CAT_GEMM },            { "cutlass", CAT_GEMM },         { "splitK", CAT_GEMM },
    { "router", CAT_PERMUTE },       { "gather", CAT_PERMUTE },       { "scatter", CAT_PERMUTE },
    { "sort", CAT_PERMUTE },         { "combine", CAT_PERMUTE },      { "expert", CAT_PERMUTE },
    { NULL, CAT_N },
};

Category classify_op(int op, Part part)
{
    const char *name = op_name(op);
    Category    c = by_words(op_words, name, CAT_ELEMENTWISE);
    return part == PART_OPTIM && category_is_compute(c) ? CAT_OPTIMIZER : c;
}

Category classify_kernel(const char *name, Part part)
{
    Category c = by_words(kernel_words, name ? name : "", CAT_ELEMENTWISE);
    return part == PART_OPTIM && category_is_compute(c) ? CAT_OPTIMIZER : c;
}

Category classify_span(DeviceSpanKind kind)
{
    return kind == SPAN_H2D ? CAT_COPY_H2D : kind == SPAN_D2H ? CAT_COPY_D2H : CAT_MEMSET;
}

static bool is_moe(int op)
{
    Category c = op >= 0 ? classify_op(op, PART_DECODER) : CAT_N;
    return c == CAT_GROUPED_GEMM || c == CAT_PERMUTE || c == CAT_COMM;
}

LayerPart classify_layer(int op, const HostPlace *at)
{
    static const LayerPart of_scope[GRAPH_SCOPES] = {
        [GRAPH_EAGER] = LAYER_OTHER, [GRAPH_ATTN] = LAYER_ATTENTION, [GRAPH_MLP] = LAYER_MLP,
        [GRAPH_MOE_ROUTER] = LAYER_MOE, [GRAPH_MOE_PREPROCESS] = LAYER_MOE, [GRAPH_MOE] = LAYER_MOE,
        [GRAPH_VISION] = LAYER_VISION,
    };
    if (at->part == PART_VISION || at->part == PART_MERGER) return LAYER_VISION;
    if (at->part != PART_DECODER) return LAYER_OTHER;
    return is_moe(op) ? LAYER_MOE : of_scope[at->scope];
}
