/* comm/hang_file.c -- see hang_file.h. */
#include "comm/hang_file.h"
#include "base/clock.h"
#include "base/cond.h"
#include "base/folder.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct HangFile { int fd, n; double clock_offset; char buf[4096]; } HangFile;

static void flush(HangFile *f)
{
    for (int at = 0; at < f->n;) {
        ssize_t k = write(f->fd, f->buf + at, (size_t)(f->n - at));
        if (k <= 0) break;
        at += (int)k;
    }
    f->n = 0;
}

static void __attribute__((format(printf, 2, 3))) put(HangFile *f, const char *fmt, ...)
{
    enum { LONGEST = 700 };
    if (f->n > (int)sizeof f->buf - LONGEST) flush(f);
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(f->buf + f->n, LONGEST, fmt, args);
    va_end(args);
    f->n += n < LONGEST ? n : LONGEST - 1;
}

/* Writes a JSON string of at most 400 characters; characters that need escapes become spaces or quotes. */
static void put_text(HangFile *f, const char *key, const char *text)
{
    char clean[401];
    int  n = 0;
    for (; text[n] && n < 400; n++) {
        unsigned char c = (unsigned char)text[n];
        clean[n] = (char)(c < 0x20 ? ' ' : c == '"' || c == '\\' ? '\'' : c);
    }
    clean[n] = 0;
    put(f, "  \"%s\": \"%s\",\n", key, clean);
}

static void put_moment(HangFile *f, const char *key, double at, const char *after)
{
    if (at > 0) put(f, "\"%s\": %.6f%s", key, at + f->clock_offset, after);
    else        put(f, "\"%s\": null%s", key, after);
}

static void put_number(HangFile *f, const char *key, int one_more)
{
    if (one_more) put(f, "\"%s\": %d, ", key, one_more - 1);
    else          put(f, "\"%s\": null, ", key);
}

static void put_call(HangFile *f, const TraceCall *c, bool last)
{
    put(f, "    {\"call\": \"%s\", \"group\": \"%s\", \"seq\": %lld, \"bytes\": %lld, ", c->op ? c->op : "?",
        group_name((GroupId)c->group), (long long)c->seq, (long long)c->bytes);
    put_number(f, "peer", c->peer);
    put_number(f, "layer", c->layer);
    put_number(f, "micro_batch", c->micro_batch);
    put_moment(f, "began", c->began, ", ");
    put_moment(f, "ended", c->ended, last ? "}\n" : "},\n");
}

/* The last calls, or those around the oldest one that the device has not finished. */
static int64_t first_call(const Watch *w)
{
    int64_t from = trace_calls(w->trace) - HANG_CALLS, oldest = watch_oldest_unfinished(w);
    if (oldest >= 0 && oldest - HANG_CALLS / 2 < from) from = oldest - HANG_CALLS / 2;
    return from > 0 ? from : 0;
}

/* The host joins a call on a device without waiting for it: what the device has not finished has not
 * ended. */
static void clear_ends(const Watch *w, int64_t from, TraceCall *call, int n)
{
    for (Comm *c = w->trace->comms; c; c = c->next)
        for (int64_t at = c->finished; watch_asks_device(c) && at < c->started; at++) {
            int64_t k = c->recent[at % COMM_RECENT] - from;
            if (k >= 0 && k < n && !watch_is_finished(c, at)) call[k].ended = 0;
        }
}

static int copy_calls(const Watch *w, TraceCall call[HANG_CALLS])
{
    bool    locked = mutex_lock_within(&w->trace->comms_lock, 0.1);
    int64_t from = locked ? first_call(w) : trace_calls(w->trace) - HANG_CALLS;
    int     n = trace_copy(w->trace, &from, call, HANG_CALLS);
    if (!locked) return n;
    clear_ends(w, from, call, n);
    pthread_mutex_unlock(&w->trace->comms_lock);
    return n;
}

static void put_calls(HangFile *f, const Watch *w)
{
    TraceCall call[HANG_CALLS];
    int n = copy_calls(w, call);
    put(f, "  \"calls\": [\n");
    for (int i = 0; i < n; i++) put_call(f, &call[i], i == n - 1);
    put(f, "  ]\n}\n");
}

static void put_group(HangFile *f, const Comm *c, bool first)
{
    put(f, "%s\n    {\"group\": \"%s\", \"transport\": \"%s\", \"calls\": %lld, \"members\": [",
        first ? "" : ",", group_name((GroupId)c->group), comm_name(c), (long long)c->seq);
    for (int i = 0; i < c->size; i++) put(f, "%s%d", i ? ", " : "", c->world[i]);
    put(f, "]}");
}

static void put_groups(HangFile *f, Trace *t)
{
    bool first = true;
    put(f, "  \"groups\": [");
    if (mutex_lock_within(&t->comms_lock, 0.1)) {
        for (const Comm *c = t->comms; c; c = c->next)
            if (c->size > 1) put_group(f, c, first), first = false;
        pthread_mutex_unlock(&t->comms_lock);
    }
    put(f, "\n  ],\n");
}

static void put_rank(HangFile *f, int rank, int ranks, const Watch *w, const char *why)
{
    RankState s;
    char host[64] = "", place[160];
    double now = clock_now();
    gethostname(host, sizeof host - 1);
    watch_state(w, now, &s);
    activity_describe(&w->activity->place, place, sizeof place);
    put(f, "{\n  \"version\": %d, \"rank\": %d, \"ranks\": %d, \"process\": %ld,\n", HANG_VERSION, rank,
        ranks, (long)getpid());
    put_text(f, "host", host);
    put_text(f, "why", why);
    put_text(f, "place", place);
    put_text(f, "state", s.line);
    put(f, "  \"waits\": %s, \"idle_seconds\": %.3f, ", s.waits > 0 ? "true" : "false", s.progress.idle);
    put_moment(f, "written", now, ",\n");
}

void hang_file_write(const char *folder, int rank, int ranks, const Watch *w, const char *why)
{
    char path[4200];
    HangFile f = { .clock_offset = clock_wall() - clock_now() };
    if (!*folder) return;
    snprintf(path, sizeof path, "%.4000s/" HANG_FOLDER, folder);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%.4000s/" HANG_FOLDER "/rank-%05d.json", folder, rank);
    f.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (f.fd < 0) return;
    put_rank(&f, rank, ranks, w, why);
    put_groups(&f, w->trace);
    put_calls(&f, w);
    flush(&f);
    close(f.fd);
}

void hang_files_remove(const char *folder)
{
    Path path;
    if (!path_join(path, folder, HANG_FOLDER) && file_is(path)) folder_remove(path);
}
