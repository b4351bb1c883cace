/* ops/cuda/scatter.cu -- sums of rows by key without atomics on floats; see scatter.cuh.
 *
 * First the items are sorted by key: digits of 9 bits from the lowest, each pass counts the digits of every
 * tile, sums the counts and places the items; it is stable, so items of one key stay in order. Then the
 * sorted list is cut into windows of equal length. A block adds up the items of a window; a key that lies in
 * one window alone goes straight to the table, a run that crosses a border writes a part for each window, at
 * most two a window: [0] for the run that continues from the left, [1] for a run that starts here and
 * continues. Last, the window where such a run starts adds its parts in order. So a key that half of the
 * items have is still summed by many blocks. */
#include "ops/cuda/scatter.cuh"
#include "ops/cuda/rows.cuh"

namespace {

enum { BITS = 9, DIGITS = 1 << BITS, TILE = 1024, WARPS = TILE / 32, LONGEST = 256, EACH = 16 };

static __global__ void __launch_bounds__(TILE) count_digits(uint32_t *count, const uint32_t *key, int64_t n,
                                                            int shift, int64_t tiles)
{
    __shared__ uint32_t seen[DIGITS];
    int64_t             i = (int64_t)blockIdx.x * TILE + threadIdx.x;
    if (threadIdx.x < DIGITS) seen[threadIdx.x] = 0;
    __syncthreads();
    if (i < n) atomicAdd(&seen[key[i] >> shift & (DIGITS - 1)], 1u);     /* integers: in any order */
    __syncthreads();
    if (threadIdx.x < DIGITS) count[threadIdx.x * tiles + blockIdx.x] = seen[threadIdx.x];
}

/* Each count by the sum of those before it. One block, EACH counts a thread at a time; n is a multiple of
 * EACH. */
static __global__ void __launch_bounds__(TILE) sum_counts(uint32_t *count, int64_t n)
{
    __shared__ uint32_t warp_total[WARPS];
    uint32_t            before = 0;
    int                 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int64_t from = 0; from < n; from += TILE * EACH) {
        int64_t  at = from + (int64_t)threadIdx.x * EACH;
        uint32_t mine = 0, all = 0, left = 0;
        Pack<uint32_t> c[EACH / 4] = {};
#pragma unroll
        for (int i = 0; i < EACH; i += 4)
            if (at < n) c[i / 4] = pack_load(count + at + i);
#pragma unroll
        for (int i = 0; i < EACH; i++) mine += c[i / 4].v[i % 4];
        uint32_t upto = mine;
        for (int o = 1; o < 32; o <<= 1) {
            uint32_t other = __shfl_up_sync(~0u, upto, o);
            if (lane >= o) upto += other;
        }
        __syncthreads();
        if (lane == 31) warp_total[warp] = upto;
        __syncthreads();
        for (int k = 0; k < WARPS; k++) left += k < warp ? warp_total[k] : 0, all += warp_total[k];
        uint32_t sum = before + left + upto - mine;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            uint32_t own = c[i / 4].v[i % 4];
            c[i / 4].v[i % 4] = sum, sum += own;
        }
#pragma unroll
        for (int i = 0; i < EACH; i += 4)
            if (at < n) pack_store(count + at + i, c[i / 4]);
        before += all;
    }
}

typedef struct Place {
    uint32_t       *key, *item;
    const uint32_t *from_key, *from_item;     /* from_item NULL: items as they come */
    const uint32_t *count;
    int64_t         n, tiles;
    int             shift;
} Place;

/* An item goes behind those of its digit in earlier tiles, earlier warps and earlier lanes. */
static __global__ void __launch_bounds__(TILE) place_items(Place a)
{
    __shared__ uint16_t ahead[WARPS][DIGITS];
    __shared__ uint32_t start[DIGITS];
    int64_t  i = (int64_t)blockIdx.x * TILE + threadIdx.x;
    int      lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    bool     mine = i < a.n;
    uint32_t key = mine ? a.from_key[i] : 0, digit = mine ? key >> a.shift & (DIGITS - 1) : DIGITS;
    uint32_t item = mine && a.from_item ? a.from_item[i] : (uint32_t)i;
    for (int k = threadIdx.x; k < WARPS * DIGITS; k += TILE) (&ahead[0][0])[k] = 0;
    if (threadIdx.x < DIGITS) start[threadIdx.x] = a.count[threadIdx.x * a.tiles + blockIdx.x];
    uint32_t same = __match_any_sync(~0u, digit), rank = __popc(same & ((1u << lane) - 1));
    __syncthreads();
    if (mine && !rank) ahead[warp][digit] = (uint16_t)__popc(same);
    __syncthreads();
    if (threadIdx.x < DIGITS) {
        uint32_t sum = 0;
        for (int k = 0; k < WARPS; k++) {
            uint32_t c = ahead[k][threadIdx.x];
            ahead[k][threadIdx.x] = (uint16_t)sum;
            sum += c;
        }
    }
    __syncthreads();
    if (!mine) return;
    uint32_t to = start[digit] + ahead[warp][digit] + rank;
    a.key[to] = key, a.item[to] = item;
}

/* Leaves the sorted list in key[0], item[0] of what it returns. */
static Scatter sort_items(Backend *be, const char *op, Scatter s)
{
    for (int shift = 0; shift == 0 || s.keys >> shift; shift += BITS) {
        Place p = { s.key[1], s.item[1], s.key[0], shift ? s.item[0] : NULL, s.count, s.items, s.tiles,
                    shift };
        LAUNCH(be, op, count_digits, s.tiles, TILE, 0, s.count, s.key[0], s.items, shift, s.tiles);
        LAUNCH(be, op, sum_counts, 1, TILE, 0, s.count, DIGITS * s.tiles);
        LAUNCH(be, op, place_items, s.tiles, TILE, 0, p);
        uint32_t *key = s.key[0], *item = s.item[0];
        s.key[0] = s.key[1], s.item[0] = s.item[1], s.key[1] = key, s.item[1] = item;
    }
    return s;
}

typedef struct Sum {
    const uint32_t *key, *item;
    const float    *weight;
    float          *table, *part;
    RowView            dy;
    int64_t         table_stride, items, keys, width, window;
    uint32_t        per;
    int64_t         chunks;                   /* blocks side by side for one window */
} Sum;

/* E columns of a row: as many as 16 bytes of dy hold, or one. */
template <int E> __device__ inline void columns_store(float *p, const float *x)
{
    if constexpr (E == 1) p[0] = x[0];
    else unit_store<E>(p, x);
}
template <int E> __device__ inline void columns_add(float *p, const float *x)
{
    float y[E];
    if constexpr (E == 1) {
        y[0] = p[0] + x[0];
    } else {
        Unit<float, E> old = unit_load<E>((const float *)p);
#pragma unroll
        for (int i = 0; i < E; i++) y[i] = unit_get(old, i) + x[i];
    }
    columns_store<E>(p, y);
}

/* A block's copy of its window: key, row of dy and weight of the sorted items that have a row in the
 * table, and the keys at either side. */
struct Window {
    uint32_t key[LONGEST], row[LONGEST];
    float    weight[LONGEST];
    uint32_t before, after;
    int      n;
};

enum : uint32_t { NO_KEY = ~0u };

__device__ static inline void window_read(Window &w, const Sum &a, int64_t from)
{
    int64_t left = a.items - from;
    int     most = (int)(left < a.window ? left : a.window), n = 0;
    for (int base = 0; base < most; base += blockDim.x) {
        int  i = base + threadIdx.x;
        bool real = i < most && a.key[from + i] < a.keys;
        if (real) {
            uint32_t item = a.item[from + i];
            w.key[i] = a.key[from + i], w.row[i] = item / a.per;
            w.weight[i] = a.weight ? a.weight[item] : 1.0f;
        }
        n += __syncthreads_count(real);                 /* items with a row come first: keys are sorted */
    }
    if (!threadIdx.x) {
        w.n      = n;
        w.before = from ? a.key[from - 1] : NO_KEY;
        w.after  = n == a.window && from + n < a.items ? a.key[from + n] : NO_KEY;
    }
    __syncthreads();
}

/* The sum of items start .. end - 1 of the window, all of this key. */
template <int E>
__device__ inline void run_leave(const Window &w, const Sum &a, int64_t at, uint32_t key, int start, int end,
                                 int64_t col, const float *sum)
{
    bool in = start == 0 && w.before == key, out = end == w.n && w.after == key;
    if (in || out) columns_store<E>(a.part + (2 * at + (in ? 0 : 1)) * a.width + col, sum);
    else           columns_add<E>(a.table + (int64_t)key * a.table_stride + col, sum);
}

/* Four rows are in flight at a time, whatever their keys. */
template <class T, int E> static __global__ void __launch_bounds__(256) sum_windows(Sum a)
{
    constexpr int     AHEAD = 4;
    __shared__ Window w;
    int64_t at = blockIdx.x / a.chunks;
    int64_t col = ((blockIdx.x % a.chunks) * blockDim.x + threadIdx.x) * (int64_t)E;
    window_read(w, a, at * a.window);
    if (col >= a.width || !w.n) return;
    float    sum[E] = {};
    uint32_t key = w.key[0];
    int      start = 0;
    for (int base = 0; base < w.n; base += AHEAD) {
        Vec<T, E> row[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (base + k < w.n) row[k] = *(const Vec<T, E> *)(row_of<T>(a.dy, w.row[base + k]) + col);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            int i = base + k;
            if (i >= w.n) continue;
            if (w.key[i] != key) {
                run_leave<E>(w, a, at, key, start, i, col, sum);
                key = w.key[i], start = i;
#pragma unroll
                for (int e = 0; e < E; e++) sum[e] = 0.0f;
            }
#pragma unroll
            for (int e = 0; e < E; e++) sum[e] += w.weight[i] * to_f32(row[k].v[e]);
        }
    }
    run_leave<E>(w, a, at, key, start, w.n, col, sum);
}

/* The first sorted place from `low` on with a key above this one. */
__device__ static inline int64_t end_of_run(const Sum &a, uint32_t key, int64_t low)
{
    int64_t high = a.items;
    while (low < high) {
        int64_t mid = (low + high) / 2;
        if (a.key[mid] > key) high = mid;
        else                  low = mid + 1;
    }
    return low;
}

/* A block per window and 256 columns; only where a run starts that goes on is there work. */
static __global__ void __launch_bounds__(256) join_windows(Sum a)
{
    int64_t at = blockIdx.x / a.chunks, from = at * a.window, next = from + a.window;
    int64_t col = (blockIdx.x % a.chunks) * 256 + threadIdx.x;
    if (next >= a.items || col >= a.width) return;
    uint32_t key = a.key[next - 1];
    if (key >= a.keys || a.key[next] != key) return;
    if (from && a.key[from] == key && a.key[from - 1] == key) return;
    int64_t last = (end_of_run(a, key, next) - 1) / a.window;
    float   sum = a.part[(2 * at + 1) * a.width + col];
#pragma unroll 16
    for (int64_t i = at + 1; i <= last; i++) sum += a.part[2 * i * a.width + col];
    a.table[(int64_t)key * a.table_stride + col] += sum;
}

static size_t take(size_t *used, int64_t elements)
{
    size_t at = *used;
    *used += ((size_t)elements * 4 + 255) / 256 * 256;
    return at;
}

}

Scatter scatter_open(Backend *be, int64_t items, int64_t keys, int64_t width, bool weighted)
{
    Scatter s = { items, keys, ceil_div(items, TILE), 32, 0, {}, {}, NULL, NULL, NULL };
    size_t  used = 0, key[2], item[2];
    while (s.window < LONGEST && items > 2048 * s.window) s.window *= 2;
    s.windows = ceil_div(items, s.window);
    for (int i = 0; i < 2; i++) key[i] = take(&used, items), item[i] = take(&used, items);
    size_t count = take(&used, DIGITS * s.tiles), weight = take(&used, weighted ? items : 0);
    size_t part = take(&used, 2 * s.windows * width);
    char  *ws = (char *)cuda_workspace(be, used);
    for (int i = 0; i < 2 && ws; i++) {
        s.key[i]  = (uint32_t *)(ws + key[i]);
        s.item[i] = (uint32_t *)(ws + item[i]);
    }
    if (ws) s.count = (uint32_t *)(ws + count), s.part = (float *)(ws + part);
    if (ws && weighted) s.weight = (float *)(ws + weight);
    return s;
}

void scatter_add(Backend *be, const char *op, Scatter s, Tensor dtable, Tensor dy, int64_t per)
{
    s = sort_items(be, op, s);
    Sum a = { s.key[0], s.item[0], s.weight, (float *)dtable.data, s.part, view_of(dy), dtable.s[0], s.items,
              s.keys, dy.n[1], s.window, (uint32_t)per, 1 };
    bool fast = packs(dy) && packs(dtable);
    int64_t units = fast ? a.width * (int64_t)dtype_size((DType)dy.dtype) / 16 : a.width;
    int     threads = (int)min_i64(ceil_div(units, 32) * 32, 256);
    a.chunks = ceil_div(units, threads);
    if (fast)
        BY_DTYPE(dy.dtype, T,
            LAUNCH(be, op, (sum_windows<T, Pack<T>::N>), s.windows * a.chunks, threads, 0, a));
    else
        BY_DTYPE(dy.dtype, T, LAUNCH(be, op, (sum_windows<T, 1>), s.windows * a.chunks, threads, 0, a));
    a.chunks = ceil_div(a.width, 256);
    LAUNCH(be, op, join_windows, s.windows * a.chunks, 256, 0, a);
}
