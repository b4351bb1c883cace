/* ops/cuda/segment.cuh -- which segment a row of a flat stream is in. */
#ifndef OPS_CUDA_SEGMENT_CUH
#define OPS_CUDA_SEGMENT_CUH

#include "ops/cuda/rows.cuh"

typedef struct Borders { const int32_t *starts; int n; } Borders;

static inline Borders borders_of(Segments seg)
{
    Borders b = { (const int32_t *)seg.starts.data, (int)seg.n };
    return b;
}

#ifdef __CUDACC__

/* -1: outside all segments. Segments may be empty. */
__device__ inline int segment_of(Borders b, int64_t row)
{
    int low = 0, high = b.n;
    if (!b.n || row < b.starts[0] || row >= b.starts[b.n]) return -1;
    while (high - low > 1) {
        int at = (low + high) / 2;
        if (b.starts[at] <= row) low = at;
        else                     high = at;
    }
    return low;
}

#endif
#endif
