/* ops/cuda/delta_rule.cu -- CUDA kernels of delta_rule.c: the choice of an implementation, and what is known
 * of rows and tiles before it runs. bf16 heads of 128 run on tensor cores (delta_rule_fwd.cu,
 * delta_rule_bwd.cu), all others in plain f32 (delta_rule_plain.cu). */
#include "ops/cuda/delta_rule.cuh"

namespace {

/* The first row of the segment of row t; -1: none. */
__device__ inline int segment_begin(const int *starts, int n, int t)
{
    int lo = 0, hi = n;                                    /* the last segment that begins at or before t */
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (starts[mid] <= t) lo = mid;
        else                  hi = mid;
    }
    return n && t >= starts[lo] && t < starts[lo + 1] ? starts[lo] : -1;
}

/* A block per tile: rows' segments, then sums of g, a thread per value head. */
static __global__ void __launch_bounds__(64) rows_kernel(int *begin, int *final, float *sum, const float *g,
                                                         const int *starts, int n, int T, int Hv)
{
    __shared__ int own[TILE];
    int from = blockIdx.x * TILE, i = threadIdx.x, rows = min(TILE, T - from);
    own[i] = i < rows ? segment_begin(starts, n, from + i) : -1;
    if (i < rows) begin[from + i] = own[i];
    __syncthreads();
    if (!i) {
        int last = rows - 1;
        while (last >= 0 && own[last] < 0) last--;
        final[blockIdx.x] = last;
    }
    for (int u = i; u < Hv; u += 64) {
        float all = 0.0f;
        for (int r = 0; r < rows; r++) {
            int64_t at = (int64_t)(from + r) * Hv + u;
            if (!r || own[r] != own[r - 1]) all = 0.0f;
            if (own[r] >= 0) sum[at] = all += g[at];
        }
    }
}

static DeltaView view(Tensor t) { return DeltaView{ (char *)t.data, t.s[0], t.s[1] }; }

static DeltaCall call_of(Tensor q, Tensor k, Tensor v, Tensor beta, Tensor first, float scale)
{
    DeltaCall a = {};
    a.q = view(q), a.k = view(k), a.v = view(v);
    a.beta = (const float *)beta.data, a.first = (const float *)first.data;
    a.T = (int)q.n[0], a.tiles = (int)ceil_div(q.n[0], TILE), a.Hk = (int)q.n[1], a.Hv = (int)v.n[1];
    a.group = a.Hv / a.Hk, a.C = (int)q.n[2], a.Cv = (int)v.n[2];
    a.scale = scale, a.half = q.dtype == BF16;
    return a;
}

static bool is_fast(const Tensor *t, int n)
{
    for (int i = 0; i < n; i++)
        if (t[i].dtype != BF16 || !packs(t[i]) || t[i].n[2] != 128) return false;
    return true;
}

static size_t round_up(size_t n) { return (n + 255) / 256 * 256; }

/* Memory of the call: what is known of rows, then that of its kernels. False: there is none. */
static bool call_open(Backend *be, DeltaCall *a, Tensor g, Segments seg, size_t more, void **memory)
{
    size_t rows = round_up((size_t)a->T * 4), tiles = round_up((size_t)a->tiles * 4);
    size_t sums = round_up((size_t)a->T * a->Hv * 4);
    char  *p = (char *)cuda_workspace(be, rows + tiles + sums + more);
    if (!p && !be->preparing) return false;
    a->begin = (const int *)p, a->final = (const int *)(p + rows), a->sum = (const float *)(p + rows + tiles);
    *memory = p + rows + tiles + sums;
    LAUNCH(be, "delta_rule", rows_kernel, a->tiles, 64, 0, (int *)a->begin, (int *)a->final, (float *)a->sum,
           (const float *)g.data, (const int *)seg.starts.data, (int)seg.n, a->T, a->Hv);
    return true;
}

}

extern "C" void cuda_delta_rule_fwd(Backend *be, Tensor o, Tensor last, Tensor q, Tensor k, Tensor v, Tensor g,
                                    Tensor beta, Tensor first, Segments seg, float scale)
{
    const Tensor all[] = { q, k, v, o };
    DeltaCall    a = call_of(q, k, v, beta, first, scale);
    bool         fast = is_fast(all, 4);
    void        *memory;
    a.o = view(o), a.last = (float *)last.data;
    if (!a.T || !call_open(be, &a, g, seg, fast ? delta_fast_bytes(&a, false) : delta_plain_bytes(&a, false),
                           &memory))
        return;
    if (fast) delta_fast_fwd(be, &a, memory);
    else      delta_plain_fwd(be, &a, memory);
}

extern "C" void cuda_delta_rule_bwd(Backend *be, Tensor dq, Tensor dk, Tensor dv, Tensor dg, Tensor dbeta,
                                    Tensor dfirst, Tensor states, Tensor dout, Tensor dlast, Tensor q, Tensor k,
                                    Tensor v, Tensor g, Tensor beta, Tensor first, Segments seg, float scale)
{
    const Tensor all[] = { q, k, v, dout, dq, dk, dv };
    DeltaCall    a = call_of(q, k, v, beta, first, scale);
    bool         fast = is_fast(all, 7);
    void        *memory;
    a.dq = view(dq), a.dk = view(dk), a.dv = view(dv), a.dout = view(dout);
    a.dg = (float *)dg.data, a.dbeta = (float *)dbeta.data;
    a.dlast = (const float *)dlast.data, a.dfirst = (float *)dfirst.data;
    if (!a.T || !call_open(be, &a, g, seg, fast ? delta_fast_bytes(&a, true) : delta_plain_bytes(&a, true),
                           &memory))
        return;
    if (fast) delta_fast_bwd(be, &a, states.data, memory);
    else      delta_plain_bwd(be, &a, states.data, memory);
}
