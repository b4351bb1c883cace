/* ops/cuda/delta_rule_step.cu -- kernels of delta_rule_step.c: a block per document and value head, whose
 * threads have a column of the state each. */
#include "ops/cuda/segment.cuh"

namespace {

enum { WIDTH = 256, CLEAR = 128 };

typedef struct StepRule {
    RowView o, q, k, v;
    float  *state, *g, *beta;
    int64_t g_row, beta_row, doc_row, head_row, T;
    Borders at;
    const int32_t *used, *doc, *kept;
    int     Hk, Hv, dk, dv;
    float   scale;
} StepRule;

/* One row of a column s: see recur() of delta_rule_step.c. */
__device__ inline float recur(float *s, const float *q, const float *k, float v, float fade, float beta,
                              int dk)
{
    float read = 0.0f, o = 0.0f;
    for (int i = 0; i < dk; i++) s[i] *= fade, read += k[i] * s[i];
    float delta = beta * (v - read);
    for (int i = 0; i < dk; i++) s[i] += k[i] * delta, o += q[i] * s[i];
    return o;
}

static __global__ void __launch_bounds__(WIDTH) step_heads(StepRule r)
{
    __shared__ float q[WIDTH], k[WIDTH];
    int     i = blockIdx.x / r.Hv, u = blockIdx.x % r.Hv, h = u / (r.Hv / r.Hk), c = threadIdx.x;
    int64_t from = r.at.starts[i], to = r.at.starts[i + 1], keep = from + r.kept[i];
    float  *home = r.state + r.doc[i] * r.doc_row + u * r.head_row + c, s[WIDTH];
    bool    fresh = r.used[i] == to - from, mine = c < r.dv;
    for (int j = 0; mine && j < r.dk; j++) s[j] = fresh ? 0.0f : home[j * r.dv];
    for (int64_t t = from; t < to; t++) {
        __syncthreads();
        if (c < r.dk) {
            q[c] = r.scale * view_get(r.q, view_row(r.q, t * r.Hk + h) + c);
            k[c] = view_get(r.k, view_row(r.k, t * r.Hk + h) + c);
        }
        __syncthreads();
        if (!mine) continue;
        float v = view_get(r.v, view_row(r.v, t * r.Hv + u) + c);
        float o = recur(s, q, k, v, expf(r.g[t * r.g_row + u]), r.beta[t * r.beta_row + u], r.dk);
        view_put(r.o, view_row(r.o, t * r.Hv + u) + c, o);
        for (int j = 0; t + 1 == keep && j < r.dk; j++) home[j * r.dv] = s[j];
    }
}

static __global__ void __launch_bounds__(CLEAR) clear_outside(StepRule r)
{
    int64_t t = blockIdx.x;
    if (segment_of(r.at, t) >= 0) return;
    for (int e = threadIdx.x; e < r.Hv * r.dv; e += CLEAR)
        view_put(r.o, view_row(r.o, t * r.Hv + e / r.dv) + e % r.dv, 0.0f);
}

}

extern "C" void cuda_delta_rule_step(Backend *be, Tensor o, Tensor state, Tensor q, Tensor k, Tensor v,
                                     Tensor g, Tensor beta, Segments seg, Tensor doc, Tensor kept,
                                     float scale)
{
    StepRule r = { view_of(o), view_of(q), view_of(k), view_of(v), (float *)state.data, (float *)g.data,
                   (float *)beta.data, g.s[0], beta.s[0], state.s[0], state.s[1], q.n[0], borders_of(seg),
                   (const int32_t *)seg.kv_used.data, (const int32_t *)doc.data, (const int32_t *)kept.data,
                   (int)q.n[1], (int)v.n[1], (int)q.n[2], (int)v.n[2], scale };
    LAUNCH(be, "delta_rule_step", clear_outside, r.T, CLEAR, 0, r);
    LAUNCH(be, "delta_rule_step", step_heads, seg.n * r.Hv, WIDTH, 0, r);
}
