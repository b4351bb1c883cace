/* launch/hosts.c -- see hosts.h. */
#include "launch/hosts.h"

#include "base/clock.h"
#include "base/str.h"
#include "launch/process.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const double PROBE_SECONDS = 10;

/* ---- the list ---- */

static Status parse_host(Host *h, const char *text, size_t len)
{
    const char *colon = memchr(text, ':', len);
    size_t      name = colon ? (size_t)(colon - text) : len;
    char        slots[16] = "";
    int64_t     n = 0;
    if (!name || name >= HOST_NAME || *text == '-')
        return fail(E_CONFIG, "--hosts: %.*s is not a host; write a:8,b:8", (int)len, text);
    memcpy(h->name, text, name);
    if (!colon) return OK;
    snprintf(slots, sizeof slots, "%.*s", (int)(len - name - 1), colon + 1);
    if (!str_whole(slots, &n) || n < 1 || n > 65536)
        return fail(E_CONFIG, "--hosts: %.*s: the number of its slots must be between 1 and 65536", (int)len,
                    text);
    return h->slots = (int)n, OK;
}

static Status refuse_twice(const Hosts *h)
{
    for (int i = 0; i < h->n; i++)
        for (int j = 0; j < i; j++)
            if (!strcmp(h->host[i].name, h->host[j].name))
                return fail(E_CONFIG, "--hosts: %s is listed twice", h->host[i].name);
    return OK;
}

static Status parse_all(Hosts *h, const char *text, int ranks)
{
    size_t len;
    for (const char *rest = text, *item; (item = str_item(&rest, ',', &len)); h->n++) {
        if (h->n == HOSTS_MOST) return fail(E_CONFIG, "--hosts: more than %d hosts", HOSTS_MOST);
        TRY(parse_host(&h->host[h->n], item, len));
    }
    for (int i = 0; i < h->n; i++) {
        if (h->host[i].slots) continue;
        if (!ranks || ranks % h->n)
            return fail(E_CONFIG, "--hosts: %s has no number of slots, and -n is not a multiple of %d hosts; "
                        "write %s:8", h->host[i].name, h->n, h->host[i].name);
        h->host[i].slots = ranks / h->n;
    }
    return refuse_twice(h);
}

Status hosts_parse(Hosts *h, const char *text, int ranks)
{
    *h = (Hosts){ 0 };
    if (!text) return OK;
    if (!(h->host = calloc(HOSTS_MOST, sizeof *h->host))) return fail(E_FIT, "no memory for hosts");
    Status st = parse_all(h, text, ranks);
    if (!st && !h->n) st = fail(E_CONFIG, "--hosts: no host is named; write a:8,b:8");
    if (st) hosts_close(h);
    return st;
}

void hosts_close(Hosts *h)
{
    free(h->host);
    *h = (Hosts){ 0 };
}

int hosts_slots(const Hosts *h)
{
    int n = 0;
    for (int i = 0; i < h->n; i++) n += h->host[i].lost ? 0 : h->host[i].slots;
    return n;
}

int hosts_widest(const Hosts *h)
{
    int n = 0;
    for (int i = 0; i < h->n; i++) if (!h->host[i].lost && h->host[i].slots > n) n = h->host[i].slots;
    return n;
}

void hosts_text(char *out, size_t n, const Hosts *h, bool lost)
{
    size_t at = 0;
    *out = 0;
    for (int i = 0; i < h->n && at < n; i++)
        if (h->host[i].lost == lost)
            at += (size_t)snprintf(out + at, n - at, "%s%s:%d", at ? "," : "", h->host[i].name,
                                   h->host[i].slots);
}

bool hosts_local(const char *name)
{
    char own[HOST_NAME] = "";
    gethostname(own, sizeof own - 1);
    return !strcmp(name, own) || !strcmp(name, "localhost") || !strncmp(name, "127.", 4);
}

/* ---- probing ---- */

static Status probe_command(Words *w, const char *agent, const char *host)
{
    size_t len;
    for (const char *rest = agent ? agent : "ssh", *item; (item = str_item(&rest, ' ', &len));)
        if (len) TRY(words_add(w, "%.*s", (int)len, item));
    if (!agent) TRY(words_add_all(w, 4, (char *[]){ "-o", "BatchMode=yes", "-o", "ConnectTimeout=8" }));
    return words_add_all(w, 2, (char *[]){ (char *)host, "true" });
}

static Status start_probe(pid_t *pid, const char *agent, const char *host, int quiet)
{
    Words w = { 0 };
    Status st = probe_command(&w, agent, host);
    if (!st) st = process_start(pid, &w, NULL, quiet, quiet);
    words_close(&w);
    return st;
}

/* Waits for one probe, kills it at `end`, and returns whether its host answered. */
static bool finish_probe(pid_t pid, double end)
{
    int status = 0;
    while (!waitpid(pid, &status, WNOHANG)) {
        if (clock_now() > end) kill(-pid, SIGKILL), end = clock_now() + PROBE_SECONDS;
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    }
    return process_code(status) == 0;
}

Status hosts_probe(Hosts *h, const char *agent)
{
    pid_t *pid = calloc((size_t)h->n + 1, sizeof *pid);
    FILE  *quiet = fopen("/dev/null", "we");
    Status st = pid && quiet ? OK : fail(E_FIT, "no memory to probe %d hosts", h->n);
    double end = clock_now() + PROBE_SECONDS;
    for (int i = 0; i < h->n && !st; i++)
        if (!hosts_local(h->host[i].name)) st = start_probe(&pid[i], agent, h->host[i].name, fileno(quiet));
    for (int i = 0; i < h->n && pid; i++) h->host[i].lost = pid[i] > 0 && !finish_probe(pid[i], end);
    if (quiet) fclose(quiet);
    free(pid);
    return st;
}
