/* tests/test_side.c -- pinned host memory and asynchronous copies of the cpu and meta devices. */
#include "sidelab.h"

static SideLab lab;

static void there_and_back(void)
{
    sidelab_open(&lab, "cpu", 1 << 20, 1 << 20);
    EXPECT(!lab.host.base[0] && !lab.host.base[lab.host.cap - 1], "host memory is not zeroed");
    sidelab_there_and_back(&lab, 1);
    sidelab_there_and_back(&lab, 12345);
    sidelab_close(&lab);
}

static void pieces_stream(void)
{
    sidelab_open(&lab, "cpu", 1 << 20, 1 << 20);
    sidelab_stream(&lab, 1, 100);
    sidelab_stream(&lab, 11, 999);
    sidelab_close(&lab);
}

/* meta copies nothing but charges the ledger; its host memory is inaccessible and free. */
static void meta_only_charges(void)
{
    sidelab_open(&lab, "meta", (size_t)1 << 38, (size_t)1 << 38);
    Tensor x = t1(&lab.device, "lab", F32, (int64_t)1 << 32);
    void  *host = arena_push(&lab.host, "lab", (size_t)1 << 34);
    backend_copy_wait_compute(&lab.be, COPY_D2H);
    backend_copy_d2h(&lab.be, host, x), backend_copy_record(&lab.be, COPY_D2H, COPY_EVENTS - 1);
    backend_wait_copy(&lab.be, COPY_EVENTS - 1), backend_copy_wait(&lab.be, COPY_H2D, 0);
    backend_copy_h2d(&lab.be, x, host), backend_copy_h2d(&lab.be, x, host);
    backend_copy_sync(&lab.be);
    EXPECT_OK(backend_sync(&lab.be));
    LedgerHost h = lab.be.ledger.host;
    EXPECT(h.out == (int64_t)1 << 34 && h.in == (int64_t)1 << 35, "%lld out", (long long)h.out);
    sidelab_close(&lab);
}

/* A backend with a sticky error and one that prepares copy nothing. */
static void idle(void)
{
    float value = 3, host[1] = { 5 };
    sidelab_open(&lab, "cpu", 1 << 10, 1 << 10);
    Tensor x = t1(&lab.device, "lab", F32, 1);
    backend_upload(&lab.be, x, &value);
    lab.be.preparing = true;
    backend_copy_d2h(&lab.be, host, x);
    lab.be.preparing = false;
    EXPECT(host[0] == 5, "a walk that prepares copied");
    arena_push(&lab.host, "lab", 1 << 20);                      /* beyond the capacity: sticks */
    backend_copy_d2h(&lab.be, host, x);
    EXPECT(host[0] == 5, "a poisoned backend copied");
    EXPECT_FAIL(backend_sync(&lab.be), E_FIT, "host");
    sidelab_close(&lab);
}

int main(void)
{
    RUN(there_and_back);
    RUN(pieces_stream);
    RUN(meta_only_charges);
    RUN(idle);
    return lab_report();
}
