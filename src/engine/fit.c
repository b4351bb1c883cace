/* engine/fit.c -- the check before anything is mapped; see fit.h. */
#include "engine/fit.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPORT_ROOM = 6000, TOP_LABELS = 5, TOP_ROWS = 16 };

static const double GIB = 1 << 30;

/* Of one rank: what it wants of its device and of the host beside it, what they have free. */
typedef struct Wish { double bytes, room, host, host_room; int64_t node; } Wish;

typedef struct Said { char why[400], lines[REPORT_ROOM]; } Said;

static bool on_host(const FitCheck *c) { return !strcmp(c->conf->backend, "cpu"); }

/* What all ranks of its host want, and what the least of them sees free, where they share it. */
static Wish share(const FitCheck *c, const Wish *all, int n, int rank)
{
    Wish w = all[rank];
    for (int i = 0; i < n && on_host(c); i++) {
        if (i == rank || all[i].node != w.node) continue;
        w.bytes += all[i].bytes;
        if (all[i].room < w.room) w.room = all[i].room;
    }
    return w;
}

/* The rank that wants the most beyond what there is; -1: none does. */
static int worst(const FitCheck *c, const Wish *all, int n)
{
    double most = 0;
    int    rank = -1;
    for (int i = 0; i < n; i++) {
        Wish w = share(c, all, n, i);
        if (w.bytes - w.room > most) most = w.bytes - w.room, rank = i;
    }
    return rank;
}

/* This rank by a recipe that was changed; for FitRequest.plan. */
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
    conf.evaluate = c->conf->evaluate, conf.each = c->conf->each;
    if (recipe_can_generate(&r, &place)) conf.decode = c->conf->decode;
    Stream full = stream_full(&ss, &conf.budget);
    TRY(engine_plan(&plan, c->shape, &conf, &full));
    *bytes = (double)engine_device_bytes(&plan, conf.backend);
    return OK;
}

static void add(char *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(char *out, const char *fmt, ...)
{
    size_t  at = strlen(out);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out + at, REPORT_ROOM - at, fmt, ap);
    va_end(ap);
}

static void say_arenas(char *out, const EnginePlan *p)
{
    for (int i = 0; i < ARENA_N; i++) {
        if (!p->bytes[i]) continue;
        add(out, "  %-12s %9.3f GiB", engine_arena_label((ArenaId)i), (double)p->bytes[i] / GIB);
        for (int k = 0; k < TOP_LABELS && p->label[i][k].bytes; k++)
            add(out, "%s %s %.3f", k ? "," : ":", p->label[i][k].name, (double)p->label[i][k].bytes / GIB);
        add(out, "\n");
    }
}

/* What the unlucky rank has to say for all. */
static Status report(Said *s, const FitCheck *c, const EnginePlan *plan, Wish shared, Wish own)
{
    FitAdvice *a = calloc(1, sizeof *a);
    double others = shared.bytes - own.bytes;
    FitRequest ask = { .recipe = c->recipe, .shape = c->shape, .ranks = c->world ? c->world->size : 1,
                   .per_node = c->world ? comm_ranks_on_node(c->world) : 1, .bytes = own.bytes,
                   .room = shared.room - others, .plan = plan_changed, .self = (void *)c };
    char line[400];
    if (!a) return fail(E_FIT, "no host memory for advice");
    if (others > 0) ask.room = own.bytes * shared.room / shared.bytes;       /* its share of what there is */
    Status st = fit_advise(a, &ask);
    say_arenas(s->lines, plan);
    if (!st) add(s->lines, "what can be turned, cheapest first:\n");
    for (int i = 0; !st && i < a->n; i++) {
        if (i >= TOP_ROWS && i + 1 < a->n) continue;             /* the last may be several together */
        fit_row_text(line, sizeof line, a, i);
        add(s->lines, "  %s\n", line);
    }
    const FitRow *way = st ? NULL : fit_cheapest(a);
    snprintf(s->why, sizeof s->why, "does not fit: rank %d wants %.3f GiB and %.3f are free%s; %s%s",
             c->world ? c->world->rank : 0, own.bytes / GIB, ask.room / GIB,
             others > 0 ? " for each rank of its host" : "",
             way ? "the cheapest change that is enough: " : "nothing on the list is enough, nor all of it: ",
             way ? way->set : "take more ranks");
    free(a);
    return st;
}

/* All ranks hear the same, the first says it. */
static Status refuse(const FitCheck *c, const Said *s)
{
    for (const char *at = s->lines; *at; at += strcspn(at, "\n"), at += *at == '\n')
        log_error(c->log, "%.*s", (int)strcspn(at, "\n"), at);
    return fail(E_FIT, "%s", s->why);
}

/* Ranks of a host park what they cannot hold in the same memory. */
static Status check_hosts(const Wish *all, int n)
{
    for (int i = 0; i < n; i++) {
        double sum = 0;
        int    ranks = 0;
        for (int k = 0; k < n; k++)
            if (all[k].node == all[i].node) sum += all[k].host, ranks++;
        if (sum <= all[i].host_room) continue;
        return fail(E_FIT, "does not fit the host of rank %d: its %d rank%s want %.3f GiB there and %.3f are "
                    "free; lower memory.optimizer_offload or take words from memory.activation_offload", i, ranks,
                    ranks > 1 ? "s" : "", sum / GIB, all[i].host_room / GIB);
    }
    return OK;
}

static Status agree(const FitCheck *c, const EnginePlan *plan, const Wish *all, int n)
{
    int    rank = worst(c, all, n), me = c->world ? c->world->rank : 0;
    Status st = OK;
    if (rank < 0) return check_hosts(all, n);
    Said  *mine = calloc(1, sizeof *mine), *said = calloc((size_t)n, sizeof *said);
    if (!mine || !said) st = fail(E_FIT, "no host memory for what %d ranks say", n);
    if (!st && me == rank) st = report(mine, c, plan, share(c, all, n, rank), all[rank]);
    if (!st && n > 1) comm_host_gather(c->world, said, mine, sizeof *said);
    if (!st) st = refuse(c, n > 1 ? &said[rank] : mine);
    free(mine), free(said);
    return st;
}

Status fit_check(const FitCheck *c)
{
    EnginePlan plan;
    int    n = c->world ? c->world->size : 1;
    double all_of_it, host = 0;
    Wish   mine = { .node = c->world ? c->world->node[c->world->rank] : 0 };
    Status st = engine_plan(&plan, c->shape, c->conf, c->full);
    if (st) st = wrap(st, "plan");
    if (n > 1) st = comm_agree(c->world, st);
    TRY(st);
    mine.bytes = (double)engine_device_bytes(&plan, c->conf->backend);
    backend_memory(c->conf->backend, &mine.room, &all_of_it);
    if (c->memory > 0) mine.room = c->memory;
    backend_memory("cpu", &host, &all_of_it);
    mine.host = on_host(c) ? 0 : (double)plan.bytes[A_HOST];
    mine.host_room = c->host > 0 ? c->host : host;
    Wish *all = calloc((size_t)n, sizeof *all);
    if (!all) return fail(E_FIT, "no host memory for %d ranks", n);
    all[0] = mine;
    if (n > 1) comm_host_gather(c->world, all, &mine, sizeof mine);
    st = agree(c, &plan, all, n);
    free(all);
    return st;
}
