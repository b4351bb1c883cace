/* ops/delta_rule_step.c -- the gated delta rule over new rows of documents that are being decoded: contract,
 * cost, CPU.
 *
 * Segment i of seg has new rows of document doc[i], whose state is state[doc[i]], or 0 where they are its
 * first (seg.kv_used[i] counts no others). o is that of delta_rule_fwd; then state[doc[i]] becomes the state
 * after the first kept[i] new rows.
 *
 * q, k, v, o, g, beta as in delta_rule.c; state (docs, Hv, dk dv) f32; doc, kept (n) i32. Rows outside all
 * segments give 0. The rows are taken one by one, by the recurrence itself. */
#include "ops/cpu/segment.h"

#include <string.h>

enum { WIDTH = 256 };

Cost delta_rule_step_cost(Backend *be, Tensor o, Tensor state, Tensor q, Tensor k, Tensor v, Tensor g,
                          Tensor beta, Segments seg, Tensor doc, Tensor kept, float scale)
{
    int64_t T = q.n[0], Hk = q.n[1], dk = q.n[2], Hv = v.n[1], dv = v.n[2];
    REQUIRE(is_heads(q, T, Hk, dk) && is_heads(k, T, Hk, dk) && is_heads(v, T, Hv, dv) && Hv % Hk == 0 &&
            is_heads(o, T, Hv, dv) && is_rows_f32(g, T, Hv) && is_rows_f32(beta, T, Hv) && dk <= WIDTH &&
            dv <= WIDTH,
            "delta_rule_step: o %s q %s k %s v %s g %s beta %s", t_fmt(o), t_fmt(q), t_fmt(k), t_fmt(v),
            t_fmt(g), t_fmt(beta));
    REQUIRE(is_heads(state, state.n[0], Hv, dk * dv) && state.dtype == F32 && borders_fit(seg) &&
            t_has(seg.kv_used) && doc.dtype == I32 && doc.n[0] == seg.n && kept.dtype == I32 &&
            kept.n[0] == seg.n,
            "delta_rule_step: state %s starts %s doc %s kept %s", t_fmt(state), t_fmt(seg.starts),
            t_fmt(doc), t_fmt(kept));
    return (Cost){ .flops = 8.0 * (double)(t_count(v) * dk),
                   .rd = t_bytes(q) + t_bytes(k) + t_bytes(v) + seg.n * Hv * dk * dv * 4,
                   .wr = t_bytes(o) + seg.n * Hv * dk * dv * 4 };
}

/* One row: the state, then what is read from it. */
static HOT void recur(float *s, float *o, const float *q, const float *k, const float *v, float g, float beta,
                      int64_t dk, int64_t dv)
{
    float fade = expf(g), read[WIDTH];
    memset(read, 0, sizeof read);
    memset(o, 0, (size_t)dv * sizeof *o);
    for (int64_t i = 0; i < dk; i++)
        for (int64_t c = 0; c < dv; c++) s[i * dv + c] *= fade, read[c] += k[i] * s[i * dv + c];
    for (int64_t i = 0; i < dk; i++)
        for (int64_t c = 0; c < dv; c++) {
            s[i * dv + c] += k[i] * beta * (v[c] - read[c]);
            o[c] += q[i] * s[i * dv + c];
        }
}

typedef struct StepRule { Tensor o, state, q, k, v, g, beta; float scale; } StepRule;

static void step_row(const StepRule *r, float *s, int64_t t, int64_t u)
{
    int64_t Hk = r->q.n[1], Hv = r->v.n[1], dk = r->q.n[2], dv = r->v.n[2], h = u / (Hv / Hk);
    float   buf[4][WIDTH], q[WIDTH], *o = row_edit(r->o, t * Hv + u, buf[3]);
    const float *from = row_read(r->q, t * Hk + h, buf[0]), *k = row_read(r->k, t * Hk + h, buf[1]);
    for (int64_t i = 0; i < dk; i++) q[i] = r->scale * from[i];
    recur(s, o, q, k, row_read(r->v, t * Hv + u, buf[2]), ((float *)row_ptr(r->g, t))[u],
          ((float *)row_ptr(r->beta, t))[u], dk, dv);
    row_store(r->o, t * Hv + u, o);
}

/* Value head u of segment i. */
static void step_head(Backend *be, const StepRule *r, Segments seg, Tensor doc, Tensor kept, int64_t i,
                      int64_t u)
{
    const int32_t *at = seg.starts.data, *used = seg.kv_used.data;
    size_t  bytes = (size_t)(r->q.n[2] * r->v.n[2]) * sizeof(float);
    int64_t keep = at[i] + ((int32_t *)kept.data)[i], d = ((int32_t *)doc.data)[i];
    float  *s = cpu_own(be), *home = (float *)row_ptr(r->state, d * r->v.n[1] + u);
    if (used[i] == at[i + 1] - at[i]) memset(home, 0, bytes);
    memcpy(s, home, bytes);
    for (int64_t t = at[i]; t < at[i + 1]; t++) {
        step_row(r, s, t, u);
        if (t + 1 == keep) memcpy(home, s, bytes);
    }
}

void cpu_delta_rule_step(Backend *be, Tensor o, Tensor state, Tensor q, Tensor k, Tensor v, Tensor g,
                         Tensor beta, Segments seg, Tensor doc, Tensor kept, float scale)
{
    StepRule r = { o, state, q, k, v, g, beta, scale };
    int64_t  Hv = v.n[1];
    for (int64_t t = 0; t < q.n[0]; t++)
        for (int64_t u = 0; segment_of(seg, t) < 0 && u < Hv; u++) {
            float zero[WIDTH] = { 0 }, *to = row_edit(o, t * Hv + u, zero);
            memset(to, 0, (size_t)v.n[2] * sizeof *to);
            row_store(o, t * Hv + u, to);
        }
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(v) * 16))
    for (int64_t e = 0; e < seg.n * Hv; e++) step_head(be, &r, seg, doc, kept, e / Hv, e % Hv);
}
