/* ops/cross_entropy.c -- softmax cross entropy over the vocabulary: contract, price, CPU.
 *
 *   lse[i]  = logsumexp(logits[i,:])
 *   loss   += scale * sum over rows with labels[i] >= 0 of (lse[i] - logits[i, labels[i]])
 *   each[i] = lse[i] - logits[i, labels[i]], 0 where labels[i] < 0         (ce_rows)
 *   dlogits = scale * (softmax(logits[i,:]) - onehot(labels[i])), zeros where labels[i] < 0
 *
 * logits (n, V) f32 or bf16, labels (n) i32 below V, lse and each (n, 1) f32, loss one f64 that adds up over
 * calls; dlogits (n, V) f32 or bf16, and may alias logits of its own dtype. Exponentials are f32, summed in
 * 32 lanes over short pieces and in double across them; the loss is a double, in row order: threads do not
 * change it.
 * */
#include "ops/rows.h"

#include <float.h>

static bool rows_match(Tensor logits, Tensor lse, Tensor labels)
{
    int64_t n = logits.n[0];
    return logits.rank == 2 && is_float(logits) && lse.dtype == F32 && t_dense(lse) && t_count(lse) == n &&
           labels.dtype == I32 && t_dense(labels) && t_count(labels) == n;
}

Cost ce_fwd_cost(Backend *be, Tensor loss, Tensor lse, Tensor logits, Tensor labels, float scale)
{
    REQUIRE(rows_match(logits, lse, labels) && loss.dtype == F64 && t_count(loss) == 1,
            "ce_fwd: loss %s lse %s logits %s labels %s",
            t_fmt(loss), t_fmt(lse), t_fmt(logits), t_fmt(labels));
    return (Cost){ .flops = 4.0 * (double)t_count(logits),     /* compare, subtract, exp, add */
                   .rd    = t_bytes(logits) + t_bytes(labels),
                   .wr    = t_bytes(lse) + t_bytes(loss) };
}

Cost ce_rows_cost(Backend *be, Tensor each, Tensor logits, Tensor lse, Tensor labels)
{
    REQUIRE(rows_match(logits, lse, labels) && rows_match(logits, each, labels),
            "ce_rows: each %s logits %s lse %s labels %s", t_fmt(each), t_fmt(logits), t_fmt(lse),
            t_fmt(labels));
    return (Cost){ .flops = (double)t_count(each),
                   .rd    = t_bytes(lse) + t_bytes(labels) +
                            t_count(labels) * (int64_t)dtype_size((DType)logits.dtype),
                   .wr    = t_bytes(each) };
}

Cost ce_bwd_cost(Backend *be, Tensor dlogits, Tensor logits, Tensor lse, Tensor labels, float scale)
{
    REQUIRE(rows_match(logits, lse, labels) && dlogits.rank == 2 && is_float(dlogits) &&
            dlogits.n[0] == logits.n[0] && dlogits.n[1] == logits.n[1],
            "ce_bwd: dlogits %s logits %s lse %s labels %s",
            t_fmt(dlogits), t_fmt(logits), t_fmt(lse), t_fmt(labels));
    return (Cost){ .flops = 3.0 * (double)t_count(logits),     /* subtract, exp, multiply */
                   .rd    = t_bytes(logits) + t_bytes(lse) + t_bytes(labels),
                   .wr    = t_bytes(dlogits) };
}

/* Rows are walked in pieces that stay in the nearest cache, so a row comes from memory once. */
static const float *piece_read(Tensor t, int64_t row, int64_t col, int64_t n, float *buf)
{
    if (t.dtype == F32) return (const float *)row_ptr(t, row) + col;
    cpu_widen(buf, (const uint16_t *)row_ptr(t, row) + col, n);
    return buf;
}

/* The running maximum, and the sum of exp(z - max) under it. */
typedef struct Tally { float max; double sum; } Tally;

static HOT Tally tally(Tally a, const float *z, int64_t n)
{
    enum { LANES = 32 };                       /* fixed, so that bits do not depend on the vector width */
    float   max = a.max, part[LANES] = { 0 };
    double  sum = 0.0;
    int64_t i = 0;
    #pragma omp simd reduction(max:max)
    for (int64_t k = 0; k < n; k++) max = z[k] > max ? z[k] : max;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) part[j] += fast_exp(z[i + j] - max);
    for (; i < n; i++) part[i % LANES] += fast_exp(z[i] - max);
    for (int j = 0; j < LANES; j++) sum += part[j];
    if (max > a.max) a.sum *= exp((double)a.max - max);
    return (Tally){ max, a.sum + sum };
}

static float row_lse(Tensor logits, int64_t row)
{
    float   buf[PIECE];
    int64_t V = logits.n[1];
    Tally   a = { -FLT_MAX, 0.0 };
    for (int64_t c = 0; c < V; c += PIECE) {
        int64_t n = V - c < PIECE ? V - c : PIECE;
        a = tally(a, piece_read(logits, row, c, n, buf), n);
    }
    return (float)(a.max + log(a.sum));
}

void cpu_ce_fwd(Backend *be, Tensor loss, Tensor lse, Tensor logits, Tensor labels, float scale)
{
    int64_t        n = logits.n[0], V = logits.n[1];
    const int32_t *label = labels.data;
    float         *l = lse.data, buf[1];
    double         sum = 0.0;
    #pragma omp parallel for schedule(static) if(worth_threads(n * V))
    for (int64_t i = 0; i < n; i++) l[i] = row_lse(logits, i);
    for (int64_t i = 0; i < n; i++) {
        if (label[i] < 0) continue;
        REQUIRE(label[i] < V, "ce_fwd: label %d in row %lld of %s", label[i], (long long)i, t_fmt(logits));
        sum += (double)l[i] - *piece_read(logits, i, label[i], 1, buf);
    }
    *(double *)loss.data += scale * sum;
}

void cpu_ce_rows(Backend *be, Tensor each, Tensor logits, Tensor lse, Tensor labels)
{
    const int32_t *label = labels.data;
    const float   *l = lse.data;
    float         *out = each.data, buf[1];
    for (int64_t i = 0; i < logits.n[0]; i++)
        out[i] = label[i] < 0 ? 0.0f : l[i] - *piece_read(logits, i, label[i], 1, buf);
}

static HOT void softmax_scaled(float *d, const float *z, float lse, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++) d[i] = scale * fast_exp(z[i] - lse);
}

static void row_gradient(Tensor dlogits, Tensor logits, int64_t row, float lse, int32_t label, float scale)
{
    float   in[PIECE], out[PIECE];
    int64_t V = logits.n[1];
    for (int64_t c = 0; c < V; c += PIECE) {
        int64_t n  = V - c < PIECE ? V - c : PIECE;
        char   *to = row_ptr(dlogits, row) + (size_t)c * dtype_size((DType)dlogits.dtype);
        float  *d  = dlogits.dtype == F32 ? (float *)to : out;
        softmax_scaled(d, piece_read(logits, row, c, n, in), lse, scale, n);
        if (label >= c && label < c + n) d[label - c] -= scale;
        if (dlogits.dtype != F32) cpu_narrow((uint16_t *)to, d, n);
    }
}

void cpu_ce_bwd(Backend *be, Tensor dlogits, Tensor logits, Tensor lse, Tensor labels, float scale)
{
    int64_t        n = logits.n[0], V = logits.n[1];
    const int32_t *label = labels.data;
    const float   *l = lse.data;
    #pragma omp parallel for schedule(static) if(worth_threads(n * V))
    for (int64_t i = 0; i < n; i++) {
        if (label[i] >= 0) row_gradient(dlogits, logits, i, l[i], label[i], scale);
        else memset(row_ptr(dlogits, i), 0, (size_t)V * dtype_size((DType)dlogits.dtype));
    }
}
