/* tests/test_mlflow.c -- metrics to an MLflow server: a small server of our own records what a run sends and
 * answers as asked: well, not at all, with errors and with nonsense. */
#define _GNU_SOURCE                      /* strcasestr */
#include "train/mlflow.h"

#include "base/folder.h"
#include "lab.h"
#include <arpa/inet.h>
#include <dlfcn.h>
#include <sys/socket.h>

/* ---- a server ---- */

typedef enum { WELL, DOWN, NONSENSE, NO_ID } Behaviour;

static struct Server {
    int             socket, port;
    Behaviour       behaviour;
    char            seen[4 << 20];       /* "PATH BODY\n" of every request */
    pthread_mutex_t lock;
} server;

static const char *answer_to(const char *request)
{
    if (server.behaviour == NONSENSE) return "200 OK\r\n\r\n<html>no JSON";
    if (server.behaviour == DOWN && strstr(request, "log-batch"))
        return "503 Busy\r\n\r\n{\"message\": \"busy\"}";
    if (server.behaviour == NO_ID) return "200 OK\r\n\r\n{}";
    if (strstr(request, "get-by-name")) return "404 Missing\r\n\r\n{\"message\": \"no such experiment\"}";
    if (strstr(request, "experiments/create")) return "200 OK\r\n\r\n{\"experiment_id\": \"7\"}";
    if (strstr(request, "runs/create")) return "200 OK\r\n\r\n{\"run\": {\"info\": {\"run_id\": \"r9\"}}}";
    return "200 OK\r\n\r\n{}";
}

/* A request with its body. */
static void read_request(int fd, char *text, size_t size)
{
    size_t at = 0, want = size - 1;
    ssize_t n;
    while (at < want && (n = read(fd, text + at, want - at)) > 0) {
        text[at += (size_t)n] = 0;
        const char *body = strstr(text, "\r\n\r\n"), *length = strcasestr(text, "content-length:");
        size_t more = body && length && length < body ? strtoul(length + 15, NULL, 10) : 0;
        if (body) want = (size_t)(body + 4 - text) + more;
    }
}

static void *serve(void *arg)
{
    static char text[1 << 18], reply[512];
    int fd;
    while ((fd = accept(server.socket, NULL, NULL)) >= 0) {
        *text = 0;
        read_request(fd, text, sizeof text);
        const char *body = strstr(text, "\r\n\r\n");
        pthread_mutex_lock(&server.lock);
        size_t n = strlen(server.seen);
        snprintf(server.seen + n, sizeof server.seen - n, "%.*s %s\n", (int)strcspn(text, "\r"), text,
                 body ? body + 4 : "");
        snprintf(reply, sizeof reply, "HTTP/1.1 %s", answer_to(text));
        char *split = strstr(reply, "\r\n\r\n");
        dprintf(fd, "%.*s\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s", (int)(split - reply), reply,
                strlen(split + 4), split + 4);
        pthread_mutex_unlock(&server.lock);
        close(fd);
    }
    return NULL;
}

static void start_server(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof at;
    pthread_t thread;
    pthread_mutex_init(&server.lock, NULL);
    server.socket = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(server.socket, (struct sockaddr *)&at, n) || listen(server.socket, 8) ||
        getsockname(server.socket, (struct sockaddr *)&at, &n)) perror("server"), exit(1);
    server.port = ntohs(at.sin_port);
    pthread_create(&thread, NULL, serve, NULL);
    pthread_detach(thread);
}

static void set_behaviour(Behaviour m)
{
    pthread_mutex_lock(&server.lock);
    server.behaviour = m, *server.seen = 0;
    pthread_mutex_unlock(&server.lock);
}

static int count_seen(const char *what)
{
    int n = 0;
    pthread_mutex_lock(&server.lock);
    for (const char *s = server.seen; (s = strstr(s, what)); s += strlen(what)) n++;
    pthread_mutex_unlock(&server.lock);
    return n;
}

/* ---- runs ---- */

static const char *new_folder(void)
{
    static char dir[64][512];
    static int  n;
    snprintf(dir[n], sizeof dir[n], "%s/run%d", lab_tmp(), n);
    EXPECT_OK(folder_make(dir[n]));
    return dir[n++];
}

static Status open_at(Mlflow **m, const char *dir, int port)
{
    static char uri[64];
    Config      c;
    config_default(&c);
    snprintf(uri, sizeof uri, "http://127.0.0.1:%d/", port);
    c.log.mlflow_uri = uri;
    return mlflow_open(m, &c, dir, NULL);
}

static Mlflow *open_run(const char *dir)
{
    Mlflow *m = NULL;
    EXPECT_OK(open_at(&m, dir, server.port));
    return m;
}

static void numbers_arrive(void)
{
    set_behaviour(WELL);
    Mlflow *m = open_run(new_folder());
    EXPECT(count_seen("experiment_name=%74%72%65%62") == 1 && count_seen("\"name\":\"treb\"") == 1, "%s",
           server.seen);
    for (int i = 1; i <= 1200; i++) mlflow_scalar(m, i, "train/loss", 1.0 / i);
    mlflow_scalar(m, 5, "train/nan", NAN);
    mlflow_scalar(m, 5, "loss_by_source/a,b=\"c\"", 2);
    mlflow_flush(m);
    mlflow_close(m, false);
    EXPECT(count_seen("\"key\":\"train/loss\"") == 1200, "%d", count_seen("\"key\":\"train/loss\""));
    EXPECT(count_seen("\"value\":0.25,") == 1 && count_seen("train/nan") == 0, "values");
    EXPECT(count_seen("loss_by_source/a_b__c_") == 1, "names");
    EXPECT(count_seen("\"status\":\"FINISHED\"") == 1, "%s", server.seen);
    EXPECT(count_seen("POST /api/2.0/mlflow/runs/log-batch") >= 3, "batches");
}

static void a_resumed_run_goes_on(void)
{
    const char *dir = new_folder();
    set_behaviour(WELL);
    mlflow_close(open_run(dir), true);
    EXPECT(count_seen("runs/create") == 1 && count_seen("\"status\":\"FAILED\"") == 1, "%s", server.seen);
    set_behaviour(WELL);
    mlflow_close(open_run(dir), false);
    EXPECT(count_seen("runs/create") == 0 && count_seen("\"status\":\"RUNNING\"") == 1, "%s", server.seen);
    EXPECT_OK(file_write_atomic(dir, "mlflow.json", "{\"run_id\": 3", 12));       /* damaged: a new run */
    set_behaviour(WELL);
    mlflow_close(open_run(dir), false);
    EXPECT(count_seen("runs/create") == 1, "%s", server.seen);
}

static void a_server_that_fails_for_a_while(void)
{
    set_behaviour(WELL);
    Mlflow *m = open_run(new_folder());
    set_behaviour(DOWN);
    for (int i = 0; i < 20000; i++) mlflow_scalar(m, i, "x", i);        /* more than are kept */
    mlflow_flush(m);
    for (int i = 0; i < 200 && !count_seen("log-batch"); i++) usleep(10000);
    EXPECT(count_seen("log-batch") >= 1, "nothing was sent");
    set_behaviour(WELL);
    mlflow_close(m, false);
    EXPECT(count_seen("\"value\":19999.0") == 1, "the newest number is lost");
    EXPECT(count_seen("\"status\"") == 0, "a run that lost numbers ended as if it had not");
}

static void servers_that_cannot_be_used(void)
{
    Mlflow *m = NULL;
    Config  c;
    set_behaviour(NONSENSE);
    EXPECT_FAIL(open_at(&m, new_folder(), server.port), E_IO, "gave no id");
    set_behaviour(NO_ID);
    EXPECT_FAIL(open_at(&m, new_folder(), server.port), E_IO, "gave no id");
    EXPECT_FAIL(open_at(&m, new_folder(), 1), E_IO, "MLflow at http://127.0.0.1:1");
    unsetenv("MLFLOW_TRACKING_URI");
    config_default(&c);
    EXPECT_FAIL(mlflow_open(&m, &c, new_folder(), NULL), E_CONFIG, "log.mlflow_uri");
    EXPECT(!m, "a run that cannot report");
}

static void none(void)
{
    mlflow_scalar(NULL, 1, "x", 1);
    mlflow_flush(NULL);
    mlflow_close(NULL, false);
}

int main(void)
{
    if (!dlopen("libcurl.so.4", RTLD_NOW) && !dlopen("libcurl-gnutls.so.4", RTLD_NOW)) {
        puts("  skip test_mlflow: no libcurl here\nlab: 0 passed, 0 failed, 1 skipped");
        return 0;
    }
    start_server();
    RUN(numbers_arrive);
    RUN(a_resumed_run_goes_on);
    RUN(a_server_that_fails_for_a_while);
    RUN(servers_that_cannot_be_used);
    RUN(none);
    return lab_report();
}
