/* Results of a step on the GPU against the CPU: losses, choices of experts, the verdict, and AdamW that obeys
 * it. All of them are equal to the bit. */
#include "gpulab.h"

#include <time.h>

static Tensor doubles(int64_t n, const double *v)
{
    Tensor t = gpu_new(F64, 1, &n, DENSE, 0);
    memcpy(t.data, v, (size_t)n * sizeof *v);
    return t;
}

static double any_double(void) { return ((double)num_below(2000001) - 1e6) / 12345.678; }

static void losses(void)
{
    for (int i = 0; i < 40; i++) {
        fresh();
        double before[SUMS] = { any_double(), any_double(), any_double(), any_double() };
        Tensor sums = output(doubles(SUMS, before)), aux = in2(F32, 1, 3, DENSE);
        Tensor ce = doubles(2, (double[]){ i % 9 ? any_double() : NAN, any_double() });
        Factor a = any_factor(0.37f), z = any_factor(0.11f);
        exact(sums);
        CALL(add_losses, sums, ce, i % 3 ? aux : none, a, z);
    }
}

static void choices(void)
{
    static const int64_t sizes[][3] = { { 0, 8, 4 }, { 1, 1, 1 }, { 77, 2, 5 }, { 4096, 8, 128 },
                                        { 20000, 10, 512 }, { 3000, 6, 20000 } };
    for (int i = 0; i < 6; i++)
        for (int listed = 0; listed < 2; listed++) {
            fresh();
            int64_t T = sizes[i][0], K = sizes[i][1], E = sizes[i][2];
            Tensor  idx = t_as2(int_below(T * K, -1, E + 2), T, K), group = int_below(T, -1, 3);
            Tensor  count = output(int_below(E, 0, 1000));
            Tensor  rows = listed ? int_below(T / 2 + 1, -1, T + 2) : none;
            CALL(count_experts, count, idx, group, rows);
        }
}

static void biases(void)
{
    static const int64_t sizes[] = { 1, 8, 255, 256, 257, 1000 };
    for (int i = 0; i < 18; i++) {
        fresh();
        Tensor bias = output(in2(F32, 1, sizes[i % 6], DENSE));
        Tensor count = int_below(sizes[i % 6], 0, i ? 1000 : 1);
        Tensor verdict = i % 3 ? doubles(1, (double[]){ i % 3 - 1 }) : none;
        exact(bias);
        CALL(bias_step, bias, count, verdict, 1e-3f);
    }
}

static void verdicts(void)
{
    static const double values[] = { 0, 1, 4.999, 5, 50, 50.001, 1e100, INFINITY, NAN };
    for (int i = 0; i < 400; i++) {
        fresh();
        double     a = values[num_below(9)], b = values[num_below(9)], n = values[num_below(9)];
        Tensor     guard = output(doubles(GUARD_CELLS, (double[]){ 7, num_below(2) * 5.0, i % 5 == 0 }));
        Tensor     sums = doubles(SUMS, (double[]){ a, i % 2 ? b : 1, 0.25, 0.125 }), sumsq = doubles(1, &n);
        StepLimits limits = { .aux_coeff = 0.01, .z_coeff = 0.5, .spike = i % 3 ? 10 : 0,
                              .supervised = i % 4 > 0 };
        exact(guard);
        CALL(step_verdict, guard, sums, sumsq, limits);
    }
}

static void updates(void)
{
    for (int v = STEP_GOOD; v <= STEP_HELD; v++)
        for (int64_t n = 3; n < 100000; n *= 17) {
            fresh();
            Tensor w = output(in2(BF16, 1, n, DENSE)), p = output(in2(F32, 1, n, DENSE));
            Tensor m = output(in2(F32, 1, n, DENSE)), s = output(in2(F32, 1, n, DENSE));
            Tensor g = in2(F32, 1, n, DENSE);
            gpu_normal(s, 0.5f, 0.05f);
            AdamW h = { .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .step = 3,
                        .verdict = doubles(1, (double[]){ v }) };
            if (v != STEP_GOOD) exact(w), exact(p), exact(m), exact(s);
            CALL(adamw, w, p, m, s, g, none, h);
        }
}

/* Two copies in flight, each read with the seconds of its own part. */
static void posts(void)
{
    enum { N = 1 << 20 };
    Arena  a, host;
    double seconds[2][PART_TIMES] = { 0 };
    fresh();
    EXPECT_OK(backend_arena_open(GPU, &a, "lab", N * sizeof(float)));
    EXPECT_OK(backend_host_arena_open(GPU, &host, "lab", 2 * N * sizeof(float)));
    Tensor x = t1(&a, "lab", F32, N), to[2] = { t1(&host, "lab", F32, N), t1(&host, "lab", F32, N) };
    for (int round = 0; round < 3; round++) {
        memset(seconds, 0, sizeof seconds);
        for (int i = 0; i < 2; i++) {
            ledger_clear(&GPU->ledger), ledger_start(&GPU->ledger);
            ledger_enter(&GPU->ledger, i ? PART_HEAD : PART_DECODER);
            for (int k = 0; k < 20; k++) op_fill(GPU, x, (float)(10 * round + i));
            ledger_stop(&GPU->ledger);
            backend_post(GPU, i, to[i].data, x);
        }
        for (int i = 0; i < 2; i++) {
            EXPECT_OK(backend_wait_post(GPU, i, seconds[i]));
            const float *v = to[i].data;
            EXPECT(v[0] == (float)(10 * round + i) && v[N - 1] == v[0], "round %d: %g", round, (double)v[0]);
        }
        bool timed = GPU->device->wait_post != NULL;
        EXPECT(!timed || (seconds[0][PART_DECODER] > 0 && seconds[0][PART_HEAD] == 0 &&
                          seconds[1][PART_HEAD] > 0 && seconds[1][PART_DECODER] == 0),
               "round %d: %g %g, %g %g s", round, seconds[0][PART_DECODER], seconds[0][PART_HEAD],
               seconds[1][PART_DECODER], seconds[1][PART_HEAD]);
    }
    backend_host_arena_close(GPU, &host);
    backend_arena_close(GPU, &a);
}

static void fill_often(Tensor x, int times, Part part)
{
    ledger_clear(&GPU->ledger), ledger_start(&GPU->ledger), ledger_enter(&GPU->ledger, part);
    for (int i = 0; i < times; i++) op_fill(GPU, x, (float)i);
    ledger_stop(&GPU->ledger);
}

/* More launches than the driver's queue holds: the host waits for most of their time, and that is counted.
 * The GPU is idle between two clocks if the host is late, and that is counted too. */
static void waits_are_counted(void)
{
    enum { N = 128 << 20, TIMES = 2500 };
    Arena  a, host;
    double seconds[PART_TIMES] = { 0 };
    if (!gpu_.real) return;
    EXPECT_OK(backend_arena_open(GPU, &a, "lab", N * sizeof(float)));
    EXPECT_OK(backend_host_arena_open(GPU, &host, "lab", 4096));
    Tensor x = t1(&a, "lab", F32, N), few = t1(&host, "lab", F32, 4);
    double from = clock_now();
    fill_often(x, TIMES, PART_HEAD);
    double queued = clock_now() - from, waited = GPU->ledger.launch_wait;
    backend_post(GPU, 0, few.data, t_wrap(x.data, F32, 1, (int64_t[]){ 4 }));
    EXPECT_OK(backend_wait_post(GPU, 0, seconds));
    double idle = seconds[PART_IDLE];
    EXPECT(waited > 0.5 * queued && waited < queued && queued < clock_now() - from, "%g of %g s", waited,
           queued);
    EXPECT(seconds[PART_HEAD] > queued, "%g s on the GPU, %g to queue", seconds[PART_HEAD], queued);
    nanosleep(&(struct timespec){ .tv_nsec = 30000000 }, NULL);
    fill_often(x, 3, PART_HEAD);
    backend_post(GPU, 1, few.data, t_wrap(x.data, F32, 1, (int64_t[]){ 4 }));
    EXPECT_OK(backend_wait_post(GPU, 1, seconds));
    idle = seconds[PART_IDLE] - idle;
    EXPECT(idle > 0.03 && idle < 1 && GPU->ledger.launch_wait < 0.03, "%g s idle", idle);
    backend_host_arena_close(GPU, &host);
    backend_arena_close(GPU, &a);
}

int main(void)
{
    gpulab_open();
    GPU_RUN(losses);
    GPU_RUN(choices);
    GPU_RUN(biases);
    GPU_RUN(verdicts);
    GPU_RUN(updates);
    GPU_RUN(posts);
    GPU_RUN(waits_are_counted);
    return gpulab_report();
}
