/* tests/spin.cu -- for tests of the watchdog: a kernel that lasts as long as the test says. */
#include "ops/cuda/cuda.cuh"
#include "spin.h"

__device__ static int64_t now_ns(void)
{
    int64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

__global__ static void spin(int64_t ns)
{
    int64_t until = now_ns() + ns;
    while (now_ns() < until) __nanosleep(100000);
}

extern "C" void spin_launch(Backend *be, double seconds)
{
    LAUNCH(be, "spin", spin, 1, 1, 0, (int64_t)(1e9 * seconds));
}
