/* tests/gpu_endless.c -- what the watchdog makes of long kernels, on two ranks over NCCL that
 * tests/gpu_endless.sh starts; alone it skips. Every layer of a micro-batch takes a second, and the host has
 * queued all of them: the run goes on, although the micro-batch takes longer than comm.timeout. With an
 * argument a kernel of rank 1 then never ends:
 *   endless   its host waits for the device
 *   full      its host fills the queue of the device, and is held up there */
#include "lab.h"
#include "comm/mesh.h"
#include "ops/ops.h"
#include "spin.h"

enum { TIMEOUT = 4, LAYERS = 6, CALLS = 4000, FOR_EVER = 100000 };

static struct { Comm *world; Backend be; Arena arena; Tensor t; } lab;

static bool lab_opened(void)
{
    CommConf conf = { .kind = "nccl", .timeout = TIMEOUT, .run_folder = getenv("RANKLAB") };
    if (comm_open(&lab.world, &conf) || backend_open(&lab.be, "cuda") ||
        backend_arena_open(&lab.be, &lab.arena, "lab", 1 << 20)) return false;
    comm_bind(lab.world, &lab.be);
    lab.t = t1(&lab.arena, "t", F32, 1024);
    comm_all_reduce(lab.world, lab.t, RED_SUM);
    return !backend_sync(&lab.be);
}

static void run_layers(int n, double seconds)
{
    for (int l = 0; l < n; l++) {
        activity_layer(l);
        backend_mark(&lab.be);
        op_add(&lab.be, lab.t, lab.t, lab.t);
        spin_launch(&lab.be, lab.world->rank == 1 ? seconds : 0);
    }
}

/* Microseconds for each of MARKS small ops, with a mark before each or without. */
static double time_ops(bool marks)
{
    enum { MARKS = 2000 };
    double from = clock_now();
    for (int i = 0; i < MARKS; i++) {
        if (marks) backend_mark(&lab.be);
        op_add(&lab.be, lab.t, lab.t, lab.t);
    }
    EXPECT_OK(backend_sync(&lab.be));
    return 1e6 * (clock_now() - from) / MARKS;
}

static void marks_are_cheap(void)
{
    time_ops(true);
    double without = time_ops(false), with = time_ops(true);
    printf("  rank %d: %.1f us an op, %.1f us with a mark before it\n", lab.world->rank, without, with);
    EXPECT(with - without < 50, "a mark takes %g us", with - without);
}

static void a_long_micro_batch_goes_on(void)
{
    double from = clock_now();
    activity_phase("step", 1);
    activity_micro_batch(0, "forward");
    run_layers(LAYERS, 1);
    comm_all_reduce(lab.world, lab.t, RED_SUM);
    EXPECT_OK(backend_sync(&lab.be));
    EXPECT(clock_now() - from > LAYERS - 0.5, "%g s", clock_now() - from);
    printf("  rank %d: a micro-batch of %.1f s, comm.timeout is %d s\n", lab.world->rank, clock_now() - from,
           TIMEOUT);
    fflush(stdout);
}

/* Returns only if the kernel has ended. */
static void run_endless(bool full)
{
    activity_phase("step", 2);
    activity_micro_batch(0, "forward");
    run_layers(3, FOR_EVER);
    for (int i = 0; i < (full ? CALLS : 1); i++) {
        op_add(&lab.be, lab.t, lab.t, lab.t);
        comm_all_reduce(lab.world, lab.t, RED_SUM);
    }
    printf("  rank %d: all calls are started\n", lab.world->rank);
    fflush(stdout);
    Status st = backend_sync(&lab.be);
    EXPECT(false, "the kernel has ended: %s", st ? status_text() : "no error");
}

int main(int argc, char **argv)
{
    if (!comm_launched())
        return puts("  skip: tests/gpu_endless.sh starts two ranks\nlab: 0 passed, 0 failed, 1 skipped"), 0;
    if (!lab_opened()) return fprintf(stderr, "%s\n", status_text()), 1;
    RUN(marks_are_cheap);
    RUN(a_long_micro_batch_goes_on);
    if (argc > 1) run_endless(!strcmp(argv[1], "full"));
    comm_bind(lab.world, NULL);
    comm_close(lab.world);
    backend_arena_close(&lab.be, &lab.arena), backend_close(&lab.be);
    return lab_report();
}
