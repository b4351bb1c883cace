/* ops/cuda/delta_rule_plain.cu -- kernels of delta_rule.c for any widths and dtypes, in f32 throughout: a
 * block takes a key head with its value heads and walks the tiles, as the CPU does; its matrices lie in the
 * workspace. Slow, and the same arithmetic as the CPU's but for the order of sums. */
#include "ops/cuda/delta_rule.cuh"

namespace {

enum { THREADS = 256 };

/* Matrices of a block: rows of keys' width, rows of values' width, squares, states of all value heads. */
struct Plain {
    float *k, *q, *v, *u, *w, *n, *x, *y, *t, *m, *p, *s, *kk;
    float *dout, *dn, *dw, *b, *dq, *dk, *ds, *sum, *beta, *z;
};

static __host__ __device__ size_t plain_floats(const DeltaCall &a, bool backward)
{
    size_t key = (size_t)TILE * a.C, value = (size_t)TILE * a.Cv, square = TILE * TILE;
    size_t state = (size_t)a.group * a.C * a.Cv;
    size_t n = 4 * key + 4 * value + 4 * square + state;
    return backward ? n + 4 * key + 2 * value + square + state + 2 * TILE : n;
}

__device__ inline float *take(float *&at, size_t n)
{
    float *p = at;
    at += n;
    return p;
}

__device__ inline Plain plain_open(const DeltaCall &a, float *at, bool backward)
{
    size_t key = (size_t)TILE * a.C, value = (size_t)TILE * a.Cv, square = TILE * TILE;
    Plain  m = {};
    m.k = take(at, key), m.q = take(at, key), m.w = take(at, key), m.y = take(at, key);
    m.v = take(at, value), m.u = take(at, value), m.n = take(at, value), m.x = take(at, value);
    m.t = take(at, square), m.m = take(at, square), m.p = take(at, square), m.kk = take(at, square);
    m.s = take(at, (size_t)a.group * a.C * a.Cv);
    if (!backward) return m;
    m.dw = take(at, key), m.dq = take(at, key), m.dk = take(at, key), m.z = take(at, key);
    m.dout = take(at, value), m.dn = take(at, value), m.b = take(at, square);
    m.ds = take(at, (size_t)a.group * a.C * a.Cv), m.sum = take(at, TILE), m.beta = take(at, TILE);
    return m;
}

/* A matrix: element (i, j) at i row + j col. */
struct View { const float *p; int row, col; };

__device__ inline View rows_of(const float *p, int ld)   { return View{ p, ld, 1 }; }
__device__ inline View turned_of(const float *p, int ld) { return View{ p, 1, ld }; }

/* f(i, j, sum over k < K of a(i, k) b(k, j)) for all i < M, j < N; ends with a barrier. */
template <class F> __device__ inline void product(View a, View b, int M, int N, int K, F f)
{
    for (int e = threadIdx.x; e < M * N; e += THREADS) {
        int   i = e / N, j = e % N;
        float sum = 0.0f;
        for (int k = 0; k < K; k++) sum = fmaf(a.p[i * a.row + k * a.col], b.p[k * b.row + j * b.col], sum);
        f(i, j, sum);
    }
    __syncthreads();
}

__device__ inline float number(const DeltaCall &a, const DeltaView &x, int64_t at)
{
    return a.half ? to_f32(((const bf16 *)x.p)[at]) : ((const float *)x.p)[at];
}
__device__ inline void number_put(const DeltaCall &a, char *p, int64_t at, float x)
{
    if (a.half) ((bf16 *)p)[at] = from_f32<bf16>(x);
    else        ((float *)p)[at] = x;
}

__device__ inline void tile_rows(TileRows &r, const DeltaCall &a, int tile, int u)
{
    const int *from = (const int *)(a.rows + (int64_t)tile * a.Hv + u);
    for (int i = threadIdx.x; i < (int)(sizeof r / 4); i += THREADS) ((int *)&r)[i] = from[i];
    __syncthreads();
}

__device__ inline void rows_read(float *to, const DeltaCall &a, const DeltaView &x, int tile, int head, int C,
                                 float scale)
{
    Inside in = inside_of(a);
    for (int e = threadIdx.x; e < TILE * C; e += THREADS) {
        int t = tile * TILE + e / C;
        to[e] = is_inside(in, t) ? scale * number(a, x, t * x.row + head * x.head + e % C) : 0.0f;
    }
}

__device__ inline void rows_write(const DeltaCall &a, const DeltaView &x, const float *from, int tile,
                                  int head, int C)
{
    for (int e = threadIdx.x; e < TILE * C; e += THREADS) {
        int t = tile * TILE + e / C;
        if (t < a.T) number_put(a, x.p, t * x.row + head * x.head + e % C, from[e]);
    }
}

/* m.t = (1 + m.m)^-1, a thread per column. */
__device__ inline void invert(const Plain &m)
{
    int j = threadIdx.x;
    for (int i = 0; i < TILE && j < TILE; i++) {
        float x = i == j ? 1.0f : 0.0f;
        for (int k = j; k < i; k++) x = fmaf(-m.m[i * TILE + k], m.t[k * TILE + j], x);
        m.t[i * TILE + j] = x;
    }
    __syncthreads();
}

/* k, q, v of a tile, M and its inverse, U, W, P. */
__device__ inline void tile_open(const Plain &m, const DeltaCall &a, const TileRows &r, int tile, int u)
{
    int C = a.C, Cv = a.Cv;
    rows_read(m.k, a, a.k, tile, u / a.group, C, 1.0f);
    rows_read(m.q, a, a.q, tile, u / a.group, C, a.scale);
    rows_read(m.v, a, a.v, tile, u, Cv, 1.0f);
    __syncthreads();
    product(rows_of(m.k, C), turned_of(m.k, C), TILE, TILE, C, [&](int i, int j, float x) {
        m.kk[i * TILE + j] = x;
        m.m[i * TILE + j] = j < i ? r.beta[i] * x * tile_decay(r, i, j) : 0.0f;
    });
    invert(m);
    for (int e = threadIdx.x; e < TILE * C; e += THREADS) m.y[e] = r.beta[e / C] * r.in[e / C] * m.k[e];
    for (int e = threadIdx.x; e < TILE * Cv; e += THREADS) m.x[e] = r.beta[e / Cv] * m.v[e];
    __syncthreads();
    product(rows_of(m.t, TILE), rows_of(m.x, Cv), TILE, Cv, TILE,
            [&](int i, int j, float x) { m.u[i * Cv + j] = x; });
    product(rows_of(m.t, TILE), rows_of(m.y, C), TILE, C, TILE,
            [&](int i, int j, float x) { m.w[i * C + j] = x; });
    product(rows_of(m.q, C), turned_of(m.k, C), TILE, TILE, C,
            [&](int i, int j, float x) { m.p[i * TILE + j] = x * tile_decay(r, i, j); });
}

/* N = U - W S; o where it is wanted. */
__device__ inline void tile_values(const Plain &m, const DeltaCall &a, const TileRows &r, const float *s,
                                   int tile, int u, bool out)
{
    int C = a.C, Cv = a.Cv;
    product(rows_of(m.w, C), rows_of(s, Cv), TILE, Cv, C,
            [&](int i, int j, float x) { m.n[i * Cv + j] = m.u[i * Cv + j] - x; });
    if (!out) return;
    product(rows_of(m.q, C), rows_of(s, Cv), TILE, Cv, C,
            [&](int i, int j, float x) { m.x[i * Cv + j] = r.in[i] * x; });
    product(rows_of(m.p, TILE), rows_of(m.n, Cv), TILE, Cv, TILE,
            [&](int i, int j, float x) { m.x[i * Cv + j] += x; });
    rows_write(a, a.o, m.x, tile, u, Cv);
}

/* The state that leaves, in place. */
__device__ inline void tile_leave(const Plain &m, const DeltaCall &a, const TileRows &r, float *s)
{
    int C = a.C, Cv = a.Cv;
    for (int e = threadIdx.x; e < TILE * Cv; e += THREADS) m.x[e] = r.out[e / Cv] * m.n[e];
    __syncthreads();
    product(turned_of(m.k, C), rows_of(m.x, Cv), C, Cv, TILE,
            [&](int i, int j, float x) { s[i * Cv + j] = r.through * s[i * Cv + j] + x; });
}

__device__ inline void states_fill(const DeltaCall &a, float *s, const float *from, int head)
{
    int n = a.group * a.C * a.Cv;
    for (int e = threadIdx.x; e < n; e += THREADS) s[e] = from ? from[(int64_t)head * n + e] : 0.0f;
    __syncthreads();
}

__device__ inline void states_give(const DeltaCall &a, float *to, const float *s, int head)
{
    int n = a.group * a.C * a.Cv;
    for (int e = threadIdx.x; to && e < n; e += THREADS) to[(int64_t)head * n + e] = s[e];
}

/* Forward over all tiles: writes o, or where `states` is given the state that enters each tile. */
__device__ inline void walk(const Plain &m, const DeltaCall &a, TileRows &r, char *states, int head)
{
    int n = a.C * a.Cv;
    states_fill(a, m.s, a.first, head);
    for (int tile = 0; tile < a.tiles; tile++)
        for (int v = 0; v < a.group; v++) {
            int    u = head * a.group + v;
            float *s = m.s + (size_t)v * n;
            tile_rows(r, a, tile, u);
            for (int e = threadIdx.x; states && e < n; e += THREADS)
                number_put(a, states, ((int64_t)tile * a.Hv + u) * n + e, s[e]);
            tile_open(m, a, r, tile, u);
            tile_values(m, a, r, s, tile, u, !states);
            tile_leave(m, a, r, s);
        }
}

static __global__ void __launch_bounds__(THREADS) plain_forward(DeltaCall a, float *memory)
{
    __shared__ TileRows r;
    int   head = blockIdx.x;
    Plain m = plain_open(a, memory + head * plain_floats(a, false), false);
    walk(m, a, r, NULL, head);
    states_give(a, a.last, m.s, head);
}

/* ---- backward ---- */

/* dN, and through the states dq, dk, dW. */
__device__ inline void back_states(const Plain &m, const DeltaCall &a, const TileRows &r, const float *s,
                                   const float *ds)
{
    int C = a.C, Cv = a.Cv;
    product(turned_of(m.p, TILE), rows_of(m.dout, Cv), TILE, Cv, TILE,
            [&](int i, int j, float x) { m.dn[i * Cv + j] = x; });
    product(rows_of(m.k, C), rows_of(ds, Cv), TILE, Cv, C,
            [&](int i, int j, float x) { m.dn[i * Cv + j] += r.out[i] * x; });
    product(rows_of(m.dn, Cv), turned_of(s, Cv), TILE, C, Cv,
            [&](int i, int j, float x) { m.dw[i * C + j] = -x; });
    product(rows_of(m.dout, Cv), turned_of(s, Cv), TILE, C, Cv, [&](int i, int j, float x) {
        m.y[i * C + j] = r.in[i] * x * m.q[i * C + j];
        m.dq[i * C + j] += a.scale * r.in[i] * x;
    });
    product(rows_of(m.n, Cv), turned_of(ds, Cv), TILE, C, Cv, [&](int i, int j, float x) {
        m.z[i * C + j] = r.out[i] * x * m.k[i * C + j];
        m.dk[i * C + j] += r.out[i] * x;
    });
}

/* d(sum) of rows by the states: y and z have the products by element. `end` goes to the last row. */
__device__ inline void back_sums(const Plain &m, const DeltaCall &a, const TileRows &r, const float *s,
                                 const float *ds, float *part)
{
    float dot = 0.0f, end;
    int   i = threadIdx.x, n = a.C * a.Cv;
    for (int e = threadIdx.x; e < n; e += THREADS) dot += s[e] * ds[e];
    float kept = 0.0f, sum = 0.0f;
    for (int j = 0; i < TILE && j < a.C; j++) kept += m.z[i * a.C + j], sum += m.y[i * a.C + j];
    end = block_sum(r.through * dot + kept, part);
    if (i < TILE) m.sum[i] = sum - kept + (i == r.final ? end : 0.0f), m.beta[i] = 0.0f;
    __syncthreads();
}

/* Adds rows of e, a square, to d(sum), and takes its columns from it. */
__device__ inline void square_sums(const Plain &m, const float *e)
{
    int   i = threadIdx.x;
    float sum = 0.0f;
    for (int j = 0; i < TILE && j < TILE; j++) sum += e[i * TILE + j] - e[j * TILE + i];
    if (i < TILE) m.sum[i] += sum;
    __syncthreads();
}

/* Through P. */
__device__ inline void back_scores(const Plain &m, const DeltaCall &a, const TileRows &r)
{
    int C = a.C, Cv = a.Cv;
    product(rows_of(m.dout, Cv), turned_of(m.n, Cv), TILE, TILE, Cv, [&](int i, int j, float x) {
        m.b[i * TILE + j] = x * tile_decay(r, i, j);
        m.p[i * TILE + j] *= x;
    });
    square_sums(m, m.p);
    product(rows_of(m.b, TILE), rows_of(m.k, C), TILE, C, TILE,
            [&](int i, int j, float x) { m.dq[i * C + j] += a.scale * x; });
    product(turned_of(m.b, TILE), rows_of(m.q, C), TILE, C, TILE,
            [&](int i, int j, float x) { m.dk[i * C + j] += x; });
}

/* Dot products of rows: f(i, <x_i, y_i>). */
template <class F> __device__ inline void dots(const float *x, const float *y, int C, F f)
{
    int   i = threadIdx.x;
    float sum = 0.0f;
    for (int j = 0; i < TILE && j < C; j++) sum += x[i * C + j] * y[i * C + j];
    if (i < TILE) f(i, sum);
    __syncthreads();
}

/* x = T' dN, y = T' dW, and dv. */
__device__ inline void back_inverse(const Plain &m, const DeltaCall &a, const TileRows &r, int tile, int u)
{
    int C = a.C, Cv = a.Cv;
    product(turned_of(m.t, TILE), rows_of(m.dn, Cv), TILE, Cv, TILE,
            [&](int i, int j, float x) { m.x[i * Cv + j] = x; });
    product(turned_of(m.t, TILE), rows_of(m.dw, C), TILE, C, TILE, [&](int i, int j, float x) {
        m.y[i * C + j] = x;
        m.dk[i * C + j] += r.beta[i] * r.in[i] * x;
    });
    dots(m.x, m.v, Cv, [&](int i, float x) { m.beta[i] += x; });
    dots(m.y, m.k, C, [&](int i, float x) {
        m.beta[i] += r.in[i] * x;
        m.sum[i] += r.beta[i] * r.in[i] * x;
    });
    for (int e = threadIdx.x; e < TILE * Cv; e += THREADS) m.v[e] = r.beta[e / Cv] * m.x[e];
    __syncthreads();
    rows_write(a, a.dv, m.v, tile, u, Cv);
}

/* Through M: b = dM D beta, in place of P. */
__device__ inline void back_keys(const Plain &m, const DeltaCall &a, const TileRows &r)
{
    int C = a.C, Cv = a.Cv;
    product(rows_of(m.x, Cv), turned_of(m.u, Cv), TILE, TILE, Cv,
            [&](int i, int j, float x) { m.b[i * TILE + j] = -x; });
    product(rows_of(m.y, C), turned_of(m.w, C), TILE, TILE, C, [&](int i, int j, float x) {
        float d = j < i ? (m.b[i * TILE + j] - x) * tile_decay(r, i, j) : 0.0f;
        m.b[i * TILE + j] = r.beta[i] * d;
        m.p[i * TILE + j] = d * m.kk[i * TILE + j];
    });
    int   i = threadIdx.x;
    float sum = 0.0f;
    for (int j = 0; i < TILE && j < TILE; j++) sum += m.p[i * TILE + j];
    if (i < TILE) m.beta[i] += sum;
    __syncthreads();
    for (int e = threadIdx.x; e < TILE * TILE; e += THREADS) m.p[e] *= r.beta[e / TILE];
    __syncthreads();
    square_sums(m, m.p);
    product(rows_of(m.b, TILE), rows_of(m.k, C), TILE, C, TILE,
            [&](int i, int j, float x) { m.dk[i * C + j] += x; });
    product(turned_of(m.b, TILE), rows_of(m.k, C), TILE, C, TILE,
            [&](int i, int j, float x) { m.dk[i * C + j] += x; });
}

/* The gradient of the state that enters, in place. */
__device__ inline void back_leave(const Plain &m, const DeltaCall &a, const TileRows &r, float *ds)
{
    int C = a.C, Cv = a.Cv;
    for (int e = threadIdx.x; e < TILE * Cv; e += THREADS) m.x[e] = r.in[e / Cv] * m.dout[e];
    __syncthreads();
    product(turned_of(m.q, C), rows_of(m.x, Cv), C, Cv, TILE,
            [&](int i, int j, float x) { ds[i * Cv + j] = r.through * ds[i * Cv + j] + x; });
    product(turned_of(m.w, C), rows_of(m.dn, Cv), C, Cv, TILE,
            [&](int i, int j, float x) { ds[i * Cv + j] -= x; });
}

__device__ inline void gates_write(const Plain &m, const DeltaCall &a, const TileRows &r, int tile, int u)
{
    int   i = threadIdx.x, t = tile * TILE + i;
    float sum = 0.0f;
    for (int j = i; j < TILE && r.begin[i] >= 0; j++) sum += r.begin[j] == r.begin[i] ? m.sum[j] : 0.0f;
    if (i < TILE && t < a.T)
        a.dg[t * a.dg_row + u] = sum, a.dbeta[t * a.dbeta_row + u] = r.begin[i] < 0 ? 0.0f : m.beta[i];
    __syncthreads();
}

__device__ inline void back_head(const Plain &m, const DeltaCall &a, TileRows &r, const char *states,
                                 int tile, int v, int u, float *part)
{
    int    n = a.C * a.Cv;
    float *s = m.s + (size_t)v * n, *ds = m.ds + (size_t)v * n;
    DeltaView kept = { (char *)states, 0, 0 };
    tile_rows(r, a, tile, u);
    for (int e = threadIdx.x; e < n; e += THREADS) s[e] = number(a, kept, ((int64_t)tile * a.Hv + u) * n + e);
    rows_read(m.dout, a, a.dout, tile, u, a.Cv, 1.0f);
    tile_open(m, a, r, tile, u);
    tile_values(m, a, r, s, tile, u, false);
    back_states(m, a, r, s, ds);
    back_sums(m, a, r, s, ds, part);
    back_scores(m, a, r);
    back_inverse(m, a, r, tile, u);
    back_keys(m, a, r);
    back_leave(m, a, r, ds);
    gates_write(m, a, r, tile, u);
}

static __global__ void __launch_bounds__(THREADS) plain_backward(DeltaCall a, char *states, float *memory)
{
    __shared__ TileRows r;
    __shared__ float    part[32];
    int   head = blockIdx.x;
    Plain m = plain_open(a, memory + head * plain_floats(a, true), true);
    walk(m, a, r, states, head);
    states_fill(a, m.ds, a.dlast, head);
    for (int tile = a.tiles - 1; tile >= 0; tile--) {
        for (int e = threadIdx.x; e < TILE * a.C; e += THREADS) m.dq[e] = 0.0f, m.dk[e] = 0.0f;
        __syncthreads();
        for (int v = 0; v < a.group; v++) back_head(m, a, r, states, tile, v, head * a.group + v, part);
        rows_write(a, a.dq, m.dq, tile, head, a.C);
        rows_write(a, a.dk, m.dk, tile, head, a.C);
        __syncthreads();
    }
    states_give(a, a.dfirst, m.ds, head);
}

}

size_t delta_plain_bytes(const DeltaCall *a, bool backward)
{
    return plain_floats(*a, backward) * sizeof(float) * (size_t)a->Hk;
}

void delta_plain_fwd(Backend *be, const DeltaCall *a, void *memory)
{
    LAUNCH(be, "delta_rule_fwd", plain_forward, a->Hk, THREADS, 0, *a, (float *)memory);
}

void delta_plain_bwd(Backend *be, const DeltaCall *a, void *states, void *memory)
{
    LAUNCH(be, "delta_rule_bwd", plain_backward, a->Hk, THREADS, 0, *a, (char *)states, (float *)memory);
}
