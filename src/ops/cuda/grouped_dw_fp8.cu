/* ops/cuda/grouped_dw_fp8.cu -- grouped_dw_fp8.c on a GPU: a thread for each element of c, where the kernel
 * set has no faster kernel. */
#include "ops/cuda/kernel_set.cuh"
#include "ops/cuda/rows.cuh"
#include "ops/quant.h"

namespace {

struct DwArgs {
    RowView        c;
    const uint8_t *a, *b;
    const float   *sa, *sb;
    const int     *offsets;
    int64_t        a_row, b_row, sa_row, sb_row, E, M, N;
    bool           add;
};

__global__ void dw_by_elements(DwArgs x)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, n = i % x.N, m = i / x.N % x.M;
    int64_t e = i / x.N / x.M;
    if (e >= x.E) return;
    int64_t first = quant_column(x.offsets[e], e), end = first + x.offsets[e + 1] - x.offsets[e];
    float   sum = 0.0f;
    for (int64_t k = first; k < end; k += QUANT_GROUP) {
        float   part = 0.0f;
        int64_t g = k / QUANT_GROUP, last = min(end, k + QUANT_GROUP);
        for (int64_t r = k; r < last; r++)
            part += e4m3_to_f32(x.a[m * x.a_row + r]) * e4m3_to_f32(x.b[n * x.b_row + r]);
        sum += (x.sa[g * x.sa_row + m] * x.sb[g * x.sb_row + n / QUANT_GROUP]) * part;
    }
    int64_t at = view_row(x.c, e * x.M + m) + n;
    view_put(x.c, at, x.add ? view_get(x.c, at) + sum : sum);
}

/* The sum of squares of a strip of c, by a warp; strips as grouped_squares_parts counts them. */
template <class C> __global__ void strips_by_warps(float *squares, const C *c, int64_t M, int64_t N,
                                                   int64_t strips, int64_t down, int64_t across)
{
    int64_t s = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32, e = s / across / down;
    int64_t row = s / across % down * SQUARES_ROWS, col = s % across * SQUARES_COLS;
    float   sum = 0.0f;
    if (s >= strips) return;
    for (int64_t r = row; r < min(row + SQUARES_ROWS, M); r++)
        for (int64_t i = col + threadIdx.x % 32; i < min(col + SQUARES_COLS, N); i += 32) {
            float x = to_f32(c[(e * M + r) * N + i]);
            sum += x * x;
        }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) squares[s] = sum;
}

}

void dw_fp8_squares(Backend *be, Tensor squares, Tensor c)
{
    int64_t strips = squares.n[0], across = ceil_div(c.n[2], SQUARES_COLS);
    int64_t down = c.n[0] && across ? strips / c.n[0] / across : 0;
    BY_DTYPE(c.dtype, C,
        LAUNCH(be, "grouped_dw_fp8", strips_by_warps<C>, ceil_div(strips, 8), 256, 0, (float *)squares.data,
               (const C *)c.data, c.n[1], c.n[2], strips, down, across));
}

extern "C" void cuda_grouped_dw_fp8(Backend *be, Tensor c, Tensor squares, ColumnCodes a, ColumnCodes b,
                                    Tensor offsets, int64_t R, int flags)
{
    const KernelSet *set = cuda_of(be)->kernels;
    DwFp8Call        call = { c, squares, a, b, offsets, (flags & GEMM_ACC) != 0 };
    (void)R;
    if (set->dw_fp8 && set->dw_fp8(be, call)) return;
    DwArgs x = { view_of(c), (const uint8_t *)a.q.data, (const uint8_t *)b.q.data,
                 (const float *)a.scale.data, (const float *)b.scale.data, (const int *)offsets.data,
                 a.q.s[0], b.q.s[0], a.scale.s[0], b.scale.s[0], c.n[0], c.n[1], c.n[2], call.add };
    LAUNCH(be, "grouped_dw_fp8", dw_by_elements, ceil_div(t_count(c), 256), 256, 0, x);
    if (t_has(squares)) dw_fp8_squares(be, squares, c);
}
