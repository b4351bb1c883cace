/* tests/simt/include/cuda_fp16.h -- its types are in tests/simt/intrinsics.h. */
#include "simt/simt.h"
