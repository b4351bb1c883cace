/* comm/heartbeat.c -- see heartbeat.h: opening, closing, and what the main thread calls. */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/cond.h"
#include "base/thread.h"
#include "comm/heartbeat_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

static void *run_thread(void *arg)
{
    Heartbeat *h = arg;
    pthread_mutex_lock(&h->lock);
    h->last_turn = clock_now();
    while (!h->stop) {
        int n = 0;
        h->polls[n++] = (struct pollfd){ .fd = h->wake_fd, .events = POLLIN };
        int listener = heartbeat_free_connection(h) ? h->listener : -1;
        h->polls[n++] = (struct pollfd){ .fd = listener, .events = POLLIN };
        for (int i = 0; i < h->peers; i++)
            h->polls[n++] = (struct pollfd){ .fd = h->peer[i].fd, .events = POLLIN };
        int wait_ms = h->queried_at > 0 ? 50 : 250;
        pthread_mutex_unlock(&h->lock);
        poll(h->polls, (nfds_t)n, wait_ms);
        pthread_mutex_lock(&h->lock);
        if (h->stop) break;
        heartbeat_accept(h);
        for (int i = 0; i < h->peers; i++)
            if (h->peer[i].fd >= 0) heartbeat_receive(h, i);
        heartbeat_check(h);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* ---- opening ---- */

Status heartbeat_open(Heartbeat **out, int rank, int size, const CommConf *conf, Trace *trace)
{
    Heartbeat *h = *out = calloc(1, sizeof *h);
    if (!h) return fail(E_FIT, "no memory");
    *h = (Heartbeat){ .rank = rank, .size = size, .peers = rank ? 1 : size + UNIDENTIFIED, .listener = -1,
                      .timeout = conf->timeout > 0 ? conf->timeout : 60, .left = -1 };
    if (conf->run_folder) snprintf(h->folder, sizeof h->folder, "%s", conf->run_folder);
    watch_open(&h->watch, trace);
    pthread_mutex_init(&h->lock, NULL);
    cond_open(&h->changed);
    h->wake_fd = eventfd(0, EFD_CLOEXEC);
    h->peer    = calloc((size_t)h->peers, sizeof *h->peer);
    h->polls   = calloc((size_t)h->peers + 2, sizeof *h->polls);
    h->progress   = calloc((size_t)size, sizeof *h->progress);
    h->state   = calloc(rank ? 1 : (size_t)size, sizeof *h->state);
    for (int i = 0; h->peer && i < h->peers; i++) h->peer[i].fd = -1;
    if (h->wake_fd >= 0 && h->peer && h->polls && h->progress && h->state) return OK;
    heartbeat_close(h);
    *out = NULL;
    return fail(E_FIT, "no memory");
}

Status heartbeat_listen(Heartbeat *h, HeartbeatEndpoint *endpoint, bool local)
{
    *endpoint = (HeartbeatEndpoint){ 0 };
    if (getrandom(h->key, sizeof h->key, 0) != sizeof h->key)
        return fail(E_COMM, "no random numbers: %s", strerror(errno));
    memcpy(endpoint->key, h->key, sizeof h->key);
    h->listener = connection_listen(endpoint, local);
    return h->listener < 0 ? fail(E_COMM, "rank 0 cannot listen for its peers: %s", strerror(errno)) : OK;
}

/* Connects to one of rank 0's addresses and waits for its welcome. */
static bool connect_to(Heartbeat *h, const HeartbeatEndpoint *endpoint, int address)
{
    Connection *c = &h->peer[0];
    Message     m = { 0 };
    char        hello[16 + 160];
    *c = (Connection){ .fd = connection_connect(endpoint, address, 2000), .last_message = clock_now() };
    memcpy(hello, endpoint->key, 16);
    heartbeat_identity(hello + 16, sizeof hello - 16);
    bool sent = c->fd >= 0 &&
                connection_send(c, MSG_HELLO, h->rank, hello, 16 + (int)strlen(hello + 16), 2000);
    double until = clock_now() + 10;
    int    got = 0;
    while (sent && !(got = connection_receive(c, &m)) && clock_now() < until)
        poll(&(struct pollfd){ .fd = c->fd, .events = POLLIN }, 1, 200);
    if (got > 0 && m.kind == MSG_WELCOME) {
        snprintf(c->identity, sizeof c->identity, "%.150s", m.text);
        return true;
    }
    connection_close(c);
    return false;
}

static Status start_thread(Heartbeat *h, pthread_t *thread, void *(*run)(void *))
{
    int bad = thread_start(thread, run, h);
    return bad ? fail(E_COMM, "cannot start a thread for heartbeats: %s", strerror(bad)) : OK;
}

static Status start_threads(Heartbeat *h)
{
    TRY(start_thread(h, &h->thread, run_thread));
    h->running = true;
    TRY(start_thread(h, &h->device, heartbeat_run_device));
    h->device_running = true;
    TRY(start_thread(h, &h->writer, heartbeat_run_writer));
    h->writer_running = true;
    return OK;
}

static Status wait_for_ranks(Heartbeat *h)
{
    double until = clock_now() + 60;
    int    missing = 0;
    pthread_mutex_lock(&h->lock);
    while (h->connected < h->size - 1 && cond_wait_until(&h->changed, &h->lock, until)) { }
    bool all = h->connected == h->size - 1;
    for (int i = h->size - 1; i > 0; i--) if (h->peer[i].fd < 0) missing = i;
    pthread_mutex_unlock(&h->lock);
    if (all) return OK;
    return fail(E_COMM, "rank %d did not reach rank 0 over TCP; is there a firewall between them?", missing);
}

Status heartbeat_connect(Heartbeat *h, const HeartbeatEndpoint *endpoint)
{
    h->next_ping = clock_now();
    if (is_rank_0(h)) {
        TRY(start_threads(h));
        return wait_for_ranks(h);
    }
    for (int i = 0; i < endpoint->n && i < HEARTBEAT_ADDRESSES; i++)
        if (connect_to(h, endpoint, i)) return start_threads(h);
    return fail(E_COMM, "rank %d does not reach rank 0 over TCP (%d addresses tried); is there a firewall?",
                h->rank, endpoint->n);
}

/* ---- calls of the main thread ---- */

/* From rank 0 also to ranks that have left: they still wait for the library to close. */
static void send_goodbye(Heartbeat *h)
{
    if (!h->peer || !h->running || h->aborting || h->leaving) return;
    for (int i = is_rank_0(h); i < (is_rank_0(h) ? h->size : 1); i++)
        if (h->peer[i].fd >= 0) connection_send(&h->peer[i], MSG_GOODBYE, h->rank, "", 0, 200);
}

void heartbeat_leave(Heartbeat *h)
{
    if (!h || !h->running || h->aborting) return;
    pthread_mutex_lock(&h->lock);
    send_goodbye(h);
    h->leaving = true;
    if (is_rank_0(h)) heartbeat_check_all_left(h);
    pthread_mutex_unlock(&h->lock);
}

void heartbeat_close(Heartbeat *h)
{
    if (!h) return;
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    send_goodbye(h);
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    if (h->device_running) pthread_join(h->device, NULL);
    if (h->writer_running) pthread_join(h->writer, NULL);
    if (h->running) {
        uint64_t one = 1;
        if (write(h->wake_fd, &one, sizeof one) < 0) { }       /* without it the thread stops within 250 ms */
        pthread_join(h->thread, NULL);
    }
    for (int i = 0; h->peer && i < h->peers; i++) connection_close(&h->peer[i]);
    if (h->listener >= 0) close(h->listener);
    if (h->wake_fd >= 0) close(h->wake_fd);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->changed);
    free(h->peer), free(h->polls), free(h->progress), free(h->state);
    free(h);
}

void heartbeat_abort(Heartbeat *h, const char *why, bool lost)
{
    char   text[MESSAGE_TEXT];
    double until = clock_now() + DEVICE_SECONDS;
    if (!h || !h->running) return;
    pthread_mutex_lock(&h->lock);
    while (lost && cond_wait_until(&h->changed, &h->lock, until)) { }
    while (h->ending) cond_wait_for(&h->changed, &h->lock, 1);         /* this rank exits meanwhile */
    until = clock_now() + 1;
    h->aborting = true, h->aborted_at = clock_now();
    if (is_rank_0(h)) {
        snprintf(text, sizeof text, "aborted: %.500s", why);
        heartbeat_exit_all(h, 0, text);
    } else {
        snprintf(text, sizeof text, "%.500s", why);
        if (connection_send(&h->peer[0], MSG_ABORT, h->rank, text, (int)strlen(text), 1000))
            while (!h->abort_acked && h->peer[0].fd >= 0 &&
                   cond_wait_until(&h->changed, &h->lock, until)) { }
    }
    pthread_mutex_unlock(&h->lock);
}

void heartbeat_watch(Heartbeat *h, double seconds, HeartbeatPrint *print, void *self)
{
    if (!h || !is_rank_0(h)) return;
    pthread_mutex_lock(&h->lock);
    h->query_due = seconds > 0 ? clock_now() + seconds : 0;
    h->print = print, h->self = self;
    if (seconds <= 0 && !h->ending) h->queried_at = 0;
    if (seconds <= 0) h->print_due = false;
    while (seconds <= 0 && h->writer_doing == WRITER_PRINTS) cond_wait_for(&h->changed, &h->lock, 1);
    pthread_mutex_unlock(&h->lock);
}
