/* tests/gpu_exposed.c -- exposed communication on the GPU's clock: two ranks over NCCL, the second of which
 * is late by a known time. tests/gpu_ranks.sh starts it with mpirun; alone it skips. */
#include "lab.h"
#include "comm/mesh.h"
#include "ops/ops.h"

enum { LATE_MS = 50, ELEMS = 64 << 20, ADDS = 1000 };

static struct { Comm *world, *tp; Backend be; Arena arena; Tensor small, large; } lab;

static void lab_open(void)
{
    CommConf conf = { .kind = "nccl", .timeout = 30 };
    if (comm_open(&lab.world, &conf) || backend_open(&lab.be, "cuda") ||
        backend_arena_open(&lab.be, &lab.arena, "lab", (size_t)ELEMS * 4 + (1 << 20)))
        fprintf(stderr, "%s\n", status_text()), exit(6);
    comm_bind(lab.world, &lab.be);
    if (comm_group(lab.world, (int[]){ 0, 1 }, 2, GR_tp, &lab.tp))
        fprintf(stderr, "%s\n", status_text()), exit(6);
    lab.small = t1(&lab.arena, "small", F32, 1024), lab.large = t1(&lab.arena, "large", F32, ELEMS);
    comm_all_reduce(lab.world, lab.small, RED_SUM), comm_all_reduce(lab.tp, lab.small, RED_SUM);
    for (int i = 0; i < 3; i++) op_add(&lab.be, lab.large, lab.large, lab.large);
    EXPECT_OK(backend_sync(&lab.be));
}

/* Both ranks begin here; rank 1 then sleeps. */
static void begin_late(void)
{
    EXPECT_OK(backend_sync(&lab.be));
    comm_barrier(lab.world);
    ledger_clear(&lab.be.ledger);
    if (lab.world->rank == 1) usleep(LATE_MS * 1000);
}

static LedgerComm read_times(const char *what, GroupId group)
{
    EXPECT_OK(backend_sync(&lab.be));
    LedgerComm t = lab.be.ledger.comm[group];
    printf("  rank %d, %s, %s: exposed %.2f ms of %.2f ms\n", lab.world->rank, what, group_name(group),
           1e3 * t.exposed, 1e3 * t.length);
    return t;
}

static bool near_late(double s) { return s > 0.9e-3 * LATE_MS && s < 1.5e-3 * LATE_MS; }

static void a_wait_is_exposed(void)
{
    begin_late();
    comm_all_reduce(lab.world, lab.small, RED_SUM);
    LedgerComm t = read_times("a wait", GR_world);
    if (lab.world->rank) EXPECT(t.exposed < 0.5e-3 * LATE_MS, "the late rank waits %g s", t.exposed);
    else EXPECT(near_late(t.exposed) && near_late(t.length), "exposed %g of %g s", t.exposed, t.length);
}

static void compute_hides_a_wait(void)
{
    begin_late();
    Ticket call = comm_all_reduce_start(lab.world, lab.small, RED_SUM);
    for (int i = 0; i < ADDS && !lab.world->rank; i++) op_add(&lab.be, lab.large, lab.large, lab.large);
    comm_join(call);
    LedgerComm t = read_times("hidden", GR_world);
    if (lab.world->rank) return;
    EXPECT(t.exposed < 0.1e-3 * LATE_MS && t.length > 0.9e-3 * LATE_MS, "exposed %g of %g s", t.exposed,
           t.length);
}

/* Two calls of two groups at once: the time is exposed once. */
static void overlapping_waits_count_once(void)
{
    begin_late();
    Ticket a = comm_all_reduce_start(lab.world, lab.small, RED_SUM);
    Ticket b = comm_all_gather_start(lab.tp, t_rows(lab.large, 0, 2048), t_rows(lab.large, 4096, 1024));
    comm_join(b), comm_join(a);
    LedgerComm world = read_times("two calls", GR_world), tp = read_times("two calls", GR_tp);
    if (lab.world->rank) return;
    EXPECT(near_late(world.exposed + tp.exposed), "exposed %g + %g s", world.exposed, tp.exposed);
    EXPECT(near_late(world.length) && near_late(tp.length), "length %g, %g s", world.length, tp.length);
}

/* More calls between two syncs than the clock has events: each is measured. */
static void many_calls_are_measured(void)
{
    enum { CALLS = 1500 };
    begin_late();
    for (int i = 0; i < CALLS; i++) comm_all_reduce(lab.tp, lab.small, RED_SUM);
    LedgerComm t = read_times("1500 calls", GR_tp);
    EXPECT(t.length > CALLS * 5e-6 && t.exposed < t.length + CALLS * 40e-6, "exposed %g of %g s", t.exposed,
           t.length);                                        /* 13 us a call is the hand-over of streams */
}

int main(void)
{
    if (!comm_launched()) return puts("  skip: tests/gpu_ranks.sh starts it with two ranks\nlab: 0 passed, 0 "
                                      "failed, 1 skipped"), 0;
    lab_open();
    RUN(a_wait_is_exposed);
    RUN(compute_hides_a_wait);
    RUN(overlapping_waits_count_once);
    RUN(many_calls_are_measured);
    comm_close(lab.tp), comm_close(lab.world);
    backend_arena_close(&lab.be, &lab.arena), backend_close(&lab.be);
    return lab_report();
}
