/* ops/cpu/segment.h -- which segment a row of a flat stream is in. */
#ifndef OPS_CPU_SEGMENT_H
#define OPS_CPU_SEGMENT_H

#include "ops/cpu/cpu_rows.h"

/* -1: outside all segments. Segments may be empty. */
INLINE int64_t segment_of(Segments seg, int64_t row)
{
    const int32_t *starts = seg.starts.data;
    int64_t low = 0, high = seg.n;
    if (!seg.n || row < starts[0] || row >= starts[seg.n]) return -1;
    while (high - low > 1) {
        int64_t at = (low + high) / 2;
        if (starts[at] <= row) low = at;
        else                   high = at;
    }
    return low;
}

INLINE bool borders_fit(Segments seg) { return seg.starts.dtype == I32 && seg.starts.n[0] == seg.n + 1; }

#endif
