/* tests/contextlab.h -- packs of documents, and ranks that share a micro-batch over cp, for tests of what
 * they do together: threads of this process, or one rank of a dry run. */
#ifndef TESTS_CONTEXTLAB_H
#define TESTS_CONTEXTLAB_H

#include "commlab.h"
#include "numlab.h"
#include "nn/module.h"

#include <omp.h>

enum { MOST_DOCS = 400 };

/* Documents one behind the other from row 0 of T; what is left over is tail. */
typedef struct Pack { int64_t T, docs; int32_t start[MOST_DOCS + 1]; } Pack;

static inline Stream stream_of(const Pack *p)
{
    return (Stream){ .budget = { .tokens = p->T, .docs = MOST_DOCS }, .docs = p->docs,
                     .tokens = p->start[p->docs], .start = (int32_t *)p->start };
}

static inline Segments segments_of(const Pack *p)
{
    Segments seg = { .starts = num_i32(p->docs + 1, p->start), .n = p->docs, .causal = true };
    for (int64_t i = 0; i < p->docs; i++) {
        int64_t n = p->start[i + 1] - p->start[i];
        seg.pairs  += (double)n * (double)(n + 1) / 2;
        seg.longest = n > seg.longest ? n : seg.longest;
    }
    return seg;
}

/* ---- packs ---- */

static inline void pack_add(Pack *p, int64_t n)
{
    int64_t at = p->start[p->docs];
    if (p->docs == MOST_DOCS || at == p->T) return;
    if (n > p->T - at) n = p->T - at;
    p->start[++p->docs] = (int32_t)(at + n);
}

enum { LONG, SHORT, MIXED, TAIL, AT_BORDERS, EARLY_TAIL, EMPTY, ONES, PACKS };

static inline Pack pack_of(int form, int64_t T, int64_t chunk)
{
    Pack p = { .T = T };
    switch (form) {
    case LONG:       pack_add(&p, T);                                                      break;
    case SHORT:      while (p.start[p.docs] < T) pack_add(&p, 1 + num_below(9));           break;
    case MIXED:      while (p.start[p.docs] < T) pack_add(&p, 1 + num_below(num_below(2) ? 7 : T)); break;
    case TAIL:       for (int i = 0; i < 4; i++) pack_add(&p, 1 + num_below(T / 4));       break;
    case AT_BORDERS: while (p.start[p.docs] < T) pack_add(&p, chunk * (1 + num_below(3))); break;
    case EARLY_TAIL: pack_add(&p, 1 + num_below(chunk));                                   break;
    case ONES:       while (p.start[p.docs] < T && p.docs < MOST_DOCS) pack_add(&p, 1);    break;
    default:                                                                               break;
    }
    return p;
}

/* ---- ranks ---- */

static inline int64_t stream_row(int64_t T, int cp, int rank, int64_t local)
{
    int64_t chunk = T / (2 * cp);
    return local < chunk ? rank * chunk + local : (2 * cp - 1 - rank) * chunk + local - chunk;
}

/* The rank's rows of a tensor of the whole, or back to it. */
static inline void share_rows(Tensor mine, Tensor whole, int cp, int rank, bool back)
{
    size_t row = (size_t)(whole.s[0] * (int64_t)dtype_size((DType)whole.dtype));
    for (int64_t i = 0; i < mine.n[0]; i++) {
        char *a = (char *)mine.data + (size_t)i * row;
        char *b = (char *)whole.data + (size_t)stream_row(whole.n[0], cp, rank, i) * row;
        memcpy(back ? b : a, back ? a : b, row);
    }
}

typedef struct ContextRank {
    Backend *be;
    Arena    kept, scratch;
    Mesh     mesh;
    Batch    batch;
    int32_t *host;
    Env      env;
    Pass     pass;
} ContextRank;

/* r stays where it is until rank_close. */
static inline void rank_open(ContextRank *r, Backend *be, Comm *world, const MeshLayout *layout,
                             ContextKind kind, Stream s, DType d)
{
    const size_t most = (size_t)1 << 28;
    *r = (ContextRank){ .be = be };
    if (backend_arena_open(be, &r->kept, "test", most) ||
        backend_arena_open(be, &r->scratch, "scratch", most) || mesh_open(&r->mesh, world, layout))
        printf("%s\n", status_text()), exit(1);
    mesh_bind(&r->mesh, be);
    context_layout(&r->batch.context, &r->kept, &s.budget, &r->mesh, kind);
    r->host = malloc((size_t)context_host(&r->batch.context) * sizeof *r->host);
    context_upload(&r->batch.context, be, r->host, &s);
    r->env  = (Env){ .be = be, .mesh = &r->mesh, .dtype = d };
    r->pass = (Pass){ .env = &r->env, .be = be, .batch = &r->batch, .scratch = &r->scratch };
}

static inline void rank_close(ContextRank *r)
{
    free(r->host);
    mesh_close(&r->mesh);
    backend_arena_close(r->be, &r->scratch);
    backend_arena_close(r->be, &r->kept);
}

/* Rank `rank` of a dry run: nothing is computed, no other rank answers. */
typedef struct PlannedRank { Backend be; Comm *world; ContextRank rank; } PlannedRank;

static inline ContextRank *planned_open(PlannedRank *p, int rank, const MeshLayout *layout, ContextKind kind,
                                        int64_t T, DType d)
{
    Budget budget = { .tokens = T, .docs = MOST_DOCS };
    EXPECT_OK(comm_open(&p->world, &(CommConf){ .kind = "fake", .rank = rank, .size = layout->cp }));
    EXPECT_OK(backend_open(&p->be, "meta"));
    comm_bind(p->world, &p->be);
    rank_open(&p->rank, &p->be, p->world, layout, kind, stream_full(&(StreamShape){ .merge = 1 }, &budget),
              d);
    return &p->rank;
}

/* The peak of its scratch. */
static inline size_t planned_close(PlannedRank *p)
{
    EXPECT_OK(backend_sync(&p->be));
    size_t peak = p->rank.scratch.peak;
    rank_close(&p->rank);
    comm_close(p->world);
    backend_close(&p->be);
    return peak;
}

#endif
