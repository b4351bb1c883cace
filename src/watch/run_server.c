/* watch/run_server.c -- see run_server.h. */
#include "watch/run_server.h"

#include "base/folder.h"
#include "report/report.h"
#include "report/runs_page.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

/* The files that a page is built from. */
static const char *const run_files[] = { "recipe.yaml", "env.json", "plan.json", "metrics.jsonl",
                                         "expert_load.json", "samples", "quarantine.jsonl", "hang" };
enum { RUN_FILES = sizeof run_files / sizeof *run_files };

struct RunServer {
    RunServerConf   conf;
    char       *run[RUN_SERVER_RUNS];         /* a run keeps its number */
    int         runs;
    HttpServer *server;
};

/* ---- runs ---- */

static bool is_run(const char *dir)
{
    return folder_has(dir, "metrics.jsonl") || folder_has(dir, "recipe.yaml");
}

static void add_run(RunServer *w, const char *dir)
{
    for (int i = 0; i < w->runs; i++)
        if (!strcmp(w->run[i], dir)) return;
    if (w->runs < RUN_SERVER_RUNS && (w->run[w->runs] = strdup(dir))) w->runs++;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void add_runs_of(RunServer *w, const char *dir)
{
    struct dirent **entry = NULL;
    int n = scandir(dir, &entry, NULL, by_name);
    for (int i = 0; i < n; i++) {
        const char *name = entry[i]->d_name;
        Path        path;
        if (name[0] != '.' && !path_join(path, dir, name) && is_run(path)) add_run(w, path);
        free(entry[i]);
    }
    free(entry);
}

static void find_runs(RunServer *w)
{
    for (int i = 0; i < w->conf.n; i++)
        if (is_run(w->conf.dir[i])) add_run(w, w->conf.dir[i]);
        else                        add_runs_of(w, w->conf.dir[i]);
}

static uint64_t mix(uint64_t h, int64_t v) { return XXH64(&v, sizeof v, h); }

/* Changes when a file of the run does. */
static uint64_t run_version(const char *dir, uint64_t h)
{
    for (int i = 0; i < RUN_FILES; i++) {
        Path        path;
        struct stat s;
        if (path_join(path, dir, run_files[i]) || stat(path, &s)) continue;
        h = mix(mix(h, i), s.st_size);
        h = mix(mix(h, s.st_mtim.tv_sec), s.st_mtim.tv_nsec);
    }
    return h;
}

/* ---- pages ---- */

/* Which page: of all runs, of one or of two. */
typedef struct Wanted { int runs, run[REPORT_RUNS]; bool document; } Wanted;

static bool parse_path(const char *path, Wanted *want)
{
    int end = 0;
    *want = (Wanted){ 0 };
    if (!strncmp(path, "/data", 5)) want->document = true, path += 5;
    if (!*path || !strcmp(path, "/")) return true;
    if (sscanf(path, "/run/%2d%n", &want->run[0], &end) == 1)                         want->runs = 1;
    else if (sscanf(path, "/pair/%2d/%2d%n", &want->run[0], &want->run[1], &end) == 2) want->runs = 2;
    return want->runs && !path[end];
}

static bool is_known(const RunServer *w, const Wanted *want)
{
    for (int i = 0; i < want->runs; i++)
        if (want->run[i] < 0 || want->run[i] >= w->runs) return false;
    return true;
}

static void set_etag(const RunServer *w, const Wanted *want, char out[40])
{
    uint64_t h = (uint64_t)w->runs;
    if (!want->runs)
        for (int i = 0; i < w->runs; i++) h = run_version(w->run[i], h);
    for (int i = 0; i < want->runs; i++) h = run_version(w->run[want->run[i]], h);
    snprintf(out, 40, "\"%016llx\"", (unsigned long long)h);
}

static void live_address(const Wanted *want, char out[64])
{
    if (!want->runs)          snprintf(out, 64, "/data");
    else if (want->runs == 1) snprintf(out, 64, "/data/run/%d", want->run[0]);
    else                      snprintf(out, 64, "/data/pair/%d/%d", want->run[0], want->run[1]);
}

static Status build(const RunServer *w, const Wanted *want, Text *out)
{
    char  live[64];
    Page  p;
    live_address(want, live);
    if (want->runs) {
        ReportAsk ask = { .runs = want->runs };
        for (int i = 0; i < want->runs; i++) ask.dir[i] = w->run[want->run[i]];
        return report_text(&ask, want->document ? NULL : live, out);
    }
    runs_page(&p, (const char *const *)w->run, w->runs);
    Status st = want->document ? page_document(&p, out) : page_html(&p, live, out);
    page_close(&p);
    return st;
}

static void refuse_request(HttpAnswer *out, int code, const char *text)
{
    *out = (HttpAnswer){ .code = code, .type = "text/plain; charset=utf-8", .body = out->body };
    out->body.n = 0;
    if (text_printf(&out->body, "%s\n", text)) out->body.n = 0;
}

static void handle(void *state, const char *path, const char *etag, HttpAnswer *out)
{
    RunServer *w = state;
    Wanted want;
    find_runs(w);
    if (!parse_path(path, &want) || !is_known(w, &want)) {
        refuse_request(out, 404, "no such page; / lists the runs");
        return;
    }
    if (want.document) set_etag(w, &want, out->etag);
    out->code = *out->etag && !strcmp(etag, out->etag) ? 304 : 200;
    out->type = want.document ? "application/json" : "text/html; charset=utf-8";
    if (out->code == 200 && build(w, &want, &out->body)) refuse_request(out, 500, status_text());
}

/* ---- the server ---- */

static Status check(const RunServer *w)
{
    for (int i = 0; i < w->conf.n; i++)
        if (!folder_is(w->conf.dir[i])) return fail(E_IO, "%s: no such folder", w->conf.dir[i]);
    if (!w->runs)
        return fail(E_IO, "%s: neither a run nor a folder of runs: it has no metrics.jsonl and no "
                    "recipe.yaml", w->conf.dir[0]);
    return OK;
}

Status run_server_open(RunServer **out, const RunServerConf *conf)
{
    RunServer *w = calloc(1, sizeof *w);
    if (!w) return fail(E_FIT, "no memory for the runs");
    w->conf = *conf;
    find_runs(w);
    Status st = check(w);
    if (!st)
        st = http_open(&w->server, &(HttpConf){ .host = conf->host, .port = conf->port, .handler = handle,
                                                .state = w });
    if (st) run_server_close(w);
    else    *out = w;
    return st;
}

int run_server_port(const RunServer *w) { return http_port(w->server); }
int run_server_runs(const RunServer *w) { return w->runs; }

void run_server_close(RunServer *w)
{
    if (w->server) http_close(w->server);
    for (int i = 0; i < w->runs; i++) free(w->run[i]);
    free(w);
}
