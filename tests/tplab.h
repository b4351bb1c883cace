/* tests/tplab.h -- compares a module on one rank with the same module on several.
 *
 * A body is a function of a Rig: a rank's context, parameters and arenas. It runs once without a mesh, then
 * on every rank of a tp group of threads; inputs are a function of (seed, name, index in the whole tensor).
 * The body reports each result by name and by its position in the whole tensor. Results of several ranks at
 * the same position are added: rows of different ranks complete the tensor, and partial gradients sum to
 * the whole, also those of a head that ranks share. A result that is equal on all ranks is reported with
 * the weight 1 / tp, which is exact because tp is a power of two. */
#ifndef TESTS_TPLAB_H
#define TESTS_TPLAB_H

#include "commlab.h"
#include "nn/embed.h"
#include "nn/rows.h"

#include <omp.h>
#include <time.h>

enum { SINKS = 40, ARENA = 4 << 20, ANSWER = 120 };

typedef struct Sink { char name[ANSWER]; int64_t n; double *sum; } Sink;
typedef struct Rig Rig;
typedef struct Sinks { Sink sink[SINKS]; int n; } Sinks;

static struct {
    uint64_t        seed;
    pthread_mutex_t lock;
    Sinks            one, many;
    Sinks           *side;
    MeshLayout          layout;
    DType           dtype;
    bool            frozen;                   /* parameters have no gradients */
    size_t          scratch, act;             /* peaks of the last rank with at == 1 */
    Ledger          ledger;                   /* of that rank */
    void          (*body)(Rig *);
} tp_ = { .lock = PTHREAD_MUTEX_INITIALIZER };

struct Rig {
    Backend   *be;
    const Mesh *mesh;
    int        tp, at;
    Arena      param, act, scratch;
    ParamSet   set;
    uint8_t    policy[LABEL_N];
    Batch      batch;
    Env     env;
    Pass    c;
};

static inline void tplab_open(void)
{
    const char *s = getenv("TREB_SEED");
    tp_.seed = s ? strtoull(s, NULL, 10) : (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
}

/* ---- inputs ---- */

static inline float tp_value(const char *name, int64_t i)
{
    return rng_normal(tp_.seed, rng_stream(name), (uint64_t)i);
}

static inline void tp_put(Tensor t, int64_t i, float v)            /* of a dense tensor */
{
    dtype_convert((char *)t.data + (size_t)i * dtype_size((DType)t.dtype), (DType)t.dtype, &v, F32, 1);
}
static inline double tp_get(Tensor t, int64_t i)
{
    float f;
    if (t.dtype == F64) return ((const double *)t.data)[i];
    dtype_convert(&f, F32, (const char *)t.data + (size_t)i * dtype_size((DType)t.dtype), (DType)t.dtype, 1);
    return f;
}

/* This rank's T rows of a matrix of all rows. */
static inline Tensor tp_input(Rig *r, const char *name, int64_t T, int64_t D)
{
    Tensor t = t2(&r->act, name, tp_.dtype, T, D);
    for (int64_t i = 0; r->be->device->host_memory && i < T * D; i++)
        tp_put(t, i, tp_value(name, r->at * T * D + i));
    return t;
}
static inline Tensor tp_output(Rig *r, const char *name, int64_t T, int64_t D)
{
    return t2(&r->act, name, tp_.dtype, T, D);                     /* arenas begin full of NaN */
}
static inline Tensor tp_ints(Rig *r, const char *name, int64_t n, int64_t below)
{
    Tensor t = t1(&r->act, name, I32, n);
    for (int64_t i = 0; r->be->device->host_memory && i < n; i++)
        ((int32_t *)t.data)[i] = (int32_t)rng_below(tp_.seed, rng_stream(name), (uint64_t)i, (uint64_t)below);
    return t;
}

/* Weights of this rank's shard by ranges; gradients are NaN where the first product overwrites them. */
static inline Param *tp_bind(Rig *r, Param *p, bool fresh)
{
    int64_t n[2] = { p->ndim == 1 ? 1 : p->shard.shape[0],
                     p->ndim == 1 ? p->shard.shape[0] : p->shard.shape[1] };
    StridedRange    range[PARAM_RANGES];
    int     ranges = param_ranges(p, range);
    p->shard.w = t2(&r->param, "w", tp_.dtype, n[0], n[1]);
    p->shard.g = tp_.frozen ? (Tensor){ 0 } : t2(&r->param, "g", F32, n[0], n[1]);
    p->step.grad_unset = fresh && t_has(p->shard.g);
    if (!r->be->device->host_memory) return p;
    memset(p->shard.w.data, 0, (size_t)t_bytes(p->shard.w));
    if (!fresh && t_has(p->shard.g)) memset(p->shard.g.data, 0, (size_t)t_bytes(p->shard.g));
    for (int k = 0; k < ranges; k++)
        for (int64_t i = 0; i < range[k].count * range[k].len; i++) {
            int64_t at = range[k].at + i / range[k].len * range[k].stride + i % range[k].len;
            float   v = tp_value(p->piece[0].name, at);
            tp_put(p->shard.w, range[k].local + i,
                   p->ndim == 1 ? 1 + 0.2f * v : v / sqrtf((float)p->shape[1]));
        }
    return p;
}

/* ---- answers ---- */

static inline Sink *tp_sink(const char *name, int64_t n)
{
    Sinks *s = tp_.side;
    for (int i = 0; i < s->n; i++) if (!strcmp(s->sink[i].name, name)) return &s->sink[i];
    REQUIRE(s->n < SINKS, "too many answers");
    s->sink[s->n] = (Sink){ .n = n, .sum = calloc((size_t)n + 1, sizeof(double)) };
    snprintf(s->sink[s->n].name, sizeof s->sink[s->n].name, "%s", name);
    return &s->sink[s->n++];
}

/* t is rows [from, …) of a whole of `rows`. */
static inline void tp_give(Rig *r, const char *name, Tensor t, int64_t from, int64_t rows, double weight)
{
    int64_t cols = t.rank == 1 ? 1 : t.n[1];
    if (!r->be->device->host_memory) return;
    pthread_mutex_lock(&tp_.lock);
    Sink *s = tp_sink(name, rows * cols);
    for (int64_t i = 0; i < t_count(t); i++) s->sum[from * cols + i] += weight * tp_get(t, i);
    pthread_mutex_unlock(&tp_.lock);
}
static inline void tp_give_rows(Rig *r, const char *name, Tensor t)           /* residual rows */
{
    tp_give(r, name, t, r->at * t.n[0], r->tp * t.n[0], 1);
}
static inline void tp_give_alike(Rig *r, const char *name, Tensor t)
{
    tp_give(r, name, t, 0, t.n[0], 1.0 / r->tp);
}
static inline void tp_give_grad(Rig *r, const Param *p)
{
    StridedRange range[PARAM_RANGES];
    int  ranges = param_ranges(p, range);
    if (!r->be->device->host_memory || !t_has(p->shard.g)) return;
    pthread_mutex_lock(&tp_.lock);
    Sink   *s = tp_sink(p->piece[0].name, param_count(p));
    int64_t seen = 0;
    for (int k = 0; k < ranges; k++)
        for (int64_t i = 0; i < range[k].count * range[k].len; i++, seen++)
            s->sum[range[k].at + i / range[k].len * range[k].stride + i % range[k].len] +=
                tp_get(p->shard.g, range[k].local + i);
    for (; seen < param_local(p); seen++)                          /* padding is a row that stays zero */
        s->sum[0] += tp_get(p->shard.g, seen) == 0 ? 0 : NAN;
    pthread_mutex_unlock(&tp_.lock);
}

/* ---- both sides ---- */

static inline void rig_run(Backend *be, const Mesh *mesh)
{
    Rig r = { .be = be, .mesh = mesh, .tp = mesh_size(mesh, AX_TP), .at = mesh_at(mesh, AX_TP),
              .set.mesh = mesh };
    Arena *a[3] = { &r.param, &r.act, &r.scratch };
    for (int i = 0; i < 3; i++) {
        if (backend_arena_open(be, a[i], "lab", ARENA)) printf("%s\n", status_text()), exit(1);
        if (be->device->host_memory) memset(a[i]->base, 0xff, ARENA);
    }
    policy_default(r.policy);
    r.env = (Env){ .be = be, .mesh = mesh, .dtype = tp_.dtype, .logits_dtype = F32 };
    r.c = (Pass){ .env = &r.env, .be = be, .batch = &r.batch, .act = &r.act, .scratch = &r.scratch,
                  .policy = r.policy, .mode = FORWARD };
    tp_.body(&r);
    if (backend_sync(be)) printf("  %s\n", status_text()), exit(1);
    if (r.at == 1) tp_.scratch = r.scratch.peak, tp_.act = r.act.peak, tp_.ledger = be->ledger;
    params_close(&r.set);
    for (int i = 0; i < 3; i++) backend_arena_close(be, a[i]);
}

static inline void rig_peer(Peer *p)
{
    Mesh m;
    omp_set_num_threads(1);
    if (mesh_open(&m, p->world, &tp_.layout)) printf("  %s\n", status_text()), exit(1);
    mesh_bind(&m, &p->be);
    rig_run(&p->be, &m);
    mesh_close(&m);
}

static inline void side_close(Sinks *s)
{
    for (int i = 0; i < s->n; i++) free(s->sink[i].sum);
    *s = (Sinks){ 0 };
}

static inline double sink_largest(const Sink *s)
{
    double big = 0;
    for (int64_t i = 0; i < s->n; i++) big = fmax(big, isfinite(s->sum[i]) ? fabs(s->sum[i]) : INFINITY);
    return big;
}

/* The largest max|a - b| / max|b| of all results, and its name. A result far smaller than the others is the
 * remainder of sums that cancel: it is compared with a tenth of the largest. */
static inline double tp_error(char which[ANSWER])
{
    double worst = 0, least = 1e-30;
    strcpy(which, "an answer");
    if (tp_.many.n != tp_.one.n) return INFINITY;
    for (int k = 0; k < tp_.one.n; k++) least = fmax(least, 0.1 * sink_largest(&tp_.one.sink[k]));
    for (int k = 0; k < tp_.one.n; k++) {
        const Sink *b = &tp_.one.sink[k], *a = NULL, *some = tp_.many.sink;
        for (int i = 0; i < tp_.many.n; i++) if (!strcmp(some[i].name, b->name)) a = &some[i];
        double diff = 0, big = fmax(least, sink_largest(b));
        if (!a || a->n != b->n || isinf(big) || isinf(sink_largest(a)))
            return strcpy(which, b->name), INFINITY;
        for (int64_t i = 0; i < b->n; i++) diff = fmax(diff, fabs(a->sum[i] - b->sum[i]));
        if (diff / big > worst) worst = diff / big, strcpy(which, b->name);
    }
    return worst;
}

static inline void tp_alone(Sinks *side, DType d)
{
    Backend be;
    tp_.side = side, tp_.dtype = d;
    omp_set_num_threads(1);
    if (backend_open(&be, "cpu")) printf("%s\n", status_text()), exit(1);
    rig_run(&be, NULL);
    backend_close(&be);
}

/* The error of the ranks against one rank, relative to the largest element of a result. In bf16 both differ
 * from the f32 result by rounding, which cancellation amplifies: there the error is the excess over three
 * times the error of one rank. */
static inline double tp_compare(void (*body)(Rig *), DType d, int tp, int64_t kv_heads, char which[ANSWER])
{
    double noise = 0, error;
    tp_.body = body, tp_.layout = (MeshLayout){ .tp = tp, .kv_heads = (int)kv_heads };
    tp_alone(&tp_.one, F32);
    if (d == BF16) {
        tp_alone(&tp_.many, BF16);
        noise = tp_error(which);
        side_close(&tp_.many);
    }
    tp_.side = &tp_.many, tp_.dtype = d;
    on_ranks(tp, 0, rig_peer);
    error = tp_error(which) - 3 * noise;
    side_close(&tp_.one), side_close(&tp_.many);
    return error;
}

/* The same rank as a dry run: no data and no other rank. */
static inline void tp_plan(void (*body)(Rig *), DType d)
{
    Backend be;
    Comm   *world;
    Mesh    m;
    tp_.body = body, tp_.dtype = d;
    CommConf conf = { .kind = "fake", .rank = 1, .size = tp_.layout.tp };
    if (backend_open(&be, "meta") || comm_open(&world, &conf))
        printf("%s\n", status_text()), exit(1);
    if (mesh_open(&m, world, &tp_.layout)) printf("%s\n", status_text()), exit(1);
    mesh_bind(&m, &be);
    rig_run(&be, &m);
    mesh_close(&m);
    comm_close(world);
    backend_close(&be);
}

#define EXPECT_ALIKE(body, d, tp, kv, tol, ...) do {                                              \
        char   which_[ANSWER];                                                                        \
        double e_ = tp_compare(body, d, tp, kv, which_);                                          \
        if (e_ > (tol)) {                                                                         \
            LAB_FAIL(#body);                                                                      \
            printf("    tp %d %s: %s is off by %.3g, ", (int)(tp), dtype_name(d), which_, e_);    \
            printf(__VA_ARGS__);                                                                  \
            printf("    TREB_SEED=%llu\n", (unsigned long long)tp_.seed);                         \
        }                                                                                         \
    } while (0)

#endif
