/* tests/dispatchlab.h -- an expert layer over ranks that are threads, against one rank that has all experts.
 *
 * The reference runs every rank's tokens through an expert layer on one rank and adds up the gradients; the
 * rows of each rank and its part of the weight gradients are compared with it. */
#ifndef TESTS_DISPATCHLAB_H
#define TESTS_DISPATCHLAB_H

#include "lab.h"
#include "base/rng.h"
#include "nn/dispatch.h"

#include <omp.h>
#include <pthread.h>
#include <time.h>

enum { D = 24, F = 16, E = 16, MAX_RANKS = 16, MAX_T = 24, MAX_K = 6 };

/* Skews of routing. ONE: all tokens prefer expert 3. NONE: no token selects expert 2. HOT: all tokens prefer
 * the first four experts, which belong to one rank or two. TURNS: the first half of a rank's tokens prefers
 * the first four, the rest the last four. LEAN: some random experts are preferred. */
typedef enum { NATURAL, ONE, NONE, HOT, TURNS, LEAN, SKEWS } Skew;

typedef struct Case {
    const char *name;
    int         world, ep, etp, per_node, domain, K;
    Skew        skew;
    bool        uneven;                           /* rank 1 has no tokens, later ranks have fewer */
    double      capacity, rank_capacity, timeout;
    bool        pad, balance, drop, eval;         /* drop: recompute all that can be */
    bool        overlap;                          /* two lanes */
    const char *recompute;                        /* a word of memory.recompute; NULL: none */
    int64_t     chunk, T;                         /* tokens of a rank; 0: MAX_T */
    DType       dtype;
} Case;

/* The results of a rank, on the host. */
typedef struct Result {
    float    y[MAX_T * D], dx[MAX_T * D], echo[MAX_T * D];
    float    rows[MAX_RANKS * MAX_T * MAX_K * D];
    float    router[E * D], gu[E * 2 * F * D], down[E * D * F];
    int32_t  idx[MAX_T * MAX_K];
    int64_t  T, R, chunks;
    size_t   act, scratch;
    Ledger   forward, after;
    Status   status;
    char     text[1024];
} Result;

typedef struct Lab { Case k; Comm *world[MAX_RANKS]; Result *out; } Lab;
typedef struct RankArg { Lab *lab; int rank; } RankArg;

static int64_t tokens_of(const Case *k, int rank)
{
    int64_t T = k->T ? k->T : MAX_T;
    if (!k->uneven) return T;
    return rank == 1 ? 0 : T - rank % (T < 5 ? T : 5);
}

static float value(int what, int64_t i) { return rng_normal(7, (uint64_t)what, (uint64_t)i); }

static void fill_rows(Backend *be, Tensor t, const float *v)
{
    uint16_t half[MAX_RANKS * MAX_T * D];
    if (t.dtype == F32) { backend_upload(be, t, v); return; }
    for (int64_t i = 0; i < t_count(t); i++) half[i] = bf16_from_f32(v[i]);
    backend_upload(be, t, half);
}

static void read_rows(Backend *be, float *v, Tensor t)
{
    if (t.dtype == F32) { backend_fetch(be, v, t); return; }
    for (int64_t i = 0; i < t_count(t); i++) v[i] = bf16_to_f32(((uint16_t *)t.data)[i]);
}

/* ---- one rank's layer ---- */

typedef struct Layer {
    Backend be;
    Arena   param, act, scratch, host;
    Param   router, gu, down;
    Moe     moe;
    MoeAct  a;
    Batch   batch;
    Aux     aux;
    Env     env;
    Pass    c;
    uint8_t policy[LABEL_N];
    Tensor  x, y, res, dx, dy;
} Layer;

static void new_param(Layer *l, Param *p, DType d, int rank, const int64_t *n)
{
    *p = (Param){ .shard.w = t_new(&l->param, "w", d, rank, n),
                  .shard.g = t_new(&l->param, "g", F32, rank, n) };
    memcpy(p->shard.shape, n, (size_t)rank * sizeof *n);
    if (l->be.device->host_memory) memset(p->shard.g.data, 0, (size_t)t_bytes(p->shard.g));
}

static float router_value(const Case *k, int64_t e, int64_t d)
{
    if (d == 0 && k->skew == ONE && e == 3)  return 40;
    if (d == 0 && k->skew == NONE && e == 2) return -40;
    if (d == 0 && k->skew == HOT && e < 4)   return 10;
    if (d == 0 && k->skew == TURNS)          return e < 4 ? 10 : e >= E - 4 ? -10 : 0;
    if (d == 0 && k->skew == LEAN)           return 4 * value(4, e);
    return d == 0 ? 0 : value(1, e * D + d);
}

/* Experts [e0, e0 + El) and columns [f0, f0 + Fl) of their F. */
static void weights(Layer *l, const Case *k, int64_t e0, int64_t El, int64_t f0, int64_t Fl)
{
    static _Thread_local float v[E * 2 * F * D];
    for (int64_t i = 0; i < E * D; i++) v[i] = router_value(k, i / D, i % D);
    fill_rows(&l->be, l->router.shard.w, v);
    for (int64_t e = 0; e < El; e++)
        for (int64_t h = 0; h < 2; h++)
            for (int64_t f = 0; f < Fl; f++)
                for (int64_t d = 0; d < D; d++)
                    v[((e * 2 + h) * Fl + f) * D + d] =
                        0.3f * value(2, (((e0 + e) * 2 + h) * F + f0 + f) * D + d);
    for (int64_t e = 0; e < El; e++) fill_rows(&l->be, t_at(l->gu.shard.w, e), v + e * 2 * Fl * D);
    for (int64_t e = 0; e < El; e++)
        for (int64_t d = 0; d < D; d++)
            for (int64_t f = 0; f < Fl; f++)
                v[(e * D + d) * Fl + f] = 0.3f * value(3, ((e0 + e) * D + d) * F + f0 + f);
    for (int64_t e = 0; e < El; e++) fill_rows(&l->be, t_at(l->down.shard.w, e), v + e * D * Fl);
}

static Status layer_open(Layer *l, const Case *k, const char *backend, int64_t El, int64_t Fl)
{
    *l = (Layer){ 0 };
    TRY(backend_open(&l->be, backend));
    TRY(backend_arena_open(&l->be, &l->param, "param", (size_t)16 << 20));
    TRY(backend_arena_open(&l->be, &l->act, "act", (size_t)64 << 20));
    TRY(backend_arena_open(&l->be, &l->scratch, "scratch", (size_t)64 << 20));
    TRY(backend_host_arena_open(&l->be, &l->host, "host", 4096));
    policy_default(l->policy);
    if (k->drop) TRY(policy_drop(l->policy, "full"));
    if (k->recompute) TRY(policy_drop(l->policy, k->recompute));
    new_param(l, &l->router, k->dtype, 2, (int64_t[]){ E, D });
    new_param(l, &l->gu, k->dtype, 3, (int64_t[]){ El, 2 * Fl, D });
    new_param(l, &l->down, k->dtype, 3, (int64_t[]){ El, D, Fl });
    l->moe = (Moe){ .E = E, .K = k->K, .F = F, .renorm = true, .index = 5, .capacity = k->capacity,
                    .pad = k->pad, .balance = k->balance, .w_router = &l->router, .w_gu = &l->gu,
                    .w_d = &l->down };
    return OK;
}

static void layer_close(Layer *l)
{
    if (!l->be.device) return;
    backend_arena_close(&l->be, &l->param);
    backend_arena_close(&l->be, &l->act);
    backend_arena_close(&l->be, &l->scratch);
    backend_host_arena_close(&l->be, &l->host);
    backend_close(&l->be);
}

/* The first number of token t of T, from which the skew follows. */
static float taste(const Case *k, int64_t t, int64_t T)
{
    if (k->skew == TURNS) return 2 * t < T ? 4 : -4;
    return k->skew == HOT ? 4 : 1;
}

/* The tokens of a rank. */
static void layer_batch(Layer *l, const Case *k, int rank)
{
    static _Thread_local float v[MAX_T * D];
    int64_t T = tokens_of(k, rank), all = 0;
    for (int r = 0; r < k->world; r++) all += tokens_of(k, r);
    arena_clear(&l->act);
    arena_clear(&l->scratch);
    Tensor *list[] = { &l->x, &l->res, &l->dy, &l->y, &l->dx };
    for (int i = 0; i < 5; i++) *list[i] = t2(&l->act, "io", k->dtype, T, D);
    for (int i = 0; i < 3; i++) {
        for (int64_t j = 0; j < T * D; j++)
            v[j] = i == 0 && j % D == 0 ? taste(k, j / D, T) : value(10 + i, rank * MAX_T * D + j);
        fill_rows(&l->be, *list[i], v);
    }
    l->batch = (Batch){ .T = T, .real = all, .groups = 1, .group = t1(&l->act, "group", I32, T) };
    op_fill(&l->be, l->batch.group, 0.0f);
    l->aux = (Aux){ .z = factor(0.01f / (float)all), .first = 5 };
    l->aux.count = t3(&l->act, "stat", F32, 1, 1, E), l->aux.prob = t3(&l->act, "stat", F32, 1, 1, E);
    l->aux.coef  = t3(&l->act, "stat", F32, 1, 1, E), l->aux.zsum = t1(&l->act, "stat", F32, 1);
    for (int i = 0; i < E; i++) v[i] = 0.02f * value(20, i);
    backend_upload(&l->be, l->aux.coef, v);
    l->env = (Env){ .be = &l->be, .dtype = k->dtype };
    l->c = (Pass){ .env = &l->env, .be = &l->be, .batch = &l->batch, .act = &l->act, .scratch = &l->scratch,
                   .policy = l->policy, .mode = k->eval ? EVAL : FORWARD, .evaluates = k->eval,
                   .aux = &l->aux };
}

static void layer_run(Layer *l)
{
    ArenaMark mark = arena_mark(&l->scratch);
    moe_fwd(&l->c, &l->moe, &l->a, l->y, l->x, l->res);
    arena_reset(&l->scratch, mark);
    if (l->c.mode == EVAL) return;
    Pass replay;
    if (replay_begin(&replay, &l->c, L_NORM, L_MLP_ACT)) {
        moe_fwd(&replay, &l->moe, &l->a, (Tensor){ 0 }, l->x, l->res);
        replay_end(&l->c);
    }
    moe_bwd(&l->c, &l->moe, &l->a, l->dx, l->dy, l->x);
}

/* ---- ranks ---- */

static MeshLayout layout_of(const Case *k)
{
    return (MeshLayout){ .ep = k->ep, .etp = k->etp, .domain = k->domain };
}

static DispatchConf conf_of(const Case *k)
{
    MoeShape shape = { .E = E, .K = k->K, .T = k->T ? k->T : MAX_T, .capacity = k->capacity, .pad = k->pad,
                       .row = D * (int64_t)dtype_size(k->dtype) };
    return (DispatchConf){ .name = k->name, .rank_capacity = k->rank_capacity, .chunk = k->chunk,
                           .shape = shape, .overlap = k->overlap, .timeout = k->timeout };
}

static Status rank_open(Layer *l, Mesh *mesh, Dispatcher *d, const Case *k, Comm *world, const char *backend)
{
    MeshLayout layout = layout_of(k);
    DispatchConf conf = conf_of(k);
    TRY(mesh_open(mesh, world, &layout));
    TRY(layer_open(l, k, backend, E / k->ep, F / k->etp));
    mesh_bind(mesh, &l->be);
    TRY(dispatch_open(d, mesh, &conf));
    d->host_counts = d->bounded;                   /* no step is run again here */
    Arena *mapped[] = { &l->act, &l->scratch, &l->param };
    TRY(dispatch_bind(d, &l->be, &(DispatchArenas){ &l->param, &l->host, mapped, 3 }));
    if (l->be.device->host_memory)
        weights(l, k, mesh->at[AX_EP] * (E / k->ep), E / k->ep, mesh->at[AX_ETP] * (F / k->etp), F / k->etp);
    return OK;
}

/* Dispatch and combine with experts that return every row unchanged. */
static void echo(Layer *l, Result *o)
{
    const DispatchOps *by = l->env.dispatcher->ops;
    Exchange there = { 0 }, back = { 0 };
    Tensor rows = scratch2(&l->c, l->x.dtype, l->a.R, D), y = scratch2(&l->c, l->x.dtype, l->x.n[0], D);
    by->dispatch_start(&l->c, &l->a.route, &there, l->x, rows);
    by->dispatch_finish(&l->c, &l->a.route, &there, rows);
    by->combine_start(&l->c, &l->a.route, &back, rows);
    by->combine_finish(&l->c, &l->a.route, &back, y, (Tensor){ 0 });
    read_rows(&l->be, o->echo, y);
}

static Status rank_run(Lab *lab, int rank, Result *o)
{
    Layer    l;
    Mesh     mesh;
    Dispatcher d = { 0 };
    Status   st = rank_open(&l, &mesh, &d, &lab->k, lab->world[rank], "cpu");
    if (!st) {
        layer_batch(&l, &lab->k, rank);
        ledger_clear(&l.be.ledger);
        l.env.mesh = &mesh, l.env.dispatcher = &d;
        moe_fwd(&l.c, &l.moe, &l.a, l.y, l.x, l.res);
        o->forward = l.be.ledger;
        arena_clear(&l.scratch);
        layer_batch(&l, &lab->k, rank);
        l.env.mesh = &mesh, l.env.dispatcher = &d;
        layer_run(&l);
        o->after = l.be.ledger, o->act = l.act.peak, o->scratch = l.scratch.peak;
        st = backend_sync(&l.be);
    }
    if (!st) {
        o->T = l.x.n[0], o->chunks = l.a.token_chunks;
        o->R = o->chunks > 1 ? 0 : ((int32_t *)l.a.offsets.data)[t_count(l.a.offsets) - 1];
        read_rows(&l.be, o->y, l.y), read_rows(&l.be, o->dx, l.dx);
        backend_fetch(&l.be, o->router, l.router.shard.g), backend_fetch(&l.be, o->gu, l.gu.shard.g);
        backend_fetch(&l.be, o->down, l.down.shard.g), backend_fetch(&l.be, o->idx, l.a.idx);
        bool whole = l.a.token_chunks == 1 && !lab->k.eval;
        if (whole && !lab->k.drop && !lab->k.recompute) read_rows(&l.be, o->rows, t_rows(l.a.x, 0, o->R));
        if (whole) echo(&l, o);
        st = backend_sync(&l.be);
    }
    dispatch_close(&d);
    mesh_close(&mesh);
    layer_close(&l);
    return st;
}

static void *rank_main(void *arg)
{
    RankArg   *s = arg;
    Result *o = &s->lab->out[s->rank];
    omp_set_num_threads(1);
    o->status = rank_run(s->lab, s->rank, o);
    if (o->status) snprintf(o->text, sizeof o->text, "%s", status_text());
    return NULL;
}

/* Dispatchers that work within a node have their cases on one, and those that map memory have all parts of an
 * expert on one. */
static Case placed(Case k)
{
    const DispatcherRow *row = &dispatcher_rows[dispatcher_find(k.name)];
    if (row->maps && k.per_node && k.domain > k.per_node) k.domain = 0;
    int size = k.domain ? k.domain : k.per_node;
    if (dispatcher_within_node(row) || (row->maps && size % k.etp)) k.per_node = k.domain = 0;
    return k;
}

static Result *run(Case k)
{
    k = placed(k);
    Lab       lab = { .k = k, .out = calloc((size_t)k.world, sizeof *lab.out) };
    pthread_t thread[MAX_RANKS];
    RankArg      rank_arg[MAX_RANKS];
    EXPECT_OK(comm_open_threads(lab.world, k.world, k.per_node));
    for (int r = 0; r < k.world; r++) {
        rank_arg[r] = (RankArg){ &lab, r };
        pthread_create(&thread[r], NULL, rank_main, &rank_arg[r]);
    }
    for (int r = 0; r < k.world; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < k.world; r++) comm_close(lab.world[r]);
    return lab.out;
}

/* Every rank's tokens through all experts on one rank. */
static Result *reference(Case k)
{
    Result *out = calloc((size_t)k.world + 1, sizeof *out);         /* the last has the summed gradients */
    Layer   l;
    EXPECT_OK(layer_open(&l, &k, "cpu", E, F));
    weights(&l, &k, 0, E, 0, F);
    for (int r = 0; r < k.world; r++) {
        layer_batch(&l, &k, r);
        layer_run(&l);
        out[r].T = l.x.n[0];
        read_rows(&l.be, out[r].y, l.y), read_rows(&l.be, out[r].dx, l.dx);
        backend_fetch(&l.be, out[r].idx, l.a.idx);
    }
    backend_fetch(&l.be, out[k.world].router, l.router.shard.g);
    backend_fetch(&l.be, out[k.world].gu, l.gu.shard.g);
    backend_fetch(&l.be, out[k.world].down, l.down.shard.g);
    EXPECT_OK(backend_sync(&l.be));
    layer_close(&l);
    return out;
}

/* ---- comparing ---- */

static double error_of(const float *a, const float *b, int64_t n)
{
    double diff = 0, big = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) return INFINITY;
        diff = fmax(diff, fabs((double)a[i] - b[i])), big = fmax(big, fabs((double)b[i]));
    }
    return big > 0 ? diff / big : diff;
}

/* The gradients of all ranks put together as one rank has them: shards in their places, copies added. */
static void assemble(const Case *k, const Result *o, Result *sum)
{
    int64_t El = E / k->ep, Fl = F / k->etp;
    *sum = (Result){ 0 };
    for (int r = 0; r < k->world; r++) {
        int64_t f0 = r % k->etp * Fl, e0 = r / k->etp % k->ep * El;
        for (int64_t i = 0; i < E * D; i++) sum->router[i] += o[r].router[i];
        for (int64_t e = 0; e < El; e++)
            for (int64_t h = 0; h < 2; h++)
                for (int64_t i = 0; i < Fl * D; i++)
                    sum->gu[((e0 + e) * 2 + h) * F * D + f0 * D + i] += o[r].gu[(e * 2 + h) * Fl * D + i];
        for (int64_t e = 0; e < El; e++)
            for (int64_t d = 0; d < D; d++)
                for (int64_t f = 0; f < Fl; f++)
                    sum->down[((e0 + e) * D + d) * F + f0 + f] += o[r].down[(e * D + d) * Fl + f];
    }
}

static const char *say(const Case *k)
{
    static char text[240];
    snprintf(text, sizeof text,
             "%s: %d ranks, ep %d etp %d, nodes of %d, domain %d, K %d, skew %d%s, capacity %g%s,"
             " rank capacity %g%s %s",
             k->name, k->world, k->ep, k->etp, k->per_node, k->domain, k->K, k->skew,
             k->uneven ? ", uneven" : "", k->capacity, k->pad ? " padded" : "", k->rank_capacity,
             k->drop ? ", recomputed" : k->eval ? ", evaluated" : "", k->recompute ? k->recompute : "");
    return text;
}

static bool all_well(const Case *k, const Result *o)
{
    for (int r = 0; r < k->world; r++)
        if (o[r].status) {
            EXPECT(false, "%s: rank %d: %s", say(k), r, o[r].text);
            return false;
        }
    return true;
}

static void compare(const Case *k, const Result *o, const Result *want, double tol)
{
    static Result sum;
    bool few = k->pad;                             /* so few rows that the CPU takes another kernel */
    for (int r = 0; r < k->world; r++) few |= o[r].R <= 64;
    for (int r = 0; r < k->world; r++) {
        int64_t n = o[r].T * D;
        double  y = error_of(o[r].y, want[r].y, n), dx = k->eval ? 0 : error_of(o[r].dx, want[r].dx, n);
        EXPECT(o[r].T == want[r].T && y <= tol && dx <= tol, "%s: rank %d: y %.2g dx %.2g", say(k), r, y, dx);
        if (!strcmp(k->name, "alltoall") && k->etp == 1 && !few)
            EXPECT(!memcmp(o[r].y, want[r].y, (size_t)n * 4), "%s: rank %d: y has other bits", say(k), r);
    }
    if (k->eval) return;
    assemble(k, o, &sum);
    const Result *w = &want[k->world];
    double router = error_of(sum.router, w->router, E * D), gu = error_of(sum.gu, w->gu, E * 2 * F * D),
           down = error_of(sum.down, w->down, E * D * F);
    EXPECT(router <= tol && gu <= tol && down <= tol, "%s: router %.2g gate_up %.2g down %.2g", say(k),
           router, gu, down);
}

/* No row is lost or duplicated: rows that experts return unchanged are combined once per assignment and
 * expert part. */
static void invariants(const Case *k, const Result *o)
{
    int64_t got = 0, had = 0;
    for (int r = 0; r < k->world; r++) got += o[r].R, had += o[r].T * k->K * k->etp;
    if (!(k->capacity > 0))
        EXPECT(got == had, "%s: %lld rows for %lld slots", say(k), (long long)got, (long long)had);
    for (int r = 0; r < k->world && !(k->capacity > 0) && k->dtype == F32; r++) {
        static float want[MAX_T * D];
        for (int64_t i = 0; i < o[r].T * D; i++)
            want[i] = (float)(k->K * k->etp) *
                      (i % D ? value(10, r * MAX_T * D + i) : taste(k, i / D, o[r].T));
        double e = error_of(o[r].echo, want, o[r].T * D);
        EXPECT(e <= 1e-6, "%s: rank %d: an echo is off by %.2g", say(k), r, e);
    }
}

static inline void check(Case k, double tol)
{
    Result *want = reference(k), *o = run(k);
    if (all_well(&k, o)) compare(&k, o, want, tol);
    if (all_well(&k, o) && o[0].chunks == 1 && !k.eval) invariants(&k, o);
    free(o);
    free(want);
}


static Case base(int i)
{
    return (Case){ .name = dispatcher_rows[i].name, .world = 4, .ep = 4, .etp = 1, .K = 4, .dtype = F32 };
}

/* A plan: one rank of a fake world on the meta backend. */
static inline void plan(const Case *of, int rank, size_t *act, size_t *scratch, Ledger *ledger)
{
    Case     placed_case = placed(*of), *k = &placed_case;
    Comm    *world;
    Layer    l;
    Mesh     mesh;
    Dispatcher d = { 0 };
    CommConf fake = { .kind = "fake", .rank = rank, .size = k->world, .per_node = k->per_node };
    EXPECT_OK(comm_open(&world, &fake));
    EXPECT_OK(rank_open(&l, &mesh, &d, k, world, "meta"));
    layer_batch(&l, k, 0);
    l.env.mesh = &mesh, l.env.dispatcher = &d;
    layer_run(&l);
    EXPECT_OK(backend_sync(&l.be));
    *act = l.act.peak, *scratch = l.scratch.peak, *ledger = l.be.ledger;
    dispatch_close(&d);
    mesh_close(&mesh);
    layer_close(&l);
    comm_close(world);
}

#endif
