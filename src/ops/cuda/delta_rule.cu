/* ops/cuda/delta_rule.cu -- plain kernels of delta_rule.c, for any widths and dtypes: a block walks the tiles
 * of a value head (backward: of a key head with its value heads), its matrices in the workspace. A thread
 * sums an element in the order of delta_tile.c. */
#include "ops/cuda/segment.cuh"

namespace {

enum { TILE = 64, THREADS = 256, SQUARE = TILE * TILE };

typedef struct Stat { float *p; int64_t stride; } Stat;

typedef struct Rule {
    RowView q, k, v, o, dq, dk, dv, dout, states;
    Stat    g, beta, dg, dbeta;
    float  *first, *last, *dfirst, *dlast, *ws;
    Borders at;
    int64_t T, per;                                       /* per: floats of a block's workspace */
    int     Hk, Hv, K, V;                                 /* K, V: widths of keys and values */
    float   scale;
} Rule;

/* Of a tile, in shared memory. */
typedef struct Tile {
    int   n, enters, through, segment[TILE];
    float g[TILE], beta[TILE], sum[TILE], in[TILE], out[TILE], pass, read[TILE], left[TILE], dsum[TILE];
} Tile;

/* Matrices of a block in the workspace; the names are those of delta_tile.h. */
typedef struct Mats {
    float *q, *k, *w, *y, *dq, *dk, *a, *b;               /* (TILE, K) */
    float *v, *u, *fresh, *dout, *dfresh;                 /* (TILE, V) */
    float *decay, *keys, *m, *p, *dp, *dm;                /* (TILE, TILE) */
    float *s, *ds;                                        /* (K, V); ds of each value head */
} Mats;

static __host__ __device__ int64_t block_floats(int K, int V, int group)
{
    return 8 * TILE * K + 5 * TILE * V + 6 * SQUARE + (int64_t)(2 + group) * K * V;
}

__device__ Mats mats_of(const Rule &r, float *at)
{
    Mats m;
    float **wide[] = { &m.q, &m.k, &m.w, &m.y, &m.dq, &m.dk, &m.a, &m.b };
    float **high[] = { &m.v, &m.u, &m.fresh, &m.dout, &m.dfresh };
    float **square[] = { &m.decay, &m.keys, &m.m, &m.p, &m.dp, &m.dm };
    for (int i = 0; i < 8; i++) *wide[i] = at, at += TILE * r.K;
    for (int i = 0; i < 5; i++) *high[i] = at, at += TILE * r.V;
    for (int i = 0; i < 6; i++) *square[i] = at, at += SQUARE;
    m.s = at, m.ds = at + 2 * r.K * r.V;
    return m;
}

#define EACH(e, n) for (int e = threadIdx.x; e < (n); e += THREADS)

__device__ inline float dot(const float *a, const float *b, int n)
{
    float s = 0.0f;
    for (int i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}

__device__ void read_rows(float *to, RowView x, int head, int64_t from, int n, int C, float scale)
{
    EACH(e, n * C) to[e] = scale * view_get(x, view_row(x, (from + e / C) * x.n1 + head) + e % C);
}

__device__ void write_rows(RowView x, int head, int64_t from, int n, int C, const float *src, float scale)
{
    EACH(e, n * C) view_put(x, view_row(x, (from + e / C) * x.n1 + head) + e % C, scale * src[e]);
}

__device__ inline bool meets(const Tile &t, int i, int j)
{
    return t.segment[i] >= 0 && t.segment[i] == t.segment[j];
}

__device__ void tile_rows(Tile &t, const Rule &r, int u, int64_t from)
{
    t.n = (int)min((int64_t)TILE, r.T - from);
    EACH(i, t.n) {
        t.segment[i] = segment_of(r.at, from + i);
        t.g[i] = r.g.p[(from + i) * r.g.stride + u], t.beta[i] = r.beta.p[(from + i) * r.beta.stride + u];
    }
    __syncthreads();
    if (!threadIdx.x) {
        int first = t.segment[0];
        t.enters  = first >= 0 && (from ? r.at.starts[first] < from : r.first != NULL);
        t.through = t.enters && first == t.segment[t.n - 1];
        for (int i = 0; i < t.n; i++) t.sum[i] = t.g[i] + (i && meets(t, i, i - 1) ? t.sum[i - 1] : 0.0f);
        t.pass = t.through ? expf(t.sum[t.n - 1]) : 0.0f;
    }
    __syncthreads();
    EACH(i, t.n) {
        bool live = t.enters && t.segment[i] == t.segment[0], last = meets(t, i, t.n - 1);
        t.in[i]  = live ? expf(t.sum[i]) : 0.0f;
        t.out[i] = last ? expf(t.sum[t.n - 1] - t.sum[i]) : 0.0f;
    }
    __syncthreads();
}

/* Solves (1 + M) x = x, or with its transpose, in place: a thread per column, row by row. */
__device__ void solve(float *x, const float *m, int n, int cols)
{
    EACH(c, cols) for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) x[i * cols + c] -= m[i * TILE + j] * x[j * cols + c];
}
__device__ void solve_transposed(float *x, const float *m, int n, int cols)
{
    EACH(c, cols) for (int i = n - 1; i >= 0; i--)
        for (int j = i + 1; j < n; j++) x[i * cols + c] -= m[j * TILE + i] * x[j * cols + c];
}

/* Inputs of tile i of value head u; D, k k' D, M, U, W. */
__device__ void tile_read(Tile &t, const Mats &m, const Rule &r, int u, int64_t i)
{
    int     h = u / (r.Hv / r.Hk);
    int64_t from = i * TILE;
    __syncthreads();
    tile_rows(t, r, u, from);
    read_rows(m.q, r.q, h, from, t.n, r.K, r.scale);
    read_rows(m.k, r.k, h, from, t.n, r.K, 1.0f);
    read_rows(m.v, r.v, u, from, t.n, r.V, 1.0f);
    __syncthreads();
    EACH(e, t.n * TILE) {
        int  a = e / TILE, b = e % TILE;
        bool on = b <= a && b < t.n && meets(t, a, b);
        m.decay[e] = on ? expf(t.sum[a] - t.sum[b]) : 0.0f;
        m.keys[e] = on && b < a ? dot(m.k + a * r.K, m.k + b * r.K, r.K) * m.decay[e] : 0.0f;
        m.m[e] = t.beta[a] * m.keys[e];
    }
    EACH(e, t.n * r.V) m.u[e] = t.segment[e / r.V] >= 0 ? t.beta[e / r.V] * m.v[e] : 0.0f;
    EACH(e, t.n * r.K) m.w[e] = t.beta[e / r.K] * t.in[e / r.K] * m.k[e];
    __syncthreads();
    solve(m.u, m.m, t.n, r.V);
    solve(m.w, m.m, t.n, r.K);
    __syncthreads();
}

/* N = U - W S, then the next state over s. */
__device__ void tile_fresh(const Tile &t, const Mats &m, const Rule &r)
{
    EACH(e, t.n * r.V) {
        int   i = e / r.V, c = e % r.V;
        float x = m.u[e];
        for (int j = 0; t.enters && j < r.K; j++) x -= m.w[i * r.K + j] * m.s[j * r.V + c];
        m.fresh[e] = x;
    }
    __syncthreads();
}
__device__ void tile_next(const Tile &t, const Mats &m, const Rule &r, float *s)
{
    EACH(e, r.K * r.V) {
        int   j = e / r.V, c = e % r.V;
        float x = t.pass != 0.0f ? t.pass * s[e] : 0.0f;
        for (int i = 0; i < t.n; i++) x += t.out[i] * m.k[i * r.K + j] * m.fresh[i * r.V + c];
        s[e] = x;
    }
    __syncthreads();
}

/* P, and the output into `o` (TILE, V). */
__device__ void tile_output(const Tile &t, const Mats &m, const Rule &r, float *o)
{
    EACH(e, t.n * TILE) {
        int a = e / TILE, b = e % TILE;
        m.p[e] = m.decay[e] != 0.0f ? dot(m.q + a * r.K, m.k + b * r.K, r.K) * m.decay[e] : 0.0f;
    }
    __syncthreads();
    EACH(e, t.n * r.V) {
        int   i = e / r.V, c = e % r.V;
        float x = 0.0f;
        for (int j = 0; t.in[i] != 0.0f && j < r.K; j++) x += t.in[i] * m.q[i * r.K + j] * m.s[j * r.V + c];
        for (int j = 0; j <= i; j++) x += m.p[i * TILE + j] * m.fresh[j * r.V + c];
        o[e] = x;
    }
    __syncthreads();
}

__device__ void state_copy(float *to, const float *from, int n)
{
    EACH(e, n) to[e] = from ? from[e] : 0.0f;
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS) rule_fwd(Rule r)
{
    __shared__ Tile t;
    int  u = blockIdx.x, n = r.K * r.V;
    Mats m = mats_of(r, r.ws + u * r.per);
    state_copy(m.s, r.first ? r.first + (int64_t)u * n : NULL, n);
    for (int64_t i = 0; i * TILE < r.T; i++) {
        tile_read(t, m, r, u, i);
        tile_fresh(t, m, r);
        tile_output(t, m, r, m.dout);
        write_rows(r.o, u, i * TILE, t.n, r.V, m.dout, 1.0f);
        tile_next(t, m, r, m.s);
    }
    if (r.last) state_copy(r.last + (int64_t)u * n, m.s, n);
}

/* ---- backward ---- */

/* dN, dP, the parts of dq and dk that go through P and the states. */
__device__ void score_grads(Tile &t, const Mats &m, const Rule &r, const float *ds)
{
    EACH(e, t.n * r.V) {
        int   i = e / r.V, c = e % r.V;
        float x = 0.0f;
        for (int j = i; j < t.n; j++) x += m.p[j * TILE + i] * m.dout[j * r.V + c];
        for (int j = 0; t.out[i] != 0.0f && j < r.K; j++) x += t.out[i] * m.k[i * r.K + j] * ds[j * r.V + c];
        m.dfresh[e] = x;
    }
    EACH(e, t.n * TILE) {
        int a = e / TILE, b = e % TILE;
        m.dp[e] = m.decay[e] != 0.0f ? dot(m.dout + a * r.V, m.fresh + b * r.V, r.V) : 0.0f;
    }
    EACH(e, t.n * r.K) {
        int i = e / r.K, j = e % r.K;
        m.a[e] = t.in[i] != 0.0f ? t.in[i] * dot(m.dout + i * r.V, m.s + j * r.V, r.V) : 0.0f;
        m.b[e] = t.out[i] != 0.0f ? t.out[i] * dot(m.fresh + i * r.V, ds + j * r.V, r.V) : 0.0f;
    }
    __syncthreads();
    EACH(i, t.n) {
        t.read[i] = dot(m.q + i * r.K, m.a + i * r.K, r.K);
        t.left[i] = dot(m.k + i * r.K, m.b + i * r.K, r.K);
    }
    EACH(e, t.n * r.K) {
        int   i = e / r.K, c = e % r.K;
        float q = m.a[e], k = m.b[e];
        for (int j = 0; j <= i; j++) q += m.dp[i * TILE + j] * m.decay[i * TILE + j] * m.k[j * r.K + c];
        for (int j = i; j < t.n; j++) k += m.dp[j * TILE + i] * m.decay[j * TILE + i] * m.q[j * r.K + c];
        m.dq[e] += q, m.dk[e] += k;
        m.y[e] = t.enters ? -dot(m.dfresh + i * r.V, m.s + c * r.V, r.V) : 0.0f;
    }
    __syncthreads();
}

/* <S, dS>, and then dS of the state that enters. */
__device__ float state_grad(const Tile &t, const Mats &m, const Rule &r, float *ds, float *part)
{
    float sum = 0.0f;
    EACH(e, r.K * r.V) sum += m.s[e] * ds[e];
    sum = block_sum(sum, part);
    __syncthreads();
    EACH(e, r.K * r.V) {
        int   j = e / r.V, c = e % r.V;
        float x = t.pass != 0.0f ? t.pass * ds[e] : 0.0f;
        for (int i = 0; t.enters && i < t.n; i++) {
            if (t.segment[i] != t.segment[0]) continue;
            x += t.in[i] * m.q[i * r.K + j] * m.dout[i * r.V + c];
            x -= m.w[i * r.K + j] * m.dfresh[i * r.V + c];
        }
        ds[e] = x;
    }
    __syncthreads();
    return sum;
}

/* dM, dk through M and W, dv (over dout). */
__device__ void triangle_grads(const Tile &t, const Mats &m, const Rule &r)
{
    solve_transposed(m.dfresh, m.m, t.n, r.V);
    solve_transposed(m.y, m.m, t.n, r.K);
    __syncthreads();
    EACH(e, t.n * TILE) {
        int  a = e / TILE, b = e % TILE;
        bool on = b < a && m.decay[e] != 0.0f;
        m.dm[e] = on ? -dot(m.dfresh + a * r.V, m.u + b * r.V, r.V) - dot(m.y + a * r.K, m.w + b * r.K, r.K)
                     : 0.0f;
    }
    __syncthreads();
    EACH(e, t.n * r.K) {
        int   i = e / r.K, c = e % r.K;
        float x = t.beta[i] * t.in[i] * m.y[e];
        for (int j = 0; j < i; j++)
            x += t.beta[i] * m.dm[i * TILE + j] * m.decay[i * TILE + j] * m.k[j * r.K + c];
        for (int j = i + 1; j < t.n; j++)
            x += t.beta[j] * m.dm[j * TILE + i] * m.decay[j * TILE + i] * m.k[j * r.K + c];
        m.dk[e] += x;
    }
    EACH(e, t.n * r.V) m.dout[e] = t.segment[e / r.V] >= 0 ? t.beta[e / r.V] * m.dfresh[e] : 0.0f;
    __syncthreads();
}

__device__ void gate_grads(Tile &t, const Mats &m, const Rule &r, int u, int64_t from, float states)
{
    EACH(i, t.n) {
        float ky = t.in[i] * dot(m.y + i * r.K, m.k + i * r.K, r.K), step = 0.0f;
        float sum = t.read[i] - t.left[i] + t.beta[i] * ky;
        for (int j = 0; j < t.n; j++) {
            int a = i * TILE + j, b = j * TILE + i;
            step += m.dm[a] * m.keys[a];
            sum += m.dp[a] * m.p[a] - m.dp[b] * m.p[b] + m.dm[a] * m.m[a] - m.dm[b] * m.m[b];
        }
        step += dot(m.dfresh + i * r.V, m.v + i * r.V, r.V) + ky;
        t.dsum[i] = sum;
        r.dbeta.p[(from + i) * r.dbeta.stride + u] = t.segment[i] >= 0 ? step : 0.0f;
    }
    __syncthreads();
    if (threadIdx.x) return;
    float next = 0.0f;
    if (t.pass != 0.0f) t.dsum[t.n - 1] += t.pass * states;
    for (int i = 0; i < t.n; i++) t.dsum[t.n - 1] += t.left[i];
    for (int i = t.n - 1; i >= 0; i--) {
        bool more = i + 1 < t.n && meets(t, i, i + 1);
        next = t.segment[i] >= 0 ? t.dsum[i] + (more ? next : 0.0f) : 0.0f;
        r.dg.p[(from + i) * r.dg.stride + u] = next;
    }
}

__device__ void keep_states(Tile &t, const Mats &m, const Rule &r, int u)
{
    int n = r.K * r.V;
    state_copy(m.s, r.first ? r.first + (int64_t)u * n : NULL, n);
    for (int64_t i = 0; i * TILE < r.T; i++) {
        EACH(e, n) view_put(r.states, i * r.states.s0 + (int64_t)u * n + e, m.s[e]);
        tile_read(t, m, r, u, i);
        tile_fresh(t, m, r);
        tile_next(t, m, r, m.s);
    }
}

__device__ void tile_bwd(Tile &t, const Mats &m, const Rule &r, int u, int64_t i, float *ds, float *part)
{
    int n = r.K * r.V;
    tile_read(t, m, r, u, i);
    EACH(e, n) m.s[e] = view_get(r.states, i * r.states.s0 + (int64_t)u * n + e);
    __syncthreads();
    tile_fresh(t, m, r);
    tile_output(t, m, r, m.dout);
    read_rows(m.dout, r.dout, u, i * TILE, t.n, r.V, 1.0f);
    __syncthreads();
    score_grads(t, m, r, ds);
    float states = state_grad(t, m, r, ds, part);
    triangle_grads(t, m, r);
    write_rows(r.dv, u, i * TILE, t.n, r.V, m.dout, 1.0f);
    gate_grads(t, m, r, u, i * TILE, states);
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS) rule_bwd(Rule r)
{
    __shared__ Tile  t;
    __shared__ float part[32];
    int  h = blockIdx.x, n = r.K * r.V, group = r.Hv / r.Hk;
    Mats m = mats_of(r, r.ws + h * r.per);
    for (int u = h * group; u < (h + 1) * group; u++) keep_states(t, m, r, u);
    state_copy(m.ds, r.dlast ? r.dlast + (int64_t)h * group * n : NULL, group * n);
    for (int64_t i = (r.T + TILE - 1) / TILE - 1; i >= 0; i--) {
        EACH(e, TILE * r.K) m.dq[e] = m.dk[e] = 0.0f;
        for (int u = 0; u < group; u++) tile_bwd(t, m, r, h * group + u, i, m.ds + u * n, part);
        write_rows(r.dq, h, i * TILE, t.n, r.K, m.dq, r.scale);
        write_rows(r.dk, h, i * TILE, t.n, r.K, m.dk, 1.0f);
        __syncthreads();
    }
    if (r.dfirst) state_copy(r.dfirst + (int64_t)h * group * n, m.ds, group * n);
}

static Stat stat_of(Tensor t)
{
    Stat s = { (float *)t.data, t.s[0] };
    return s;
}

static Rule args_of(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor first, Segments seg,
                    float scale)
{
    Rule r = {};
    r.q = view_of(q), r.k = view_of(k), r.v = view_of(v), r.g = stat_of(g), r.beta = stat_of(beta);
    r.first = (float *)first.data, r.at = borders_of(seg), r.T = q.n[0], r.scale = scale;
    r.Hk = (int)q.n[1], r.Hv = (int)v.n[1], r.K = (int)q.n[2], r.V = (int)v.n[2];
    r.per = block_floats(r.K, r.V, r.Hv / r.Hk);
    return r;
}

}

extern "C" void cuda_delta_rule_fwd(Backend *be, Tensor o, Tensor last, Tensor q, Tensor k, Tensor v,
                                    Tensor g, Tensor beta, Tensor first, Segments seg, float scale)
{
    Rule r = args_of(q, k, v, g, beta, first, seg, scale);
    r.o = view_of(o), r.last = (float *)last.data;
    r.ws = (float *)cuda_workspace(be, (size_t)(r.Hv * r.per) * sizeof(float));
    if (be->sticky) return;
    LAUNCH(be, "delta_rule_fwd", rule_fwd, r.Hv, THREADS, 0, r);
}

extern "C" void cuda_delta_rule_bwd(Backend *be, Tensor dq, Tensor dk, Tensor dv, Tensor dg, Tensor dbeta,
                                    Tensor dfirst, Tensor states, Tensor dout, Tensor dlast, Tensor q,
                                    Tensor k, Tensor v, Tensor g, Tensor beta, Tensor first, Segments seg,
                                    float scale)
{
    Rule r = args_of(q, k, v, g, beta, first, seg, scale);
    r.dq = view_of(dq), r.dk = view_of(dk), r.dv = view_of(dv), r.dg = stat_of(dg), r.dbeta = stat_of(dbeta);
    r.states = view_of(states), r.dout = view_of(dout);
    r.dfirst = (float *)dfirst.data, r.dlast = (float *)dlast.data;
    r.ws = (float *)cuda_workspace(be, (size_t)(r.Hk * r.per) * sizeof(float));
    if (be->sticky) return;
    LAUNCH(be, "delta_rule_bwd", rule_bwd, r.Hk, THREADS, 0, r);
}
