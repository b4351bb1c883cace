/* tests/gpu_side.c -- pinned host memory and asynchronous copies of the GPU: their order, and that they
 * overlap with compute. */
#include "gpulab.h"
#include "sidelab.h"

static SideLab lab;

static const char *device(void)
{
    const char *other = getenv("TREB_GPU_BACKEND");
    return other && *other ? other : "cuda";
}

static void there_and_back(void)
{
    sidelab_open(&lab, device(), 64 << 20, 64 << 20);
    EXPECT(!lab.host.base[0] && !lab.host.base[lab.host.cap - 1], "host memory is not zeroed");
    sidelab_there_and_back(&lab, 1);
    sidelab_there_and_back(&lab, 12345);
    sidelab_there_and_back(&lab, 8 << 20);
    sidelab_close(&lab);
}

static void pieces_stream(void)
{
    sidelab_open(&lab, device(), 256 << 20, (size_t)1 << 30);
    sidelab_stream(&lab, 1, 100);
    sidelab_stream(&lab, 100, 999);
    sidelab_stream(&lab, 40, gpu_size(4 << 20, 1 << 14));
    sidelab_close(&lab);
}

enum { ROUNDS = 20 };

static double seconds_of(Tensor a, Tensor x, float *host, bool work, bool copies)
{
    EXPECT_OK(backend_sync(&lab.be));
    backend_copy_sync(&lab.be);
    double from = clock_now();
    for (int i = 0; i < ROUNDS; i++) {
        if (copies) backend_copy_d2h(&lab.be, host, x);
        for (int k = 0; work && k < 60; k++) op_add(&lab.be, a, a, a);
    }
    backend_copy_sync(&lab.be);
    EXPECT_OK(backend_sync(&lab.be));
    return clock_now() - from;
}

/* Prints the copy rate, and how much of the copies overlaps with compute. */
static void overlap(void)
{
    int64_t n = gpu_size(64 << 20, 1 << 10);
    sidelab_open(&lab, device(), (size_t)1 << 30, (size_t)1 << 29);
    Tensor x = t1(&lab.device, "lab", F32, n), a = t1(&lab.device, "lab", F32, n);
    float *host = arena_push(&lab.host, "lab", (size_t)n * 4);
    seconds_of(a, x, host, true, true);
    double work = seconds_of(a, x, host, true, false), copy = seconds_of(a, x, host, false, true);
    double both = seconds_of(a, x, host, true, true);
    printf("  copies alone %.1f GB/s; work %.1f ms, copies %.1f ms, both %.1f ms\n",
           1e-9 * ROUNDS * 4 * (double)n / copy, work * 1e3, copy * 1e3, both * 1e3);
    if (gpu_.real)
        EXPECT(both < 0.9 * (work + copy), "copies do not overlap with compute");
    sidelab_close(&lab);
}

int main(void)
{
    gpulab_open();
    GPU_RUN(there_and_back);
    GPU_RUN(pieces_stream);
    GPU_RUN(overlap);
    return gpulab_report();
}
