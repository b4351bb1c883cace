/* tests/simt/include/cuda_bf16.h -- its types are in tests/simt/intrinsics.h. */
#include "simt/simt.h"
