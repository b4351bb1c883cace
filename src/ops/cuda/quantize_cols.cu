/* ops/cuda/quantize_cols.cu -- kernels of quantize_cols.c.
 *
 * Blocks of threads are persistent: they gather the next tile of 128 x 128, and find the rows of those after
 * it, while they encode one. Two tiles beside each other (a pair) have the same rows. Neighbouring pairs have
 * the same columns, so that what they gather of x, where several experts read a token, is still in the L2
 * cache. */
#include "ops/cuda/columns.cuh"
#include "ops/cuda/rows.cuh"

namespace {

struct Rows {
    RowView    x;
    const int *src, *offsets;
    uint32_t   per_div;                         /* 2^32 / div, rounded up, for n / div where n div < 2^32;
                                                   0: div is 1 */
    int        E, groups, pairs;                /* groups: of columns of codes */
    bool       pow2;

    __device__ int source(int64_t row) const { return src ? src[row] : (int)row; }
    /* The row of x that a source is, or -1: zeros. */
    __device__ int of(int source) const
    {
        return source < 0 || !per_div ? source : (int)__umulhi(source, per_div);
    }
};

/* TilePair i: rows `row` .. + rows - 1 of experts, group j of columns of codes, columns from .. of x. */
enum { SIDES = 2 };
struct TilePair {
    int row, rows, j, from;

    __device__ TilePair(const Rows &x, const int *offsets, int i)
        : row(0), rows(0), j(i % x.groups), from(i / x.groups * SIDES * QUANT_GROUP)
    {
        if (i >= x.pairs) return;
        ColumnGroup g = quant_column_group(offsets, x.E, j);
        row = g.row, rows = g.rows;
    }
};

/* The sources of the rows that a thread reads of a pair. They are not looked at before the pair is gathered:
 * until then their loads are under way. */
struct Sources {
    int source[EIGHTS];

    __device__ void find(const Rows &x, const TilePair &p)
    {
        #pragma unroll
        for (int i = 0; i < EIGHTS; i++)
            source[i] = read_row(i) < p.rows ? x.source(p.row + read_row(i)) : -1;
    }
    __device__ void load(Eight (&v)[EIGHTS], const Rows &x, int from, int K) const
    {
        int col = from + read_col();
        #pragma unroll
        for (int i = 0; i < EIGHTS; i++) {
            int row = x.of(source[i]);
            v[i].clear();
            if (row >= 0 && col < K) v[i].load((const bf16 *)x.x.p + row * x.x.s0 + col);
        }
    }
};

/* The tiles of the two sides take turns, so that one barrier for each suffices. */
struct Scratch {
    Tile     tile[SIDES];
    uint32_t part[SIDES][TILE_WARPS];
    int      offsets[EXPERTS_MOST + 1];
};

/* Stores the columns of a side, whose rows the threads hold in v, and reads the rows of the next tile. */
__device__ inline void store_side(Scratch &s, const Columns &z, const Rows &x, Eight (&v)[EIGHTS],
                                  const TilePair &p, int side, const Sources &next, int next_from)
{
    Eight own[EIGHTS];
    int  from = p.from + side * QUANT_GROUP;
    #pragma unroll
    for (int i = 0; i < EIGHTS; i++) s.tile[side].at(read_row(i), read_col()) = v[i].bits;
    next.load(v, x, next_from, z.K);
    __syncthreads();
    if (!p.rows || from >= z.K) return;
    s.tile[side].read(own);
    store_columns(s.tile[side].codes(), s.part[side], z, own, p.j, from, x.pow2);
}

__global__ void __launch_bounds__(TILE_THREADS, 2) cols_by_tiles(Columns z, Rows x)
{
    extern __shared__ __align__(16) char smem[];
    Scratch &s = *(Scratch *)smem;
    for (int i = threadIdx.x; i <= x.E; i += TILE_THREADS) s.offsets[i] = x.offsets[i];
    __syncthreads();
    Eight    v[EIGHTS];
    Sources  now, next;
    TilePair p(x, s.offsets, blockIdx.x);
    now.find(x, p);
    now.load(v, x, p.from, z.K);
    #pragma unroll 1
    for (int i = blockIdx.x; i < x.pairs; i += gridDim.x) {
        TilePair after(x, s.offsets, i + gridDim.x);
        next.find(x, after);
        store_side(s, z, x, v, p, 0, now, p.from + QUANT_GROUP);
        store_side(s, z, x, v, p, 1, next, after.from);
        p = after, now = next;
    }
}

__global__ void __launch_bounds__(TILE_THREADS) cols_by_elements(Columns z, Rows x)
{
    int         j = blockIdx.x % x.groups, from = blockIdx.x / x.groups * QUANT_GROUP;
    ColumnGroup g = quant_column_group(x.offsets, x.E, j);
    if (!g.rows) return;
    store_columns_slowly(z, j, from, g.rows, x.pow2, [&](int r, int c) {
        int row = x.of(x.source(g.row + r));
        return row < 0 ? 0.0f : view_get(x.x, view_row(x.x, row) + c);
    });
}

}

extern "C" void cuda_quantize_cols(Backend *be, ColumnCodes z, Tensor x, Tensor src, int64_t div,
                                   Tensor offsets, bool pow2)
{
    int64_t E = offsets.n[0] - 1, groups = z.scale.n[0], across = quant_groups(x.n[1]);
    int64_t pairs = groups * ceil_div(across, SIDES), blocks = 2 * cuda_compute_sms(be);
    int64_t per_div = t_has(src) && div > 1 ? ceil_div((int64_t)1 << 32, div) : 0;
    Rows    rows = { view_of(x), (const int *)src.data, (const int *)offsets.data, (uint32_t)per_div, (int)E,
                     (int)groups, (int)pairs, pow2 };
    REQUIRE(!per_div || x.n[0] * div * div < (int64_t)1 << 32,
            "quantize_cols: %lld rows of each of %lld tokens", (long long)div, (long long)x.n[0]);
    if (x.dtype == BF16 && packs(x) && packs(z.q) && x.n[1] % EIGHT == 0 && E <= EXPERTS_MOST)
        LAUNCH(be, "quantize_cols", cols_by_tiles, min_i64(pairs, blocks), TILE_THREADS, sizeof(Scratch),
               columns_of(z), rows);
    else
        LAUNCH(be, "quantize_cols", cols_by_elements, groups * across, TILE_THREADS, 0, columns_of(z), rows);
}
