/* ops/cuda/delta_rule.cu -- CUDA kernels of delta_rule.c: the choice of an implementation, and what is known
 * of rows and tiles before it runs. bf16 heads of 128 run on tensor cores (delta_rule_fwd.cu,
 * delta_rule_bwd.cu), all others in plain f32 (delta_rule_plain.cu). */
#include "ops/cuda/delta_rule.cuh"
#include "ops/cuda/segment.cuh"

namespace {

struct RowsCall {
    TileRows    *rows;
    int         *passes;                                   /* of each tile: whether a state passes it */
    const float *g, *beta;
    int64_t      g_row, beta_row;
    Borders      at;
    int          T, Hv;
};

enum { HEADS = 32 };

/* Sums of g of HEADS heads from `u` on, a thread each. */
__device__ inline void sum_gates(float (&sum)[TILE][HEADS + 1], const int *own, const RowsCall &a, int from,
                                 int u, int rows)
{
    float all = 0.0f;
    int   i = threadIdx.x;
#pragma unroll 8
    for (int r = 0; i < HEADS && r < TILE; r++) {
        bool  in = r < rows && own[r] >= 0 && u + i < a.Hv;
        float g = in ? a.g[(from + r) * a.g_row + u + i] : 0.0f;
        all = r && own[r] == own[r - 1] ? all + g : g;
        sum[r][i] = all;
    }
    __syncthreads();
}

/* A block per tile. */
static __global__ void __launch_bounds__(TILE) rows_kernel(RowsCall a)
{
    __shared__ int   own[TILE];
    __shared__ float sum[TILE][HEADS + 1];
    int tile = blockIdx.x, from = tile * TILE, i = threadIdx.x, rows = min(TILE, a.T - from);
    int segment = i < rows ? segment_of(a.at, from + i) : -1;
    own[i] = segment < 0 ? -1 : a.at.starts[segment];
    __syncthreads();
    int final = own[rows - 1] < 0 ? -1 : rows - 1, end = final < 0 ? -3 : own[final];
    int first = own[0] >= 0 && (own[0] < from || !from) ? own[0] : -2;
    if (!i) a.passes[tile] = end == first;
    for (int u = 0; u < a.Hv; u += HEADS) {
        sum_gates(sum, own, a, from, u, rows);
        for (int h = 0; h < HEADS && u + h < a.Hv; h++) {
            TileRows &r = a.rows[(int64_t)tile * a.Hv + u + h];
            float     s = sum[i][h], all = final < 0 ? 0.0f : sum[final][h];
            r.begin[i] = own[i], r.sum[i] = s;
            r.beta[i] = own[i] < 0 ? 0.0f : a.beta[(from + i) * a.beta_row + u + h];
            r.in[i]   = own[i] >= 0 && own[i] == first ? expf(s) : 0.0f;
            r.out[i]  = own[i] >= 0 && own[i] == end ? expf(all - s) : 0.0f;
            if (!i) r.final = final, r.through = end == first ? expf(all) : 0.0f;
        }
        __syncthreads();
    }
}

/* A warp per part of the tiles: the first that no state passes, or -1; part 0 begins with tile 0. */
static __global__ void __launch_bounds__(32 * PARTS)
    breaks_kernel(int *breaks, int *inside, const int *passes, int tiles, Borders at)
{
    int part = threadIdx.x / 32, lane = threadIdx.x % 32, found = part ? -1 : 0;
    int from = (int)((int64_t)tiles * part / PARTS), to = (int)((int64_t)tiles * (part + 1) / PARTS);
    for (int i = from; i < to && found < 0; i += 32) {
        unsigned any = __ballot_sync(~0u, i + lane < to && !passes[i + lane]);
        if (any) found = i + __ffs((int)any) - 1;
    }
    if (!lane) breaks[part] = found;
    if (!threadIdx.x) inside[0] = at.n ? at.starts[0] : 0, inside[1] = at.n ? at.starts[at.n] : 0;
}

static DeltaView view(Tensor t) { return DeltaView{ (char *)t.data, t.s[0], t.s[1] }; }

static DeltaCall call_of(Tensor q, Tensor k, Tensor v, Tensor first, float scale)
{
    DeltaCall a = {};
    a.q = view(q), a.k = view(k), a.v = view(v);
    a.first = (const float *)first.data;
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
static bool call_open(Backend *be, DeltaCall *a, Tensor g, Tensor beta, Segments seg, size_t more,
                      void **memory)
{
    size_t rows = round_up((size_t)a->tiles * a->Hv * sizeof(TileRows));
    size_t tiles = round_up((size_t)(a->tiles + PARTS + 2) * sizeof(int));
    char  *p = (char *)cuda_workspace(be, rows + tiles + more);
    if (!p && !be->preparing) return false;
    int      *passes = (int *)(p + rows), *breaks = passes + a->tiles, *inside = breaks + PARTS;
    RowsCall  r = { (TileRows *)p, passes, (const float *)g.data, (const float *)beta.data,
                    g.s[0], beta.s[0], borders_of(seg), a->T, a->Hv };
    a->rows = r.rows, a->breaks = breaks, a->inside = inside, *memory = p + rows + tiles;
    LAUNCH(be, "delta_rule", rows_kernel, a->tiles, TILE, 0, r);
    LAUNCH(be, "delta_rule", breaks_kernel, 1, 32 * PARTS, 0, breaks, inside, passes, a->tiles, r.at);
    return true;
}

}

extern "C" void cuda_delta_rule_fwd(Backend *be, Tensor o, Tensor last, Tensor q, Tensor k, Tensor v,
                                    Tensor g, Tensor beta, Tensor first, Segments seg, float scale)
{
    const Tensor all[] = { q, k, v, o };
    DeltaCall    a = call_of(q, k, v, first, scale);
    bool         fast = is_fast(all, 4);
    void        *memory;
    a.o = view(o), a.last = (float *)last.data;
    if (!a.T || !call_open(be, &a, g, beta, seg,
                           fast ? delta_fast_bytes(&a, false) : delta_plain_bytes(&a, false), &memory))
        return;
    if (fast) delta_fast_fwd(be, &a, memory);
    else      delta_plain_fwd(be, &a, memory);
}

extern "C" void cuda_delta_rule_bwd(Backend *be, Tensor dq, Tensor dk, Tensor dv, Tensor dg, Tensor dbeta,
                                    Tensor dfirst, Tensor states, Tensor dout, Tensor dlast, Tensor q,
                                    Tensor k, Tensor v, Tensor g, Tensor beta, Tensor first, Segments seg,
                                    float scale)
{
    const Tensor all[] = { q, k, v, dout, dq, dk, dv };
    DeltaCall    a = call_of(q, k, v, first, scale);
    bool         fast = is_fast(all, 7) && delta_fast_bwd_fits(be);
    void        *memory;
    a.dq = view(dq), a.dk = view(dk), a.dv = view(dv), a.dout = view(dout);
    a.dg = (float *)dg.data, a.dg_row = dg.s[0], a.dbeta = (float *)dbeta.data, a.dbeta_row = dbeta.s[0];
    a.dlast = (const float *)dlast.data, a.dfirst = (float *)dfirst.data;
    if (!a.T || !call_open(be, &a, g, beta, seg,
                           fast ? delta_fast_bytes(&a, true) : delta_plain_bytes(&a, true), &memory))
        return;
    if (fast) delta_fast_bwd(be, &a, states.data, memory);
    else      delta_plain_bwd(be, &a, states.data, memory);
}
