/* tests/simt/include/nvtx3/nvToolsExt.h -- ranges for a profiler, of which there is none. */
#ifndef TESTS_SIMT_NVTX_H
#define TESTS_SIMT_NVTX_H
inline int nvtxRangePop() { return 0; }
inline int nvtxRangePushA(const char *) { return 0; }
#endif
