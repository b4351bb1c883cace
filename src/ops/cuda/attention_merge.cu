/* ops/cuda/attention_merge.cu -- kernel of attention_merge.c: a warp takes one row of one head, its lanes
 * walk the head dim. There are no sums across lanes. */
#include "ops/cuda/rows.cuh"

namespace {

enum { WARPS = 8 };

typedef struct Merge {
    RowView         o, part;
    float       *lse;
    const float *part_lse;
    int64_t      lse_row, part_row, rows;
    int          H, C;
} Merge;

static __global__ void __launch_bounds__(32 * WARPS) merge_kernel(Merge x)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5), t = r / x.H, h = r % x.H;
    if (r >= x.rows) return;
    float  *at = x.lse + h * x.lse_row + t, a = *at, b = x.part_lse[h * x.part_row + t], top = fmaxf(a, b);
    float   l = top + logf(expf(a - top) + expf(b - top)), wa = expf(a - l), wb = expf(b - l);
    int64_t o = view_row(x.o, r), p = view_row(x.part, r);
    for (int i = threadIdx.x & 31; i < x.C; i += 32)
        view_put(x.o, o + i, view_get(x.o, o + i) * wa + view_get(x.part, p + i) * wb);
    __syncwarp();                                   /* every lane has read lse before lane 0 writes it */
    if (!(threadIdx.x & 31)) *at = l;
}

}

extern "C" void cuda_attention_merge(Backend *be, Tensor o, Tensor lse, Tensor part, Tensor part_lse)
{
    Merge x = { view_of(o), view_of(part), (float *)lse.data, (const float *)part_lse.data, lse.s[0],
                part_lse.s[0], o.n[0] * o.n[1], (int)o.n[1], (int)o.n[2] };
    LAUNCH(be, "attention_merge", merge_kernel, ceil_div(x.rows, WARPS), 32 * WARPS, 0, x);
}
