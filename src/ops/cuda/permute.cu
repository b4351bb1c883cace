/* ops/cuda/permute.cu -- kernels of permute.c: a stable counting sort of slots, and rows moved 16 bytes at a
 * time.
 *
 * sort_by_expert A block owns CHUNK slots, each of its warps a contiguous range of them. slots_count: slots
 *                of a block per expert. chunks_scan, a warp per expert: slots of all blocks before.
 *                slots_place: lanes of one expert find each other (match), so the position of a slot is the
 *                count before its block, before its warp, before its 32, and among these. Integers: no result
 *                depends on the order of threads. Experts are counted in shared memory, which fits 6000.
 * gather_rows,   2^k lanes a row, up to a warp, each with EACH accesses in flight. Where a row has several
 * scatter_rows,  destinations (expand_rows), different lanes write them and read the row from the cache.
 * expand_rows
 * combine        A block per token, with FLIGHT of its rows in flight; the sum runs in slot order.
 *
 * Rows that do not start and end on 16 bytes are moved element by element. */
#include "ops/cuda/runs.cuh"

namespace {

enum { WARPS = 8, ITEMS = 4, WARP_SLOTS = 32 * ITEMS, CHUNK = WARPS * WARP_SLOTS };

static __global__ void __launch_bounds__(32 * WARPS)
slots_count(int *hist, const int *idx, int64_t R, int E, int64_t chunks)
{
    extern __shared__ int count[];
    int64_t first = (int64_t)blockIdx.x * CHUNK;
    for (int e = threadIdx.x; e < E; e += blockDim.x) count[e] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < CHUNK && first + i < R; i += blockDim.x) {
        int e = idx[first + i];
        if (e >= 0 && e < E) atomicAdd(&count[e], 1);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < E; e += blockDim.x) hist[e * chunks + blockIdx.x] = count[e];
}

/* Inclusive prefix sum over the lanes. */
static __device__ inline int warp_scan(int x, int lane)
{
    for (int o = 1; o < 32; o *= 2) {
        int before = __shfl_up_sync(~0u, x, o);
        if (lane >= o) x += before;
    }
    return x;
}

/* Exclusive prefix sum of x[0..n-1] in place, by one warp; returns the total. */
static __device__ inline int scan_before(int *x, int64_t n, int lane)
{
    int carry = 0;
    for (int64_t from = 0; from < n; from += 32) {
        int own = from + lane < n ? x[from + lane] : 0, upto = warp_scan(own, lane);
        if (from + lane < n) x[from + lane] = carry + upto - own;
        carry += __shfl_sync(~0u, upto, 31);
    }
    return carry;
}

static __global__ void __launch_bounds__(32 * WARPS) chunks_scan(int *hist, int *total, int E, int64_t chunks)
{
    int lane = threadIdx.x & 31, e = blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (e >= E) return;
    int sum = scan_before(hist + e * chunks, chunks, lane);
    if (!lane) total[e] = sum;
}

/* seen[w][e]: first how many slots warp w has for e, then the row of the next of them. */
static __global__ void __launch_bounds__(32 * WARPS)
slots_place(int *offsets, int *rows, int *src, const int *idx, const int *before, const int *total, int64_t R,
            int E, int64_t chunks)
{
    extern __shared__ int shared[];
    __shared__ int all;
    int      lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int     *off = shared, *seen = shared + E, *mine = seen + warp * E, expert[ITEMS];
    unsigned peers[ITEMS];
    int64_t  first = (int64_t)blockIdx.x * CHUNK, at = first + warp * WARP_SLOTS + lane;

    #pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        int e = at + 32 * k < R ? idx[at + 32 * k] : -1;
        expert[k] = e < E ? e : -1;
    }
    for (int e = threadIdx.x; e < E; e += blockDim.x) off[e] = total[e];
    for (int i = threadIdx.x; i < WARPS * E; i += blockDim.x) seen[i] = 0;
    __syncthreads();
    if (!warp) {
        int sum = scan_before(off, E, lane);
        if (!lane) all = sum;
    }
    #pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        peers[k] = __match_any_sync(~0u, expert[k]);
        if (expert[k] >= 0 && lane == __ffs(peers[k]) - 1) mine[expert[k]] += __popc(peers[k]);
        __syncwarp();
    }
    __syncthreads();
    for (int e = threadIdx.x; e < E; e += blockDim.x) {
        int next = off[e] + before[e * chunks + blockIdx.x];
        if (!blockIdx.x) offsets[e] = off[e];
        for (int w = 0; w < WARPS; w++) {
            int n = seen[w * E + e];
            seen[w * E + e] = next, next += n;
        }
    }
    if (!blockIdx.x && !threadIdx.x) offsets[E] = all;
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        int64_t i = at + 32 * k;
        int     e = expert[k], to = e < 0 ? -1 : mine[e] + __popc(peers[k] & ((1u << lane) - 1));
        __syncwarp();
        if (e >= 0 && lane == __ffs(peers[k]) - 1) mine[e] += __popc(peers[k]);
        __syncwarp();
        if (i < R) rows[i] = to;
        if (to >= 0) src[to] = (int)i;
        if (i < R && i >= all) src[i] = -1;                       /* a row without a slot */
    }
}

}

extern "C" void cuda_sort_by_expert(Backend *be, Tensor offsets, Tensor rows, Tensor src, Tensor idx)
{
    int64_t R = t_count(idx), E = t_count(offsets) - 1, chunks = R ? ceil_div(R, CHUNK) : 1;
    int    *hist = (int *)cuda_workspace(be, (size_t)((chunks + 1) * E * 4)), *total = hist + chunks * E;
    LAUNCH(be, "sort_by_expert", slots_count, chunks, 32 * WARPS, E * 4, hist, (const int *)idx.data, R,
           (int)E,
           chunks);
    LAUNCH(be, "sort_by_expert", chunks_scan, ceil_div(E, WARPS), 32 * WARPS, 0, hist, total, (int)E, chunks);
    LAUNCH(be, "sort_by_expert", slots_place, chunks, 32 * WARPS, (WARPS + 1) * E * 4, (int *)offsets.data,
           (int *)rows.data, (int *)src.data, (const int *)idx.data, hist, total, R, (int)E, chunks);
}

namespace {

/* Rows by an index: of n units U each, strides in units. */
typedef struct Move {
    void       *y;
    const void *x;
    const int  *index;
    int64_t     ys, xs, rows;
    unsigned    div;
    int         n, lane_bits;                /* 2^lane_bits lanes share a row, 32 at most */
} Move;

enum { EACH = 8 };

/* Streaming stores leave the caches to rows that are read again. */
template <class U> static __device__ inline void put(U *p, U x) { *p = x; }
template <> __device__ inline void put<int4>(int4 *p, int4 x)   { __stcs(p, x); }

template <class U> static __device__ inline void move_row(U *y, const U *x, int n, int first, int step)
{
    for (int c = first; c < n; c += EACH * step) {
        U v[EACH];
        #pragma unroll
        for (int k = 0; k < EACH; k++)
            if (c + k * step < n) v[k] = x[c + k * step];
        #pragma unroll
        for (int k = 0; k < EACH; k++)
            if (c + k * step < n) put(y + c + k * step, v[k]);
    }
}

static __device__ inline int64_t own_row(Move m)
{
    return ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) >> m.lane_bits;
}

/* y[i] = x[index[i] / div], zeros where there is none. */
template <class U> static __global__ void __launch_bounds__(256, 4) gather(Move m)
{
    int64_t i = own_row(m);
    if (i >= m.rows) return;
    int from = m.index[i], lanes = 1 << m.lane_bits, lane = threadIdx.x & (lanes - 1);
    U  *y = (U *)m.y + i * m.ys;
    if (from >= 0) move_row(y, (const U *)m.x + (unsigned)from / m.div * m.xs, m.n, lane, lanes);
    else for (int c = lane; c < m.n; c += lanes) put(y + c, U());
}

/* y[index[i]] = x[i / div]. */
template <class U> static __global__ void __launch_bounds__(256, 4) scatter(Move m)
{
    int64_t i = own_row(m);
    int     lanes = 1 << m.lane_bits;
    if (i >= m.rows || m.index[i] < 0) return;
    move_row((U *)m.y + m.index[i] * m.ys, (const U *)m.x + (unsigned)i / m.div * m.xs, m.n,
             threadIdx.x & (lanes - 1), lanes);
}

/* y[index[i]] += x[i], N elements at a time; the unit here is the element. */
template <class T, int N> static __global__ void __launch_bounds__(256) scatter_add(Move m)
{
    int64_t i = own_row(m);
    int     lanes = 1 << m.lane_bits;
    if (i >= m.rows || m.index[i] < 0) return;
    T       *y = (T *)m.y + m.index[i] * m.ys;
    const T *x = (const T *)m.x + i * m.xs;
    for (int c = (threadIdx.x & (lanes - 1)) * N; c < m.n; c += lanes * N) {
        Run<T, N> a = run_load<N>(y + c), b = run_load<N>(x + c);
        float     sum[N];
        #pragma unroll
        for (int j = 0; j < N; j++) sum[j] = a.get(j) + b.get(j);
        run_store<N>(y + c, sum);
    }
}

/* Rows in units of `unit` bytes, shared by as many lanes as have something to do, `each` units a time. */
static Move move_of(Tensor y, Tensor x, Tensor index, int64_t unit, int each)
{
    int64_t size = (int64_t)dtype_size((DType)y.dtype);
    Move    m = { y.data, x.data, (const int *)index.data, y.s[0] * size / unit, x.s[0] * size / unit,
                  t_count(index), 1, (int)(y.n[1] * size / unit), 0 };
    while (m.lane_bits < 5 && each << m.lane_bits < m.n) m.lane_bits++;
    return m;
}
static int64_t move_blocks(Move m) { return m.n ? ceil_div(m.rows << m.lane_bits, 256) : 0; }

}

extern "C" void cuda_gather_rows(Backend *be, Tensor y, Tensor x, Tensor src, int64_t div)
{
    bool by16 = packs(y) && packs(x);
    Move m = move_of(y, x, src, by16 ? 16 : (int64_t)dtype_size((DType)y.dtype), 1);
    m.div = (unsigned)min_i64(div, (int64_t)1 << 31);
    if (by16)                 LAUNCH(be, "gather_rows", gather<int4>,     move_blocks(m), 256, 0, m);
    else if (y.dtype != BF16) LAUNCH(be, "gather_rows", gather<int>,      move_blocks(m), 256, 0, m);
    else                      LAUNCH(be, "gather_rows", gather<uint16_t>, move_blocks(m), 256, 0, m);
}

namespace {

static void spread(Backend *be, const char *op, Tensor y, Tensor x, Tensor rows, int64_t div)
{
    bool by16 = packs(y) && packs(x);
    Move m = move_of(y, x, rows, by16 ? 16 : (int64_t)dtype_size((DType)y.dtype), 1);
    m.div = (unsigned)div;
    if (by16)                 LAUNCH(be, op, scatter<int4>,     move_blocks(m), 256, 0, m);
    else if (y.dtype != BF16) LAUNCH(be, op, scatter<int>,      move_blocks(m), 256, 0, m);
    else                      LAUNCH(be, op, scatter<uint16_t>, move_blocks(m), 256, 0, m);
}

}

extern "C" void cuda_scatter_rows(Backend *be, Tensor y, Tensor x, Tensor rows, bool add)
{
    bool    by16 = packs(y) && packs(x);
    int64_t size = (int64_t)dtype_size((DType)y.dtype);
    if (add) {
        Move m = move_of(y, x, rows, size, by16 ? (int)(16 / size) : 1);
        int64_t blocks = move_blocks(m);
        BY_DTYPE(y.dtype, T,
                 if (by16) LAUNCH(be, "scatter_rows", (scatter_add<T, Pack<T>::N>), blocks, 256, 0, m);
                 else      LAUNCH(be, "scatter_rows", (scatter_add<T, 1>), blocks, 256, 0, m));
        return;
    }
    spread(be, "scatter_rows", y, x, rows, 1);
}

extern "C" void cuda_expand_rows(Backend *be, Tensor y, Tensor x, Tensor rows)
{
    spread(be, "expand_rows", y, x, rows, rows.n[1]);
}

namespace {

typedef struct Sum {
    void       *y;
    const void *x, *res;                     /* res may be NULL, or y */
    const int  *rows;
    int64_t     ys, xs, rs, D;
    int         K;
} Sum;

template <class T, int N> static __global__ void __launch_bounds__(256, 3) combine_rows(Sum s)
{
    enum { FLIGHT = 8 };
    int64_t    t = blockIdx.x;
    const int *rows = s.rows + t * s.K;
    for (int64_t c = (int64_t)threadIdx.x * N; c < s.D; c += (int64_t)blockDim.x * N) {
        float     acc[N] = { 0.0f };
        Run<T, N> res;
        if (s.res) res = run_load<N>((const T *)s.res + t * s.rs + c);
        for (int from = 0; from < s.K; from += FLIGHT) {
            Run<T, N> v[FLIGHT];
            bool      has[FLIGHT];
            #pragma unroll
            for (int k = 0; k < FLIGHT; k++) {
                int r = from + k < s.K ? rows[from + k] : -1;
                has[k] = r >= 0;
                if (has[k]) v[k] = run_load<N>((const T *)s.x + r * s.xs + c);
            }
            #pragma unroll
            for (int k = 0; k < FLIGHT; k++)
                if (has[k])
                    #pragma unroll
                    for (int j = 0; j < N; j++) acc[j] += v[k].get(j);
        }
        #pragma unroll
        for (int j = 0; j < N; j++)
            if (s.res) acc[j] += res.get(j);
        run_store<N>((T *)s.y + t * s.ys + c, acc);
    }
}

}

extern "C" void cuda_combine(Backend *be, Tensor y, Tensor x, Tensor rows, Tensor res)
{
    bool by16 = packs(y) && packs(x) && (!t_has(res) || packs(res));
    int64_t each = by16 ? 16 / (int64_t)dtype_size((DType)y.dtype) : 1, D = y.n[1];
    int64_t threads = min_i64(256, ceil_div(ceil_div(D, each), 32) * 32), blocks = D ? y.n[0] : 0;
    Sum s = { y.data, x.data, res.data, (const int *)rows.data, y.s[0], x.s[0], res.s[0], D, (int)rows.n[1] };
    BY_DTYPE(y.dtype, T,
             if (by16) LAUNCH(be, "combine", (combine_rows<T, Pack<T>::N>), blocks, threads, 0, s);
             else      LAUNCH(be, "combine", (combine_rows<T, 1>), blocks, threads, 0, s));
}
