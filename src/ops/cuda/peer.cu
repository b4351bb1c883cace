/* ops/cuda/peer.cu -- kernels of peer.c. Words of other members are read with acquire and written with
 * release semantics in system scope; rows are written 16 bytes a lane.
 *
 * peer_route   count_slots: slots of each chunk by expert; the last block sums them, exchanges the counts and
 *              sets the first row of every expert. place_slots: lanes of one expert find each other (match),
 *              so a slot's place is the count before its chunk, before its warp, before its 32, among these.
 * peer_push    A warp a token: the row is read once and written to each of its experts' ranks.
 * peer_return  2^k lanes a row.
 *
 * A kernel of many blocks never waits: its last block does, alone. */
#include "ops/cuda/comm_clock.cuh"
#include "ops/peer.h"

namespace {

enum { WARPS = 8, THREADS = 32 * WARPS, ITEMS = 4, WARP_SLOTS = 32 * ITEMS, CHUNK = WARPS * WARP_SLOTS };

/* A PeerGroup as an argument. */
typedef struct Peers {
    int                n, me, etp, channel, layer;
    int                E;
    int64_t            row_capacity, slots;
    long long         *state, *status;
    char *const       *table;
    unsigned long long timeout;              /* nanoseconds */
} Peers;

static Peers peers_of(const PeerGroup *g, int channel, int layer)
{
    return Peers{ g->n, g->me, g->etp, channel, layer, (int)g->E, g->row_capacity, g->slots,
                  (long long *)g->state, (long long *)g->status, g->table,
                  (unsigned long long)(g->timeout * 1e9) };
}

/* The time of kernels that exchange or wait is exposed communication. */
static int clock_begin(Backend *be)
{
    if (!be->preparing) return comm_clock_begin(be, cuda_of(be)->stream);
    Status st = comm_clock_open(be);
    if (st && !be->sticky) be->sticky = st;
    return -1;
}

/* ---- words ---- */

static __device__ inline long long *mail(const Peers &g, int member) { return (long long *)g.table[member]; }

static __device__ inline long long load_acquire(const long long *p)
{
    long long x;
    asm volatile("ld.acquire.sys.global.b64 %0, [%1];" : "=l"(x) : "l"(p) : "memory");
    return x;
}
static __device__ inline void store_release(long long *p, long long x)
{
    asm volatile("st.release.sys.global.b64 [%0], %1;" :: "l"(p), "l"(x) : "memory");
}
static __device__ inline unsigned long long now_ns()
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
static __device__ inline bool has_failed(const Peers &g)
{
    return *(volatile long long *)&g.state[STATE_FAILED];
}

/* The first wait that fails says so. */
static __device__ void fail_wait(const Peers &g, int member, int channel, long long epoch)
{
    if (atomicCAS((unsigned long long *)&g.state[STATE_FAILED], 0ull, 1ull)) return;
    volatile long long *s = g.status;
    s[STATUS_MEMBER] = member, s[STATUS_CHANNEL] = channel;
    s[STATUS_EPOCH] = epoch, s[STATUS_LAYER] = g.layer;
    __threadfence_system();
    s[STATUS_FAILED] = 1;
}

/* Waits until a word of this member's mailbox has reached the epoch. The host's word is read now and then. */
static __device__ bool await(const Peers &g, int64_t word, long long epoch, int member, int channel)
{
    enum { POLLS = 256 };
    const long long   *p = mail(g, g.me) + word;
    unsigned long long since = now_ns();
    for (int i = 1; load_acquire(p) < epoch; i++) {
        if (has_failed(g)) return false;
        bool stop = i % POLLS == 0 && *(volatile long long *)&g.status[STATUS_ABORT];
        if (stop || now_ns() - since > g.timeout) {
            fail_wait(g, member, channel, epoch);
            return false;
        }
        __nanosleep(100);
    }
    return true;
}

/* The same for the words of all members from `first` on, by a block; false in every thread if one failed. */
static __device__ bool await_all(const Peers &g, int64_t first, long long epoch, int channel)
{
    bool good = true;
    for (int m = threadIdx.x; m < g.n; m += blockDim.x) good &= await(g, first + m, epoch, m, channel);
    return __syncthreads_and(good);
}

/* Writes an epoch into the mailboxes of all members, after everything that this block has written or seen
 * written. */
static __device__ void show_all(const Peers &g, int64_t word, long long epoch)
{
    __syncthreads();
    __threadfence_system();
    for (int m = threadIdx.x; m < g.n; m += blockDim.x) store_release(mail(g, m) + word, epoch);
}

/* True in all threads of the last block that gets here: all writes of the others are seen. */
static __device__ bool is_last_block(const Peers &g, int counter)
{
    __shared__ bool last;
    __syncthreads();
    if (!threadIdx.x) {
        unsigned long long *done = (unsigned long long *)&g.state[STATE_BLOCKS + counter];
        __threadfence_system();
        last = atomicAdd(done, 1ull) + 1 == gridDim.x;
        if (last) *done = 0;
        __threadfence_system();
    }
    __syncthreads();
    return last;
}

/* ---- route ---- */

static __device__ inline int *counts_in(const Peers &g, int mailbox, long long epoch, int from)
{
    return (int *)(mail(g, mailbox) + mail_counts(g.n)) + ((epoch & 1) * g.n + from) * g.E;
}

static __device__ inline int warp_scan(int x, int lane)        /* inclusive */
{
    for (int o = 1; o < 32; o *= 2) {
        int before = __shfl_up_sync(~0u, x, o);
        if (lane >= o) x += before;
    }
    return x;
}

/* Exclusive prefix sum of x[0..n-1] in place, by one warp; returns the total. */
static __device__ int scan_before(volatile int *x, int64_t n, int lane)
{
    int carry = 0;
    for (int64_t from = 0; from < n; from += 32) {
        int own = from + lane < n ? x[from + lane] : 0, upto = warp_scan(own, lane);
        if (from + lane < n) x[from + lane] = carry + upto - own;
        carry += __shfl_sync(~0u, upto, 31);
    }
    return carry;
}

/* Writes this member's counts (E, shared) into every mailbox and waits for those of all. */
static __device__ bool exchange_counts(const Peers &g, const int *count, long long epoch)
{
    for (int i = threadIdx.x; i < g.n * g.E; i += blockDim.x)
        counts_in(g, i / g.E, epoch, g.me)[i % g.E] = count[i % g.E];
    show_all(g, g.me, epoch);
    return await_all(g, 0, epoch, -1);
}

/* before[e]: rows of members before this one for expert e; all[e]: of all members. */
static __device__ void sum_members(const Peers &g, int *before, int *all, long long epoch)
{
    for (int e = threadIdx.x; e < g.E; e += blockDim.x) {
        int sum = 0;
        for (int m = 0; m < g.n; m++) {
            if (m == g.me) before[e] = sum;
            sum += __ldcv(counts_in(g, g.me, epoch, m) + e);
        }
        all[e] = sum;
    }
    __syncthreads();
}

/* Of the last block: start[e] is the first row of this member for expert e, counted over all EP ranks, -1
 * where nothing is sent; offsets are those of the own experts. */
static __device__ void set_starts(const Peers &g, int *start, int *offsets, int *before, int *all, bool good,
                                  bool host_counts)
{
    __shared__ int most;
    int  lane = threadIdx.x & 31, local = g.E * g.etp / g.n, own = g.me / g.etp;
    if (!threadIdx.x) most = 0;
    __syncthreads();
    for (int r = threadIdx.x >> 5; r < g.n / g.etp; r += blockDim.x >> 5) {
        int rows = scan_before(all + r * local, local, lane);
        if (!lane) atomicMax(&most, rows);
        if (!lane && r == own) offsets[local] = rows;
    }
    __syncthreads();
    bool fits = good && most <= g.row_capacity;
    for (int e = threadIdx.x; e < g.E; e += blockDim.x) {
        start[e] = fits ? (int)(e / local * g.row_capacity) + all[e] + before[e] : -1;
        if (e / local == own) offsets[e % local] = fits ? all[e] : 0;
    }
    if (threadIdx.x) return;
    if (!fits) offsets[local] = 0;
    g.state[STATE_MAX_ROWS] = good ? most : 0;
    if (good && !fits && !host_counts) *(volatile long long *)&g.status[STATUS_OVERFLOW] = 1;
}

/* hist (E, chunks): slots of each chunk, then slots of the chunks before it. */
static __global__ void __launch_bounds__(THREADS)
count_slots(Peers g, int *hist, int *start, int *offsets, const int *kept, int64_t n, int64_t chunks,
            bool host_counts)
{
    extern __shared__ int shared[];
    int *count = shared, *before = count + g.E, *all = before + g.E;
    for (int e = threadIdx.x; e < g.E; e += THREADS) count[e] = 0;
    __syncthreads();
    int64_t first = (int64_t)blockIdx.x * CHUNK, end = min(n, first + CHUNK);
    for (int64_t i = first + threadIdx.x; i < end; i += THREADS) {
        int e = kept[i];
        if (e >= 0 && e < g.E) atomicAdd(&count[e], 1);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < g.E; e += THREADS) hist[e * chunks + blockIdx.x] = count[e];
    if (!is_last_block(g, PEER_CHANNELS)) return;
    for (int e = threadIdx.x >> 5; e < g.E; e += WARPS) {
        int sum = scan_before(hist + e * chunks, chunks, threadIdx.x & 31);
        if (!(threadIdx.x & 31)) count[e] = sum;
    }
    __syncthreads();
    long long epoch = g.state[STATE_ROUTE] + 1;
    bool good = exchange_counts(g, count, epoch);
    if (good) sum_members(g, before, all, epoch);
    set_starts(g, start, offsets, before, all, good, host_counts);
    if (!threadIdx.x) g.state[STATE_ROUTE] = epoch;
}

/* seen[w][e]: first how many slots warp w has for e, then the row of the next of them. */
static __global__ void __launch_bounds__(THREADS)
place_slots(int *rows, int *slots, const int *kept, const int *before, const int *start, int64_t n, int E,
            int64_t chunks)
{
    extern __shared__ int seen[];
    int      lane = threadIdx.x & 31, warp = threadIdx.x >> 5, *mine = seen + warp * E, expert[ITEMS];
    unsigned peers[ITEMS];
    int64_t  at = (int64_t)blockIdx.x * CHUNK + warp * WARP_SLOTS + lane;
    for (int i = threadIdx.x; i < WARPS * E; i += THREADS) seen[i] = 0;
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        int e = at + 32 * k < n ? kept[at + 32 * k] : -1;
        expert[k] = e >= 0 && e < E ? e : -1;
        peers[k] = __match_any_sync(~0u, expert[k]);
        if (expert[k] >= 0 && lane == __ffs(peers[k]) - 1) mine[expert[k]] += __popc(peers[k]);
        __syncwarp();
    }
    __syncthreads();
    for (int e = threadIdx.x; e < E; e += THREADS) {
        int next = start[e] + before[e * chunks + blockIdx.x];
        for (int w = 0; w < WARPS; w++) {
            int count = seen[w * E + e];
            seen[w * E + e] = next, next += count;
        }
    }
    bool none = start[0] < 0;
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        int64_t i = at + 32 * k;
        int     e = expert[k], to = e < 0 ? -1 : mine[e] + __popc(peers[k] & ((1u << lane) - 1));
        __syncwarp();
        if (e >= 0 && lane == __ffs(peers[k]) - 1) mine[e] += __popc(peers[k]);
        __syncwarp();
        if (i < n) rows[i] = none ? -1 : to, slots[i] = none || e < 0 ? -1 : (int)i;
    }
}

}

extern "C" void cuda_peer_route(Backend *be, const PeerGroup *g, Tensor offsets, Tensor rows, Tensor slots,
                                Tensor kept, bool host_counts, int layer)
{
    int64_t n = t_count(kept), E = g->E, chunks = n ? ceil_div(n, CHUNK) : 1;
    int    *hist = (int *)cuda_workspace(be, (size_t)((chunks + 1) * E * 4)), *start = hist + chunks * E;
    LAUNCH(be, "peer_route", count_slots, chunks, THREADS, 3 * E * 4, peers_of(g, -1, layer), hist, start,
           (int *)offsets.data, (const int *)kept.data, n, chunks, host_counts);
    LAUNCH(be, "peer_route", place_slots, chunks, THREADS, WARPS * E * 4, (int *)rows.data, (int *)slots.data,
           (const int *)kept.data, hist, start, n, (int)E, chunks);
}

/* ---- posts and waits: one block ---- */

namespace {

typedef struct Addresses { long long at[PEER_ADDRESSES]; } Addresses;

static __global__ void post(Peers g, Addresses a)
{
    long long epoch = g.state[STATE_CHANNEL + g.channel] + 1;
    for (int i = threadIdx.x; i < g.n * PEER_ADDRESSES; i += blockDim.x)
        mail(g, i / PEER_ADDRESSES)[mail_address(g.n, g.channel, g.me) + i % PEER_ADDRESSES] =
            a.at[i % PEER_ADDRESSES];
    show_all(g, mail_ready(g.n, g.channel, g.me), epoch);
    await_all(g, mail_ready(g.n, g.channel, 0), epoch, g.channel);
    if (!threadIdx.x) g.state[STATE_CHANNEL + g.channel] = epoch;
}

static __global__ void wait(Peers g)
{
    await_all(g, mail_done(g.n, g.channel, 0), g.state[STATE_CHANNEL + g.channel], g.channel);
}

/* The end of a kernel that has pushed rows; returns: the exchange had no post, so its epoch begins here. */
static __device__ void finish_push(const Peers &g, bool returns, bool waits)
{
    if (!is_last_block(g, g.channel)) return;
    long long epoch = g.state[STATE_CHANNEL + g.channel] + returns;
    show_all(g, mail_done(g.n, g.channel, g.me), epoch);
    __syncthreads();
    if (returns && !threadIdx.x) g.state[STATE_CHANNEL + g.channel] = epoch;
    if (waits) await_all(g, mail_done(g.n, g.channel, 0), epoch, g.channel);
}

}

extern "C" void cuda_peer_post(Backend *be, const PeerGroup *g, int channel, Tensor rows, Tensor gate,
                               Tensor origin, int layer)
{
    Addresses a = { { peer_address(g, rows), peer_address(g, gate), peer_address(g, origin) } };
    int       span = clock_begin(be);
    LAUNCH(be, "peer_post", post, 1, 64, 0, peers_of(g, channel, layer), a);
    comm_clock_end_push(be, span, g->group);
}

extern "C" void cuda_peer_wait(Backend *be, const PeerGroup *g, int channel, int layer)
{
    int span = clock_begin(be);
    LAUNCH(be, "peer_wait", wait, 1, 64, 0, peers_of(g, channel, layer));
    comm_clock_end_push(be, span, g->group);
}

/* ---- rows ---- */

namespace {

enum { EACH = 8, MEMBERS = 256 };

/* What a member has posted: 0: rows, 1: gates, 2: origins. */
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

/* The gates and origins of a token's K assignments, a lane each. */
static __device__ void push_gates(const Peers &g, const Push &p, int64_t t, int lane)
{
    for (int k = lane; k < p.K; k += 32) {
        int64_t i = t * p.K + k;
        int     to = p.rows[i];
        for (int q = 0; q < g.etp && to >= 0; q++) {
            int     member = (int)(to / g.row_capacity) * g.etp + q;
            int64_t row = to % g.row_capacity;
            ((float *)posted(g, member, 1))[row] = p.weight[i];
            ((int *)posted(g, member, 2))[row] = (int)(g.me * g.slots + i);
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
                    U *y = (U *)dest[(int)(to / g.row_capacity) * g.etp + q] +
                           to % g.row_capacity * p.units;
                    #pragma unroll
                    for (int i = 0; i < EACH; i++)
                        if (c + 32 * i < p.units) y[c + 32 * i] = v[i];
                }
            }
        }
        if (p.weight) push_gates(g, p, t, lane);
    }
    finish_push(g, false, p.waits);
}

typedef struct Return {
    const void *x;
    const int  *origin, *used;               /* used: how many rows there are */
    int         units, lane_bits;            /* 2^lane_bits lanes share a row */
    bool        waits;
} Return;

template <class U> static __global__ void __launch_bounds__(THREADS) give_back(Peers g, Return r)
{
    int lanes = 1 << r.lane_bits, lane = threadIdx.x & (lanes - 1), used = has_failed(g) ? 0 : *r.used;
    int64_t step = ((int64_t)gridDim.x * THREADS) >> r.lane_bits;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) >> r.lane_bits; i < used; i += step) {
        int      from = r.origin[i];
        int64_t  slot = g.me % g.etp * g.slots + from % g.slots;
        U       *y = (U *)g.table[table_return(g.channel) * g.n + from / g.slots] + slot * r.units;
        const U *x = (const U *)r.x + i * r.units;
        for (int c = lane; c < r.units; c += EACH * lanes) {
            U v[EACH];
            #pragma unroll
            for (int k = 0; k < EACH; k++)
                if (c + k * lanes < r.units) v[k] = x[c + k * lanes];
            #pragma unroll
            for (int k = 0; k < EACH; k++)
                if (c + k * lanes < r.units) y[c + k * lanes] = v[k];
        }
    }
    finish_push(g, true, r.waits);
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
    int span = clock_begin(be);
    if (by16)            LAUNCH(be, "peer_push", push<int4>, blocks, THREADS, 0, v, p);
    else if (unit == 4)  LAUNCH(be, "peer_push", push<int>, blocks, THREADS, 0, v, p);
    else                 LAUNCH(be, "peer_push", push<uint16_t>, blocks, THREADS, 0, v, p);
    comm_clock_end_push(be, span, g->group);
}

extern "C" void cuda_peer_return(Backend *be, const PeerGroup *g, int channel, Tensor x, Tensor origin,
                                 Tensor offsets, bool waits, int layer)
{
    bool    by16 = packs(x);
    int64_t unit = unit_of(by16, x), size = (int64_t)dtype_size((DType)x.dtype);
    Return  r = { x.data, (const int *)origin.data, (const int *)offsets.data + t_count(offsets) - 1,
                  (int)(x.n[1] * size / unit), 0, waits };
    while (r.lane_bits < 5 && 1 << r.lane_bits < r.units) r.lane_bits++;
    int64_t blocks = cuda_blocks(be, x.n[0] << r.lane_bits, THREADS, 16);
    Peers   v = peers_of(g, channel, layer);
    int     span = clock_begin(be);
    if (blocks < 1) blocks = 1;
    if (by16)            LAUNCH(be, "peer_return", give_back<int4>, blocks, THREADS, 0, v, r);
    else if (unit == 4)  LAUNCH(be, "peer_return", give_back<int>, blocks, THREADS, 0, v, r);
    else                 LAUNCH(be, "peer_return", give_back<uint16_t>, blocks, THREADS, 0, v, r);
    comm_clock_end_push(be, span, g->group);
}
