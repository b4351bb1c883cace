/* tests/simt/simt.h -- CUDA's execution model on the host: what a kernel sees, so that the kernels' own
 * sources (through rewrite.awk) run in tests on a machine without a GPU.
 *
 * The threads of a block are fibers of one host thread. A thread runs until it has to wait for others: at a
 * barrier for all threads of the block that have not returned, at a warp's instruction (shuffles, votes,
 * ldmatrix, mma.sync) for all lanes of its mask. Nothing else orders threads: lanes of a warp share no
 * instruction pointer, so code that needs __syncwarp or __syncthreads and lacks it reads what is not there
 * yet. Blocks run one after another. The order of blocks, of warps and of lanes changes from launch to launch
 * (the same changes in every run of a program), so that a result that depends on it differs.
 *
 * These are errors, which name the kernel, the block and the threads: a barrier that some threads never
 * reach or reach at another line, a warp's instruction that lanes of its mask never reach, a shuffle from a
 * lane that is not in the mask, a shared-memory address outside the block's, unaligned ldmatrix and cp.async.
 * Shared memory is filled with 0xff (NaN, or -1) before each block, and so is the destination of a cp.async,
 * which copies no earlier than the wait for it. Memory comes from malloc: a build with SAN=1 checks every
 * access of every kernel. hopper.h, wgmma.h and the files that they name add what Hopper has: the blocks of
 * a cluster run beside each other, and what the hardware does beside the threads (threads.h: later) is done
 * when no thread of the cluster can run, or, in one launch of four, at once. A thread that arrives at an
 * mbarrier lets others run first, in half of the launches.
 *
 * What differs from a GPU: products and sums are never contracted to fused ones unless fmaf asks for it; expf
 * and the like, and the approximate instructions (ex2, rcp, __fdividef) are the host's, correct to an ulp;
 * mma.sync and wgmma add their products in f32, in the order of k; atomics take effect in the order in which
 * threads run; a shuffle whose source has returned is an error. Ordinary reads are not tracked: nothing tells
 * that one came after its stage was freed, unless its value changes. There is no grid-wide progress: a kernel
 * that waits for a later block, or for another kernel, is stopped if it sleeps (__nanosleep) and never ends
 * otherwise. */
#ifndef TESTS_SIMT_H
#define TESTS_SIMT_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <functional>
#include <type_traits>

#define __host__
#define __device__
#define __global__
#define __constant__ static const
#define __grid_constant__
#define __launch_bounds__(...)
#define __maxnreg__(n)
#define __align__(n) alignas(n)

/* ---- vectors ---- */

#define SIMT_VECTOR2(T, t, align)                                                                  \
    struct alignas(align) t##2 { T x, y; };                                                        \
    inline t##2 make_##t##2(T x, T y) { return { x, y }; }
#define SIMT_VECTOR4(T, t, align)                                                                  \
    struct alignas(align) t##4 { T x, y, z, w; };                                                  \
    inline t##4 make_##t##4(T x, T y, T z, T w) { return { x, y, z, w }; }
SIMT_VECTOR2(int, int, 8)
SIMT_VECTOR2(unsigned, uint, 8)
SIMT_VECTOR2(float, float, 8)
SIMT_VECTOR4(int, int, 16)
SIMT_VECTOR4(unsigned, uint, 16)
SIMT_VECTOR4(float, float, 16)
struct uint3 { unsigned x, y, z; };
struct dim3 : uint3 { dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : uint3{ a, b, c } { } };

extern uint3 threadIdx, blockIdx;
extern dim3  blockDim, gridDim;

namespace simt {

/* Where a call stands in the kernels' sources. */
struct Site {
    const char *file;
    int         line;
    static Site here(const char *f = __builtin_FILE(), int l = __builtin_LINE()) { return { f, l }; }
};

/* Stops the program: which kernel, block and thread, and this. */
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* An instruction that threads execute together: the last one to arrive calls `resolve` with the operands of
 * all (NULL: not in the mask, or returned), which writes results into them. */
typedef void (*Resolve)(void *const *operand);
void meet_warp(const char *name, unsigned mask, void *operand, Resolve resolve, Site site);
void meet_block(const char *name, void *operand, Resolve resolve, Site site);

int  lane();                                             /* of the calling thread */
void sleep_thread(Site site);                            /* others run first */

void cluster_begin(int blocks);                          /* first in a kernel with __cluster_dims__ */

/* ---- shared memory ---- */

extern unsigned shared_epoch;                            /* another value in every cluster */
extern char    *shared_base;                             /* of the block that runs */
size_t shared_reserve(size_t bytes, size_t align);       /* the place in each block of the cluster */
void  *dynamic_shared(size_t align);

/* The variables of one __shared__ declaration: S is a type of its own. */
template <class S> inline S &shared()
{
    static unsigned epoch;
    static size_t   at;
    if (epoch != shared_epoch) at = shared_reserve(sizeof(S), alignof(S)), epoch = shared_epoch;
    return *(S *)(shared_base + at);
}

uint32_t shared_address(const void *p);
void    *shared_pointer(uint32_t at, uint32_t bytes, uint32_t align);
void    *shared_target(uint32_t at, uint32_t bytes, uint32_t align);    /* of an ordinary store */

void copy_async(uint32_t to, const void *from, int bytes);      /* and zeros up to 16 */
void copy_async_commit();
void copy_async_wait(int groups);                        /* all but these; -1: also those of no group */

/* ---- launches ---- */

struct Grid { dim3 blocks, threads; size_t bytes; struct Stream *stream; const void *kernel; Site site; };
void submit(const Grid &grid, std::function<void()> thread);

template <class... P> struct Launch {
    void (*kernel)(P...);
    Grid   grid;
    void operator()(P... p) const
    {
        auto k = kernel;
        submit(grid, [=] { k(p...); });
    }
};
template <class... P>
inline Launch<P...> launch(void (*k)(P...), dim3 blocks, dim3 threads, size_t bytes = 0,
                           Stream *stream = NULL, Site site = Site::here())
{
    return { k, { blocks, threads, bytes, stream, (const void *)k, site } };
}

}

#include "simt/intrinsics.h"
#include "simt/ptx.h"
#include "simt/hopper.h"
#include "simt/wgmma.h"

#endif
