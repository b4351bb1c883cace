/* ops/cuda/nvml.cuh -- what NVML knows of the GPU of this rank. The library comes with the driver and is
 * loaded at the first call; without it nothing is known. */
#ifndef OPS_CUDA_NVML_CUH
#define OPS_CUDA_NVML_CUH

#include <stddef.h>

void nvml_state(char *out, size_t n);                  /* "1500 MHz, 690 W, 60 C", or "" */
bool nvml_energy(double *joules, double *mhz);         /* see Device.energy */

#endif
