/* ops/cuda/delta_rule_fwd.cu -- forward of delta_rule.c on tensor cores; see delta_rule_fast.cuh. */
#include "ops/cuda/delta_rule_wy.cuh"

namespace {

/* ---- the states along the tiles ---- */

struct ScanStage { RowsMatrix w, k; TileRows r; };
struct ScanShared { ScanStage stage[2]; StateHalf s; SquareMatrix n; };

__device__ inline void scan_copy(ScanStage &to, const DeltaFast &x, Inside in, int tile, int u)
{
    block_copy(to.w.at, LD, tile_at(x.m.w, x.c, tile, u), tile_ld(x.c), TILE, HEAD);
    rows_copy(to.k, x.c.k, in, tile, u / x.c.group);
    known_copy(to.r, x.c, tile, u);
    copies_commit();
}

/* N = U - W S of a warp's 16 rows and 32 columns; `out` N is what the state gets. */
__device__ inline void fresh_rows(ScanShared &m, const ScanStage &in, const HalfPieces &u, bf16 *to,
                                  int64_t ld)
{
    int   warp = threadIdx.x / 32, row = warp % 4 * 16, col = warp / 4 * 32;
    float ws[4][4];
    pieces_clear(ws);
    warp_product<4, false, true>(ws, in.w.at + row * LD, LD, m.s.at + col, SQ, HEAD);
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            int    r = row + piece_row(2 * k), c = col + piece_col(n, 0);
            float2 old = pair_get(u.at[n][k]);
            float  x = old.x - ws[n][2 * k], y = old.y - ws[n][2 * k + 1];
            if (to) pair_store(to + r * ld + c, x, y);
            pair_store(m.n.at + r * SQ + c, in.r.out[r] * x, in.r.out[r] * y);
        }
}

/* A block: one head, half of the columns of its state, one chain. The next tile is copied meanwhile; a tile
 * has two barriers: the state and the tile are there; N is there, and the tile before is read no more. */
static __global__ void __launch_bounds__(THREADS, 2) scan_kernel(DeltaFast x)
{
    extern __shared__ __align__(16) char memory[];
    ScanShared &m = *(ScanShared *)memory;
    int   part = blockIdx.x % PARTS, half = blockIdx.x / PARTS % 2, u = blockIdx.x / PARTS / 2;
    Chain c = chain_of(x.c, part);
    if (!c.any) return;
    Inside  in = inside_of(x.c);
    int64_t ld = tile_ld(x.c);
    float   s[8][4];
    scan_copy(m.stage[0], x, in, c.from, u);
    HalfPieces next = half_read(tile_at(x.m.u, x.c, c.from, u) + half * HALF, ld);
    state_read(s, c.starts ? x.c.first : NULL, u, half);
    for (int i = c.from, at = 0; i <= c.to; i++, at ^= 1) {
        const ScanStage &now = m.stage[at];
        bool       whole = c.starts || i > c.from;
        HalfPieces old = next;
        copies_wait<0>();
        state_round(m.s, whole ? state_at(x.m.states, x.c, i, u) : NULL, s, half);
        __syncthreads();
        if (i < c.to) {
            scan_copy(m.stage[at ^ 1], x, in, i + 1, u);
            next = half_read(tile_at(x.m.u, x.c, i + 1, u) + half * HALF, ld);
        }
        fresh_rows(m, now, old, whole ? tile_at(x.m.n, x.c, i, u) + half * HALF : NULL, ld);
        __syncthreads();
        state_decay(s, now.r.through);
        warp_product<8, true, true>(s, now.k.at + threadIdx.x / 32 * 16, LD, m.n.at, SQ, TILE);
    }
    if (c.ends && x.c.last) state_write(x.c.last, s, u, half);
}

/* ---- the output of a tile ---- */

struct OutputShared { RowsMatrix q, k, n; StateMatrix s; SquareMatrix p; TileRows r; };

__device__ inline void output_copy(OutputShared &m, const DeltaFast &x, int tile, int u)
{
    const DeltaCall &a = x.c;
    Inside in = inside_of(a);
    known_copy(m.r, a, tile, u);
    rows_copy(m.q, a.q, in, tile, u / a.group);
    rows_copy(m.k, a.k, in, tile, u / a.group);
    block_copy(m.n.at, LD, tile_at(x.m.n, a, tile, u), tile_ld(a), TILE, HEAD);
    block_copy(m.s.at, LD, state_at(x.m.states, a, tile, u), HEAD, HEAD, HEAD);
    copies_commit();
}

static __global__ void __launch_bounds__(THREADS, 2) output_kernel(DeltaFast x)
{
    extern __shared__ __align__(16) char memory[];
    OutputShared &m = *(OutputShared *)memory;
    const DeltaCall &a = x.c;
    int   u = blockIdx.x % a.Hv, tile = blockIdx.x / a.Hv, warp = threadIdx.x / 32, row = warp % 4 * 16;
    float p[4][4], o[8][4];
    output_copy(m, x, tile, u);
    copies_wait<0>();
    __syncthreads();
    pieces_clear(p), pieces_clear(o);
    warp_product<4, false, false>(p, m.q.at + row * LD, LD, m.k.at + warp / 4 * 32 * LD, LD, HEAD);
    store_decayed(m.p, p, m.r, a.scale);
    warp_product<8, false, true>(o, m.q.at + row * LD, LD, m.s.at + warp / 4 * 64, LD, HEAD);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) o[n][i] *= a.scale * m.r.in[row + piece_row(i)];
    __syncthreads();
    warp_product<8, false, true>(o, m.p.at + row * SQ, SQ, m.n.at + warp / 4 * 64, LD, TILE);
    stream_store(a.o, a, o, tile, u);
}

}

size_t delta_fast_bytes(const DeltaCall *a, bool backward)
{
    size_t rows = (size_t)a->tiles * TILE * a->Hv, state = (size_t)a->tiles * a->Hv * HEAD * HEAD * 2;
    return backward ? rows * (4 * HEAD + TILE) * 2 + state : rows * 2 * HEAD * 2 + state;
}

static DeltaMemory memory_of(const DeltaCall *a, void *memory)
{
    DeltaMemory m = {};
    int64_t rows = (int64_t)a->tiles * TILE * a->Hv * HEAD;
    m.u = (bf16 *)memory, m.w = m.u + rows, m.states = m.w + rows, m.n = m.u;
    return m;
}

void delta_fast_fwd(Backend *be, const DeltaCall *a, void *memory)
{
    DeltaFast x = { *a, memory_of(a, memory) };
    LAUNCH(be, "delta_rule_fwd", wy_kernel<false>, a->tiles * a->Hk, THREADS, offsetof(WyShared, q), x);
    LAUNCH(be, "delta_rule_fwd", scan_kernel, a->Hv * 2 * PARTS, THREADS, sizeof(ScanShared), x);
    LAUNCH(be, "delta_rule_fwd", output_kernel, a->tiles * a->Hv, THREADS, sizeof(OutputShared), x);
}

/* What backward repeats of forward: states and N. */
void delta_fast_again(Backend *be, const DeltaFast &x)
{
    LAUNCH(be, "delta_rule_bwd", wy_kernel<true>, x.c.tiles * x.c.Hk, THREADS, sizeof(WyShared), x);
    LAUNCH(be, "delta_rule_bwd", scan_kernel, x.c.Hv * 2 * PARTS, THREADS, sizeof(ScanShared), x);
}
