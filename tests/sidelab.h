/* tests/sidelab.h -- copies between device and host on any device: out and back, in turn with compute, with
 * reused events. */
#ifndef TESTS_SIDELAB_H
#define TESTS_SIDELAB_H

#include "numlab.h"

typedef struct SideLab { Backend be; Arena device, host; } SideLab;

static inline void sidelab_open(SideLab *l, const char *backend, size_t device, size_t host)
{
    EXPECT_OK(backend_open(&l->be, backend));
    EXPECT_OK(backend_arena_open(&l->be, &l->device, "lab", device));
    EXPECT_OK(backend_host_arena_open(&l->be, &l->host, "host", host));
}

static inline void sidelab_close(SideLab *l)
{
    backend_host_arena_close(&l->be, &l->host);
    backend_arena_close(&l->be, &l->device);
    backend_close(&l->be);
}

/* Copies a tensor out, overwrites it on the device, copies it back: copy streams and compute wait for each
 * other. */
static inline void sidelab_there_and_back(SideLab *l, int64_t n)
{
    Tensor x = t1(&l->device, "lab", F32, n);
    float *out = arena_push(&l->host, "lab", (size_t)n * 4), *back = malloc((size_t)n * 4);
    LedgerHost was = l->be.ledger.host;
    for (int round = 0; round < 5; round++) {
        op_fill(&l->be, x, (float)round);
        backend_copy_wait_compute(&l->be, COPY_D2H);
        backend_copy_d2h(&l->be, out, x);
        backend_copy_record(&l->be, COPY_D2H, 7);
        backend_wait_copy(&l->be, 7);
        op_fill(&l->be, x, -1.0f);                              /* waits for the copy out */
        backend_copy_wait_compute(&l->be, COPY_H2D);
        backend_copy_wait(&l->be, COPY_H2D, 7);
        backend_copy_h2d(&l->be, x, out);
        backend_copy_record(&l->be, COPY_H2D, 8);
        backend_wait_copy(&l->be, 8);
        backend_fetch(&l->be, back, x);
        EXPECT(back[0] == (float)round && back[n - 1] == (float)round, "round %d: %g, %g", round, back[0],
               back[n - 1]);
        backend_copy_sync(&l->be);
        EXPECT(out[n / 2] == (float)round, "on the host %g in round %d", out[n / 2], round);
    }
    EXPECT(l->be.ledger.host.in - was.in == 5 * n * 4 && l->be.ledger.host.out - was.out == 5 * n * 4,
           "charged %lld in, %lld out", (long long)l->be.ledger.host.in, (long long)l->be.ledger.host.out);
    free(back);
}

/* Streams pieces through a ring of three buffers: each is copied in, doubled on the device and copied out. */
static inline void sidelab_stream(SideLab *l, int pieces, int64_t n)
{
    enum { RING = 3 };
    Tensor ring[RING];
    float *all = arena_push(&l->host, "lab", (size_t)(pieces * n) * sizeof *all);
    for (int64_t i = 0; i < pieces * n; i++) all[i] = (float)(i % 4093);
    for (int i = 0; i < RING; i++) ring[i] = t1(&l->device, "lab", F32, n);
    for (int i = 0; i < pieces + 1; i++) {
        if (i < pieces) {
            int slot = i % RING;
            if (i >= RING) backend_copy_wait(&l->be, COPY_H2D, RING + slot);      /* its copy out is done */
            backend_copy_h2d(&l->be, ring[slot], all + i * n);
            backend_copy_record(&l->be, COPY_H2D, slot);
        }
        if (i < 1) continue;
        int slot = (i - 1) % RING;
        backend_wait_copy(&l->be, slot);
        op_add(&l->be, ring[slot], ring[slot], ring[slot]);
        backend_copy_wait_compute(&l->be, COPY_D2H);
        backend_copy_d2h(&l->be, all + (i - 1) * n, ring[slot]);
        backend_copy_record(&l->be, COPY_D2H, RING + slot);
    }
    backend_copy_sync(&l->be);
    EXPECT_OK(backend_sync(&l->be));
    int64_t bad = 0;
    for (int64_t i = 0; i < pieces * n; i++) bad += all[i] != 2 * (float)(i % 4093);
    EXPECT(!bad, "%lld of %lld are wrong", (long long)bad, (long long)(pieces * n));
}

#endif
