/* ops/cuda/portable_attention_bwd.cu -- backward attention: the cases of portable_attention.cu.
 *
 * Two kernels, one per side, so that every sum has one owner and a fixed order. A block holds rows of two
 * tensors, `own`, and walks rows of two others, 32 at a time, double-buffered:
 *
 *   dq       own: queries and dout of a head      walks: its keys and values
 *   dk, dv   own: keys and values of a head       walks: queries and dout of the heads that share it
 *
 * With S the product of the first own and first walked rows and dP that of the second ones:
 * P = exp(scale S - lse), dS = P (dP - delta). The first own rows get scale dS times the first walked rows
 * (dq, dk), the second ones P times the second walked rows (dv). P and dS stay in registers, rounded to bf16
 * for their products. Heads over 128 wide compute dk and dv in two launches: the sums of both do not fit. */
#include "ops/cuda/portable_attention.cuh"

namespace {

typedef enum Side { DQ, DKV, DK, DV } Side;

/* Rows of a block and of a step; a warp owns 16 rows. */
template <int CP> struct Shape {
    enum { OWN = CP <= 128 ? 64 : 32, WALK = CP <= 128 ? 32 : 16, THREADS = 2 * OWN,
           TILE = WALK * Lines<CP>::BYTES, HELD = OWN * Lines<CP>::BYTES, STEP = 2 * TILE + 2 * WALK * 4,
           BYTES = 2 * HELD + 2 * STEP };
};

/* P and dS of 16 own rows by WALK walked rows. */
template <int CP, Side SIDE> struct Slopes {
    typedef Shape<CP> R;
    enum { N = R::WALK };
    float p[1][N / 8][4], ds[1][N / 8][4];

    /* stats: lse and delta of the walked rows, where they are queries; lse, delta: of the two own rows. */
    __device__ void compute(const FlashArgs &a, uint32_t held, uint32_t step, int row, const float *stats,
                            const float (&lse)[2], const float (&delta)[2])
    {
        rows_by_rows<1, N, CP>(p, held, row, step);
        if (SIDE != DV) rows_by_rows<1, N, CP>(ds, held + R::HELD, row, step + R::TILE);
        #pragma unroll
        for (int i = 0; i < N / 2; i++) {
            int   j = i / 4, e = i % 4, col = j * 8 + threadIdx.x % 4 * 2 + e % 2;
            float l = SIDE == DQ ? lse[e / 2] : stats[col], d = SIDE == DQ ? delta[e / 2] : stats[N + col];
            p[0][j][e] = exp2_fast((p[0][j][e] * a.scale - l) * LOG2E);
            if (SIDE != DV) ds[0][j][e] = p[0][j][e] * (ds[0][j][e] - d);
        }
    }
    /* Zeroes pairs that do not see each other; own, walked: the first rows of each. */
    __device__ void mask(const FlashArgs &a, int own, int walked, int own_end, int walked_end)
    {
        #pragma unroll
        for (int i = 0; i < N / 2; i++) {
            int j = i / 4, e = i % 4;
            int r = own + threadIdx.x % 32 / 4 + e / 2 * 8, c = walked + j * 8 + threadIdx.x % 4 * 2 + e % 2;
            bool on = r < own_end && c < walked_end && (SIDE == DQ ? sees(a, r, c) : sees(a, c, r));
            if (!on) p[0][j][e] = 0.0f;
            if (!on && SIDE != DV) ds[0][j][e] = 0.0f;
        }
    }
};

/* What a block walks: rows from .. to - 1 of heads head .. heads - 1, step by step. */
struct Walk {
    int from, to, head, heads, row;

    __device__ bool on() const { return head < heads; }
    template <int N> __device__ void step()
    {
        row += N;
        if (row >= to) row = from, head++;
    }
};

template <int CP, Side SIDE>
__device__ inline void walk_copy(const FlashArgs &a, const Walk &w, uint32_t step, float *stats)
{
    typedef Shape<CP> R;
    if (w.on()) {
        rows_copy<R::WALK, CP, R::THREADS>(step, SIDE == DQ ? a.k : a.q, w.head, w.row, w.to);
        rows_copy<R::WALK, CP, R::THREADS>(step + R::TILE, SIDE == DQ ? a.v : a.dout, w.head, w.row, w.to);
        if (SIDE != DQ && threadIdx.x < R::WALK) {
            int row = min(w.row + (int)threadIdx.x, w.to - 1);
            stats[threadIdx.x] = a.lse[w.head * a.lse_row + row];
            stats[R::WALK + threadIdx.x] = a.delta[w.head * a.delta_row + row];
        }
    }
    copy_async_commit();
}

template <int CP, Side SIDE>
__device__ inline Walk walk_of(const FlashArgs &a, const Rows &t, int head)
{
    typedef Shape<CP> R;
    int  last = min(t.end, t.first + R::OWN) - 1, each = a.H / a.G;
    Walk w = { t.begin, t.end, head, head + 1, 0 };
    if (SIDE != DQ) w.head = head * each, w.heads = w.head + each;
    if (a.causal && SIDE == DQ) {
        w.from += max(0, t.first - a.window + 1 - t.begin) / R::WALK * R::WALK;
        w.to = last + 1;
    }
    if (a.causal && SIDE != DQ) {
        w.from += (t.first - t.begin) / R::WALK * R::WALK;
        w.to = (int)min((int64_t)t.end, (int64_t)last + a.window);
    }
    w.row = w.from;
    return w;
}

template <int CP, Side SIDE>
__global__ void __launch_bounds__(Shape<CP>::THREADS, 1) backward(FlashArgs a)
{
    typedef Shape<CP> R;
    enum { OWN = R::OWN, WALK = R::WALK };
    extern __shared__ __align__(128) char smem[];
    uint32_t held = smem_at(smem), base = held + 2 * R::HELD;
    int      heads = SIDE == DQ ? a.H : a.G, head = blockIdx.x % heads, kv = head / (a.H / a.G);
    int      own = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
    Rows     t;
    if (!rows_find(a, a.tiles - 1 - blockIdx.x / heads, OWN, &t)) return;
    auto step_at = [&](int i) { return base + i * R::STEP; };
    auto stats_at = [&](int i) { return (float *)(smem + 2 * R::HELD + i * R::STEP + 2 * R::TILE); };
    Walk w = walk_of<CP, SIDE>(a, t, SIDE == DQ ? kv : head), ahead = w;
    rows_copy<OWN, CP, R::THREADS>(held, SIDE == DQ ? a.q : a.k, head, t.first, t.end);
    rows_copy<OWN, CP, R::THREADS>(held + R::HELD, SIDE == DQ ? a.dout : a.v, head, t.first, t.end);
    walk_copy<CP, SIDE>(a, ahead, step_at(0), stats_at(0));
    ahead.step<WALK>();

    float lse[2] = { }, delta[2] = { };
    for (int i = 0; i < 2 && SIDE == DQ; i++) {
        int row = min(t.first + own + lane / 4 + i * 8, t.end - 1);
        lse[i] = a.lse[head * a.lse_row + row], delta[i] = a.delta[head * a.delta_row + row];
    }
    float first[1][CP / 8][4] = { }, second[1][CP / 8][4] = { };
    #pragma unroll 1
    for (int i = 0; w.on(); i ^= 1, w.step<WALK>()) {
        walk_copy<CP, SIDE>(a, ahead, step_at(i ^ 1), stats_at(i ^ 1));
        ahead.step<WALK>();
        copy_async_wait<1>();
        __syncthreads();
        Slopes<CP, SIDE> s;
        s.compute(a, held, step_at(i), own, stats_at(i), lse, delta);
        int  q0 = SIDE == DQ ? t.first : w.row, k0 = SIDE == DQ ? w.row : t.first;
        int  q1 = q0 + (SIDE == DQ ? OWN : WALK) - 1, k1 = k0 + (SIDE == DQ ? WALK : OWN) - 1;
        bool whole = w.row + WALK <= w.to && t.first + OWN <= t.end;
        if (!whole || !all_seen(a, q0, q1, k0, k1)) s.mask(a, t.first + own, w.row, t.end, w.to);
        if (SIDE != DV) add_rows<1, WALK, CP>(first, s.ds, step_at(i));
        if (SIDE == DKV || SIDE == DV) add_rows<1, WALK, CP>(second, s.p, step_at(i) + R::TILE);
        __syncthreads();
    }
    copy_async_wait<0>();
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = t.first + own + lane / 4 + h * 8;
        if (row >= t.end) continue;
        if (SIDE != DV) row_put<CP>(SIDE == DQ ? a.dq : a.dk, head, row, first[0], h, a.scale);
        if (SIDE == DKV || SIDE == DV) row_put<CP>(a.dv, head, row, second[0], h, 1.0f);
    }
}

template <int CP, Side SIDE> void launch(Backend *be, FlashArgs a, int64_t T)
{
    typedef Shape<CP> R;
    a.tiles = (int)(T / R::OWN + a.n + 1);
    LAUNCH(be, "attention_bwd", (backward<CP, SIDE>), (int64_t)a.tiles * (SIDE == DQ ? a.H : a.G), R::THREADS,
           R::BYTES, a);
}

template <int CP> void narrow_heads(Backend *be, const FlashArgs &a, int64_t T)
{
    launch<CP, DQ>(be, a, T);
    launch<CP, DKV>(be, a, T);
}
template <int CP> void wide_heads(Backend *be, const FlashArgs &a, int64_t T)
{
    launch<CP, DQ>(be, a, T);
    launch<CP, DK>(be, a, T);
    launch<CP, DV>(be, a, T);
}

}

bool flash_bwd(Backend *be, const Attn *x)
{
    FlashArgs a = flash_args(x);
    int64_t   T = x->q.n[0], C = x->q.n[2];
    if (!flash_takes(x)) return false;
    attention_delta(be, x->delta, x->dout, x->o);
    if (C <= 64)       narrow_heads<64>(be, a, T);
    else if (C <= 80)  narrow_heads<80>(be, a, T);
    else if (C <= 128) narrow_heads<128>(be, a, T);
    else if (C <= 192) wide_heads<192>(be, a, T);
    else               wide_heads<256>(be, a, T);
    return true;
}
