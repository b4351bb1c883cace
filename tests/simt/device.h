/* tests/simt/device.h -- the emulated GPU: its properties, its streams. */
#ifndef TESTS_SIMT_DEVICE_H
#define TESTS_SIMT_DEVICE_H

#include "simt/simt.h"

namespace simt {

/* A GPU of compute capability 8.9 (portable kernels) or, with SIMT_CAPABILITY=9.0 in the environment, 9.0
 * (Hopper's); each with as much shared memory, in bytes, as such a GPU has. */
struct Gpu { int major, minor, shared_most, shared_sm; };
const Gpu &gpu();

enum { SMS = 4, SHARED_MOST = 227 << 10, SHARED_USUAL = 48 << 10 };     /* SHARED_MOST: of any */
constexpr size_t MEMORY_BYTES = (size_t)16 << 30;

/* Runs a kernel now; simt.cc. */
void run_grid(const Grid &grid, const std::function<void()> &kernel);

/* Work of a stream, in its order; streams.cc. */
void queue(Stream *stream, std::function<void()> work);
void run_everything();                                  /* of every stream */

}

#endif
