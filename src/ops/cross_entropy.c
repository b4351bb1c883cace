/* ops/cross_entropy.c -- softmax cross entropy over the vocabulary: contract, cost, CPU.
 *
 * The vocabulary may be cut into slices of consecutive ids, one a rank; whole, it is one slice.
 *
 *   part[i]  = for a slice whose columns are the ids from, from + 1, ...: the maximum of logits[i,:], the sum
 *              of exp(logits[i,:] - maximum), and logits[i, labels[i] - from], or NaN if the label is in
 *              another slice
 *   lse[i]   = logsumexp of row i over all slices, from their parts                              (ce_join)
 *   loss    += scale * sum over rows with labels[i] >= 0 of (lse[i] - logit of labels[i])
 *   each[i]  = lse[i] - logit of labels[i], 0 where labels[i] < 0
 *   dlogits  = scale * (softmax(row i) - onehot(labels[i])) of the slice, zeros where labels[i] < 0
 *   ce_grad    part and dlogits of the whole vocabulary: a device may read the logits once for both
 *
 * logits (n, V) f32 or bf16, of which V may be 0; labels (n) i32; part (n, 3) f64, parts (slices * n, 3) by
 * slice; lse and each (n, 1) f32, loss one f64 that adds up over calls: each and loss may be absent; dlogits
 * (n, V) f32 or bf16, and may alias logits of its own dtype. A label outside all slices makes the loss NaN.
 * Exponentials are f32, summed in 32 lanes over short pieces and in double across pieces, then over lanes and
 * across slices, in their order; the loss is a double, in row order: independent of the number of threads. */
#include "ops/cpu/cpu_rows.h"

#include <float.h>

enum { PART = 3 };                             /* doubles of a row: maximum, sum, logit of the label */

static bool is_list(Tensor t, DType d, int64_t n) { return t.dtype == d && t_dense(t) && t_count(t) == n; }
static bool is_parts(Tensor t) { return t.rank == 2 && t.dtype == F64 && t_dense(t) && t.n[1] == PART; }

Cost ce_part_cost(Backend *be, Tensor part, Tensor logits, Tensor labels, int64_t from)
{
    REQUIRE(logits.rank == 2 && is_float(logits) && is_list(labels, I32, logits.n[0]) && is_parts(part) &&
            part.n[0] == logits.n[0] && from >= 0,
            "ce_part: part %s logits %s labels %s from %lld", t_fmt(part), t_fmt(logits), t_fmt(labels),
            (long long)from);
    return (Cost){ .flops = 4.0 * (double)t_count(logits),     /* compare, subtract, exp, add */
                   .rd    = t_bytes(logits) + t_bytes(labels),
                   .wr    = t_bytes(part) };
}

Cost ce_join_cost(Backend *be, Tensor loss, Tensor lse, Tensor each, Tensor parts, Tensor labels,
                  Factor scale)
{
    int64_t n = t_count(labels);
    REQUIRE(is_list(lse, F32, n) && is_list(labels, I32, n) && is_parts(parts) &&
            (n ? parts.n[0] % n == 0 && parts.n[0] > 0 : !parts.n[0]),
            "ce_join: lse %s parts %s labels %s", t_fmt(lse), t_fmt(parts), t_fmt(labels));
    REQUIRE((!t_has(loss) || is_list(loss, F64, 1)) && (!t_has(each) || is_list(each, F32, n)),
            "ce_join: loss %s each %s labels %s", t_fmt(loss), t_fmt(each), t_fmt(labels));
    return (Cost){ .flops = 4.0 * (double)parts.n[0] + 2.0 * (double)n,
                   .rd    = t_bytes(parts) + t_bytes(labels),
                   .wr    = t_bytes(lse) + (t_has(each) ? t_bytes(each) : 0) + (t_has(loss) ? 8 : 0) };
}

Cost ce_bwd_cost(Backend *be, Tensor dlogits, Tensor logits, Tensor lse, Tensor labels, int64_t from,
                 Factor scale)
{
    int64_t n = logits.n[0];
    REQUIRE(logits.rank == 2 && is_float(logits) && is_list(lse, F32, n) && is_list(labels, I32, n) &&
            dlogits.rank == 2 && is_float(dlogits) && dlogits.n[0] == n && dlogits.n[1] == logits.n[1] &&
            from >= 0, "ce_bwd: dlogits %s logits %s lse %s labels %s from %lld", t_fmt(dlogits),
            t_fmt(logits), t_fmt(lse), t_fmt(labels), (long long)from);
    return (Cost){ .flops = 3.0 * (double)t_count(logits),     /* subtract, exp, multiply */
                   .rd    = t_bytes(logits) + t_bytes(lse) + t_bytes(labels),
                   .wr    = t_bytes(dlogits) };
}

Cost ce_grad_cost(Backend *be, Tensor part, Tensor dlogits, Tensor logits, Tensor labels, Factor scale)
{
    Cost p = ce_part_cost(be, part, logits, labels, 0);
    REQUIRE(dlogits.rank == 2 && is_float(dlogits) && dlogits.n[0] == logits.n[0] &&
            dlogits.n[1] == logits.n[1], "ce_grad: dlogits %s logits %s", t_fmt(dlogits), t_fmt(logits));
    p.flops += 3.0 * (double)t_count(logits);
    p.wr    += t_bytes(dlogits);
    return p;
}

/* Rows are walked in pieces that stay in L1, so a row is read from memory once. */
static const float *piece_read(Tensor t, int64_t row, int64_t col, int64_t n, float *buf)
{
    if (t.dtype == F32) return (const float *)row_ptr(t, row) + col;
    cpu_widen(buf, (const uint16_t *)row_ptr(t, row) + col, n);
    return buf;
}

/* State of the pieces so far: the maximum, and per lane the sum of exp(z - ref). Using the maximum of the
 * first piece as ref saves a pass over the others; a piece that rises too far above ref raises it and is read
 * again. */
enum { LANES = 32 };                           /* fixed, so that bits do not depend on the vector width */
static const float HEADROOM = 20.0f;
typedef struct Tally { float max, ref; double sum[LANES]; } Tally;

static HOT float largest(const float *z, int64_t n)
{
    float max = -FLT_MAX;
    #pragma omp simd reduction(max:max)
    for (int64_t i = 0; i < n; i++) max = z[i] > max ? z[i] : max;
    return max;
}

/* part[j] = the sum of exp(z - ref) over every LANES-th z from j on; returns the largest z. */
static HOT float exp_sums(float *part, const float *z, float ref, int64_t n)
{
    float   sum[LANES] = { 0 }, top[LANES], max = -FLT_MAX;
    int64_t i = 0;
    for (int j = 0; j < LANES; j++) top[j] = -FLT_MAX;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            float v = z[i + j];
            sum[j] += fast_exp(v - ref);
            top[j]  = v > top[j] ? v : top[j];
        }
    for (; i < n; i++) {
        sum[i % LANES] += fast_exp(z[i] - ref);
        max = z[i] > max ? z[i] : max;
    }
    for (int j = 0; j < LANES; j++) part[j] = sum[j], max = top[j] > max ? top[j] : max;
    return max;
}

static void tally(Tally *a, const float *z, int64_t n)
{
    float part[LANES], top = exp_sums(part, z, a->ref, n);
    if (top > a->ref + HEADROOM) {
        double fade = exp((double)a->ref - top);
        for (int j = 0; j < LANES; j++) a->sum[j] *= fade;
        a->ref = top;
        exp_sums(part, z, a->ref, n);
    }
    for (int j = 0; j < LANES; j++) a->sum[j] += part[j];
    a->max = top > a->max ? top : a->max;
}

/* The maximum of a row, and through *sum the sum of exp(z - maximum). */
static float row_tally(Tensor logits, int64_t row, double *sum)
{
    float   buf[PIECE];
    int64_t V = logits.n[1];
    Tally   a = { .max = -FLT_MAX, .ref = -FLT_MAX };
    for (int64_t c = 0; c < V; c += PIECE) {
        int64_t      n = V - c < PIECE ? V - c : PIECE;
        const float *z = piece_read(logits, row, c, n, buf);
        if (c == 0) a.ref = largest(z, n);
        tally(&a, z, n);
    }
    *sum = 0.0;
    for (int j = 0; j < LANES; j++) *sum += a.sum[j];
    if (a.ref != a.max) *sum *= exp((double)a.ref - a.max);
    return a.max;
}

void cpu_ce_part(Backend *be, Tensor part, Tensor logits, Tensor labels, int64_t from)
{
    int64_t        n = logits.n[0], V = logits.n[1];
    const int32_t *label = labels.data;
    double        *out = part.data;
    #pragma omp parallel for schedule(static) if(worth_threads(n * V))
    for (int64_t i = 0; i < n; i++) {
        float   buf[1];
        int64_t at = label[i] - from;
        bool    here = label[i] >= 0 && at >= 0 && at < V;
        out[PART * i]     = row_tally(logits, i, out + PART * i + 1);
        out[PART * i + 2] = here ? (double)*piece_read(logits, i, at, 1, buf) : NAN;
    }
}

/* Row i of all slices: its logsumexp, and through *target the logit of its label. */
static float join_row(const double *part, int64_t slices, int64_t n, int64_t i, double *target)
{
    double top = -FLT_MAX, sum = 0.0;
    *target = NAN;
    for (int64_t s = 0; s < slices; s++) top = fmax(top, part[PART * (s * n + i)]);
    for (int64_t s = 0; s < slices; s++) {
        const double *p = part + PART * (s * n + i);
        sum += p[1] * exp(p[0] - top);
        if (!isnan(p[2])) *target = p[2];
    }
    return (float)(top + log(sum));
}

void cpu_ce_join(Backend *be, Tensor loss, Tensor lse, Tensor each, Tensor parts, Tensor labels, Factor scale)
{
    int64_t        n = t_count(labels), slices = n ? parts.n[0] / n : 1;
    const int32_t *label = labels.data;
    float         *l = lse.data;
    double         sum = 0.0, target;
    for (int64_t i = 0; i < n; i++) {
        l[i] = join_row(parts.data, slices, n, i, &target);
        double e = label[i] < 0 ? 0.0 : (double)l[i] - target;
        if (t_has(each)) ((float *)each.data)[i] = (float)e;
        sum += e;
    }
    if (t_has(loss)) *(double *)loss.data += factor_value(scale) * sum;
}

static HOT void softmax_scaled(float *d, const float *z, float lse, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++) d[i] = scale * fast_exp(z[i] - lse);
}

/* label: its column in the slice, or one outside of it. */
static void softmax_grad(Tensor dlogits, Tensor logits, int64_t row, float lse, int64_t label, float scale)
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

static void gradient_of_row(Tensor dlogits, Tensor logits, int64_t row, float lse, int32_t label,
                            int64_t from, float scale)
{
    if (label >= 0) softmax_grad(dlogits, logits, row, lse, label - from, scale);
    else memset(row_ptr(dlogits, row), 0, (size_t)logits.n[1] * dtype_size((DType)dlogits.dtype));
}

void cpu_ce_bwd(Backend *be, Tensor dlogits, Tensor logits, Tensor lse, Tensor labels, int64_t from,
                Factor scale)
{
    int64_t        n = logits.n[0], V = logits.n[1];
    const int32_t *label = labels.data;
    const float   *l = lse.data, by = factor_value(scale);
    #pragma omp parallel for schedule(static) if(worth_threads(n * V))
    for (int64_t i = 0; i < n; i++) gradient_of_row(dlogits, logits, i, l[i], label[i], from, by);
}

void cpu_ce_grad(Backend *be, Tensor part, Tensor dlogits, Tensor logits, Tensor labels, Factor scale)
{
    int64_t n = logits.n[0], V = logits.n[1];
    cpu_ce_part(be, part, logits, labels, 0);
    #pragma omp parallel for schedule(static) if(worth_threads(n * V))
    for (int64_t i = 0; i < n; i++) {
        double target;
        gradient_of_row(dlogits, logits, i, join_row(part.data, 1, n, i, &target),
                        ((const int32_t *)labels.data)[i], 0, factor_value(scale));
    }
}
