/* comm/heartbeat.c -- see heartbeat.h. One thread a rank; the thread of rank 0 is the hub that all others
 * connect to and that forwards every message. */
#define _GNU_SOURCE
#include "comm/heartbeat.h"
#include "base/clock.h"
#include "comm/connection.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

enum { UNIDENTIFIED = 16, LINE = 300 }; /* connections that have not sent MSG_HELLO yet; bytes of an answer */

struct Heartbeat {
    int             rank, size;
    Connection     *peer;             /* rank 0: one for each rank, then UNIDENTIFIED; others: rank 0 alone */
    int             peers;
    double          timeout;
    Trace          *trace;
    struct pollfd  *polls;
    int             listener, wake_fd;
    uint8_t         key[16];
    pthread_t       thread;
    bool            running;
    pthread_mutex_t lock;                  /* of all below, and of sending */
    pthread_cond_t  changed;
    bool            stop;
    bool            aborting, abort_acked; /* this rank has aborted and exits by itself */
    int             connected;             /* ranks that have sent MSG_HELLO */
    int             left;                  /* a rank that has left in good order; -1: none */
    double          next_ping;
    double          query_due, queried_at; /* when to ask what ranks wait in; when they were asked; 0: not */
    HeartbeatPrint *print;
    void           *self;
    char          (*answer)[LINE];         /* (size) the call that each rank waits in */
};

static bool is_hub(const Heartbeat *h) { return h->rank == 0; }

static void describe_self(char *out, size_t n)
{
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(out, n, "host %s, process %ld", host, (long)getpid());
}

/* ---- exits ---- */

/* The main thread may hold any lock, so only write and _exit are safe here. */
static void exit_rank(const Heartbeat *h, const char *why)
{
    char line[MESSAGE_TEXT + 100];
    int  n = snprintf(line, sizeof line, "treb: rank %d exits: %s\n", h->rank, why);
    if (write(STDERR_FILENO, line, (size_t)n) < 0) { }
    _exit(status_exit_code(E_COMM));
}

static bool is_reachable(const Connection *c) { return c->fd >= 0 && !c->left; }

static void send_to_all(Heartbeat *h, MessageKind kind, int about, const char *text, int except, int wait_ms)
{
    for (int i = 1; i < h->size; i++)
        if (i != except && is_reachable(&h->peer[i]))
            connection_send(&h->peer[i], kind, about, text, (int)strlen(text), wait_ms);
}

/* `rank` has failed: the hub makes the others exit, then this rank exits unless it is the one that failed. */
static void exit_all(Heartbeat *h, int rank, const char *what)
{
    char why[MESSAGE_TEXT], identity[160];
    if (rank == h->rank) describe_self(identity, sizeof identity);
    else                 snprintf(identity, sizeof identity, "%s", h->peer[is_hub(h) ? rank : 0].identity);
    snprintf(why, sizeof why, "rank %d (%s) %s", rank, identity, what);
    if (is_hub(h)) send_to_all(h, MSG_END, rank, why, rank, 200);
    if (rank != h->rank) exit_rank(h, why);
}

/* ---- messages; all with the lock held ---- */

static bool all_answered(const Heartbeat *h)
{
    for (int i = 1; i < h->size; i++)
        if (!h->answer[i][0] && is_reachable(&h->peer[i])) return false;
    return true;
}

static void handle_from_rank(Heartbeat *h, int rank, const Message *m)
{
    Connection *c = &h->peer[rank];
    char        text[MESSAGE_TEXT];
    switch (m->kind) {
    case MSG_GOODBYE:
        c->left = true, h->left = rank;
        send_to_all(h, MSG_PEER_LEFT, rank, "", rank, 0);
        break;
    case MSG_ABORT:
        connection_send(c, MSG_ABORT_ACK, rank, "", 0, 200);
        c->left = true;
        snprintf(text, sizeof text, "aborted: %.500s", m->text);
        exit_all(h, rank, text);
        break;
    case MSG_WAIT_REPLY:
        snprintf(h->answer[rank], LINE, "%.290s", m->text);
        break;
    default:
        break;
    }
}

static void handle_from_hub(Heartbeat *h, const Message *m)
{
    char line[LINE];
    switch (m->kind) {
    case MSG_GOODBYE:   h->peer[0].left = true, h->left = 0;     break;
    case MSG_PEER_LEFT: h->left = m->about;                      break;
    case MSG_ABORT_ACK: h->abort_acked = true;                   break;
    case MSG_END:       if (!h->aborting) exit_rank(h, m->text); break;
    case MSG_WAIT_QUERY:
        trace_describe(h->trace, line, sizeof line);
        connection_send(&h->peer[0], MSG_WAIT_REPLY, h->rank, line, (int)strlen(line), 0);
        break;
    default:
        break;
    }
    pthread_cond_broadcast(&h->changed);
}

/* A connection that sends the right key becomes that of its rank. */
static void handle_hello(Heartbeat *h, Connection *c, const Message *m)
{
    char identity[160];
    bool valid = m->kind == MSG_HELLO && m->bytes > 16 && !memcmp(m->text, h->key, 16) && m->about > 0 &&
                 m->about < h->size && h->peer[m->about].fd < 0;
    if (!valid) { connection_close(c); return; }
    Connection *rank = &h->peer[m->about];
    describe_self(identity, sizeof identity);
    *rank = *c;
    snprintf(rank->identity, sizeof rank->identity, "%.150s", m->text + 16);
    connection_send(rank, MSG_WELCOME, 0, identity, (int)strlen(identity), 200);
    *c = (Connection){ .fd = -1 };
    h->connected++;
    pthread_cond_broadcast(&h->changed);
}

static void receive_messages(Heartbeat *h, int i)
{
    Connection *c = &h->peer[i];
    Message     m;
    int         got = 0;
    bool        unidentified = is_hub(h) && i >= h->size;
    while (c->fd >= 0 && (got = connection_receive(c, &m)) > 0) {
        if (unidentified)   handle_hello(h, c, &m);
        else if (is_hub(h)) handle_from_rank(h, i, &m);
        else                handle_from_hub(h, &m);
    }
    if (c->fd < 0 || got >= 0) return;
    connection_close(c);
    if (!unidentified && !c->left && !h->aborting && !h->stop)
        exit_all(h, i, "died: its heartbeat connection closed");
}

/* NULL: UNIDENTIFIED connections are open; further ones wait in the listener's backlog. */
static Connection *free_connection(const Heartbeat *h)
{
    for (int i = h->size; i < h->peers; i++)
        if (h->peer[i].fd < 0) return &h->peer[i];
    return NULL;
}

static void accept_connections(Heartbeat *h)
{
    for (Connection *c; h->listener >= 0 && (c = free_connection(h));) {
        int fd = connection_accept(h->listener);
        if (fd < 0) return;
        *c = (Connection){ .fd = fd, .last_message = clock_now() };
    }
}

/* ---- periodic work ---- */

static void send_ping(Heartbeat *h, double now)
{
    if (now < h->next_ping) return;
    h->next_ping = now + 1;
    if (is_hub(h)) send_to_all(h, MSG_PING, 0, "", -1, 0);
    else if (!h->peer[0].left) connection_send(&h->peer[0], MSG_PING, h->rank, "", 0, 0);
}

static void check_silence(Heartbeat *h, double now)
{
    char text[100];
    for (int i = 0; i < h->peers; i++) {
        Connection *c = &h->peer[i];
        if (!is_reachable(c) || h->aborting || now - c->last_message <= h->timeout) continue;
        if (is_hub(h) && i >= h->size) { connection_close(c); continue; }
        snprintf(text, sizeof text, "sent no heartbeat for %.0f s (comm.timeout)", now - c->last_message);
        exit_all(h, i, text);
    }
}

/* A call that waits for a rank which has left in good order will never end. */
static void check_left(Heartbeat *h)
{
    char   text[100];
    double waits = h->left >= 0 && !h->aborting ? trace_waiting_seconds(h->trace) : 0;
    if (waits <= h->timeout) return;
    snprintf(text, sizeof text, "waits %.0f s in a call, but rank %d has left the run", waits, h->left);
    if (is_hub(h)) exit_all(h, h->rank, text);
    exit_rank(h, text);
}

static void query_waits(Heartbeat *h, double now)
{
    h->query_due = 0, h->queried_at = now;
    for (int i = 0; i < h->size; i++) h->answer[i][0] = 0;
    trace_describe(h->trace, h->answer[0], LINE);
    send_to_all(h, MSG_WAIT_QUERY, 0, "", -1, 0);
}

/* Ranks that wait in no call come first: one of them is the rank that the others wait for. */
static void print_answers(Heartbeat *h)
{
    char line[LINE + 200];
    h->queried_at = 0;
    for (int waits = 0; waits < 2; waits++)
        for (int i = 0; i < h->size && h->print; i++) {
            const char *none = h->peer[i].left ? "has left" : "does not answer";
            const char *what = h->answer[i][0] ? h->answer[i] : none;
            if ((strncmp(what, "waits", 5) == 0) != waits) continue;
            snprintf(line, sizeof line, i ? "rank %d (%s) %s" : "rank %d%s %s", i, h->peer[i].identity, what);
            h->print(h->self, line);
        }
}

static void do_periodic_work(Heartbeat *h)
{
    double now = clock_now();
    send_ping(h, now);
    check_silence(h, now);
    check_left(h);
    if (h->query_due > 0 && now > h->query_due) query_waits(h, now);
    if (h->queried_at > 0 && (all_answered(h) || now - h->queried_at > 1.5)) print_answers(h);
}

static void *run_thread(void *arg)
{
    Heartbeat *h = arg;
    pthread_mutex_lock(&h->lock);
    while (!h->stop) {
        int n = 0;
        h->polls[n++] = (struct pollfd){ .fd = h->wake_fd, .events = POLLIN };
        h->polls[n++] = (struct pollfd){ .fd = free_connection(h) ? h->listener : -1, .events = POLLIN };
        for (int i = 0; i < h->peers; i++)
            h->polls[n++] = (struct pollfd){ .fd = h->peer[i].fd, .events = POLLIN };
        int wait_ms = h->queried_at > 0 ? 50 : 250;
        pthread_mutex_unlock(&h->lock);
        poll(h->polls, (nfds_t)n, wait_ms);
        pthread_mutex_lock(&h->lock);
        if (h->stop) break;
        accept_connections(h);
        for (int i = 0; i < h->peers; i++)
            if (h->peer[i].fd >= 0) receive_messages(h, i);
        do_periodic_work(h);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* ---- opening ---- */

Status heartbeat_open(Heartbeat **out, int rank, int size, double timeout, Trace *trace)
{
    Heartbeat *h = *out = calloc(1, sizeof *h);
    if (!h) return fail(E_FIT, "no memory");
    *h = (Heartbeat){ .rank = rank, .size = size, .peers = rank ? 1 : size + UNIDENTIFIED, .timeout = timeout,
                      .trace = trace, .listener = -1, .left = -1 };
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    h->wake_fd = eventfd(0, EFD_CLOEXEC);
    h->peer    = calloc((size_t)h->peers, sizeof *h->peer);
    h->polls   = calloc((size_t)h->peers + 2, sizeof *h->polls);
    h->answer  = calloc((size_t)size, sizeof *h->answer);
    for (int i = 0; h->peer && i < h->peers; i++) h->peer[i].fd = -1;
    if (h->wake_fd >= 0 && h->peer && h->polls && h->answer) return OK;
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
    describe_self(hello + 16, sizeof hello - 16);
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

/* Signals go to the main thread. */
static Status start_thread(Heartbeat *h)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int bad = pthread_create(&h->thread, NULL, run_thread, h);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    h->running = !bad;
    return bad ? fail(E_COMM, "no thread: %s", strerror(bad)) : OK;
}

static Status wait_for_ranks(Heartbeat *h)
{
    struct timespec until;
    int             missing = 0, bad = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    pthread_mutex_lock(&h->lock);
    while (h->connected < h->size - 1 && !bad) bad = pthread_cond_timedwait(&h->changed, &h->lock, &until);
    bool all = h->connected == h->size - 1;
    for (int i = h->size - 1; i > 0; i--) if (h->peer[i].fd < 0) missing = i;
    pthread_mutex_unlock(&h->lock);
    if (all) return OK;
    return fail(E_COMM, "rank %d did not reach rank 0 over TCP; is there a firewall between them?", missing);
}

Status heartbeat_connect(Heartbeat *h, const HeartbeatEndpoint *endpoint)
{
    h->next_ping = clock_now();
    if (is_hub(h)) {
        TRY(start_thread(h));
        return wait_for_ranks(h);
    }
    for (int i = 0; i < endpoint->n && i < HEARTBEAT_ADDRESSES; i++)
        if (connect_to(h, endpoint, i)) return start_thread(h);
    return fail(E_COMM, "rank %d does not reach rank 0 over TCP (%d addresses tried); is there a firewall?",
                h->rank, endpoint->n);
}

/* ---- calls of the main thread ---- */

static void send_goodbye(Heartbeat *h)
{
    if (!h->peer || !h->running || h->aborting) return;
    if (is_hub(h)) send_to_all(h, MSG_GOODBYE, 0, "", -1, 200);
    else if (!h->peer[0].left) connection_send(&h->peer[0], MSG_GOODBYE, h->rank, "", 0, 200);
}

void heartbeat_close(Heartbeat *h)
{
    if (!h) return;
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    send_goodbye(h);
    pthread_mutex_unlock(&h->lock);
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
    free(h->peer), free(h->polls), free(h->answer);
    free(h);
}

void heartbeat_abort(Heartbeat *h, const char *why)
{
    char            text[MESSAGE_TEXT];
    struct timespec until;
    if (!h || !h->running) return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    pthread_mutex_lock(&h->lock);
    h->aborting = true;
    if (is_hub(h)) {
        snprintf(text, sizeof text, "aborted: %.500s", why);
        exit_all(h, 0, text);
    } else {
        snprintf(text, sizeof text, "%.500s", why);
        if (connection_send(&h->peer[0], MSG_ABORT, h->rank, text, (int)strlen(text), 1000))
            while (!h->abort_acked && h->peer[0].fd >= 0 &&
                   !pthread_cond_timedwait(&h->changed, &h->lock, &until)) { }
    }
    pthread_mutex_unlock(&h->lock);
}

void heartbeat_watch(Heartbeat *h, double seconds, HeartbeatPrint *print, void *self)
{
    if (!h || !is_hub(h)) return;
    pthread_mutex_lock(&h->lock);
    h->query_due = seconds > 0 ? clock_now() + seconds : 0;
    h->print = print, h->self = self;
    if (seconds <= 0) h->queried_at = 0;
    pthread_mutex_unlock(&h->lock);
}
