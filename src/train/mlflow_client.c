/* train/mlflow_client.c -- see mlflow_client.h. Numbers of options are those of libcurl's ABI, which never
 * change: the library is wanted only where a run reports to MLflow, and its headers not at all. */
#include "train/mlflow_client.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_TIMEOUT = 13, OPT_POSTFIELDSIZE = 60, OPT_CONNECTTIMEOUT = 78, OPT_HTTPGET = 80, OPT_NOSIGNAL = 99,
       OPT_WRITEDATA = 10001, OPT_URL = 10002, OPT_USERPWD = 10005, OPT_POSTFIELDS = 10015,
       OPT_HTTPHEADER = 10023, OPT_WRITEFUNCTION = 20011, INFO_RESPONSE_CODE = 0x200002 };
enum { CONNECT_SECONDS = 5, CALL_SECONDS = 20, ANSWER_BYTES = 4 << 20 };

typedef struct Curl {
    void *(*easy_init)(void);
    void  (*easy_cleanup)(void *);
    int   (*easy_setopt)(void *, int, ...);
    int   (*easy_perform)(void *);
    int   (*easy_getinfo)(void *, int, ...);
    const char *(*easy_strerror)(int);
    void *(*slist_append)(void *, const char *);
    void  (*slist_free_all)(void *);
} Curl;

static Status curl_load(Curl *l)
{
    static const char *const files[] = { "libcurl.so.4", "libcurl-gnutls.so.4" };
    void *file = dlopen(files[0], RTLD_NOW | RTLD_LOCAL);
    const struct { void **to; const char *name; } all[] = {
#define F(name) { (void **)&l->name, "curl_" #name }
        F(easy_init), F(easy_cleanup), F(easy_setopt), F(easy_perform), F(easy_getinfo), F(easy_strerror),
        F(slist_append), F(slist_free_all),
#undef F
    };
    if (!file) file = dlopen(files[1], RTLD_NOW | RTLD_LOCAL);
    if (!file) return fail(E_CONFIG, "log.report_to has mlflow: cannot load libcurl.so.4; install libcurl4");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!(*all[i].to = dlsym(file, all[i].name)))
            return fail(E_CONFIG, "log.report_to has mlflow: libcurl has no %s; install libcurl4",
                        all[i].name);
    return OK;
}

/* Bytes of an answer; more than ANSWER_BYTES end the call. */
static size_t receive_bytes(const char *bytes, size_t size, size_t n, void *to)
{
    Text *t = to;
    return t->n + n > ANSWER_BYTES || text_push(t, bytes, size * n) ? 0 : size * n;
}

static void set_secrets(const Curl *l, MlflowClient *c)
{
    const char *token = getenv("MLFLOW_TRACKING_TOKEN"), *user = getenv("MLFLOW_TRACKING_USERNAME"),
               *password = getenv("MLFLOW_TRACKING_PASSWORD");
    char text[2048];
    snprintf(text, sizeof text, "Authorization: Bearer %s", token ? token : "");
    if (token) c->headers = l->slist_append(c->headers, text);
    snprintf(text, sizeof text, "%s:%s", user ? user : "", password ? password : "");
    if (!token && user) l->easy_setopt(c->curl, OPT_USERPWD, text);
}

Status mlflow_client_open(MlflowClient *c, const char *uri)
{
    Curl l;
    *c = (MlflowClient){ 0 };
    if (!uri || !*uri) uri = getenv("MLFLOW_TRACKING_URI");
    if (!uri || strncmp(uri, "http", 4))
        return fail(E_CONFIG, "log.report_to has mlflow: set log.mlflow_uri, or MLFLOW_TRACKING_URI, to the "
                    "address of a server: http://localhost:5000");
    TRY(curl_load(&l));
    snprintf(c->uri, sizeof c->uri, "%.1000s", uri);
    size_t n = strlen(c->uri);
    if (c->uri[n - 1] == '/') c->uri[n - 1] = 0;
    if (!(c->curl = l.easy_init())) return fail(E_FIT, "no memory for calls to MLflow");
    c->headers = l.slist_append(NULL, "Content-Type: application/json");
    set_secrets(&l, c);
    l.easy_setopt(c->curl, OPT_HTTPHEADER, c->headers);
    l.easy_setopt(c->curl, OPT_NOSIGNAL, 1L);
    l.easy_setopt(c->curl, OPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    l.easy_setopt(c->curl, OPT_TIMEOUT, (long)CALL_SECONDS);
    l.easy_setopt(c->curl, OPT_WRITEFUNCTION, receive_bytes);
    l.easy_setopt(c->curl, OPT_WRITEDATA, &c->answer);
    return OK;
}

void mlflow_client_close(MlflowClient *c)
{
    Curl l;
    if (c->curl && !curl_load(&l)) l.easy_cleanup(c->curl), l.slist_free_all(c->headers);
    text_close(&c->answer);
    c->curl = c->headers = NULL;
}

static Status perform(MlflowClient *c, const char *path, const char *body, long *code)
{
    Curl l;
    char url[1200];
    TRY(curl_load(&l));
    snprintf(url, sizeof url, "%s/api/2.0/mlflow/%s", c->uri, path);
    l.easy_setopt(c->curl, OPT_URL, url);
    if (body) l.easy_setopt(c->curl, OPT_POSTFIELDSIZE, (long)strlen(body));
    if (body) l.easy_setopt(c->curl, OPT_POSTFIELDS, body);
    else      l.easy_setopt(c->curl, OPT_HTTPGET, 1L);
    c->answer.n = 0;
    int failed = l.easy_perform(c->curl);
    if (failed) return fail(E_IO, "MLflow at %s: %s", c->uri, l.easy_strerror(failed));
    l.easy_getinfo(c->curl, INFO_RESPONSE_CODE, code);
    return OK;
}

static Status check_answer(const MlflowClient *c, const char *path, long code, const Json *answer)
{
    const char *text = json_string_value(json_object_get(answer, "message"));
    if (code == 200) return OK;
    return fail(E_IO, "MLflow at %s: %s: HTTP %ld: %.300s", c->uri, path, code,
                text ? text : "no reason given");
}

Status mlflow_call(MlflowClient *c, const char *path, Json *ask, Json **out)
{
    char *body = ask ? json_dumps(ask, JSON_COMPACT) : NULL;
    Json *answer = NULL;
    long  code = 0;
    bool  lacks = ask && !body;
    json_decref(ask);
    Status st = lacks ? fail(E_FIT, "no memory for a call to MLflow") : perform(c, path, body, &code);
    free(body);
    if (!st && json_parse(&answer, c->answer.v ? c->answer.v : "", c->answer.n, "the answer of MLflow"))
        answer = NULL;                   /* an error page of a proxy, or no body */
    if (!st) st = check_answer(c, path, code, answer);
    if (out && !st) *out = answer;
    else            json_decref(answer);
    return st;
}
