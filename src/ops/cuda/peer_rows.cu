/* ops/cuda/peer_rows.cu -- posts, waits and rows of peer.c. Rows are written and read 16 bytes a lane.
 *
 * peer_push  A warp a token: the row is read once and written to each of its experts' ranks.
 * peer_pull  2^k lanes a token, with FLIGHT of its rows in flight; each lane finds the address of one row and
 *            gives it to the others. */
#include "ops/cuda/peer.cuh"
#include "ops/cuda/runs.cuh"

/* ---- posts and waits: one block ---- */

namespace {

enum { WARPS = 8, THREADS = 32 * WARPS };

typedef struct Addresses { long long at[PEER_ADDRESSES]; } Addresses;

static __global__ void post(Peers g, Addresses a, bool waits)
{
    long long epoch = g.state[STATE_CHANNEL + g.channel] + 1;
    for (int i = threadIdx.x; i < g.n * PEER_ADDRESSES; i += blockDim.x)
        mail(g, i / PEER_ADDRESSES)[mail_address(g.n, g.channel, g.me) + i % PEER_ADDRESSES] =
            a.at[i % PEER_ADDRESSES];
    show_all(g, mail_ready(g.n, g.channel, g.me), epoch);
    if (!threadIdx.x) g.state[STATE_CHANNEL + g.channel] = epoch;
    if (waits) await_all(g, mail_ready(g.n, g.channel, 0), epoch, g.channel);
}

static __global__ void wait(Peers g, PeerMark mark)
{
    await_all(g, mail_mark(g.n, g.channel, mark), g.state[STATE_CHANNEL + g.channel], g.channel);
}

/* The end of a kernel that has pushed or pulled rows. */
static __device__ void finish_rows(const Peers &g, bool waits)
{
    if (!is_last_block(g, g.channel)) return;
    long long epoch = g.state[STATE_CHANNEL + g.channel];
    show_all(g, mail_done(g.n, g.channel, g.me), epoch);
    if (waits) await_all(g, mail_done(g.n, g.channel, 0), epoch, g.channel);
}

}

extern "C" void cuda_peer_post(Backend *be, const PeerGroup *g, int channel, Tensor rows, Tensor gate,
                               bool waits, int layer)
{
    Addresses a = { { peer_address(g, rows), peer_address(g, gate) } };
    int       span = peer_clock_begin(be);
    LAUNCH(be, "peer_post", post, 1, 64, 0, peers_of(g, channel, layer), a, waits);
    comm_clock_end_push(be, span, g->group);
}

extern "C" void cuda_peer_wait(Backend *be, const PeerGroup *g, int channel, PeerMark mark, int layer)
{
    int span = peer_clock_begin(be);
    LAUNCH(be, "peer_wait", wait, 1, 64, 0, peers_of(g, channel, layer), mark);
    comm_clock_end_push(be, span, g->group);
}

/* ---- rows ---- */

namespace {

enum { EACH = 8, MEMBERS = 256 };

/* What a member has posted: 0: rows, 1: gates. */
static __device__ inline char *posted(const Peers &g, int member, int what)
{
    long long at = __ldcv(mail(g, g.me) + mail_address(g.n, g.channel, member) + what);
    return g.table[table_region(at >> PEER_OFFSET_BITS) * g.n + member] +
           (at & ((1ll << PEER_OFFSET_BITS) - 1));
}

typedef struct Push {
    const void  *x;
    const int   *rows;
    const float *weight;
    int64_t      T, stride;                  /* of x, in units */
    int          K, units;                   /* of a row */
    bool         waits;
} Push;

/* The gates of a token's K assignments, a lane each. */
static __device__ void push_gates(const Peers &g, const Push &p, int64_t t, int lane)
{
    for (int k = lane; k < p.K; k += 32) {
        int64_t i = t * p.K + k;
        int     to = p.rows[i];
        for (int q = 0; q < g.etp && to >= 0; q++) {
            int member = to / g.row_capacity * g.etp + q;
            ((float *)posted(g, member, 1))[to % g.row_capacity] = p.weight[i];
        }
    }
}

template <class U> static __global__ void __launch_bounds__(THREADS) push(Peers g, Push p)
{
    __shared__ char *dest[MEMBERS];
    int     lane = threadIdx.x & 31;
    int64_t t = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    for (int m = threadIdx.x; m < g.n; m += THREADS) dest[m] = posted(g, m, 0);
    bool failed = has_failed(g);
    __syncthreads();
    if (t < p.T && !failed) {
        const U *x = (const U *)p.x + t * p.stride;
        for (int c = lane; c < p.units; c += 32 * EACH) {
            U v[EACH];
            #pragma unroll
            for (int i = 0; i < EACH; i++)
                if (c + 32 * i < p.units) v[i] = x[c + 32 * i];
            for (int k = 0; k < p.K; k++) {
                int to = p.rows[t * p.K + k];
                for (int q = 0; q < g.etp && to >= 0; q++) {
                    U *y = (U *)dest[to / g.row_capacity * g.etp + q] +
                           (int64_t)(to % g.row_capacity) * p.units;
                    #pragma unroll
                    for (int i = 0; i < EACH; i++)
                        if (c + 32 * i < p.units) y[c + 32 * i] = v[i];
                }
            }
        }
        if (p.weight) push_gates(g, p, t, lane);
    }
    finish_rows(g, p.waits);
}

static int64_t unit_of(bool by16, Tensor t) { return by16 ? 16 : (int64_t)dtype_size((DType)t.dtype); }

}

extern "C" void cuda_peer_push(Backend *be, const PeerGroup *g, int channel, Tensor x, Tensor rows,
                               Tensor weight, bool waits, int layer)
{
    bool    by16 = packs(x);
    int64_t size = (int64_t)dtype_size((DType)x.dtype), unit = unit_of(by16, x);
    int64_t blocks = x.n[0] ? ceil_div(x.n[0], WARPS) : 1;
    Push    p = { x.data, (const int *)rows.data, (const float *)weight.data, x.n[0], x.s[0] * size / unit,
                  (int)rows.n[1], (int)(x.n[1] * size / unit), waits };
    Peers   v = peers_of(g, channel, layer);
    REQUIRE(g->n <= MEMBERS, "peer_push: %d members, %d at most", g->n, MEMBERS);
    int span = peer_clock_begin(be);
    if (by16)            LAUNCH(be, "peer_push", push<int4>, blocks, THREADS, 0, v, p);
    else if (unit == 4)  LAUNCH(be, "peer_push", push<int>, blocks, THREADS, 0, v, p);
    else                 LAUNCH(be, "peer_push", push<uint16_t>, blocks, THREADS, 0, v, p);
    comm_clock_end_push(be, span, g->group);
}

namespace {

enum { FLIGHT = 8 };

typedef struct Pull {
    void       *y;
    const void *res;                         /* may be NULL, or y */
    const int  *rows;
    int64_t     T, ys, rs, row_bytes;
    int         K, D, lane_bits;             /* 2^lane_bits lanes share a token */
} Pull;

/* Row i = k etp + q of token t: that of assignment k on member q of its EP rank; NULL: there is none. */
static __device__ inline const char *source(const Peers &g, const Pull &p, const char *const *from, int64_t t,
                                            int i)
{
    int at = t < p.T && i < p.K * g.etp ? p.rows[t * p.K + i / g.etp] : -1;
    if (at < 0) return NULL;
    return from[at / g.row_capacity * g.etp + i % g.etp] + at % g.row_capacity * p.row_bytes;
}

/* acc += columns col .. col + N - 1, if `in`, of the rows of token t. All lanes of the warp are here. */
template <class T, int N>
static __device__ inline void add_sources(const Peers &g, const Pull &p, const char *const *from, int64_t t,
                                          int col, bool in, float *acc)
{
    int lanes = 1 << p.lane_bits, lane = threadIdx.x & (lanes - 1), sources = p.K * g.etp;
    for (int first = 0; first < sources; first += lanes) {
        unsigned long long own = (unsigned long long)source(g, p, from, t, first + lane);
        for (int i = 0; i < lanes && first + i < sources; i += FLIGHT) {
            Run<T, N> v[FLIGHT];
            bool      has[FLIGHT];
            #pragma unroll
            for (int j = 0; j < FLIGHT; j++) {
                const T *row = (const T *)__shfl_sync(~0u, own, i + j, lanes);
                has[j] = in && row && i + j < lanes;
                if (has[j]) v[j] = run_load<N>(row + col);
            }
            #pragma unroll
            for (int j = 0; j < FLIGHT; j++)
                if (has[j])
                    #pragma unroll
                    for (int e = 0; e < N; e++) acc[e] += v[j].get(e);
        }
    }
}

template <class T, int N> static __global__ void __launch_bounds__(THREADS) pull(Peers g, Pull p)
{
    __shared__ const char *from[MEMBERS];
    int     lanes = 1 << p.lane_bits, lane = threadIdx.x & (lanes - 1);
    int64_t step = ((int64_t)gridDim.x * THREADS) >> p.lane_bits, tokens = has_failed(g) ? 0 : p.T;
    int64_t first = ((int64_t)blockIdx.x * THREADS + (threadIdx.x & ~31)) >> p.lane_bits;    /* of the warp */
    for (int m = threadIdx.x; m < g.n; m += THREADS) from[m] = posted(g, m, 0);
    __syncthreads();
    for (; first < tokens; first += step) {
        int64_t t = first + ((threadIdx.x & 31) >> p.lane_bits);
        for (int c = 0; c < p.D; c += lanes * N) {
            int       col = c + lane * N;
            bool      in = t < p.T && col < p.D;
            float     acc[N] = { 0.0f };
            Run<T, N> res;
            if (in && p.res) res = run_load<N>((const T *)p.res + t * p.rs + col);
            add_sources<T, N>(g, p, from, t, col, in, acc);
            #pragma unroll
            for (int e = 0; e < N; e++)
                if (in && p.res) acc[e] += res.get(e);
            if (in) run_store<N>((T *)p.y + t * p.ys + col, acc);
        }
    }
    finish_rows(g, true);
}

}

extern "C" void cuda_peer_pull(Backend *be, const PeerGroup *g, int channel, Tensor y, Tensor rows,
                               Tensor res, int layer)
{
    bool    by16 = packs(y) && (!t_has(res) || packs(res));
    int64_t size = (int64_t)dtype_size((DType)y.dtype), D = y.n[1], each = by16 ? 16 / size : 1;
    Pull    p = { y.data, res.data, (const int *)rows.data, y.n[0], y.s[0], res.s[0], D * size,
                  (int)rows.n[1], (int)D, 0 };
    while (p.lane_bits < 5 && each << p.lane_bits < D) p.lane_bits++;
    int64_t blocks = max_i64(1, cuda_blocks(be, y.n[0] << p.lane_bits, THREADS, 16));
    Peers   v = peers_of(g, channel, layer);
    REQUIRE(g->n <= MEMBERS, "peer_pull: %d members, %d at most", g->n, MEMBERS);
    int span = peer_clock_begin(be);
    BY_DTYPE(y.dtype, T,
             if (by16) LAUNCH(be, "peer_pull", (pull<T, Pack<T>::N>), blocks, THREADS, 0, v, p);
             else      LAUNCH(be, "peer_pull", (pull<T, 1>), blocks, THREADS, 0, v, p));
    comm_clock_end_push(be, span, g->group);
}
