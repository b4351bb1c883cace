/* ops/cuda/pos_embed.cu -- kernels of pos_embed.c: a warp blends the row of one patch from four rows of the
 * table, which stays in the L2 cache; gradients are sums of rows by key (scatter.cuh), four items for each
 * patch.
 *
 * A patch outside its grid traps on the device, as it aborts on the CPU: the backend reports the failed
 * launch. */
#include "ops/cuda/rows.cuh"
#include "ops/cuda/scatter.cuh"

namespace {

enum { WARPS = 8, TAPS = 4, HELD = 2 };       /* HELD: loads in flight per lane */

struct Tap { int64_t row[TAPS]; float weight[TAPS]; };

__device__ static inline void axis_taps(int64_t *lo, int64_t *hi, float *lambda, int32_t i, int32_t n,
                                        int64_t G)
{
    float s = (float)(i * (G - 1)) / (float)(n > 1 ? n - 1 : 1);
    *lo     = (int64_t)s;
    *hi     = *lo + 1 < G ? *lo + 1 : G - 1;
    *lambda = s - (float)*lo;
}

__device__ static inline Tap taps_of(const int32_t *cell, int64_t G)
{
    int64_t r0, r1, c0, c1;
    float   a, b;
    if (cell[0] < 0 || cell[0] >= cell[2] || cell[1] < 0 || cell[1] >= cell[3]) __trap();
    axis_taps(&r0, &r1, &a, cell[0], cell[2], G);
    axis_taps(&c0, &c1, &b, cell[1], cell[3], G);
    return Tap{ { r0 * G + c0,             r0 * G + c1,    r1 * G + c0,    r1 * G + c1 },
                { (1.0f - a) * (1.0f - b), (1.0f - a) * b, a * (1.0f - b), a * b } };
}

static int64_t grid_side(Tensor table)
{
    int64_t g = 0;
    while ((g + 1) * (g + 1) <= table.n[0]) g++;
    return g;
}

typedef struct Forward { RowView y, x, table; const int32_t *cell; int64_t cell_stride, P, D, G; } Forward;

template <class T> static __global__ void __launch_bounds__(32 * WARPS) forward_packs(Forward a)
{
    constexpr int E = Pack<T>::N;
    int64_t       p = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (p >= a.P) return;
    const int32_t *cell = a.cell + p * a.cell_stride;
    int            packs = (int)(a.D / E);
    bool           blend = cell[2] != 0;
    Tap            tap = {};
    if (blend) tap = taps_of(cell, a.G);
    const T *x = row_of<T>(a.x, p), *row[TAPS];
    T       *y = row_of<T>(a.y, p);
#pragma unroll
    for (int q = 0; q < TAPS; q++) row[q] = row_of<T>(a.table, tap.row[q]);
    for (int from = threadIdx.x & 31; from < packs; from += 32 * HELD) {
        Pack<T> in[HELD], at[HELD][TAPS] = {};
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            int i = from + 32 * k;
            if (i >= packs) continue;
            in[k] = pack_stream(x + i * E);
#pragma unroll
            for (int q = 0; q < TAPS; q++)
                if (blend) at[k][q] = pack_load(row[q] + i * E);
        }
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            int i = from + 32 * k;
            if (i >= packs) continue;
            float v[E];
#pragma unroll
            for (int e = 0; e < E; e++) {
                float pos = tap.weight[0] * to_f32(at[k][0].v[e]) + tap.weight[1] * to_f32(at[k][1].v[e]) +
                            tap.weight[2] * to_f32(at[k][2].v[e]) + tap.weight[3] * to_f32(at[k][3].v[e]);
                v[e] = to_f32(in[k].v[e]) + rounded<T>(pos);
            }
            pack_store(y + i * E, pack_of<T>(v));
        }
    }
}

static __global__ void __launch_bounds__(32 * WARPS) forward_any(Forward a)
{
    int64_t p = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (p >= a.P) return;
    const int32_t *cell = a.cell + p * a.cell_stride;
    int64_t        x = view_row(a.x, p), y = view_row(a.y, p);
    bool           blend = cell[2] != 0;
    Tap            tap = {};
    if (blend) tap = taps_of(cell, a.G);
    for (int64_t i = threadIdx.x & 31; i < a.D; i += 32) {
        float v = view_get(a.x, x + i), pos = 0.0f;
#pragma unroll
        for (int q = 0; q < TAPS; q++)
            if (blend) pos += tap.weight[q] * view_get(a.table, view_row(a.table, tap.row[q]) + i);
        view_put(a.y, y + i, v + (a.y.f32 ? pos : rounded<bf16>(pos)));
    }
}

}

extern "C" void cuda_pos_embed_fwd(Backend *be, Tensor y, Tensor x, Tensor table, Tensor cell)
{
    Forward a = { view_of(y), view_of(x), view_of(table), (const int32_t *)cell.data, cell.s[0], x.n[0],
                  x.n[1], grid_side(table) };
    int64_t blocks = ceil_div(a.P, WARPS);
    int     d = x.dtype;
    if (!a.P) return;
    if (packs(x) && packs_as(y, d) && packs_as(table, d))
        BY_DTYPE(d, T, LAUNCH(be, "pos_embed_fwd", forward_packs<T>, blocks, 32 * WARPS, 0, a));
    else
        LAUNCH(be, "pos_embed_fwd", forward_any, blocks, 32 * WARPS, 0, a);
}

namespace {

/* A tap without weight has no row, as on the CPU. */
static __global__ void make_keys(Scatter s, const int32_t *cells, int64_t stride, int64_t P, int64_t G)
{
    int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (p >= P) return;
    const int32_t *cell = cells + p * stride;
    Tap            tap = {};
    if (cell[2]) tap = taps_of(cell, G);
#pragma unroll
    for (int q = 0; q < TAPS; q++) {
        s.key[0][p * TAPS + q] = (uint32_t)(tap.weight[q] != 0.0f ? tap.row[q] : s.keys);
        s.weight[p * TAPS + q] = tap.weight[q];
    }
}

}

extern "C" void cuda_pos_embed_bwd(Backend *be, Tensor dtable, Tensor dy, Tensor cell)
{
    int64_t P = dy.n[0];
    if (!t_count(dy)) return;
    Scatter s = scatter_open(be, P * TAPS, dtable.n[0], dy.n[1], true);
    if (be->sticky) return;
    LAUNCH(be, "pos_embed_bwd", make_keys, ceil_div(P, 256), 256, 0, s, (const int32_t *)cell.data, cell.s[0],
           P, grid_side(dtable));
    scatter_add(be, "pos_embed_bwd", s, dtable, dy, TAPS);
}
