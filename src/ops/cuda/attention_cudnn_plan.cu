/* ops/cuda/attention_cudnn_plan.cu -- attention as cuDNN's engines know it: the patterns of forward and
 * backward, and the plans built of them. Without cuDNN's headers this file is empty.
 *
 * The engines match on the order of operations: another order is not supported, or slower. */
#include "ops/cuda/attention_cuda.h"

#if __has_include(<cudnn_backend.h>)
#include "ops/cuda/attention_cudnn.h"

#include <stdlib.h>
#include <string.h>

namespace {

static Shape dense(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return Shape{ { a, b, c, d }, { b * c * d, c * d, d, 1 } };
}

/* Tensors and scalars of both patterns. */
typedef struct Pattern {
    Graph     *g;
    const Key *k;
    int64_t    B, S;
    Desc       len_q, len_k, scale;
    Desc       offset[N_RAGGED];
} Pattern;

static Desc offset_of(Pattern *p, int which)
{
    if (p->k->even) return NULL;
    if (!p->offset[which])
        p->offset[which] = graph_tensor(p->g, U_OFFSET + which, CUDNN_DATA_INT32,
                                        Shape{ { p->B + 1, 1, 1, 1 }, { 1, 1, 1, 1 } }, NULL);
    return p->offset[which];
}

static Shape ragged_shape(const Pattern *p, int which, int64_t heads, int64_t C)
{
    HeadStrides l = p->k->at[which];
    return Shape{ { p->B, heads, p->S, C }, { p->S * l.row, l.head, l.row, 1 } };
}

static Shape turned(Shape s)
{
    return Shape{ { s.n[0], s.n[1], s.n[3], s.n[2] }, { s.s[0], s.s[1], s.s[3], s.s[2] } };
}

/* Of values, of what they sum to and of their gradients; else of queries and keys. */
static int64_t width(const Pattern *p, int which)
{
    bool values = which == N_V || which == N_O || which == N_DOUT || which == N_DV;
    return values ? p->k->Cv : p->k->C;
}

static Desc ragged(Pattern *p, int which, int64_t heads, bool turn)
{
    Shape s = ragged_shape(p, which, heads, width(p, which));
    if (turn) s = turned(s);
    return graph_tensor(p->g, U_TENSOR + which, CUDNN_DATA_BFLOAT16, s, offset_of(p, which));
}

static Desc stats(Pattern *p)
{
    return graph_tensor(p->g, U_TENSOR + N_STAT, CUDNN_DATA_FLOAT, ragged_shape(p, N_STAT, p->k->H, 1),
                        offset_of(p, N_STAT));
}

static Desc scores(Pattern *p, cudnnDataType_t type)
{
    return graph_inner(p->g, type, dense(p->B, p->k->H, p->S, p->S), NULL);
}

static Desc column(Pattern *p)
{
    return graph_inner(p->g, CUDNN_DATA_FLOAT, dense(p->B, p->k->H, p->S, 1), NULL);
}

static Desc map(Pattern *p, cudnnPointwiseMode_t mode, Desc x, Desc b)
{
    Desc y = scores(p, CUDNN_DATA_FLOAT);
    graph_pointwise(p->g, mode, CUDNN_DATA_FLOAT, y, x, b, NULL);
    return y;
}

static Desc compare(Pattern *p, cudnnPointwiseMode_t mode, Desc x, Desc b)
{
    Desc y = scores(p, CUDNN_DATA_BOOLEAN);
    graph_pointwise(p->g, mode, CUDNN_DATA_BOOLEAN, y, x, b, NULL);
    return y;
}

static Desc index_along(Pattern *p, cudnnDataType_t math, Desc x, int64_t axis)
{
    Desc y = scores(p, CUDNN_DATA_INT32);
    graph_index(p->g, math, y, x, axis);
    return y;
}

/* x where the mask holds, else minus infinity. */
static Desc select(Pattern *p, Desc x, Desc mask, int64_t low)
{
    Desc y = scores(p, CUDNN_DATA_FLOAT), value = graph_scalar(p->g, low);
    graph_pointwise(p->g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, y, x, value, mask);
    return y;
}

static Desc mask_lengths(Pattern *p, Desc x)
{
    if (p->k->even) return x;
    Desc row = index_along(p, CUDNN_DATA_INT32, x, 2), col = index_along(p, CUDNN_DATA_INT32, x, 3);
    Desc in_q = compare(p, CUDNN_POINTWISE_CMP_LT, row, p->len_q);
    Desc in_k = compare(p, CUDNN_POINTWISE_CMP_LT, col, p->len_k);
    return select(p, x, compare(p, CUDNN_POINTWISE_LOGICAL_AND, in_q, in_k), U_LOW1);
}

static Desc mask_causal(Pattern *p, Desc x)
{
    if (!p->k->causal) return x;
    Desc row = index_along(p, CUDNN_DATA_FLOAT, x, 2), col = index_along(p, CUDNN_DATA_FLOAT, x, 3);
    return select(p, x, compare(p, CUDNN_POINTWISE_CMP_GE, row, col), U_LOW2);
}

/* Key j for query i where j + window > i. */
static Desc mask_window(Pattern *p, Desc x)
{
    if (!p->k->windows) return x;
    Desc row = index_along(p, CUDNN_DATA_FLOAT, x, 2), col = index_along(p, CUDNN_DATA_FLOAT, x, 3);
    Desc last = map(p, CUDNN_POINTWISE_ADD, col, graph_scalar(p->g, U_WINDOW));
    return select(p, x, compare(p, CUDNN_POINTWISE_CMP_GT, last, row), U_LOW3);
}

static Pattern pattern(Graph *g, const Key *k, int64_t B, int64_t S)
{
    Pattern p = { g, k, B, S };
    Shape   one_each = { { B, 1, 1, 1 }, { 1, 1, 1, 1 } };
    if (!k->even) {
        p.len_q = graph_tensor(g, U_LEN_Q, CUDNN_DATA_INT32, one_each, NULL);
        p.len_k = graph_tensor(g, U_LEN_K, CUDNN_DATA_INT32, one_each, NULL);
    }
    p.scale = graph_scalar(g, U_SCALE);
    return p;
}

static void build_fwd(Graph *g, const Key *k, int64_t B, int64_t S)
{
    Pattern p = pattern(g, k, B, S);
    Desc q = ragged(&p, N_Q, k->H, false), kt = ragged(&p, N_K, k->G, true), s = scores(&p, CUDNN_DATA_FLOAT);
    graph_matmul(g, s, q, kt, p.len_q, p.len_k, NULL);
    s = map(&p, CUDNN_POINTWISE_MUL, s, p.scale);
    s = mask_window(&p, mask_causal(&p, mask_lengths(&p, s)));

    Desc max = column(&p), sum = column(&p), log = column(&p), prob = scores(&p, CUDNN_DATA_BFLOAT16);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, max, s);
    Desc e = map(&p, CUDNN_POINTWISE_EXP, map(&p, CUDNN_POINTWISE_SUB, s, max), NULL);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, sum, e);
    graph_pointwise(g, CUDNN_POINTWISE_LOG, CUDNN_DATA_FLOAT, log, sum, NULL, NULL);
    graph_pointwise(g, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, stats(&p), max, log, NULL);
    graph_pointwise(g, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, prob, e, sum, NULL);
    Desc v = ragged(&p, N_V, k->G, false), o = ragged(&p, N_O, k->H, false);
    graph_matmul(g, o, prob, v, p.len_q, NULL, p.len_k);
}

/* y = transposed x times what, summed over the query heads that share a key head. */
static void grad_of_keys(Pattern *p, Desc x, Desc what, int which, int64_t full)
{
    const Key *k = p->k;
    Graph     *g = p->g;
    Desc xt = graph_inner(g, CUDNN_DATA_BFLOAT16, turned(dense(p->B, k->H, p->S, p->S)), NULL);
    graph_reshape(g, xt, x);
    if (k->H == k->G) {
        graph_matmul(g, ragged(p, which, k->G, false), xt, what, p->len_k, NULL, p->len_q);
        return;
    }
    int64_t C = width(p, which);
    Shape s = ragged_shape(p, which, k->H, C);
    s.s[0] *= k->H / k->G, s.s[2] *= k->H / k->G;
    Desc y = k->flat ? graph_tensor(g, full, CUDNN_DATA_BFLOAT16, s, offset_of(p, which))
                            : graph_inner(g, CUDNN_DATA_BFLOAT16, dense(p->B, k->H, p->S, C), NULL);
    graph_matmul(g, y, xt, what, p->len_k, NULL, p->len_q);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, ragged(p, which, k->G, false), y);
}

/* delta = rows of dout.o, an output with memory. */
static Desc row_dots(Pattern *p, Desc dout)
{
    const Key *k = p->k;
    Graph     *g = p->g;
    Shape wide = dense(p->B, k->H, p->S, k->Cv);
    wide.s[2] = k->H * k->Cv;
    Desc  prod = graph_inner(g, CUDNN_DATA_FLOAT, wide, NULL), sum = column(p);
    graph_pointwise(g, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, prod, dout, ragged(p, N_O, k->H, false), NULL);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, sum, prod);
    Shape each = k->flat ? ragged_shape(p, N_STAT, k->H, 1) : dense(p->B, k->H, p->S, 1);
    Desc  delta = graph_tensor(g, U_DELTA, CUDNN_DATA_FLOAT, each, k->flat ? offset_of(p, N_STAT) : NULL);
    graph_pointwise(g, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, delta, sum, graph_scalar(g, U_ONE), NULL);
    return delta;
}

static void build_bwd(Graph *g, const Key *k, int64_t B, int64_t S)
{
    Pattern p = pattern(g, k, B, S);
    Desc dout = ragged(&p, N_DOUT, k->H, false), delta = row_dots(&p, dout);
    Desc q = ragged(&p, N_Q, k->H, false), kt = ragged(&p, N_K, k->G, true), vt = ragged(&p, N_V, k->G, true);

    Desc s = scores(&p, CUDNN_DATA_FLOAT), dp = scores(&p, CUDNN_DATA_FLOAT);
    graph_matmul(g, s, q, kt, p.len_q, p.len_k, NULL);
    s = mask_lengths(&p, map(&p, CUDNN_POINTWISE_MUL, s, p.scale));
    s = mask_causal(&p, map(&p, CUDNN_POINTWISE_SUB, s, stats(&p)));
    s = mask_window(&p, s);
    Desc prob = map(&p, CUDNN_POINTWISE_EXP, s, NULL);
    grad_of_keys(&p, prob, dout, N_DV, U_DV_FULL);

    graph_matmul(g, dp, dout, vt, p.len_q, p.len_k, NULL);
    Desc ds = map(&p, CUDNN_POINTWISE_MUL, map(&p, CUDNN_POINTWISE_SUB, dp, delta), prob);
    ds = map(&p, CUDNN_POINTWISE_MUL, ds, p.scale);
    grad_of_keys(&p, ds, q, N_DK, U_DK_FULL);

    Desc keys = graph_inner(g, CUDNN_DATA_FLOAT, ragged_shape(&p, N_K, k->G, k->C), offset_of(&p, N_K));
    Desc dq = ragged(&p, N_DQ, k->H, false);
    graph_reshape(g, keys, kt);
    if (k->repeats) {
        graph_matmul(g, dq, ds, keys, p.len_q, NULL, p.len_k);
        return;
    }
    Shape each = k->flat ? ragged_shape(&p, N_DQ, k->H, k->C) : dense(B, k->H, S, k->C);
    Desc  sum = graph_tensor(g, U_DQ_SUM, CUDNN_DATA_FLOAT, each, k->flat ? offset_of(&p, N_DQ) : NULL);
    graph_matmul(g, sum, ds, keys, p.len_q, NULL, p.len_k);
    graph_pointwise(g, CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, dq, sum, NULL, NULL);
}

/* ---- plans ---- */

/* A plan without graph.plan records that cuDNN does not support the key. */
static void plan_build(Dnn *d, Plan *p)
{
    p->graph.lib = &d->lib, p->graph.next = U_INNER;
    if (p->key.backward) build_bwd(&p->graph, &p->key, p->B, p->S);
    else                 build_fwd(&p->graph, &p->key, p->B, p->S);
    if (!graph_plan(&p->graph)) graph_close(&p->graph);
}

/* Where the workspace does not grow with B and S, using a plan up to four times too large beats building
 * one. */
static bool plan_serves(const Plan *p, const Key *key, int64_t B, int64_t S)
{
    bool loose = !key->even && (!key->backward || (key->flat && !key->repeats));
    if (memcmp(&p->key, key, sizeof *key)) return false;
    return (p->B == B && p->S == S) || (loose && p->B >= B && p->S >= S && p->B * p->S <= 4 * B * S);
}

}

Plan *plan_find(Dnn *d, const Key *key, int64_t B, int64_t S, cudaStream_t stream, bool keep)
{
    Plan *best = NULL, **slot = &d->plans[d->built % PLANS];
    for (int i = 0; i < PLANS && d->plans[i]; i++) {
        Plan *p = d->plans[i];
        if (plan_serves(p, key, B, S) && (!best || p->B * p->S < best->B * best->S)) best = p;
    }
    if (best || (*slot && keep) || !(best = (Plan *)calloc(1, sizeof *best))) return best;
    if (*slot) {
        cudaStreamSynchronize(stream);                      /* an execution may still use the plan */
        graph_close(&(*slot)->graph);
        free(*slot);
    }
    best->key = *key, best->B = B, best->S = S;
    plan_build(d, best);
    d->built++;
    return *slot = best;
}

void plans_close(Dnn *d)
{
    for (int i = 0; i < PLANS && d->plans[i]; i++) graph_close(&d->plans[i]->graph), free(d->plans[i]);
}
#endif
