/* train/mlflow.c -- see mlflow.h. */
#define _GNU_SOURCE                      /* open_memstream */
#include "train/mlflow.h"

#include "base/clock.h"
#include "base/cond.h"
#include "base/folder.h"
#include "base/thread.h"
#include "train/mlflow_client.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT = 16384, BATCH = 500, NAME_BYTES = 128, NOTE_BYTES = 4000, RETRY_SECONDS = 5,
       CLOSE_SECONDS = 15 };

typedef struct Number { char name[NAME_BYTES]; double value; int64_t step, time; } Number;

struct Mlflow {
    MlflowClient    client;
    const Log      *log;
    char            run[64];             /* the id that the server gave it */
    pthread_t       thread;
    pthread_mutex_t lock;                /* of all below */
    pthread_cond_t  changed;
    Number         *ring;
    int64_t         first, end;          /* numbers [first, end) are kept, number i at ring[i % KEPT] */
    int64_t         due;                 /* up to here they are sent without waiting for more */
    int64_t         lost;
    bool            closing, warned;
    double          closed;              /* when mlflow_close was called */
};

/* ---- the run on the server ---- */

static Status find_experiment(MlflowClient *c, const char *name, char id[64])
{
    char  path[512] = "experiments/get-by-name?experiment_name=";
    Json *answer = NULL;
    for (const unsigned char *s = (const unsigned char *)name; *s && strlen(path) < 500; s++)
        snprintf(path + strlen(path), 4, "%%%02X", *s);
    if (mlflow_call(c, path, NULL, &answer)) {
        TRY(mlflow_call(c, "experiments/create", json_pack("{s:s}", "name", name), &answer));
        snprintf(id, 64, "%s", json_string_value(json_object_get(answer, "experiment_id")));
    } else {
        const Json *found = json_object_get(answer, "experiment");
        snprintf(id, 64, "%s", json_string_value(json_object_get(found, "experiment_id")));
    }
    json_decref(answer);
    return *id ? OK : fail(E_IO, "MLflow gave no id for experiment %s", name);
}

/* The description of a run on the server: the keys of the recipe that differ from their defaults. */
static Json *description(const Config *recipe)
{
    char  *text = NULL;
    size_t n = 0;
    FILE  *f = open_memstream(&text, &n);
    if (!f) return json_string("");
    fputs("```yaml\n", f);
    config_dump_short(f, recipe);
    fputs("```\n", f);
    fclose(f);
    Json *out = text ? json_stringn(text, n < NOTE_BYTES ? n : NOTE_BYTES) : NULL;
    free(text);
    return out ? out : json_string("");
}

static int64_t now_ms(void)
{
    return (int64_t)(1000 * clock_wall());
}

static Status create_run(Mlflow *m, const Config *recipe, const char *dir)
{
    const char *name = strrchr(dir, '/');
    char        experiment[64] = "";
    Json       *answer = NULL;
    TRY(find_experiment(&m->client, recipe->log.mlflow_experiment, experiment));
    Json *ask = json_pack("{s:s, s:s, s:I, s:[{s:s, s:o}, {s:s, s:s}]}", "experiment_id", experiment,
                          "run_name", name && name[1] ? name + 1 : dir, "start_time", (json_int_t)now_ms(),
                          "tags", "key", "mlflow.note.content", "value", description(recipe), "key",
                          "mlflow.source.name", "value", "treb train");
    TRY(mlflow_call(&m->client, "runs/create", ask, &answer));
    const Json *info = json_object_get(json_object_get(answer, "run"), "info");
    const char *id = json_string_value(json_object_get(info, "run_id"));
    snprintf(m->run, sizeof m->run, "%s", id ? id : "");
    json_decref(answer);
    return *m->run ? OK : fail(E_IO, "MLflow at %s gave no id for the run", m->client.uri);
}

static Status remember_run(const Mlflow *m, const char *dir)
{
    char text[1300];
    int  n = snprintf(text, sizeof text, "{\"uri\": \"%s\", \"run_id\": \"%s\"}\n", m->client.uri, m->run);
    return file_write_atomic(dir, "mlflow.json", text, (size_t)n);
}

/* The run that the folder names goes on, where the server still has it. */
static bool resume_run(Mlflow *m, const char *dir)
{
    Path        path;
    Json       *file = NULL;
    const char *id = "";
    if (path_join(path, dir, "mlflow.json") || !file_is(path) || json_load(&file, path)) return false;
    if (json_str(file, "run_id", "", &id)) id = "";
    snprintf(m->run, sizeof m->run, "%s", id);
    json_decref(file);
    return *m->run && !mlflow_call(&m->client, "runs/update",
                                   json_pack("{s:s, s:s}", "run_id", m->run, "status", "RUNNING"), NULL);
}

/* ---- the thread that sends ---- */

/* Metric names have letters, digits and _-. / and space alone. */
static void put_name(char out[NAME_BYTES], const char *name)
{
    snprintf(out, NAME_BYTES, "%s", name);
    for (char *s = out; *s; s++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. /", *s)) *s = '_';
}

static Json *batch_of(const Mlflow *m, int64_t from, int64_t to)
{
    Json *list = json_array();
    for (int64_t i = from; i < to; i++) {
        const Number *v = &m->ring[i % KEPT];
        json_array_append_new(list, json_pack("{s:s, s:f, s:I, s:I}", "key", v->name, "value", v->value,
                                              "timestamp", (json_int_t)v->time, "step", (json_int_t)v->step));
    }
    return json_pack("{s:s, s:o}", "run_id", m->run, "metrics", list);
}

static void warn_once(Mlflow *m)
{
    if (!m->warned)
        log_warn(m->log, "%s; metrics are kept and sent when it answers, the newest %d", status_text(), KEPT);
    m->warned = true;
}

/* Waits for numbers that are due, or some seconds after a failure. The lock is held. */
static void wait_for_numbers(Mlflow *m, bool failed)
{
    if (failed) {
        if (!m->closing) cond_wait_for(&m->changed, &m->lock, RETRY_SECONDS);
        return;
    }
    while (!m->closing && m->first >= m->due) pthread_cond_wait(&m->changed, &m->lock);
}

/* Sends the oldest numbers; those that came to be overwritten while they were sent are lost. */
static Status send_oldest(Mlflow *m)
{
    int64_t from = m->first, to = m->end - from > BATCH ? from + BATCH : m->end;
    Json   *ask = batch_of(m, from, to);
    pthread_mutex_unlock(&m->lock);
    Status st = mlflow_call(&m->client, "runs/log-batch", ask, NULL);
    pthread_mutex_lock(&m->lock);
    if (!st && m->first < to) m->first = to;
    return st;
}

/* After mlflow_close what is left is sent until a call fails or the time for it is over. */
static void *sender(void *arg)
{
    Mlflow *m = arg;
    bool    failed = false;
    pthread_mutex_lock(&m->lock);
    while (!m->closing || m->first < m->end) {
        wait_for_numbers(m, failed);
        bool last = m->closing;
        if (m->first == m->end) continue;
        failed = send_oldest(m) != OK;
        if (failed) warn_once(m);
        if (last && (failed || clock_now() - m->closed > CLOSE_SECONDS)) break;
    }
    m->lost += m->end - m->first;
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

static Status start_sender(Mlflow *m)
{
    int err = thread_start(&m->thread, sender, m);
    return err ? fail(E_OTHER, "cannot start a thread that reports to MLflow: %s", strerror(err)) : OK;
}

/* ---- the trainer's side ---- */

static Status open_run(Mlflow *m, const Config *recipe, const char *dir)
{
    TRY(mlflow_client_open(&m->client, recipe->log.mlflow_uri));
    if (!resume_run(m, dir)) {
        TRY(create_run(m, recipe, dir));
        TRY(remember_run(m, dir));
    }
    return start_sender(m);
}

static void release(Mlflow *m)
{
    mlflow_client_close(&m->client);
    free(m->ring);
    free(m);
}

Status mlflow_open(Mlflow **out, const Config *recipe, const char *dir, const Log *log)
{
    Mlflow *m = calloc(1, sizeof *m);
    if (!m || !(m->ring = calloc(KEPT, sizeof *m->ring))) {
        free(m);
        return fail(E_FIT, "no memory to report to MLflow");
    }
    m->log = log;
    pthread_mutex_init(&m->lock, NULL);
    cond_open(&m->changed);
    Status st = open_run(m, recipe, dir);
    if (st) release(m);
    else    *out = m;
    return st;
}

void mlflow_scalar(Mlflow *m, int64_t step, const char *name, double value)
{
    if (!m || !isfinite(value)) return;
    pthread_mutex_lock(&m->lock);
    if (m->end - m->first == KEPT) m->first++, m->lost++;
    Number *v = &m->ring[m->end++ % KEPT];
    put_name(v->name, name);
    v->value = value, v->step = step, v->time = now_ms();
    pthread_mutex_unlock(&m->lock);
}

void mlflow_flush(Mlflow *m)
{
    if (!m) return;
    pthread_mutex_lock(&m->lock);
    m->due = m->end;
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

void mlflow_close(Mlflow *m, bool failed)
{
    if (!m) return;
    pthread_mutex_lock(&m->lock);
    m->closing = true, m->closed = clock_now();
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    if (m->lost)
        log_warn(m->log, "MLflow at %s did not take %lld numbers; they are in metrics.jsonl", m->client.uri,
                 (long long)m->lost);
    else if (mlflow_call(&m->client, "runs/update",
                         json_pack("{s:s, s:s, s:I}", "run_id", m->run, "status",
                                   failed ? "FAILED" : "FINISHED", "end_time", (json_int_t)now_ms()), NULL))
        log_warn(m->log, "%s", status_text());
    release(m);
}
