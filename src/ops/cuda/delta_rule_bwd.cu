/* ops/cuda/delta_rule_bwd.cu -- backward of delta_rule.c on tensor cores; see delta_rule_fast.cuh. */
#include "ops/cuda/delta_rule_wy.cuh"

namespace {

/* ---- the gradients of states and N, along the tiles from the last on ---- */

/* r of the tile and of the one before it. */
struct BackShared { RowsMatrix k, q, w; StateHalf s; SquareMatrix dout, dn; TileRows r[2]; };

/* The block's half of rows of dout, read ahead of their use. */
struct BackRows { Pack<bf16> at[2]; };

__device__ inline BackRows back_read(const DeltaCall &a, Inside in, int tile, int u, int half)
{
    BackRows rows = {};
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int e = threadIdx.x + k * THREADS, t = tile * TILE + e / (HALF / 8), c = e % (HALF / 8) * 8;
        if (is_inside(in, t))
            rows.at[k] =
                pack_load((const bf16 *)a.dout.p + t * a.dout.row + u * a.dout.head + half * HALF + c);
    }
    return rows;
}

/* scale in dout. */
__device__ inline void back_dout(SquareMatrix &to, const BackRows &rows, const TileRows &r, float scale)
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int   e = threadIdx.x + k * THREADS, row = e / (HALF / 8), c = e % (HALF / 8) * 8;
        float by = scale * r.in[row], v[8];
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = by * to_f32(rows.at[k].v[i]);
        pack_store(to.at + row * SQ + c, pack_of<bf16>(v));
    }
}

/* dN = P' dout + out k dS of a warp's 16 rows and 32 columns; m.dn gets -dN. */
__device__ inline void back_rows(BackShared &m, const TileRows &r, const HalfPieces &old, bf16 *to,
                                 int64_t ld)
{
    int   warp = threadIdx.x / 32, row = warp % 4 * 16, col = warp / 4 * 32;
    float ks[4][4];
    pieces_clear(ks);
    warp_product<4, false, true>(ks, m.k.at + row * LD, LD, m.s.at + col, SQ, HEAD);
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            int    i = row + piece_row(2 * k), c = col + piece_col(n, 0);
            float2 was = pair_get(old.at[n][k]);
            float  x = was.x + r.out[i] * ks[n][2 * k], y = was.y + r.out[i] * ks[n][2 * k + 1];
            if (to) pair_store(to + i * ld + c, x, y);
            pair_store(m.dn.at + i * SQ + c, -x, -y);
        }
}

__device__ inline void back_copy(BackShared &m, const DeltaFast &x, Inside in, int tile, int u)
{
    rows_copy(m.q, x.c.q, in, tile, u / x.c.group);
    block_copy(m.w.at, LD, tile_at(x.m.w, x.c, tile, u), tile_ld(x.c), TILE, HEAD);
    copies_commit();
}

/* A tile's k and what is known of its rows. */
__device__ inline void back_copy_keys(BackShared &m, const DeltaFast &x, Inside in, int tile, int u)
{
    rows_copy(m.k, x.c.k, in, tile, u / x.c.group);
    known_copy(m.r[tile & 1], x.c, tile, u);
    copies_commit();
}

/* As scan_kernel, the other way. k of the next tile is copied while q and w of this one are read. */
static __global__ void __launch_bounds__(THREADS, 2) back_kernel(DeltaFast x)
{
    extern __shared__ __align__(16) char memory[];
    BackShared &m = *(BackShared *)memory;
    int   part = blockIdx.x % PARTS, half = blockIdx.x / PARTS % 2, u = blockIdx.x / PARTS / 2;
    Chain c = chain_of(x.c, part);
    if (!c.any) return;
    Inside  in = inside_of(x.c);
    int64_t ld = tile_ld(x.c);
    int     row = threadIdx.x / 32 * 16;
    float   s[8][4];
    back_copy_keys(m, x, in, c.to, u);
    HalfPieces dn = half_read(tile_at(x.m.dn, x.c, c.to, u) + half * HALF, ld);
    BackRows   dout = back_read(x.c, in, c.to, u, half);
    state_read(s, c.ends ? x.c.dlast : NULL, u, half);
    for (int i = c.to; i >= c.from; i--) {
        bool            whole = c.ends || i < c.to;
        const TileRows &r = m.r[i & 1];
        back_copy(m, x, in, i, u);
        state_round(m.s, whole ? state_at(x.m.dstates, x.c, i, u) : NULL, s, half);
        copies_wait<1>();
        __syncthreads();
        back_dout(m.dout, dout, r, x.c.scale);
        back_rows(m, r, dn, whole ? tile_at(x.m.dn, x.c, i, u) + half * HALF : NULL, ld);
        copies_wait<0>();
        __syncthreads();
        if (i > c.from) {
            back_copy_keys(m, x, in, i - 1, u);
            dn = half_read(tile_at(x.m.dn, x.c, i - 1, u) + half * HALF, ld);
            dout = back_read(x.c, in, i - 1, u, half);
        }
        state_decay(s, r.through);
        warp_product<8, true, true>(s, m.q.at + row, LD, m.dout.at, SQ, TILE);
        warp_product<8, true, true>(s, m.w.at + row, LD, m.dn.at, SQ, TILE);
        __syncthreads();
    }
    if (c.starts && x.c.dfirst) state_write(x.c.dfirst, s, u, half);
}

/* ---- the gradients of a tile ---- */

struct StatePair { RowsMatrix u, w; };

/* x and y of the inverse take the places of dout and n, U and W that of the states. */
struct GradsShared {
    RowsMatrix   k, q, dout, n, dn, dw;
    union { StateMatrix s; StatePair uw; };
    SquareMatrix inverse, b;
    TileRows     r;
    float        sum[2][TILE], beta[2][TILE], cols[4][TILE], all[TILE], part[32];
};

/* Sums of a thread: its two rows of d(sum) and d(beta), its columns of d(sum), what the last row gets. */
struct GradSums { float sum[2], beta[2], col[4][2], end; };

/* Where a thread works: 16 rows, and of the 128 columns 64, of 64 columns 32. */
struct GradPlace { int row, wide, narrow; };

__device__ inline GradPlace place()
{
    int warp = threadIdx.x / 32;
    return GradPlace{ warp % 4 * 16, warp / 4 * 64, warp / 4 * 32 };
}

__device__ inline void grads_copy(GradsShared &m, const DeltaFast &x, Inside in, int tile, int u)
{
    const DeltaCall &a = x.c;
    known_copy(m.r, a, tile, u);
    rows_copy(m.dout, a.dout, in, tile, u);
    block_copy(m.n.at, LD, tile_at(x.m.n, a, tile, u), tile_ld(a), TILE, HEAD);
    block_copy(m.dn.at, LD, tile_at(x.m.dn, a, tile, u), tile_ld(a), TILE, HEAD);
    block_copy(m.s.at, LD, state_at(x.m.states, a, tile, u), HEAD, HEAD, HEAD);
    block_copy(m.inverse.at, SQ, square_at(x.m.inverse, a, tile, u), TILE, TILE, TILE);
    copies_commit();
}

/* dP = dout N'; b = scale dP D; dP P adds to d(sum) of its row and is taken from that of its column. */
__device__ inline void grads_scores(GradsShared &m, GradSums &g, const float (&qk)[4][4], float scale)
{
    GradPlace p = place();
    float     dp[4][4];
    pieces_clear(dp);
    warp_product<4, false, false>(dp, m.dout.at + p.row * LD, LD, m.n.at + p.narrow * LD, LD, HEAD);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = p.row + piece_row(e), j = p.narrow + piece_col(n, e);
            dp[n][e] *= scale * tile_decay(m.r, i, j);
            g.sum[e / 2] += dp[n][e] * qk[n][e], g.col[n][e % 2] += dp[n][e] * qk[n][e];
        }
    pieces_store(m.b.at + p.row * SQ + p.narrow, SQ, dp, 16);
}

/* Dot products of rows of c with rows of x, each row times by[row]; added to d(sum). */
__device__ inline void dot_rows(float (&sum)[2], const float (&c)[8][4], const RowsMatrix &x)
{
    GradPlace p = place();
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[e / 2] += c[n][e] * to_f32(x.at[(p.row + piece_row(e)) * LD + p.wide + piece_col(n, e)]);
}

/* c (64, 128) = x S' of the state in place, each row times by[row] and `scale`. */
__device__ inline void by_state(float (&c)[8][4], const GradsShared &m, const RowsMatrix &x, const float *by,
                                float scale)
{
    GradPlace p = place();
    pieces_clear(c);
    warp_product<8, false, false>(c, x.at + p.row * LD, LD, m.s.at + p.wide * LD, LD, HEAD);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) c[n][e] *= scale * (by ? by[p.row + piece_row(e)] : 1.0f);
}

__device__ inline void add_pieces(float (&to)[8][4], const float (&c)[8][4])
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) to[n][e] += c[n][e];
}

/* The gradient of the state that leaves in place of the state that entered; the thread's part of their dot
 * product. */
__device__ inline float swap_states(StateMatrix &s, const bf16 *ds)
{
    float dot = 0.0f;
    for (int e = threadIdx.x; e < HEAD * HEAD / 8; e += THREADS) {
        bf16      *at = s.at + e / (HEAD / 8) * LD + e % (HEAD / 8) * 8;
        Pack<bf16> old = pack_load(at), fresh = pack_load(ds + e * 8);
#pragma unroll
        for (int i = 0; i < 8; i++) dot += to_f32(old.v[i]) * to_f32(fresh.v[i]);
        pack_store(at, fresh);
    }
    return dot;
}

/* Through the states: dq, dk, dW. */
__device__ inline void grads_states(GradsShared &m, GradSums &g, const DeltaFast &x, float (&dq)[8][4],
                                    float (&dk)[8][4], int tile, int u)
{
    GradPlace p = place();
    float     c[8][4], r[2] = {};
    by_state(c, m, m.dout, m.r.in, x.c.scale);
    dot_rows(g.sum, c, m.q);
    add_pieces(dq, c);
    by_state(c, m, m.dn, NULL, -1.0f);
    pieces_store(m.dw.at + p.row * LD + p.wide, LD, c, 16);
    __syncthreads();
    g.end += m.r.through * swap_states(m.s, state_at(x.m.dstates, x.c, tile, u));
    __syncthreads();
    by_state(c, m, m.n, m.r.out, 1.0f);
    dot_rows(r, c, m.k);
    g.sum[0] -= r[0], g.sum[1] -= r[1], g.end += r[0] + r[1];
    add_pieces(dk, c);
}

/* dq += b k, dk += b' q */
__device__ inline void grads_within(GradsShared &m, float (&dq)[8][4], float (&dk)[8][4])
{
    GradPlace p = place();
    warp_product<8, false, true>(dq, m.b.at + p.row * SQ, SQ, m.k.at + p.wide, LD, TILE);
    warp_product<8, true, true>(dk, m.b.at + p.row, SQ, m.q.at + p.wide, LD, TILE);
}

/* Dot products with rows of v, from the stream; rows outside add nothing, since c is 0 there. */
__device__ inline void dot_values(float (&sum)[2], const float (&c)[8][4], const DeltaCall &a,
                                  const TileRows &r, int tile, int u)
{
    GradPlace p = place();
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
        int t = tile * TILE + p.row + piece_row(e);
        if (r.begin[p.row + piece_row(e)] < 0) continue;
        const bf16 *v = (const bf16 *)a.v.p + t * a.v.row + u * a.v.head + p.wide;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            __nv_bfloat162 two = *(const __nv_bfloat162 *)(v + piece_col(n, e));
            sum[e / 2] += c[n][e] * to_f32(two.x) + c[n][e + 1] * to_f32(two.y);
        }
    }
}

__device__ inline void inverse_turned(float (&c)[8][4], const GradsShared &m, const RowsMatrix &x)
{
    GradPlace p = place();
    pieces_clear(c);
    warp_product<8, true, true>(c, m.inverse.at + p.row, SQ, x.at + p.wide, LD, TILE);
}

/* x = T' dN, y = T' dW: dv, and what they give to dbeta, d(sum) and dk; U and W come meanwhile. */
__device__ inline void grads_inverse(GradsShared &m, GradSums &g, const DeltaFast &x, float (&dk)[8][4],
                                     int tile, int u)
{
    GradPlace p = place();
    float     c[8][4], dots[2] = {};
    block_copy(m.uw.u.at, LD, tile_at(x.m.u, x.c, tile, u), tile_ld(x.c), TILE, HEAD);
    block_copy(m.uw.w.at, LD, tile_at(x.m.w, x.c, tile, u), tile_ld(x.c), TILE, HEAD);
    copies_commit();
    inverse_turned(c, m, m.dn);
    pieces_store(m.dout.at + p.row * LD + p.wide, LD, c, 16);
    dot_values(g.beta, c, x.c, m.r, tile, u);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) c[n][e] *= m.r.beta[p.row + piece_row(e)];
    stream_store(x.c.dv, x.c, c, tile, u);
    inverse_turned(c, m, m.dw);
    pieces_store(m.n.at + p.row * LD + p.wide, LD, c, 16);
    dot_rows(dots, c, m.k);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        int   i = p.row + piece_row(e);
        float by = m.r.beta[i] * m.r.in[i];
        if (e % 2 == 0) g.beta[e / 2] += m.r.in[i] * dots[e / 2], g.sum[e / 2] += by * dots[e / 2];
#pragma unroll
        for (int n = 0; n < 8; n++) dk[n][e] += by * c[n][e];
    }
    copies_wait<0>();
}

/* dM = -below(x U' + y W'), b = beta dM D; then dk += (b + b') k. */
__device__ inline void grads_keys(GradsShared &m, GradSums &g, const float (&kk)[4][4], float (&dk)[8][4])
{
    GradPlace p = place();
    float     dm[4][4];
    pieces_clear(dm);
    warp_product<4, false, false>(dm, m.dout.at + p.row * LD, LD, m.uw.u.at + p.narrow * LD, LD, HEAD);
    warp_product<4, false, false>(dm, m.n.at + p.row * LD, LD, m.uw.w.at + p.narrow * LD, LD, HEAD);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int   i = p.row + piece_row(e), j = p.narrow + piece_col(n, e);
            float d = j < i ? -dm[n][e] * tile_decay(m.r, i, j) : 0.0f, both = m.r.beta[i] * d * kk[n][e];
            g.beta[e / 2] += d * kk[n][e];
            g.sum[e / 2] += both, g.col[n][e % 2] += both;
            dm[n][e] = m.r.beta[i] * d;
        }
    pieces_store(m.b.at + p.row * SQ + p.narrow, SQ, dm, 16);
    __syncthreads();
    warp_product<8, false, true>(dk, m.b.at + p.row * SQ, SQ, m.k.at + p.wide, LD, TILE);
    warp_product<8, true, true>(dk, m.b.at + p.row, SQ, m.k.at + p.wide, LD, TILE);
}

/* Sums of threads to shared memory: rows over the four lanes that share one, columns over the eight. */
__device__ inline void sums_store(GradsShared &m, const GradSums &g)
{
    GradPlace p = place();
    int lane = threadIdx.x % 32, side = threadIdx.x / 128;
    for (int k = 0; k < 2; k++) {
        float s = g.sum[k], b = g.beta[k];
        for (int o = 1; o < 4; o *= 2) s += __shfl_xor_sync(~0u, s, o), b += __shfl_xor_sync(~0u, b, o);
        if (lane % 4 == 0)
            m.sum[side][p.row + piece_row(2 * k)] = s, m.beta[side][p.row + piece_row(2 * k)] = b;
    }
    for (int n = 0; n < 4; n++)
        for (int k = 0; k < 2; k++) {
            float c = g.col[n][k];
            for (int o = 4; o < 32; o *= 2) c += __shfl_xor_sync(~0u, c, o);
            if (lane < 4) m.cols[p.row / 16][p.narrow + piece_col(n, k)] = c;
        }
}

/* dg of a row: the sum of d(sum) over the rows of its segment from it on. */
__device__ inline void gates_store(GradsShared &m, const GradSums &g, const DeltaCall &a, int tile, int u)
{
    int   i = threadIdx.x, t = tile * TILE + i;
    float end = block_sum(g.end, m.part);
    if (i < TILE) {
        float s = m.sum[0][i] + m.sum[1][i];
        for (int k = 0; k < 4; k++) s -= m.cols[k][i];
        m.all[i] = i == m.r.final ? s + end : s;
    }
    __syncthreads();
    if (i >= TILE || t >= a.T) return;
    float s = 0.0f;
    for (int j = i; j < TILE && m.r.begin[i] >= 0; j++) s += m.r.begin[j] == m.r.begin[i] ? m.all[j] : 0.0f;
    a.dg[t * a.dg_row + u] = s;
    a.dbeta[t * a.dbeta_row + u] = m.r.begin[i] < 0 ? 0.0f : m.beta[0][i] + m.beta[1][i];
}

struct TileProducts { float kk[4][4], qk[4][4]; };

__device__ inline void grads_head(GradsShared &m, const DeltaFast &x, const TileProducts &t,
                                  float (&dq)[8][4], float (&dk)[8][4], Inside in, int tile, int u)
{
    GradSums g = {};
    grads_copy(m, x, in, tile, u);
    copies_wait<0>();
    __syncthreads();
    grads_scores(m, g, t.qk, x.c.scale);
    grads_states(m, g, x, dq, dk, tile, u);
    __syncthreads();
    grads_within(m, dq, dk);
    grads_inverse(m, g, x, dk, tile, u);
    __syncthreads();
    grads_keys(m, g, t.kk, dk);
    sums_store(m, g);
    gates_store(m, g, x.c, tile, u);
    __syncthreads();
}

/* A block: a tile of one key head, its value heads in turn. */
static __global__ void __launch_bounds__(THREADS, 1) grads_kernel(DeltaFast x)
{
    extern __shared__ __align__(16) char memory[];
    GradsShared &m = *(GradsShared *)memory;
    GradPlace    p = place();
    int          head = blockIdx.x % x.c.Hk, tile = blockIdx.x / x.c.Hk;
    TileProducts t;
    float        dq[8][4], dk[8][4];
    Inside in = inside_of(x.c);
    rows_copy(m.k, x.c.k, in, tile, head);
    rows_copy(m.q, x.c.q, in, tile, head);
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    pieces_clear(t.kk), pieces_clear(t.qk), pieces_clear(dq), pieces_clear(dk);
    warp_product<4, false, false>(t.kk, m.k.at + p.row * LD, LD, m.k.at + p.narrow * LD, LD, HEAD);
    warp_product<4, false, false>(t.qk, m.q.at + p.row * LD, LD, m.k.at + p.narrow * LD, LD, HEAD);
    for (int v = 0; v < x.c.group; v++) grads_head(m, x, t, dq, dk, in, tile, head * x.c.group + v);
    stream_store(x.c.dq, x.c, dq, tile, head);
    stream_store(x.c.dk, x.c, dk, tile, head);
}

static DeltaMemory memory_of(const DeltaCall *a, void *states, void *memory)
{
    DeltaMemory m = {};
    int64_t rows = (int64_t)a->tiles * TILE * a->Hv;
    m.u = (bf16 *)memory, m.w = m.u + rows * HEAD, m.n = m.w + rows * HEAD, m.dn = m.n + rows * HEAD;
    m.inverse = m.dn + rows * HEAD, m.dstates = m.inverse + rows * TILE, m.states = (bf16 *)states;
    return m;
}

}

bool delta_fast_bwd_fits(const Backend *be)
{
    return sizeof(GradsShared) <= ((const Cuda *)be->priv)->smem_block;
}

void delta_fast_bwd(Backend *be, const DeltaCall *a, void *states, void *memory)
{
    DeltaFast x = { *a, memory_of(a, states, memory) };
    delta_fast_again(be, x);
    LAUNCH(be, "delta_rule_bwd", back_kernel, a->Hv * 2 * PARTS, THREADS, sizeof(BackShared), x);
    LAUNCH(be, "delta_rule_bwd", grads_kernel, a->tiles * a->Hk, THREADS, sizeof(GradsShared), x);
}
