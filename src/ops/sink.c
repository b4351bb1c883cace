/* ops/sink.c -- a sink of each attention head, one more score in its softmax that has no value: contract,
 * cost, CPU.
 *
 *   sink_fwd   lse' = log(e^lse + e^sink)      o' = o e^(lse - lse')            in place, after attention_fwd
 *   sink_bwd   dsink[h] += -sum over t of e^(sink[h] - lse'[h,t]) <dout[t,h,:], o'[t,h,:]>
 *
 * attention_bwd with lse' and o' gives the other gradients. o, dout (T, H, C) are f32 or bf16; lse (H, T)
 * f32; sink (1, H) either, dsink (1, H) f32. A row of zeros (outside all segments) stays one. Each head is
 * summed in the order of tokens, in double: equal bits on any number of threads. */
#include "ops/cpu/cpu_rows.h"

static bool fits(Tensor o, Tensor lse, Tensor sink)
{
    return o.rank == 3 && is_float(o) && is_rows_f32(lse, o.n[1], o.n[0]) && is_rows(sink, 1, o.n[1]);
}

Cost sink_fwd_cost(Backend *be, Tensor o, Tensor lse, Tensor sink)
{
    REQUIRE(fits(o, lse, sink), "sink_fwd: o %s lse %s sink %s", t_fmt(o), t_fmt(lse), t_fmt(sink));
    return (Cost){ .flops = (double)t_count(o), .rd = t_bytes(o) + t_bytes(lse),
                   .wr = t_bytes(o) + t_bytes(lse) };
}

Cost sink_bwd_cost(Backend *be, Tensor dsink, Tensor dout, Tensor o, Tensor lse, Tensor sink)
{
    REQUIRE(fits(o, lse, sink) && fits(dout, lse, sink) && dout.n[2] == o.n[2] &&
            is_rows_f32(dsink, 1, o.n[1]),
            "sink_bwd: dsink %s dout %s o %s lse %s sink %s", t_fmt(dsink), t_fmt(dout), t_fmt(o), t_fmt(lse),
            t_fmt(sink));
    return (Cost){ .flops = 2.0 * (double)t_count(o), .rd = t_bytes(o) + t_bytes(dout) + t_bytes(lse),
                   .wr = t_bytes(dsink) };
}

static float sink_of(Tensor sink, int64_t h)
{
    return sink.dtype == F32 ? ((float *)sink.data)[h] : bf16_to_f32(((uint16_t *)sink.data)[h]);
}

/* log(e^a + e^b) */
INLINE float log_sum(float a, float b)
{
    float top = a > b ? a : b, low = a > b ? b : a;
    return top + log1pf(expf(low - top));
}

void cpu_sink_fwd(Backend *be, Tensor o, Tensor lse, Tensor sink)
{
    int64_t H = o.n[1], C = o.n[2], rows = o.n[0] * H;
    cpu_check_own("sink_fwd", 1, C);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(o)))
    for (int64_t r = 0; r < rows; r++) {
        float *l = (float *)row_ptr(lse, r % H) + r / H, to = log_sum(*l, sink_of(sink, r % H));
        float  fade = expf(*l - to), *out = cpu_own(be);
        const float *in = row_read(o, r, out);
        out = row_edit(o, r, out);
        for (int64_t c = 0; c < C; c++) out[c] = fade * in[c];
        row_store(o, r, out);
        *l = to;
    }
}

static double head_sum(Backend *be, Tensor dout, Tensor o, const float *lse, float sink, int64_t h)
{
    int64_t H = o.n[1], C = o.n[2];
    double  sum = 0.0;
    for (int64_t t = 0; t < o.n[0]; t++) {
        const float *d = row_read(dout, t * H + h, cpu_own(be)), *y = row_read(o, t * H + h, cpu_own(be) + C);
        float dot = 0.0f;
        for (int64_t c = 0; c < C; c++) dot += d[c] * y[c];
        sum -= (double)(expf(sink - lse[t]) * dot);
    }
    return sum;
}

void cpu_sink_bwd(Backend *be, Tensor dsink, Tensor dout, Tensor o, Tensor lse, Tensor sink)
{
    cpu_check_own("sink_bwd", 2, o.n[2]);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(o)))
    for (int64_t h = 0; h < o.n[1]; h++)
        ((float *)dsink.data)[h] +=
            (float)head_sum(be, dout, o, (const float *)row_ptr(lse, h), sink_of(sink, h), h);
}
