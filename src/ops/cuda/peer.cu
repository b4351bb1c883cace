/* ops/cuda/peer.cu -- the routing of peer.c: peer_route.
 *
 * count_slots: slots of each chunk by expert; the last block sums them, exchanges the counts and sets the
 * first row of every expert. place_slots: lanes of one expert find each other (match), so a slot's place is
 * the count before its chunk, before its warp, before its 32, among these. */
#include "ops/cuda/peer.cuh"

namespace {

enum { WARPS = 8, THREADS = 32 * WARPS, ITEMS = 4, WARP_SLOTS = 32 * ITEMS, CHUNK = WARPS * WARP_SLOTS };

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
        start[e] = fits ? e / local * g.row_capacity + all[e] + before[e] : -1;
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
place_slots(int *rows, const int *kept, const int *before, const int *start, int64_t n, int E, int64_t chunks)
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
        if (i < n) rows[i] = none ? -1 : to;
    }
}

}

extern "C" void cuda_peer_route(Backend *be, const PeerGroup *g, Tensor offsets, Tensor rows, Tensor kept,
                                bool host_counts, int layer)
{
    int64_t n = t_count(kept), E = g->E, chunks = n ? ceil_div(n, CHUNK) : 1;
    int    *hist = (int *)cuda_workspace(be, (size_t)((chunks + 1) * E * 4)), *start = hist + chunks * E;
    int     span = peer_clock_begin(be);
    LAUNCH(be, "peer_route", count_slots, chunks, THREADS, 3 * E * 4, peers_of(g, -1, layer), hist, start,
           (int *)offsets.data, (const int *)kept.data, n, chunks, host_counts);
    comm_clock_end_push(be, span, g->group);
    LAUNCH(be, "peer_route", place_slots, chunks, THREADS, WARPS * E * 4, (int *)rows.data,
           (const int *)kept.data, hist, start, n, (int)E, chunks);
}
