/* watch/http.c -- see http.h. A request is answered when its header has come; the body of a request is not
 * read. While the server listens on this machine alone it answers requests for this machine's names only, so
 * that no foreign page can read it through a name that leads here. */
#include "watch/http.h"

#ifdef TREB_MICROHTTPD
#include <arpa/inet.h>
#include <dlfcn.h>
#include <microhttpd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONNECTIONS = 64, IDLE_SECONDS = 30, CONNECTION_BYTES = 32 << 10 };

#define MHD_CALLS(F) \
    F(start_daemon) F(stop_daemon) F(get_daemon_info) F(create_response_from_buffer) F(add_response_header) \
    F(queue_response) F(destroy_response) F(lookup_connection_value)

typedef struct Library {
#define F(name) __typeof__(&MHD_##name) name;
    MHD_CALLS(F)
#undef F
} Library;

struct HttpServer {
    Library            lib;
    HttpConf           conf;
    struct MHD_Daemon *daemon;
    bool               local;            /* listens on 127.0.0.1 */
};

static Status load(Library *l)
{
    void *file = dlopen("libmicrohttpd.so.12", RTLD_NOW | RTLD_LOCAL);
    const struct { void **to; const char *name; } all[] = {
#define F(name) { (void **)&l->name, "MHD_" #name },
        MHD_CALLS(F)
#undef F
    };
    if (!file)
        return fail(E_CONFIG, "cannot load libmicrohttpd (%s); install libmicrohttpd12", dlerror());
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!(*all[i].to = dlsym(file, all[i].name)))
            return fail(E_CONFIG, "libmicrohttpd.so.12 has no %s; install libmicrohttpd12", all[i].name);
    return OK;
}

static void set_text(HttpAnswer *a, int code, const char *text)
{
    a->code = code, a->type = "text/plain; charset=utf-8";
    a->body.n = 0;
    if (text_push(&a->body, text, strlen(text))) a->body.n = 0;
}

/* The name of the Host header without its port. */
static bool names_this_machine(const char *host)
{
    static const char *const names[] = { "localhost", "127.0.0.1", "[::1]" };
    for (size_t i = 0; host && i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i]);
        if (!strncmp(host, names[i], n) && (!host[n] || host[n] == ':')) return true;
    }
    return false;
}

static const char *header(const HttpServer *s, struct MHD_Connection *c, const char *name)
{
    return s->lib.lookup_connection_value(c, MHD_HEADER_KIND, name);
}

static void decide(const HttpServer *s, struct MHD_Connection *c, const char *method, const char *path,
                   HttpAnswer *a)
{
    const char *etag = header(s, c, "If-None-Match");
    if (strcmp(method, "GET") && strcmp(method, "HEAD")) set_text(a, 405, "only GET and HEAD\n");
    else if (s->local && !names_this_machine(header(s, c, "Host")))
        set_text(a, 403, "ask for localhost; see treb watch --host\n");
    else s->conf.handler(s->conf.state, path, etag ? etag : "", a);
}

static enum MHD_Result send_answer(const HttpServer *s, struct MHD_Connection *c, HttpAnswer *a)
{
    const Library *l = &s->lib;
    struct MHD_Response *r = l->create_response_from_buffer(a->body.n, a->body.v, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        text_close(&a->body);
        return MHD_NO;
    }
    if (a->type) l->add_response_header(r, "Content-Type", a->type);
    if (*a->etag) l->add_response_header(r, "ETag", a->etag);
    if (a->code == 405) l->add_response_header(r, "Allow", "GET, HEAD");
    l->add_response_header(r, "Cache-Control", "no-store");
    l->add_response_header(r, "X-Content-Type-Options", "nosniff");
    l->add_response_header(r, "X-Frame-Options", "DENY");
    enum MHD_Result done = l->queue_response(c, (unsigned)a->code, r);
    l->destroy_response(r);
    return done;
}

static enum MHD_Result answer(void *state, struct MHD_Connection *c, const char *path, const char *method,
                              const char *version, const char *data, size_t *bytes, void **request)
{
    const HttpServer *s = state;
    HttpAnswer a = { 0 };
    decide(s, c, method, path, &a);
    return send_answer(s, c, &a);
}

static Status listen_on(HttpServer *s)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)s->conf.port) };
    if (inet_pton(AF_INET, s->conf.host, &at.sin_addr) != 1)
        return fail(E_CONFIG, "--host %s: not an IPv4 address; set 127.0.0.1 or 0.0.0.0", s->conf.host);
    s->local = ntohl(at.sin_addr.s_addr) >> 24 == 127;
    s->daemon = s->lib.start_daemon(MHD_USE_INTERNAL_POLLING_THREAD, (uint16_t)s->conf.port, NULL, NULL,
                                    answer, s, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&at,
                                    MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
                                    MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS,
                                    MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
                                    MHD_OPTION_END);
    if (s->daemon) return OK;
    return fail(E_CONFIG, "cannot listen on %s, port %d; set --port 0 for a free port", s->conf.host,
                s->conf.port);
}

Status http_open(HttpServer **out, const HttpConf *conf)
{
    HttpServer *s = calloc(1, sizeof *s);
    if (!s) return fail(E_FIT, "no memory for a server");
    s->conf = *conf;
    Status st = load(&s->lib);
    if (!st) st = listen_on(s);
    if (st) free(s);
    else    *out = s;
    return st;
}

int http_port(const HttpServer *s)
{
    const union MHD_DaemonInfo *info = s->lib.get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    return info ? info->port : s->conf.port;
}

void http_close(HttpServer *s)
{
    s->lib.stop_daemon(s->daemon);
    free(s);
}

#else
Status http_open(HttpServer **out, const HttpConf *conf)
{
    return fail(E_CONFIG, "this treb was built without libmicrohttpd; install libmicrohttpd-dev and build it "
                "again");
}
int  http_port(const HttpServer *s) { return 0; }
void http_close(HttpServer *s) { }
#endif
