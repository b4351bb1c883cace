/* watch/http.h -- a small HTTP server that answers GET and HEAD, over libmicrohttpd, which is loaded when it
 * is needed. One thread serves all requests. */
#ifndef WATCH_HTTP_H
#define WATCH_HTTP_H

#include "data/ids.h"

typedef struct HttpAnswer {
    int         code;                    /* 200, 304, 404, 500 */
    const char *type;                    /* of the body */
    Text        body;
    char        etag[40];                /* "": none */
} HttpAnswer;

/* Fills an answer that was cleared; etag: of the client's copy, "" for none. */
typedef void HttpHandler(void *state, const char *path, const char *etag, HttpAnswer *out);

typedef struct HttpConf {
    const char  *host;                   /* an IPv4 address to listen on; 127.0.0.1: this machine alone */
    int          port;                   /* 0: a free one */
    HttpHandler *handler;
    void        *state;
} HttpConf;

typedef struct HttpServer HttpServer;

MUST Status http_open(HttpServer **out, const HttpConf *conf);
int         http_port(const HttpServer *s);
void        http_close(HttpServer *s);

#endif
