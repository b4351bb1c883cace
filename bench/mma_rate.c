/* bench/mma_rate.c -- mma_rate.h in a build without CUDA; mma_rate.cu is the other. */
#include "bench/mma_rate.h"

#ifndef TREB_CUDA
double bench_mma_rate(void) { return 0; }
#endif
