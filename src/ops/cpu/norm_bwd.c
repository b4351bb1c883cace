/* ops/cpu/norm_bwd.c -- see norm_bwd.h: chunks of rows in parallel, their sums for dw and db added in
 * order. */
#include "ops/cpu/norm_bwd.h"

static HOT void weight_grad(float *dw, const float *dy, const float *x, float m, float r, int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) dw[i] += dy[i] * ((x[i] - m) * r);
}

/* dx may alias dres, so the gradient is added to dres from a buffer of its own. */
static void row_input_grad(const NormBwd *norm, int64_t t, const float *dy, const float *x, const float *w,
                           float m, float r, float *buf, NormInputGrad *input_grad)
{
    int64_t      D = norm->x.n[1];
    const float *dres = t_has(norm->dres) ? row_read(norm->dres, t, buf) : NULL;
    float       *out = row_edit(norm->dx, t, buf + D), *grad = dres ? buf + D : out;
    input_grad(grad, dy, x, w, m, r, D);
    if (dres) rows_add(out, grad, dres, D);
    row_store(norm->dx, t, out);
}

/* A chunk's part holds D sums for dw, then D for db. dw and db are summed before dx, which may alias dy. */
static void backward_chunk(Backend *be, int chunk, const NormBwd *norm, NormInputGrad *input_grad)
{
    int64_t T = norm->x.n[0], D = norm->x.n[1], end = chunk_begin(T, chunk + 1);
    float  *buf = cpu_own(be), *part = chunk_part(be, chunk, 2 * D);
    const float *w = row_read(norm->w, 0, buf);
    memset(part, 0, (size_t)D * 8);
    for (int64_t t = chunk_begin(T, chunk); t < end; t++) {
        const float *dy = row_read(norm->dy, t, buf + D), *x = row_read(norm->x, t, buf + 2 * D);
        const float *stat = (const float *)row_ptr(norm->stat, t);
        float        m = norm->mean ? stat[0] : 0.0f, r = stat[norm->mean];
        if (t_has(norm->dw)) weight_grad(part, dy, x, m, r, D);
        if (t_has(norm->db)) rows_add(part + D, part + D, dy, D);
        if (t_has(norm->dx)) row_input_grad(norm, t, dy, x, w, m, r, buf + 3 * D, input_grad);
    }
}

void norm_backward(Backend *be, const char *op, const NormBwd *norm, NormInputGrad *input_grad)
{
    int64_t T = norm->x.n[0], D = norm->x.n[1];
    cpu_check_own(op, 5, D), cpu_check_parts(op, 2 * D);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(norm->x)))
    for (int c = 0; c < CPU_CHUNKS; c++)
        if (chunk_begin(T, c) < chunk_begin(T, c + 1)) backward_chunk(be, c, norm, input_grad);
    if (t_has(norm->dw)) rows_gather(be, norm->dw.data, T, 2 * D, 0, D);
    if (t_has(norm->db)) rows_gather(be, norm->db.data, T, 2 * D, D, D);
}
