/* ops/cuda/portable_grouped.cu -- grouped_gemm.c on every GPU since compute capability 8.0: the tiles of
 * portable_grouped.cuh, stored as they are. */
#include "ops/cuda/portable_grouped.cuh"

namespace {

/* Stores sums as f32 or bf16, with `add` to what is there, and in TN the sums of squares of strips. */
struct Store {
    typedef struct Args {
        void   *c;
        int64_t expert, row;
        bool    half, add;
        float  *squares;            /* or NULL */
    } Args;
    enum { STRIPS = TILE_M / SQUARES_ROWS };        /* of a tile */

    __device__ static void put_f32(float *c, int col, int N, const float (*d)[4], int h, bool add)
    {
        #pragma unroll
        for (int j = 0; j < 8; j++) {
            int     at = col + j * 8 + threadIdx.x % 4 * 2;
            float2 *p = (float2 *)(c + at), x = make_float2(d[j][2 * h], d[j][2 * h + 1]);
            if (at >= N) continue;
            if (add) x.x += p->x, x.y += p->y;
            *p = x;
        }
    }
    __device__ static void put_half(bf16 *c, int col, int N, const float (*d)[4], int h, bool add, bool valid)
    {
        #pragma unroll
        for (int j = 0; j < 8; j += 2) {
            int    at = col + j * 8;
            float  x[4] = { d[j][2 * h], d[j][2 * h + 1], d[j + 1][2 * h], d[j + 1][2 * h + 1] };
            if (add && valid) add_old(x, c, at + threadIdx.x % 4 * 2, N);
            uint2 v = four_columns(pair_of(x[0], x[1]), pair_of(x[2], x[3]));
            at += lane_col();
            if (valid && at < N) *(uint2 *)(c + at) = v;
        }
    }
    __device__ static void add_old(float (&x)[4], const bf16 *c, int at, int N)
    {
        #pragma unroll
        for (int i = 0; i < 4; i += 2, at += 8) {
            uint32_t old = at < N ? *(const uint32_t *)(c + at) : 0;
            x[i] += low(old), x[i + 1] += high(old);
        }
    }
    /* The strips of a tile; warps across a strip leave their sums in `part`. */
    template <class S>
    __device__ static void put_squares(const Args &a, const TileJob &g, const Tile &t, const S &s,
                                       float *part)
    {
        int down = (g.M + TILE_M - 1) / TILE_M * STRIPS, across = (g.N + SQUARES_COLS - 1) / SQUARES_COLS;
        #pragma unroll
        for (int i = 0; i < s.DOWN; i++) {
            float sum = 0.0f;
            #pragma unroll
            for (int j = 0; j < s.ACROSS * 4; j++) {
                float x = s.d[i][j / 4][j % 4];
                if (a.half) x = to_f32(from_f32<bf16>(x));
                sum = fmaf(x, x, sum);
            }
            sum = warp_sum(sum);
            if (threadIdx.x % 32 == 0) part[(s.row() / 16 + i) * s.WARPS + s.col() / s.COLS] = sum;
        }
        __syncthreads();
        if (threadIdx.x >= STRIPS) return;
        int64_t at = ((int64_t)t.e * down + t.m / SQUARES_ROWS + threadIdx.x) * across + t.n / SQUARES_COLS;
        float   sum = 0.0f;
        for (int i = 0; i < s.WARPS; i++) sum += part[threadIdx.x * s.WARPS + i];
        a.squares[at] = sum;
    }
    template <class S> __device__ static void put(const Args &a, const TileJob &g, const Tile &t, const S &s,
                                              float *work)
    {
        int     m = t.m + s.row(), n = t.n + s.col(), rows = g.M ? g.M : t.rows;
        int64_t at = g.M ? t.e * a.expert : t.first * a.row;
        each_row(m, [&](int row, int i, int h) {
            int64_t from = at + row * a.row;
            if (a.half)          put_half((bf16 *)a.c + from, n, g.N, s.d[i], h, a.add, row < rows);
            else if (row < rows) put_f32((float *)a.c + from, n, g.N, s.d[i], h, a.add);
        });
        if (a.squares) put_squares(a, g, t, s, work);
    }
};

template <int MODE, bool DROP = false> using Wide = Product<MODE, SQUARES_COLS, Store, false, DROP>;

Store::Args store_of(const GroupedCall &q)
{
    Store::Args s = { q.c.data, q.c.s[0], q.c.s[q.mode == GEMM_TN], q.c.dtype == BF16, q.add, q.squares };
    return s;
}

/* Weight gradients: experts with the most rows first. */
void gradient(Backend *be, const GroupedCall &q)
{
    int    *order = (int *)cuda_workspace(be, (size_t)(3 + q.E) * sizeof(int));
    TileJob g = tile_job(be, q.offsets, q.E, q.every, q.a.n[1], q.b.n[1]);
    g.main = gradient_term(q.a, q.b), g.order = order + 3;
    if (be->sticky) return;                     /* no workspace */
    LAUNCH(be, "grouped_gemm", order_experts, 1, EXPERTS_MOST, 0, order + 3, order, g.first, (int)q.E);
    launch_tiles<Wide<GEMM_TN>>(be, "grouped_gemm", g, store_of(q), q.a.n[0]);
}

}

void portable_grouped(Backend *be, const GroupedCall &q)
{
    if (q.mode == GEMM_TN) { gradient(be, q); return; }
    TileJob g = tile_job(be, q.offsets, q.E, q.every, 0, q.c.n[1]);
    g.main = term_of(q.a, q.b), g.lora = lora_of(q.lora), g.dropout = q.dropout;
    Store::Args end = store_of(q);
    if (q.drops)                launch_tiles<Wide<GEMM_NN, true>>(be, "grouped_gemm", g, end, q.a.n[0]);
    else if (q.mode == GEMM_NT) launch_tiles<Wide<GEMM_NT>>(be, "grouped_gemm", g, end, q.a.n[0]);
    else                        launch_tiles<Wide<GEMM_NN>>(be, "grouped_gemm", g, end, q.a.n[0]);
}
