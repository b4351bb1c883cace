/* train/peak_flops.c -- see peak_flops.h. */
#include "train/peak_flops.h"

#include "base/clock.h"

#include <math.h>

static double time_product(Backend *be, Tensor *t)
{
    double from = clock_now();
    op_gemm(be, t[0], t[1], t[2], (Tensor){ 0 }, GEMM_NT);
    return backend_sync(be) ? INFINITY : clock_now() - from;
}

/* Square products that double in size while they take less than 0.1 s; the largest is then repeated until
 * 50 ms have passed. The best one counts, since other processes may use the machine too. */
static double best_product(Backend *be, Arena *a, DType dtype, int64_t largest)
{
    Tensor t[3];
    double best = 0, from = clock_now();
    for (int64_t n = 0, next = 128; clock_now() - from < 0.05 || next != n;) {
        if (next != n) {
            n = next;
            arena_clear(a);
            for (int i = 0; i < 3; i++) t[i] = t2(a, "peak", dtype, n, n);
            for (int i = 0; i < 3; i++) op_fill(be, t[i], 0.5f);
        }
        double took = time_product(be, t);
        best = fmax(best, 2.0 * (double)(n * n * n) / took);
        if (took < 0.1 && n < largest) next = 2 * n;
    }
    return best;
}

Status peak_flops(Backend *be, DType dtype, PeakFlops *out)
{
    enum { LARGEST = 1024 };
    Arena a;
    *out = (PeakFlops){ .flops = be->device->peak ? be->device->peak(dtype) : 0 };
    if (out->flops > 0) return OK;
    TRY(backend_arena_open(be, &a, "peak", 3 * (size_t)LARGEST * LARGEST * dtype_size(dtype)));
    *out = (PeakFlops){ .flops = best_product(be, &a, dtype, LARGEST), .measured = true };
    Status st = backend_sync(be);
    backend_arena_close(be, &a);
    return st;
}
