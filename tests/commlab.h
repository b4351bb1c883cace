/* tests/commlab.h -- several ranks in a test: threads of this process, or, under mpirun, the processes it
 * started. Values are a pure function of (rank, salt, place), so that each rank can compute what it should
 * get with plain loops. */
#ifndef TESTS_COMMLAB_H
#define TESTS_COMMLAB_H

#include "lab.h"
#include "comm/mesh.h"
#include "base/rng.h"

#include <pthread.h>

typedef struct Peer {                 /* one rank of a test */
    Comm   *world;
    Backend be;
    int     rank, size;
    void  (*fn)(struct Peer *);
} Peer;

static struct { Comm *mpi; Backend be; Device machine; } commlab_;

static inline void *peer_main(void *arg)
{
    Peer *p = arg;
    p->fn(p);
    comm_close(p->world);
    backend_close(&p->be);
    return NULL;
}

/* fn on every rank at once. Under mpirun n does not matter: there are as many as were started. */
static inline void on_ranks(int n, int per_node, void (*fn)(Peer *))
{
    if (commlab_.mpi) {
        Comm *c = commlab_.mpi;
        Peer  p = { .world = c, .be = commlab_.be, .rank = c->rank, .size = c->size };
        memset(&p.be.ledger, 0, sizeof p.be.ledger);
        comm_bind(p.world, &p.be);
        fn(&p);
        comm_bind(p.world, &commlab_.be);
        return;
    }
    Comm     *world[32];
    Peer      peer[32];
    pthread_t thread[32];
    Status    st = comm_open_threads(world, n, per_node);
    if (st) printf("%s\n", status_text()), exit(1);
    for (int i = 0; i < n; i++) {
        peer[i] = (Peer){ .world = world[i], .rank = i, .size = n, .fn = fn };
        if (backend_open(&peer[i].be, "cpu")) exit(1);
        comm_bind(world[i], &peer[i].be);
    }
    for (int i = 0; i < n; i++)
        if (pthread_create(&thread[i], NULL, peer_main, &peer[i])) exit(1);
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
}

static inline void on_some_ranks(void (*fn)(Peer *))
{
    if (commlab_.mpi) { on_ranks(0, 0, fn); return; }
    for (int n = 2; n <= 8; n += n < 4 ? 1 : 2) on_ranks(n, 0, fn);
}

/* ---- values ---- */

static inline uint64_t mix(uint64_t x)
{
    x ^= x >> 30, x *= 0xbf58476d1ce4e5b9u, x ^= x >> 27, x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The value of place i, written to *to. */
static inline void put_value(void *to, DType d, int64_t i, int who, int64_t salt)
{
    uint64_t h = mix(mix((uint64_t)who * 1000003u + (uint64_t)salt) + (uint64_t)i * 0x9e3779b97f4a7c15u);
    double   x = (double)(int64_t)h / 9.3e18 * (1 + (double)(h & 63));
    switch (d) {
    case F32:  *(float *)to    = (float)x;                            return;
    case F64:  *(double *)to   = x;                                   return;
    case BF16: *(uint16_t *)to = bf16_from_f32((float)x);             return;
    case I32:  *(int32_t *)to  = (int32_t)(h >> 40) - 8388608;        return;
    case I64:  *(int64_t *)to  = (int64_t)(h >> 20) - ((int64_t)1 << 43); return;
    default:   *(uint8_t *)to  = (uint8_t)h;                          return;
    }
}

static inline void put_values(void *p, DType d, int64_t n, int who, int64_t salt)
{
    for (int64_t i = 0; i < n; i++) put_value((char *)p + i * (int64_t)dtype_size(d), d, i, who, salt);
}

/* What a sum over `members` at place i is, into place `at` of out. */
static inline void put_sum(void *out, int64_t at, DType d, int64_t i, const Comm *c, int64_t salt, Reduce r)
{
    union { double f64; float f32; uint16_t bf16; int32_t i32; int64_t i64; } x;
    double  wide = 0;
    float   f = 0;
    int64_t n = 0;
    for (int m = 0; m < c->size; m++) {
        put_value(&x, d, i, c->world[m], salt);
        float   xf = d == BF16 ? bf16_to_f32(x.bf16) : d == F32 ? x.f32 : 0;
        double  xd = d == F64 ? x.f64 : 0;
        int64_t xn = d == I32 ? x.i32 : d == I64 ? x.i64 : 0;
        if (!m)                f = xf, wide = xd, n = xn;
        else if (r == RED_SUM) f += xf, wide += xd, n += xn;
        else                   f = xf > f ? xf : f, wide = xd > wide ? xd : wide, n = xn > n ? xn : n;
    }
    switch (d) {
    case F32:  ((float *)out)[at]    = f;                return;
    case F64:  ((double *)out)[at]   = wide;             return;
    case BF16: ((uint16_t *)out)[at] = bf16_from_f32(f); return;
    case I32:  ((int32_t *)out)[at]  = (int32_t)n;       return;
    default:   ((int64_t *)out)[at]  = n;                return;
    }
}

static inline Tensor fresh(DType d, int64_t rows, int64_t width)      /* the caller frees .data */
{
    size_t bytes = (size_t)(rows * width) * dtype_size(d) + 8;
    void  *p = malloc(bytes);
    memset(p, 0x77, bytes);
    return t_wrap(p, d, 2, (int64_t[]){ rows, width });
}

static inline bool same_bits(Tensor t, const void *want) { return !memcmp(t.data, want, (size_t)t_bytes(t)); }

#endif
