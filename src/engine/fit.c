/* engine/fit.c -- the check before anything is mapped; see fit.h. */
#include "engine/fit.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPORT_BYTES = 6000, TOP_LABELS = 5, TOP_OF_CLASS = 3 };

static const double GIB = 1 << 30;

/* Bytes that a rank needs and that are free, on its device and on its host. */
typedef struct Need { double bytes, free, limit, host, host_free; int64_t node; } Need;

typedef struct Report { char why[960], lines[REPORT_BYTES]; } Report;

static bool on_host(const FitCheck *c) { return !strcmp(c->conf->backend, "cpu"); }

/* The need of a rank; where the device is the CPU, that of all ranks of its host, and the least that one sees
 * free. */
static Need shared_need(const FitCheck *c, const Need *all, int n, int rank)
{
    Need w = all[rank];
    for (int i = 0; i < n && on_host(c); i++) {
        if (i == rank || all[i].node != w.node) continue;
        w.bytes += all[i].bytes;
        if (all[i].free < w.free) w.free = all[i].free;
    }
    return w;
}

/* device.memory_limit is of each rank, whatever its host has. */
static bool over_limit(const Need *w) { return w->limit > 0 && w->bytes > w->limit; }

static double lack(const FitCheck *c, const Need *all, int n, int rank)
{
    Need w = shared_need(c, all, n, rank);
    double alone = over_limit(&all[rank]) ? all[rank].bytes - all[rank].limit : 0;
    return w.bytes - w.free > alone ? w.bytes - w.free : alone;
}

/* The rank that lacks most, or -1 where all fit. */
static int fullest_rank(const FitCheck *c, const Need *all, int n)
{
    double most = 0;
    int    rank = -1;
    for (int i = 0; i < n; i++) {
        double less = lack(c, all, n, i);
        if (less > most) most = less, rank = i;
    }
    return rank;
}

/* Bytes of this rank with a changed recipe; for FitRequest.plan. */
static Status plan_changed(void *self, const Config *recipe, double *bytes)
{
    const FitCheck *c = self;
    EnginePlan  plan;
    EngineConf  conf;
    Ranks       r;
    Mesh        place;
    StreamShape ss = shape_stream(c->shape);
    ss.bytes = c->full->shape.bytes;
    TRY(recipe_ranks(&r, &place, recipe, c->shape, c->world, NULL));
    TRY(recipe_engine(&conf, recipe, c->shape, c->conf->dtype, &r,
                      *recipe->lora.path ? &c->conf->lora : NULL));
    conf.evaluate = c->conf->evaluate, conf.per_row_loss = c->conf->per_row_loss;
    if (recipe_can_decode(&r)) conf.decode = c->conf->decode;
    Stream full = stream_full(&ss, &conf.budget);
    TRY(engine_plan(&plan, c->shape, &conf, &full));
    *bytes = (double)engine_device_bytes(&plan, conf.backend);
    return OK;
}

static void append(char *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void append(char *out, const char *fmt, ...)
{
    size_t  at = strlen(out);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out + at, REPORT_BYTES - at, fmt, ap);
    va_end(ap);
}

static void append_arenas(char *out, const EnginePlan *p)
{
    for (int i = 0; i < ARENA_N; i++) {
        if (!p->bytes[i]) continue;
        append(out, "  %-12s %9.3f GiB", engine_arena_label((ArenaId)i), (double)p->bytes[i] / GIB);
        for (int k = 0; k < TOP_LABELS && p->label[i][k].bytes; k++)
            append(out, "%s %s %.3f", k ? "," : ":", p->label[i][k].name, (double)p->label[i][k].bytes / GIB);
        append(out, "\n");
    }
    if (p->graphs) append(out, "  %-12s %9.3f GiB\n", "CUDA graphs", (double)p->graphs / GIB);
}

/* Lists the rows of each class that save most; the last row may be a combination. */
static void append_changes(char *out, const FitAdvice *a)
{
    char line[400];
    int  shown = 0;
    append(out, "changes that save memory, cheapest first:\n");
    for (int i = 0; i < a->n; i++) {
        shown = i && a->row[i].cost == a->row[i - 1].cost ? shown + 1 : 0;
        if (shown >= TOP_OF_CLASS && i + 1 < a->n) continue;
        fit_row_text(line, sizeof line, a, i);
        append(out, "  %s\n", line);
    }
}

/* The command that searches for a layout; it also says how many GPUs are enough. */
static void search_text(char *out, size_t n, const FitCheck *c)
{
    const struct cfg_model *m = &c->recipe->model;
    char lora[40] = "";
    int  ranks = c->world ? c->world->size : 1;
    if (c->recipe->lora.rank) snprintf(lora, sizeof lora, " lora.rank=%lld", (long long)c->recipe->lora.rank);
    snprintf(out, n, "treb plan --gpus %d --model %.200s --seq %lld%s", ranks > 1 ? ranks : 2,
             *m->preset ? m->preset : m->path, (long long)c->recipe->data.max_length, lora);
}

/* Written by the rank that lacks most. */
static Status write_report(Report *s, const FitCheck *c, const EnginePlan *plan, Need shared, Need own)
{
    FitAdvice *a = calloc(1, sizeof *a);
    double others = shared.bytes - own.bytes;
    char   way[400], search[360];
    FitRequest ask = { .recipe = c->recipe, .shape = c->shape, .ranks = c->world ? c->world->size : 1,
                   .per_node = c->world ? comm_ranks_on_node(c->world) : 1, .bytes = own.bytes,
                   .available = shared.free - others, .plan = plan_changed, .self = (void *)c };
    if (!a) return fail(E_FIT, "no host memory for advice");
    if (others > 0) ask.available = own.bytes * shared.free / shared.bytes;       /* this rank's share */
    Status st = fit_advise(a, &ask);
    append_arenas(s->lines, plan);
    if (!st) append_changes(s->lines, a);
    fit_cheapest_text(way, sizeof way, a);
    search_text(search, sizeof search, c);
    append(s->lines, "to find a layout and how many GPUs it takes: %s --hardware ID\n", search);
    snprintf(s->why, sizeof s->why, "does not fit: rank %d needs %.3f GiB, %.3f GiB are %s%s. %s; or find "
             "a layout: %s", c->world ? c->world->rank : 0, own.bytes / GIB, ask.available / GIB,
             over_limit(&own) ? "its device.memory_limit" : "free",
             others > 0 ? " for each rank of its host" : "", way, search);
    free(a);
    return st;
}

/* All ranks fail with the same message; rank 0 logs the list. */
static Status refuse_plan(const FitCheck *c, const Report *s)
{
    for (const char *at = s->lines; *at; at += strcspn(at, "\n"), at += *at == '\n')
        log_error(c->log, "%.*s", (int)strcspn(at, "\n"), at);
    return fail(E_FIT, "%s", s->why);
}

/* All ranks of a host offload into the same memory. */
static Status check_hosts(const Need *all, int n)
{
    for (int i = 0; i < n; i++) {
        double sum = 0;
        int    ranks = 0;
        for (int k = 0; k < n; k++)
            if (all[k].node == all[i].node) sum += all[k].host, ranks++;
        if (sum <= all[i].host_free) continue;
        return fail(
            E_FIT,
            "does not fit the host of rank %d: its %d rank%s need %.3f GiB of host memory, %.3f GiB are "
            "free. Cheapest change: lower memory.optimizer_offload or shorten memory.activation_offload",
            i, ranks, ranks > 1 ? "s" : "", sum / GIB, all[i].host_free / GIB);
    }
    return OK;
}

static Status check_devices(const FitCheck *c, const EnginePlan *plan, const Need *all, int n)
{
    int    rank = fullest_rank(c, all, n), me = c->world ? c->world->rank : 0;
    Status st = OK;
    if (rank < 0) return check_hosts(all, n);
    Report  *mine = calloc(1, sizeof *mine), *said = calloc((size_t)n, sizeof *said);
    if (!mine || !said) st = fail(E_FIT, "no host memory for the reports of %d ranks", n);
    Need shared = shared_need(c, all, n, rank);
    if (over_limit(&all[rank])) shared = all[rank], shared.free = shared.limit;
    if (!st && me == rank) st = write_report(mine, c, plan, shared, all[rank]);
    if (!st && n > 1) comm_host_gather(c->world, said, mine, sizeof *said);
    if (!st) st = refuse_plan(c, n > 1 ? &said[rank] : mine);
    free(mine), free(said);
    return st;
}

Status fit_check(const FitCheck *c)
{
    EnginePlan plan;
    int    n = c->world ? c->world->size : 1;
    double all_of_it, host = 0;
    Need   mine = { .node = c->world ? c->world->node[c->world->rank] : 0 };
    Status st = engine_plan(&plan, c->shape, c->conf, c->full);
    if (st) st = wrap(st, "plan");
    if (n > 1) st = comm_agree(c->world, st);
    TRY(st);
    mine.bytes = (double)engine_device_bytes(&plan, c->conf->backend);
    backend_memory(c->conf->backend, &mine.free, &all_of_it);
    if (c->memory > 0) mine.free = c->memory;
    mine.limit = c->recipe->device.memory_limit * GIB;
    backend_memory("cpu", &host, &all_of_it);
    mine.host = on_host(c) ? 0 : (double)plan.bytes[A_HOST];
    mine.host_free = c->host > 0 ? c->host : host;
    Need *all = calloc((size_t)n, sizeof *all);
    if (!all) return fail(E_FIT, "no host memory for %d ranks", n);
    all[0] = mine;
    if (n > 1) comm_host_gather(c->world, all, &mine, sizeof mine);
    st = check_devices(c, &plan, all, n);
    free(all);
    return st;
}
