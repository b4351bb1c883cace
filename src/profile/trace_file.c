/* profile/trace_file.c -- see trace_file.h. */
#include "profile/trace_file.h"

#include "base/folder.h"
#include "base/graph_scopes.h"
#include "ops/ops.h"
#include "plan/view.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Tracks of a rank; streams of the device come after. */
enum { TRACK_RANGES = 1, TRACK_HOST = 2, TRACK_STREAMS = 10 };

typedef struct TraceFile {
    FILE  *out;
    int    rank;
    double zero;
    bool   any;
} TraceFile;

static const char *const host_names[] = {
    [HOST_OP]     = "op",
    [HOST_CALL]   = "start",
    [HOST_JOIN]   = "join",
    [HOST_GATHER] = "host gather",
    [HOST_FETCH]  = "fetch",
    [HOST_SYNC]   = "wait for the device",
    [HOST_COPY]   = "copy",
    [HOST_UPLOAD] = "upload",
    [HOST_LAUNCH] = "launch graph",
    [HOST_DATA]   = "wait for data",
};

static void put_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') putc('\\', out);
        putc((unsigned char)*text < ' ' ? ' ' : *text, out);
    }
}

static void put_event(TraceFile *f, int track, const char *name, const char *more, double from, double to)
{
    fprintf(f->out, "%s{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"",
            f->any ? ",\n" : "", f->rank, track, (from - f->zero) * 1e6, (to - from) * 1e6);
    put_text(f->out, name);
    if (*more) fprintf(f->out, " "), put_text(f->out, more);
    f->any = true;
}

static void put_meta(TraceFile *f, int track, const char *what, const char *name)
{
    fprintf(f->out, "%s{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{\"name\":\"",
            f->any ? ",\n" : "", f->rank, track, what);
    put_text(f->out, name);
    fprintf(f->out, "\"}}");
    f->any = true;
}

/* ---- tracks ---- */

/* Under the name of its op where that is known; the kernel is an argument. */
static void put_span(TraceFile *f, const TraceSpan *s)
{
    put_event(f, TRACK_STREAMS + s->stream, span_name(s), s->in_flight ? "in flight" : "", s->from, s->to);
    fprintf(f->out, "\",\"cat\":\"%s\",\"args\":{\"part\":\"%s\",\"layer\":%d", category_names[s->category],
            part_words[s->place.part], s->place.layer - 1);
    if (s->name)  fprintf(f->out, ",\"kernel\":\""), put_text(f->out, s->name), fprintf(f->out, "\"");
    if (s->bytes) fprintf(f->out, ",\"bytes\":%lld", (long long)s->bytes);
    if (s->group >= 0)
        fprintf(f->out, ",\"group\":\"%s\",\"call\":%d", group_name((GroupId)s->group), s->call);
    if (isfinite(s->launched)) fprintf(f->out, ",\"launched_us\":%.3f", (s->launched - f->zero) * 1e6);
    fprintf(f->out, "}}");
}

static void put_host(TraceFile *f, const HostEvent *e)
{
    bool        group = e->kind == HOST_CALL || e->kind == HOST_JOIN || e->kind == HOST_GATHER;
    const char *more  = e->kind == HOST_OP ? op_name(e->id) : group ? group_name((GroupId)e->id) : "";
    put_event(f, TRACK_HOST, host_names[e->kind], more, e->from, e->to);
    fprintf(f->out, "\",\"cat\":\"host\"}");
}

static bool same_place(const HostPlace *a, const HostPlace *b, int depth)
{
    if (a->pass != b->pass || a->micro != b->micro) return false;
    return depth == 0 || (a->part == b->part && a->layer == b->layer && a->replay == b->replay);
}

static void name_range(char *out, size_t n, const HostPlace *p, int depth)
{
    static const char *const passes[PASS_N] = { "between passes", "forward", "backward", "update" };
    int                      at             = 0;
    if (depth == 0 && p->micro) snprintf(out, n, "%s of micro-batch %d", passes[p->pass], p->micro - 1);
    else if (depth == 0) snprintf(out, n, "%s", passes[p->pass]);
    else at = snprintf(out, n, "%s%s", p->replay ? "recomputed " : "", part_words[p->part]);
    if (at > 0 && p->layer) snprintf(out + at, n - (size_t)at, " layer %d", p->layer - 1);
}

/* Ranges of events that follow each other in one place; the deeper ones lie inside. */
static void put_ranges(TraceFile *f, const Recorder *r, int depth)
{
    char name[96];
    for (size_t i = 0, j; i < r->n; i = j) {
        double to = r->event[i].to;
        for (j = i + 1; j < r->n && same_place(&r->event[i].place, &r->event[j].place, depth); j++)
            if (r->event[j].to > to) to = r->event[j].to;
        if (r->event[i].kind == HOST_DATA) continue;
        name_range(name, sizeof name, &r->event[i].place, depth);
        put_event(f, TRACK_RANGES, name, "", r->event[i].from, to);
        fprintf(f->out, "\",\"cat\":\"range\"}");
    }
}

static void put_steps(TraceFile *f, const SpanList *s)
{
    char name[32];
    for (int i = 1; i < s->steps; i++) {
        snprintf(name, sizeof name, "profiled step %d", i);
        put_event(f, 0, name, "", s->step[i - 1].ended, s->step[i].ended);
        fprintf(f->out, "\",\"cat\":\"step\"}");
    }
}

static void put_names(TraceFile *f, const SpanList *s)
{
    char     name[48];
    uint64_t seen = 0;
    snprintf(name, sizeof name, "rank %d", f->rank);
    put_meta(f, 0, "process_name", name);
    put_meta(f, 0, "thread_name", "steps");
    put_meta(f, TRACK_RANGES, "thread_name", "ranges");
    put_meta(f, TRACK_HOST, "thread_name", "host");
    for (size_t i = 0; i < s->n; i++) {
        int at = s->span[i].stream & 63;
        if (seen >> at & 1) continue;
        seen |= (uint64_t)1 << at;
        snprintf(name, sizeof name, "device, stream %d", s->span[i].stream);
        put_meta(f, TRACK_STREAMS + s->span[i].stream, "thread_name", name);
    }
}

/* ---- files ---- */

static Status rank_path(Path out, const char *folder, int rank)
{
    char name[48];
    snprintf(name, sizeof name, "trace-rank-%d.part", rank);
    return path_join(out, folder, name);
}

Status trace_file_write_rank(const char *folder, int rank, const SpanList *s, const Recorder *r, double zero)
{
    Path      path;
    TraceFile f = { .rank = rank, .zero = zero };
    TRY(rank_path(path, folder, rank));
    f.out = fopen(path, "w");
    if (!f.out) return fail(E_IO, "%s: cannot be written", path);
    put_names(&f, s);
    put_steps(&f, s);
    for (int depth = 0; depth < 2; depth++) put_ranges(&f, r, depth);
    for (size_t i = 0; i < r->n; i++) put_host(&f, &r->event[i]);
    for (size_t i = 0; i < s->n; i++) put_span(&f, &s->span[i]);
    return fclose(f.out) ? fail(E_IO, "%s: the disk is full, or cannot be written", path) : OK;
}

static Status append_file(FILE *out, const char *path)
{
    char   buf[1 << 16];
    FILE  *in = fopen(path, "r");
    size_t n;
    if (!in) return fail(E_IO, "%s: not found; ranks must share the folder of the profile", path);
    while ((n = fread(buf, 1, sizeof buf, in)) > 0) fwrite(buf, 1, n, out);
    fclose(in);
    unlink(path);
    return OK;
}

Status trace_file_join(const char *folder, int ranks)
{
    Path   path, part;
    Status st = OK;
    TRY(path_join(path, folder, "trace.json"));
    FILE *out = fopen(path, "w");
    if (!out) return fail(E_IO, "%s: cannot be written", path);
    fprintf(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    for (int r = 0; r < ranks && !st; r++) {
        if (r) fprintf(out, ",\n");
        st = rank_path(part, folder, r);
        if (!st) st = append_file(out, part);
    }
    fprintf(out, "\n]}\n");
    return fclose(out) && !st ? fail(E_IO, "%s: the disk is full, or cannot be written", path) : st;
}
