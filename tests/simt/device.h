/* tests/simt/device.h -- the emulated GPU: its properties, its streams. */
#ifndef TESTS_SIMT_DEVICE_H
#define TESTS_SIMT_DEVICE_H

#include "simt/simt.h"

namespace simt {

/* Compute capability 8.9, which takes the portable kernels; as much shared memory as such a GPU has. */
enum { MAJOR = 8, MINOR = 9, SMS = 4 };
enum { SHARED_MOST = 99 << 10, SHARED_SM = 100 << 10, SHARED_USUAL = 48 << 10 };    /* bytes */
constexpr size_t MEMORY_BYTES = (size_t)16 << 30;

/* Runs a kernel now; simt.cc. */
void run_grid(const Grid &grid, const std::function<void()> &kernel);

/* Work of a stream, in its order; streams.cc. */
void queue(Stream *stream, std::function<void()> work);
void run_everything();                                  /* of every stream */

}

#endif
