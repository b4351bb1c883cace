/* bench/calibrate.c -- `treb bench calibrate`: what this machine reaches by kind and size of work, kept
 * as the hardware `this` (plan/hardware.h) that plans and `treb bench step` can be held to.
 *
 * The cases are those of `treb bench ops`, at sizes that grow; the best of some repeats counts, since others
 * may use the machine. Last comes a whole step, which takes longer than its ops each alone: caches are cold,
 * and a GPU under load is kept within its power. Links between ranks are measured first, where several are
 * started (links.h): then all ranks but the first leave, so that they take nothing from the rest. Links that
 * were not measured are taken from the row of the GPU that the device is named after, or of cpu-node. Nothing
 * is written unless all was measured. */
#include "base/clock.h"
#include "base/folder.h"
#include "bench/attention.h"
#include "bench/cases.h"
#include "bench/links.h"
#include "cli/command.h"
#include "plan/hardware.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct Calib {
    Setup    s;                                      /* sizes of a model that the machine is for */
    Hardware hw;                                     /* curves hold rates until all are known */
    Links    links;
    int      repeats;
    bool     gpu;
} Calib;

/* A model for two cores: that of `treb bench step`. */
static const Setup small = { .T = 2048, .D = 512, .F = 192, .E = 16, .K = 4, .H = 8, .G = 2, .C = 64,
                             .V = 8192, .P = 1024, .docs = 4, .images = 4, .VH = 4, .VC = 64, .rows = 512 };

static void add_point(Curve *c, double work, double rate)
{
    if (c->n == CURVE_POINTS || (c->n && work <= c->work[c->n - 1])) return;
    c->work[c->n] = work, c->share[c->n++] = rate;
}

/* ---- products ---- */

/* y, dx and dw of one size: FLOPs over the time of all three. */
static Status three_ways(double *flops, double *rate, const Calib *k, const Setup *s,
                         const char *const names[3], const int64_t mnk[3])
{
    double seconds = 0, sum = 0;
    for (int i = 0; i < 3; i++) {
        Bench  b = *bench_find(names[i]);
        Timing t;
        b.m = mnk[0], b.n = mnk[1], b.k = mnk[2];
        TRY_CTX(bench_time(&t, s, &b, k->repeats), "%s", b.name);
        seconds += t.seconds, sum += t.flops;
    }
    *flops = sum / 3, *rate = sum / seconds;
    return OK;
}

static Status calibrate_gemm(Calib *k)
{
    static const char *const names[3] = { "gemm y = x w'", "gemm dx = dy w", "gemm dw = dy' x" };
    for (int64_t side = k->gpu ? 256 : 32; side <= (k->gpu ? 8192 : 1024); side *= 2) {
        double  flops, rate;
        int64_t mnk[3] = { side, side, side };
        TRY(three_ways(&flops, &rate, k, &k->s, names, mnk));
        add_point(&k->hw.work[WORK_GEMM], flops, rate);
    }
    return OK;
}

static Status calibrate_grouped(Calib *k)
{
    static const char *const names[3] = { "experts y = x w'", "experts dx = dy w", "experts dw = dy' x" };
    const int64_t mnk[3] = { 0, 2 * k->s.F, k->s.D };
    for (int64_t each = k->gpu ? 64 : 4; each <= (k->gpu ? 4096 : 1024); each *= 2) {
        double flops, rate;
        Setup  s = k->s;
        s.E = k->gpu ? 32 : 16, s.T = each * s.E / s.K;
        TRY(three_ways(&flops, &rate, k, &s, names, mnk));
        add_point(&k->hw.work[WORK_GROUPED], (double)each, rate);
    }
    return OK;
}

/* ---- attention ---- */

static Status attention_point(Calib *k, const Setup *s, Work work, const char *name)
{
    Timing t;
    TRY_CTX(bench_time(&t, s, bench_find(name), k->repeats), "%s", name);
    add_point(&k->hw.work[work], t.flops, t.flops / t.seconds);
    return OK;
}

/* Documents and pictures grow up to a usual length, then there are more of them. */
static Status calibrate_attention(Calib *k)
{
    int64_t longest = k->gpu ? 4096 : 512, most = k->gpu ? 32768 : 2048;
    for (int64_t rows = k->gpu ? 512 : 64; rows <= most; rows *= 4) {
        Setup s = k->s;
        s.T = s.P = rows, s.docs = rows > longest ? rows / longest : 1;
        s.images = rows > longest / 2 ? rows / (longest / 2) : 1;
        TRY(attention_point(k, &s, WORK_ATTENTION, "attention causal fwd"));
        TRY(attention_point(k, &s, WORK_ATTENTION_BACK, "attention causal bwd"));
        TRY(attention_point(k, &s, WORK_VISION, "attention vision fwd"));
        TRY(attention_point(k, &s, WORK_VISION_BACK, "attention vision bwd"));
    }
    return OK;
}

/* ---- memory, launches, the host ---- */

typedef struct Move { Backend *be; Tensor to, from; void *host; } Move;

static void run_copy(void *p) { Move *m = p; op_copy(m->be, m->to, m->from); }

static Status calibrate_memory(Calib *k)
{
    int64_t most = k->gpu ? (int64_t)1 << 28 : (int64_t)1 << 25;
    for (int64_t n = 1 << 12; n <= most; n *= 8) {
        ArenaMark mark = arena_mark(k->s.a);
        Move m = { k->s.be, t1(k->s.a, "bench", F32, n), t1(k->s.a, "bench", F32, n), NULL };
        op_fill(m.be, m.from, 1.0f);
        double bytes = 8.0 * (double)n, s = bench_best(m.be, run_copy, &m, 2 * k->repeats);
        add_point(&k->hw.work[WORK_MEMORY], bytes, bytes / s);
        arena_reset(k->s.a, mark);
    }
    return backend_sync(k->s.be);
}

/* The time in which the host queues one call. */
static Status calibrate_launch(Calib *k)
{
    enum { CALLS = 1000, TURNS = 3 };
    ArenaMark mark = arena_mark(k->s.a);
    Tensor    one = t1(k->s.a, "bench", F32, 1);
    k->hw.launch = INFINITY;
    for (int turn = 0; turn < TURNS; turn++) {
        TRY(backend_sync(k->s.be));
        double from = clock_now();
        for (int i = 0; i < CALLS; i++) op_fill(k->s.be, one, 0.0f);
        k->hw.launch = fmin(k->hw.launch, (clock_now() - from) / CALLS);
    }
    arena_reset(k->s.a, mark);
    return backend_sync(k->s.be);
}

static double lane_seconds(const Move *m, CopyStream lane)
{
    double from = clock_now();
    if (lane == COPY_D2H) backend_copy_d2h(m->be, m->host, m->from);
    else                  backend_copy_h2d(m->be, m->from, m->host);
    backend_copy_sync(m->be);
    return clock_now() - from;
}

/* A device whose memory is the host's has no link; copies run at the speed of that memory. */
static Status calibrate_host(Calib *k)
{
    enum { BYTES = 1 << 28 };
    Backend  *be = k->s.be;
    Arena     host = { 0 };
    ArenaMark mark = arena_mark(k->s.a);
    double    best[COPY_STREAMS] = { INFINITY, INFINITY };
    if (!k->gpu) {
        k->hw.host_bw = k->hw.memory_bw, k->hw.host_share = 1;
        return OK;
    }
    TRY(backend_host_arena_open(be, &host, "bench", BYTES));
    Move m = { be, (Tensor){ 0 }, t1(k->s.a, "bench", F32, BYTES / 4), host.base };
    for (int i = 0; i < k->repeats; i++)
        for (int lane = 0; lane < COPY_STREAMS; lane++)
            best[lane] = fmin(best[lane], lane_seconds(&m, (CopyStream)lane));
    k->hw.host_bw = BYTES / fmax(best[COPY_D2H], best[COPY_H2D]), k->hw.host_share = 1;
    arena_reset(k->s.a, mark);
    Status st = backend_sync(be);
    backend_host_arena_close(be, &host);
    return st;
}

/* ---- all other ops ---- */

static bool has_curve(int op)
{
    return op == OP_gemm || op == OP_grouped_gemm || op == OP_attention_fwd || op == OP_attention_bwd;
}

static double expected(const Calib *k, const Timing *t)
{
    double flops = t->flops, bytes = (double)t->bytes, each = (double)(k->s.T * k->s.K) / (double)k->s.E;
    if (t->op == OP_grouped_swiglu || t->op == OP_grouped_dswiglu || t->op == OP_grouped_scaled)
        return grouped_seconds(&k->hw, flops, bytes, each);
    return work_seconds(&k->hw, flops > 0 ? WORK_GEMM : WORK_MEMORY, flops, bytes);
}

/* Time over what the curves say; the first case of an op counts. */
static Status calibrate_ops(Calib *k)
{
    BenchList l = bench_list();
    bool      seen[OP_N + 1] = { false };
    for (int i = PLAIN_PRODUCTS; i < l.n; i++) {
        Timing t;
        if (l.at[i].run == run_attention || l.at[i].run == run_attention_bwd) continue;      /* has a curve */
        TRY_CTX(bench_time(&t, &k->s, &l.at[i], k->repeats), "%s", l.at[i].name);
        if (t.op == OP_N || has_curve(t.op) || seen[t.op]) continue;
        seen[t.op] = true;
        k->hw.slow[t.op] = fmin(100, fmax(0.01, t.seconds / expected(k, &t)));
    }
    return OK;
}

/* ---- the row ---- */

/* The row whose name is in the GPU's, h200 in "NVIDIA H200"; for what is not measured. */
static Status row_alike(Hardware *h, const char *backend, const char *what)
{
    char words[256] = "", id[32];
    const char *best = strcmp(backend, "cuda") ? "cpu-node" : "h200";
    backend_describe(backend, words, sizeof words);
    for (char *p = words; *p; p++) *p = (char)tolower((unsigned char)*p);
    for (int i = 0; hardware_at(i) && strcmp(backend, "cpu"); i++) {
        snprintf(id, sizeof id, "%.*s", (int)strcspn(hardware_at(i), "-"), hardware_at(i));
        if (strstr(words, id)) best = hardware_at(i);
    }
    printf("%s: as those of %s\n", what, best);
    return hardware_find(h, best);
}

static const char *unmeasured(const Links *l)
{
    if (!l->intra_node.ranks && !l->inter_node.ranks) return "links to other ranks cannot be measured by one";
    if (!l->inter_node.ranks) return "links between nodes are not measured";
    return l->intra_node.ranks ? "what no measurement gives" : "links inside a node are not measured";
}

static Status prepare(Calib *k, const char *backend)
{
    double left, all;
    TRY(row_alike(&k->hw, backend, unmeasured(&k->links)));
    links_apply(&k->hw, &k->links);
    backend_memory(backend, &left, &all);
    snprintf(k->hw.id, sizeof k->hw.id, "this");
    snprintf(k->hw.backend, sizeof k->hw.backend, "%s", backend);
    snprintf(k->hw.dtype, sizeof k->hw.dtype, "%s", dtype_name(k->s.d));
    for (int i = 0; i < WORK_N; i++) k->hw.work[i] = (Curve){ 0 };
    for (int i = 0; i < LEDGER_OPS; i++) k->hw.slow[i] = 1;
    k->hw.error = 0.15, k->hw.together = 1;
    if (all > 0) k->hw.capacity = k->gpu ? all : 0.9 * all;
    if (!k->gpu) k->hw.fixed = 0.3e9, k->hw.sms = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return OK;
}

static double top_of(const Curve *c)
{
    double top = 0;
    for (int i = 0; i < c->n; i++) top = fmax(top, c->share[i]);
    return top;
}

/* Rates become shares: of the data sheet's peak where there is one, else of the fastest that was seen. */
static void settle(Calib *k)
{
    Hardware *h = &k->hw;
    double    sheet = k->s.be->device->peak ? k->s.be->device->peak(k->s.d) : 0;
    h->bf16      = sheet > 0 ? sheet : top_of(&h->work[WORK_GEMM]);
    h->memory_bw = top_of(&h->work[WORK_MEMORY]);
    for (int w = 0; w < WORK_N; w++) {
        Curve *c = &h->work[w];
        for (int i = 0; i < c->n; i++) c->share[i] /= w == WORK_MEMORY ? h->memory_bw : h->bf16;
        c->flat = c->n ? c->share[c->n - 1] : 1;
    }
}

static Status measure_all(Calib *k, const char *backend)
{
    TRY(prepare(k, backend));
    TRY(calibrate_gemm(k));
    TRY(calibrate_grouped(k));
    TRY(calibrate_attention(k));
    TRY(calibrate_memory(k));
    TRY(calibrate_launch(k));
    settle(k);
    TRY(calibrate_host(k));
    return calibrate_ops(k);
}

static void print(const Hardware *h, const char *path, double seconds)
{
    printf("%s, peak %.4g TFLOP/s, memory %.4g GB/s, host %.4g GB/s, a launch %.2f us\n", h->dtype,
           h->bf16 / 1e12, h->memory_bw / 1e9, h->host_bw / 1e9, h->launch * 1e6);
    for (int w = 0; w < WORK_N; w++) {
        const Curve *c = &h->work[w];
        printf("  %-15s", work_name((Work)w));
        for (int i = 0; i < c->n; i++) printf(" %.2g: %.1f %%", c->work[i], 100 * c->share[i]);
        putchar('\n');
    }
    printf("a whole step takes %.3f of its ops alone\n", h->together);
    printf("time over that of the curves:");
    for (int i = 0; i < OP_N; i++)
        if (h->slow[i] != 1) printf(" %s %.2f", op_name(i), h->slow[i]);
    printf("\nwritten to %s after %.0f s: --hardware this\n", path, seconds);
}

/* The step has memory of its own, so that of the cases is given back before it. */
static Status measure(Calib *k, const char *backend)
{
    Backend be = { 0 };
    Arena   a = { 0 };
    double  ratio = 1;
    k->s.be = &be, k->s.a = &a;
    TRY(backend_open(&be, backend));
    Status st = backend_arena_open(&be, &a, "bench", (size_t)(k->gpu ? 32 : 2) << 30);
    if (!st) st = measure_all(k, backend);
    backend_arena_close(&be, &a);
    backend_close(&be);
    TRY(st);
    TRY_CTX(bench_together(&ratio, &k->hw, backend, k->s.d), "a whole step");
    k->hw.together = fmin(10, fmax(0.1, ratio));
    return OK;
}

/* ---- several ranks ---- */

typedef struct CalibArgs {
    const char *backend, *dtype, *out, *comm;
    int64_t     repeats, per_node;
    bool        links;
} CalibArgs;

static Status measure_links(Links *out, Comm *world, const char *backend, int repeats)
{
    Backend be = { 0 };
    Arena   a = { 0 };
    Status  st = backend_open(&be, backend);
    if (!st) st = backend_arena_open(&be, &a, "links", (size_t)160 << 20);
    st = comm_agree(world, st);
    if (!st) comm_bind(world, &be);
    if (!st) st = links_measure(out, world, &be, &a, repeats);
    if (st) comm_abort(world, status_text());
    comm_bind(world, NULL);
    backend_arena_close(&be, &a);
    backend_close(&be);
    return st;
}

/* The ranks that were started together measure their links; *first: this is rank 0. */
static Status visit_ranks(Links *out, bool *first, const CalibArgs *a, const char *backend)
{
    CommConf conf = { .kind = a->comm, .per_node = (int)a->per_node, .timeout = 60 };
    Comm    *world = NULL;
    TRY(comm_open(&world, &conf));
    *first = world->rank == 0;
    Status st = world->size > 1 ? measure_links(out, world, backend, (int)a->repeats) : OK;
    comm_close(world);
    return st;
}

/* Links alone: the rest of the row stays as it is in the file, or as in the row of a GPU like this one. */
static Status write_links(Calib *k, const char *backend, const char *path)
{
    if (!k->links.intra_node.ranks && !k->links.inter_node.ranks)
        return fail(E_CONFIG, "--links: one rank has no links; start several: mpirun -n N treb bench "
                    "calibrate");
    if (file_is(path)) TRY(hardware_load(&k->hw, path));
    else TRY(row_alike(&k->hw, backend, "all but links"));
    links_apply(&k->hw, &k->links);
    TRY(hardware_save(&k->hw, path));
    printf("links are written to %s: --hardware this\n", path);
    return OK;
}

static Status calibrate(Calib *k, const char *backend, const CalibArgs *a)
{
    char   path[4096];
    double from = clock_now();
    if (a->out) snprintf(path, sizeof path, "%s", a->out);
    else TRY(hardware_file(path, sizeof path));
    if (a->links) return write_links(k, backend, path);
    TRY(measure(k, backend));
    TRY(hardware_save(&k->hw, path));
    print(&k->hw, path, clock_now() - from);
    return OK;
}

static const Option options[] = {
    OPTION_TEXT(CalibArgs, backend, "--backend", "NAME", "cpu, cuda or auto"),
    OPTION_TEXT(CalibArgs, dtype, "--dtype", "f32|bf16", "of the products"),
    OPTION_INT(CalibArgs, repeats, "--repeat", "N", 1, 50, "measurements of each size (default 5)"),
    OPTION_TEXT(CalibArgs, out, "--out", "FILE", "where the row goes instead of the cache folder"),
    OPTION_FLAG(CalibArgs, links, "--links",
                "measure the links between ranks alone and keep the rest of the row"),
    OPTION_TEXT(CalibArgs, comm, "--comm", "KIND",
                "what ranks communicate over, as comm.kind (default auto)"),
    OPTION_INT(CalibArgs, per_node, "--ranks-per-node", "N", 0, 65536, "as comm.ranks_per_node; 0: by host"),
    OPTION_END
};

static Status run_calibrate(int argc, char **argv)
{
    CalibArgs a = { .backend = "auto", .repeats = 5, .comm = "auto" };
    bool      first = true;
    TRY(options_parse(argc, argv, options, &a, NULL));
    const char *backend = backend_pick(a.backend);
    bool  gpu = !strcmp(backend, "cuda");
    Calib k = { .s = gpu ? setup_gpu : small, .repeats = (int)a.repeats, .gpu = gpu };
    k.s.best = true;
    TRY(option_dtype("--dtype", a.dtype ? a.dtype : gpu ? "bf16" : "f32", &k.s.d));
    if (comm_launched()) TRY(visit_ranks(&k.links, &first, &a, backend));
    return first ? calibrate(&k, backend, &a) : OK;
}

static const Usage usage = {
    .args    = "",
    .options = options,
    .notes   = "Measures what this machine reaches by kind and size of work and keeps it as the hardware "
               "`this`, from which `treb bench step` and `treb plan --hardware this` then predict. Started "
               "with mpirun or srun it measures the links between the ranks too.",
};

const Command bench_calibrate = {
    .name  = "calibrate",
    .help  = "measure this machine as the hardware `this`, from which plans predict",
    .run   = run_calibrate,
    .usage = USAGE(&usage),
};
