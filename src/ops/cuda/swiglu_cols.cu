/* ops/cuda/swiglu_cols.cu -- kernels of swiglu_cols.c.
 *
 * A block of threads takes 128 rows of an expert and walks them by tiles of 128 columns of F. First 16 lanes
 * take a row of a tile: g, u and dh become dg, du and h, and the codes of the row are made. Then a warp takes
 * 16 columns of the three. */
#include "ops/cuda/columns.cuh"
#include "ops/cuda/grouped_call.cuh"
#include "ops/cuda/rows.cuh"
#include "ops/cuda/swiglu.cuh"

namespace {

/* Rows of bf16 on 16 bytes. */
struct Bf16Rows {
    bf16   *p;
    int64_t row;

    __device__ bf16 *at(int64_t r, int col) const { return p + r * row + col; }
};

struct BackwardCols {
    RowView      gu;                            /* for h_by_elements */
    Bf16Rows     in, grad, out;                 /* gu, dh and dgu, for the fast kernel */
    Columns      dgu_cols, h_cols;
    Matrices     q;                             /* codes of dgu by rows, and their scales (groups, R) */
    float       *scale, *dgate;
    const float *gate;
    const int   *offsets;
    int64_t      scale_row, dgate_row, gate_row;
    int          E, F;
    bool         stores_dgu;
};

__device__ inline uint4 rounded_eight(const float *x)
{
    return make_uint4(pair_of(x[0], x[1]), pair_of(x[2], x[3]), pair_of(x[4], x[5]), pair_of(x[6], x[7]));
}

/* g, u and dh of a row become dg, du and h; returns what they add to dgate. */
__device__ inline float differentiate(Eight &g, Eight &u, Eight &d, float gate)
{
    float dg[EIGHT], du[EIGHT], h[EIGHT], sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        float x = g.get(i), y = u.get(i);
        sum += dswiglu<bf16>(&dg[i], &du[i], d.get(i), x, y, gate);
        h[i] = swiglu<bf16>(x, y, gate);
    }
    g.bits = rounded_eight(dg), u.bits = rounded_eight(du), d.bits = rounded_eight(h);
    return sum;
}

enum { DG, DU, H, OPERANDS, BATCH = 2 };        /* BATCH: rows that are loaded while as many are computed */
struct Scratch {
    Tile     operand[OPERANDS];
    uint32_t part[OPERANDS][TILE_WARPS];
    float    sum[QUANT_GROUP];                  /* of dgate, by rows */
};

/* Codes of 128 columns of row r of dgu from `from` on, of which 16 lanes hold 8 each; by whole warps, `some`:
 * the row is there. */
__device__ inline void store_row_codes(const BackwardCols &a, const Eight &v, int64_t r, int from, bool some)
{
    Amax  amax = { };
    float f[EIGHT];
    amax.add(v);
    QuantScale s = quant_scale(lanes_max<16>(amax.all()), true);
    #pragma unroll
    for (int i = 0; i < EIGHT; i++) f[i] = s.inverse;
    uint2 code = eight_codes(v, f);
    if (!some) return;
    *(uint2 *)(at<uint8_t>(a.q, 0, r) + from + read_col()) = code;
    if (threadIdx.x % 16 == 0) a.scale[from / QUANT_GROUP * a.scale_row + r] = s.scale;
}

/* Rows first .. + BATCH - 1 of those that a thread reads of the tile from column `from` on. */
struct Batch {
    int   from, first;
    Eight g[BATCH], u[BATCH], d[BATCH];
    float gate[BATCH];

    __device__ void load(const BackwardCols &a, const ColumnGroup &n)
    {
        int col = from + read_col();
        #pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int64_t r = (int64_t)n.row + read_row(first + i);
            bool    some = read_row(first + i) < n.rows && from < a.F;
            g[i].clear(), u[i].clear(), d[i].clear(), gate[i] = 1.0f;
            if (!some) continue;
            g[i].load(a.in.at(r, col)), u[i].load(a.in.at(r, col + a.F)), d[i].load(a.grad.at(r, col));
            if (a.gate) gate[i] = a.gate[r * a.gate_row];
        }
    }
    __device__ void advance()
    {
        first += BATCH;
        if (first == EIGHTS) first = 0, from += QUANT_GROUP;
    }
};

__device__ inline void backward_rows(const BackwardCols &a, const ColumnGroup &n, Scratch &s, Batch &b)
{
    #pragma unroll
    for (int i = 0; i < BATCH; i++) {
        int     row = read_row(b.first + i), col = b.from + read_col();
        int64_t r = (int64_t)n.row + row;
        bool    some = row < n.rows;
        float   sum = lanes_sum<16>(differentiate(b.g[i], b.u[i], b.d[i], b.gate[i]));
        if (threadIdx.x % 16 == 0) s.sum[row] = b.from ? s.sum[row] + sum : sum;
        s.operand[DG].at(row, read_col()) = b.g[i].bits, s.operand[DU].at(row, read_col()) = b.u[i].bits;
        s.operand[H].at(row, read_col()) = b.d[i].bits;
        if (a.q.p) store_row_codes(a, b.g[i], r, b.from, some);
        if (a.q.p) store_row_codes(a, b.u[i], r, a.F + b.from, some);
        if (!a.stores_dgu || !some) continue;
        *(uint4 *)a.out.at(r, col) = b.g[i].bits, *(uint4 *)a.out.at(r, a.F + col) = b.u[i].bits;
    }
}

__global__ void __launch_bounds__(TILE_THREADS, 2) backward_cols(BackwardCols a)
{
    extern __shared__ __align__(16) char smem[];
    Scratch    &s = *(Scratch *)smem;
    ColumnGroup n = quant_column_group(a.offsets, a.E, blockIdx.x);
    Batch       next = { };
    if (!n.rows) return;
    next.load(a, n);
    for (int from = 0; from < a.F; from += QUANT_GROUP) {
        #pragma unroll 1
        for (int i = 0; i < EIGHTS; i += BATCH) {
            Batch now = next;
            next.advance();
            next.load(a, n);
            backward_rows(a, n, s, now);
        }
        __syncthreads();
        #pragma unroll 1
        for (int side = 0; side < OPERANDS; side++) {
            const Columns &z = side == H ? a.h_cols : a.dgu_cols;
            int            first = side == DU ? a.F + from : from;
            Eight          own[EIGHTS];
            if (!z.q.p) continue;
            s.operand[side].read(own);
            store_columns(s.operand[side].codes(), s.part[side], z, own, blockIdx.x, first, true);
        }
        __syncthreads();                        /* the codes have been read */
    }
    int r = threadIdx.x;
    if (a.dgate && r < n.rows) a.dgate[(n.row + r) * a.dgate_row] = s.sum[r];
}

/* h alone, from gu: where the fast kernel cannot run. */
__global__ void __launch_bounds__(TILE_THREADS) h_by_elements(BackwardCols a, int groups)
{
    int         j = blockIdx.x % groups, from = blockIdx.x / groups * QUANT_GROUP;
    ColumnGroup n = quant_column_group(a.offsets, a.E, j);
    if (!n.rows) return;
    store_columns_slowly(a.h_cols, j, from, n.rows, true, [&](int r, int c) {
        int64_t row = view_row(a.gu, n.row + r);
        float   g = view_get(a.gu, row + c), u = view_get(a.gu, row + a.F + c);
        float   gate = a.gate ? a.gate[(n.row + r) * a.gate_row] : 1.0f;
        return a.gu.f32 ? swiglu<float>(g, u, gate) : rounded<bf16>(swiglu<bf16>(g, u, gate));
    });
}

Bf16Rows bf16_rows(Tensor t) { return { (bf16 *)t.data, t.s[0] }; }

bool absent_or_packs(Tensor q) { return !t_has(q) || packs(q); }

}

extern "C" void cuda_swiglu_bwd_cols(Backend *be, Tensor dgu, Tensor q, Tensor scale, ColumnCodes dgu_cols,
                                     ColumnCodes h_cols, Tensor dgate, Tensor dh, Tensor gu, Tensor gate,
                                     Tensor offsets, bool stores_dgu)
{
    int64_t E = offsets.n[0] - 1, F = dh.n[1], groups = quant_columns(dh.n[0], E) / QUANT_GROUP;
    Tensor  none = { };
    BackwardCols a = { view_of(gu), bf16_rows(gu), bf16_rows(dh), bf16_rows(dgu), columns_of(dgu_cols),
                       columns_of(h_cols), matrices(q), (float *)scale.data, (float *)dgate.data,
                       (const float *)gate.data, (const int *)offsets.data, scale.s[0], dgate.s[0], gate.s[0],
                       (int)E, (int)F, stores_dgu };
    bool codes = absent_or_packs(q) && absent_or_packs(dgu_cols.q) && absent_or_packs(h_cols.q);
    bool walks = gu.dtype == BF16 && packs_as(dgu, BF16) && packs_as(dh, BF16) && packs(gu);
    if (codes && walks && F > 0 && F % QUANT_GROUP == 0) {
        LAUNCH(be, "swiglu_bwd_cols", backward_cols, groups, TILE_THREADS, sizeof(Scratch), a);
        return;
    }
    swiglu_bwd_used(be, dgu, dgate, dh, gu, gate, a.offsets + E, NULL);
    if (t_has(q))          cuda_quantize_rows(be, q, scale, dgu, offsets, true);
    if (t_has(dgu_cols.q)) cuda_quantize_cols(be, dgu_cols, dgu, none, 1, offsets, true);
    if (t_has(h_cols.q))
        LAUNCH(be, "swiglu_bwd_cols", h_by_elements, groups * quant_groups(F), TILE_THREADS, 0, a,
               (int)groups);
}
