/* ops/cuda/tile_queue.cuh -- the tiles of a persistent kernel, drawn one by one.
 *
 * Blocks draw tile numbers 0, 1, ... from a counter in device memory. A block that cannot start because
 * another kernel (a collective) holds its SM leaves its share to the others; when it starts at last it draws
 * from what is left, or ends. With a fixed share of the tiles such blocks would double the kernel's time.
 *
 * One warp of a block draws, and passes each number to the other warps through shared memory. It draws the
 * next tile while it loads the last DRAW_AHEAD stages of the current one: early enough to hide the atomic's
 * latency, and late enough that a block that starts first does not take the tiles of those that start after
 * it. The numbers of a block ascend.
 *
 * A block draws until it gets a number beyond the last tile. So a launch draws tiles + blocks numbers, and
 * the block that draws the last of them sets the counter back to 0: no other launch is needed, and a captured
 * graph can be replayed. Launches that share a counter must not overlap: all are on the compute stream. */
#ifndef OPS_CUDA_TILE_QUEUE_CUH
#define OPS_CUDA_TILE_QUEUE_CUH

#include "ops/cuda/hopper.cuh"

#include <limits.h>

/* Shared memory of a queue: barriers of numbers that are written and of numbers that all readers have read,
 * and the numbers, for TILE_SLOTS numbers each; aligned to 8 bytes. */
enum { TILE_SLOTS = 2, TILE_READ = TILE_SLOTS * 8, TILE_NUMBER = 2 * TILE_SLOTS * 8,
       TILE_QUEUE_BYTES = TILE_NUMBER + TILE_SLOTS * 4, DRAW_AHEAD = 2,
       NOT_A_NUMBER = INT_MIN };                /* which no tile has, and which does not end the queue */

/* By one thread, before bar_init_done; readers: warps that read numbers, of both blocks of a cluster. */
__device__ inline void tile_queue_init(uint32_t queue, int readers)
{
    for (int i = 0; i < TILE_SLOTS; i++)
        bar_init(queue + i * 8, 1), bar_init(queue + TILE_READ + i * 8, readers);
}

/* By one thread: writes the number of turn 0, 1, ..., when its slot has been read. CLUSTER: a thread of the
 * first block of a cluster of two writes it to both. */
template <bool CLUSTER = false> __device__ inline void tile_write(uint32_t queue, int turn, int number)
{
    int slot = turn % TILE_SLOTS;
    bar_wait(queue + TILE_READ + slot * 8, turn / TILE_SLOTS % 2 ^ 1);
    if (CLUSTER) {
        uint32_t there = smem_of(queue, 1);
        cluster_store(there + TILE_NUMBER + slot * 4, number, there + slot * 8);
    }
    smem_store(queue + TILE_NUMBER + slot * 4, number);
    bar_arrive(queue + slot * 8);
}

/* A warp that reads the block's tile numbers. CLUSTER: readers of both blocks arrive at the barriers of the
 * first. An arrival at another block's barrier is not ordered behind a load from the own block's shared
 * memory whose result is still on its way, so it is made to depend on the number: it could let the next
 * number overwrite this one before it has been read, and the warp would go on with another tile than its
 * block. */
template <bool CLUSTER> struct TileReaderOf {
    uint32_t queue;
    int      turn;

    __device__ TileReaderOf(uint32_t queue_) : queue(queue_), turn(0) { }

    __device__ int next()
    {
        int slot = turn % TILE_SLOTS;
        bar_wait(queue + slot * 8, turn++ / TILE_SLOTS % 2);
        int number = uniform(smem_word(queue + TILE_NUMBER + slot * 4));
        __syncwarp();
        if (threadIdx.x % 32 == 0 && number != NOT_A_NUMBER) read_done(queue + TILE_READ + slot * 8);
        return number;
    }
    __device__ void read_done(uint32_t bar)
    {
        if (CLUSTER) cluster_arrive(smem_of(bar, 0));
        else         bar_arrive(bar);
    }
    /* By one warp of the second block of a cluster, before each number: its barrier waits for the number. */
    __device__ void expect()
    {
        if (threadIdx.x % 32 == 0) bar_expect(queue + turn % TILE_SLOTS * 8, sizeof(int));
    }
};
typedef TileReaderOf<false> TileReader;

/* The warp that draws them. */
struct TileDrawer {
    int     *counter;
    uint32_t queue;
    int      turn, drawn;                       /* drawn: the next number, in lane 0 */

    __device__ TileDrawer(int *counter_, uint32_t queue_)
        : counter(counter_), queue(queue_), turn(0), drawn(0)
    {
        draw();
    }
    __device__ void draw() { if (threadIdx.x % 32 == 0) drawn = atomicAdd(counter, 1); }

    /* Before each stage of a tile: draws the next tile when it is time. */
    __device__ void stage(int step, int steps)
    {
        if (step == (steps > DRAW_AHEAD ? steps - DRAW_AHEAD : 0)) draw();
    }
    __device__ int next()
    {
        if (threadIdx.x % 32 == 0) tile_write(queue, turn, drawn);
        turn++;
        return uniform(drawn);
    }
    /* After the last number, which is not below `tiles`. */
    __device__ void close(int tiles)
    {
        if (threadIdx.x % 32 == 0 && drawn == tiles + (int)gridDim.x - 1) *counter = 0;
    }
};

#endif
