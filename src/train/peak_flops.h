/* train/peak_flops.h -- the FLOP/s that MFU is a share of. */
#ifndef TRAIN_PEAK_FLOPS_H
#define TRAIN_PEAK_FLOPS_H

#include "ops/ops.h"

typedef struct PeakFlops {
    double flops;                        /* FLOP/s of one device */
    bool   measured;                     /* timed here; false: by the data sheet of the GPU */
} PeakFlops;

/* The data sheet's number for matrix products of this type where the device is in the table, else a
 * measurement of about 50 ms. */
MUST Status peak_flops(Backend *be, DType dtype, PeakFlops *out);

#endif
