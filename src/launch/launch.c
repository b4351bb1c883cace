/* launch/launch.c -- see launch.h. */
#define _GNU_SOURCE                      /* cpu_set_t, strsignal */
#include "launch/launch.h"

#include "launch/attempt.h"
#include "launch/binding.h"
#include "plan/relayout.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

__attribute__((format(printf, 1, 2))) static void say(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputs("launch: ", stderr);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
}

static Status start_once(const Launch *l, Attempt *a)
{
    Words  command = { 0 }, environment = { 0 };
    *a = (Attempt){ .saves = l->saves };
    Status st = mpirun_command(&command, &environment, &l->mpirun, &l->command);
    if (!st) st = attempt_run(a, &command, &environment);
    words_close(&command), words_close(&environment);
    return st;
}

/* ---- restarts ---- */

/* The newest complete checkpoint, "": none. */
static void find_checkpoint(Path out, const char *folder)
{
    Path link;
    if (path_join(link, folder, "last") || !realpath(link, out)) *out = 0;
}

static Status choose_layout(Launch *l, int most)
{
    Relayout *r = malloc(sizeof *r);
    RelayoutAsk ask = { .recipe = l->command.verb[1], .override = l->command.verb + 2,
                        .overrides = l->command.words - 2, .was = l->ranks, .most = most, .least = l->least,
                        .per_node = hosts_widest(&l->command.hosts) };
    Status st = r ? relayout_find(r, &ask) : fail(E_FIT, "no memory for a layout");
    for (int i = 0; !st && i < r->keys.n; i++) st = words_add(&l->command.overrides, "%s", r->keys.at[i]);
    if (!st) {
        l->command.ranks = r->ranks;
        say("%d ranks in place of %d, layout %s: %s", r->ranks, l->ranks, r->layout, r->reason);
    }
    free(r);
    return st;
}

typedef struct Progress {
    Path first, newest;                  /* checkpoints before the first start, and now; "": none */
    int  fruitless;                      /* restarts since the newest one was saved */
} Progress;

/* A run that was started from a checkpoint by its path starts from there until it has saved one itself. */
static Status set_resume(Launch *l, const Progress *p)
{
    if (l->from_path && !strcmp(p->first, p->newest)) return OK;
    return words_add(&l->command.overrides, "checkpoint.resume_from_checkpoint=auto");
}

/* Sets ranks, hosts and overrides of the next start. */
static Status prepare_restart(Launch *l, const Progress *p)
{
    Hosts *h = &l->command.hosts;
    char   lost[512];
    words_close(&l->command.overrides);
    l->command.ranks = l->ranks;
    TRY(set_resume(l, p));
    if (h->n) TRY(hosts_probe(h, l->command.agent));
    int slots = h->n ? hosts_slots(h) : l->ranks;
    hosts_text(lost, sizeof lost, h, true);
    if (*lost) say("no answer from %s", lost);
    if (slots < l->least)
        return fail(E_COMM, "launch: %d ranks are left, fewer than --min-ranks %d", slots, l->least);
    if (slots < l->ranks) TRY(choose_layout(l, slots));
    say("starting again on %d ranks from %s", l->command.ranks, *p->newest ? p->newest : "the beginning");
    return OK;
}

/* Hosts that reboot, and storage that comes back, need time: 0, 2, 4, 8 … 60 s after fruitless restarts. */
static void wait_before(int fruitless)
{
    int seconds = fruitless < 2 ? 0 : fruitless > 6 ? 60 : 1 << (fruitless - 1);
    nanosleep(&(struct timespec){ .tv_sec = seconds }, NULL);
}

/* Whether the run may start again; counts restarts since the last new checkpoint. */
static bool may_restart(const Launch *l, const Attempt *a, Progress *p)
{
    Path now;
    if (!l->restarts || !a->lost || a->stopped) return false;
    find_checkpoint(now, l->folder);
    if (strcmp(now, p->newest)) p->fruitless = 0;
    memcpy(p->newest, now, sizeof now);
    if (++p->fruitless <= l->restarts) return true;
    say("a rank was lost, %d times in a row without a new checkpoint: giving up (--restart %d)", p->fruitless,
        l->restarts);
    return false;
}

Status launch_run(Launch *l, int *code)
{
    Attempt  a;
    Progress p = { .fruitless = 0 };
    find_checkpoint(p.first, l->folder);
    memcpy(p.newest, p.first, sizeof p.newest);
    for (;;) {
        TRY(start_once(l, &a));
        *code = a.code;
        if (!may_restart(l, &a, &p)) break;
        wait_before(p.fruitless);
        TRY(prepare_restart(l, &p));
    }
    if (!a.stopped || !a.lost) return OK;
    return fail(E_OTHER, "launch: stopped by signal %d (%s); the ranks ended before they saved", a.stopped,
                strsignal(a.stopped));
}

/* ---- printing ---- */

static void print_rank(FILE *out, int rank, const char *host, const Topology *t, int local, int size)
{
    RankBinding b;
    char    text[320] = "decided there, by the same rule";
    if (t) binding_find(&b, t, local, size), binding_text(text, sizeof text, &b);
    fprintf(out, "rank %-4d %-16s %s\n", rank, host, text);
}

static void print_bindings(FILE *out, const RankCommand *c)
{
    Topology *t = malloc(sizeof *t);
    if (!t) return;
    topology_read_host(t);
    if (!c->hosts.n)
        for (int i = 0; i < c->ranks; i++) print_rank(out, i, "this host", t, i, c->ranks);
    for (int i = 0, rank = 0; i < c->hosts.n; i++) {
        const Host *h = &c->hosts.host[i];
        int n = c->ranks - rank < h->slots ? c->ranks - rank : h->slots;
        for (int j = 0; j < n; j++, rank++)
            print_rank(out, rank, h->name, hosts_local(h->name) ? t : NULL, j, n);
    }
    free(t);
}

Status launch_print(FILE *out, const Launch *l)
{
    Words  command = { 0 }, environment = { 0 };
    Status st = mpirun_command(&command, &environment, &l->mpirun, &l->command);
    if (!st) words_print(out, &environment), words_print(out, &command);
    if (!st && l->command.bind) print_bindings(out, &l->command);
    words_close(&command), words_close(&environment);
    return st;
}
