/* comm/heartbeat.c -- see heartbeat.h. One thread a rank; rank 0's is the hub that hears all and tells all. */
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

enum { STRANGERS = 16, LINE = 300 };       /* connections that have not said who they are */

struct Heartbeat {
    int             rank, size, wires;     /* rank 0: a connection for each rank, then strangers; others: one */
    double          timeout;
    Trace          *trace;
    Connection           *connection;
    struct pollfd  *polls;
    int             door, wake;
    uint8_t         key[16];
    pthread_t       thread;
    bool            runs;
    pthread_mutex_t lock;                  /* of all below, and of writing to wires */
    pthread_cond_t  news;
    bool            stop, quiet, heard;    /* quiet: this rank has given up and ends by itself */
    int             in, left;              /* ranks connected; one that has left, or -1 */
    double          beat, due, asked;      /* next beat; when to ask, when it was asked; 0: not */
    HeartbeatPrint       *say;
    void           *self;
    char          (*answer)[LINE];         /* (size) what each rank said it waits in */
};

static bool is_hub(const Heartbeat *p) { return p->rank == 0; }

static void who_am_i(char *out, size_t n)
{
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(out, n, "host %s, process %ld", host, (long)getpid());
}

/* ---- the end of the run ---- */

/* The main thread may hold any lock there is: nothing but write and _exit is safe here. */
static void end_here(const Heartbeat *p, const char *why)
{
    char line[MESSAGE_TEXT + 100];
    int  n = snprintf(line, sizeof line, "treb: rank %d ends: %s\n", p->rank, why);
    if (write(STDERR_FILENO, line, (size_t)n) < 0) { }
    _exit(status_exit_code(E_COMM));
}

static void tell_all(Heartbeat *p, MessageKind kind, int about, const char *text, int but, int wait_ms)
{
    for (int i = 1; i < p->size; i++)
        if (i != but && p->connection[i].fd >= 0 && !p->connection[i].left)
            connection_send(&p->connection[i], kind, about, text, (int)strlen(text), wait_ms);
}

/* The hub knows first; the others hear it from here. */
static void end_all(Heartbeat *p, int who, const char *what)
{
    char why[MESSAGE_TEXT], name[160];
    if (who == p->rank) who_am_i(name, sizeof name);
    else                snprintf(name, sizeof name, "%s", p->connection[is_hub(p) ? who : 0].who);
    snprintf(why, sizeof why, "rank %d (%s) %s", who, name, what);
    if (is_hub(p)) tell_all(p, MSG_END, who, why, who, 200);
    if (who != p->rank) end_here(p, why);
}

/* ---- what notes say; all with the lock held ---- */

static bool all_answered(const Heartbeat *p)
{
    for (int i = 1; i < p->size; i++)
        if (!p->answer[i][0] && p->connection[i].fd >= 0 && !p->connection[i].left) return false;
    return true;
}

static void from_rank(Heartbeat *p, int rank, const Message *n)
{
    Connection *w = &p->connection[rank];
    char  text[MESSAGE_TEXT];
    switch (n->kind) {
    case MSG_GOODBYE:
        w->left = true, p->left = rank;
        tell_all(p, MSG_PEER_LEFT, rank, "", rank, 0);
        break;
    case MSG_ABORT:
        connection_send(w, MSG_ABORT_ACK, rank, "", 0, 200);
        w->left = true;
        snprintf(text, sizeof text, "has given up: %.500s", n->text);
        end_all(p, rank, text);
        break;
    case MSG_WAIT_REPLY:
        snprintf(p->answer[rank], LINE, "%.290s", n->text);
        break;
    default:
        break;
    }
}

static void from_hub(Heartbeat *p, const Message *n)
{
    char line[LINE];
    switch (n->kind) {
    case MSG_GOODBYE:   p->connection[0].left = true, p->left = 0;        break;
    case MSG_PEER_LEFT:  p->left = n->about;                         break;
    case MSG_ABORT_ACK: p->heard = true;                            break;
    case MSG_END:   if (!p->quiet) end_here(p, n->text);        break;
    case MSG_WAIT_QUERY:
        trace_describe(p->trace, line, sizeof line);
        connection_send(&p->connection[0], MSG_WAIT_REPLY, p->rank, line, (int)strlen(line), 0);
        break;
    default:
        break;
    }
    pthread_cond_broadcast(&p->news);
}

/* A stranger with the right key becomes the connection of its rank. */
static void from_stranger(Heartbeat *p, Connection *w, const Message *n)
{
    char me[160];
    bool ours = n->kind == MSG_HELLO && n->bytes > 16 && !memcmp(n->text, p->key, 16) && n->about > 0 &&
                n->about < p->size && p->connection[n->about].fd < 0;
    if (!ours) { connection_close(w); return; }
    who_am_i(me, sizeof me);
    p->connection[n->about] = *w;
    snprintf(p->connection[n->about].who, sizeof w->who, "%.150s", n->text + 16);
    connection_send(&p->connection[n->about], MSG_WELCOME, 0, me, (int)strlen(me), 200);
    *w = (Connection){ .fd = -1 };
    p->in++;
    pthread_cond_broadcast(&p->news);
}

static void read_wire(Heartbeat *p, int i)
{
    Connection *w = &p->connection[i];
    Message  n;
    int   got = 0;
    bool  stranger = is_hub(p) && i >= p->size;
    while (w->fd >= 0 && (got = connection_receive(w, &n)) > 0) {
        if (stranger)       from_stranger(p, w, &n);
        else if (is_hub(p)) from_rank(p, i, &n);
        else                from_hub(p, &n);
    }
    if (w->fd < 0 || got >= 0) return;
    connection_close(w);
    if (!stranger && !w->left && !p->quiet && !p->stop) end_all(p, i, "is gone");
}

/* A place for one more stranger, or NULL: whoever knocks then waits outside. */
static Connection *free_place(const Heartbeat *p)
{
    for (int i = p->size; i < p->wires; i++) if (p->connection[i].fd < 0) return &p->connection[i];
    return NULL;
}

static void let_in(Heartbeat *p)
{
    for (Connection *w; p->door >= 0 && (w = free_place(p));) {
        int fd = connection_accept(p->door);
        if (fd < 0) return;
        *w = (Connection){ .fd = fd, .heard = clock_now() };
    }
}

/* ---- once in a while ---- */

static void ask(Heartbeat *p, double now)
{
    p->due = 0, p->asked = now;
    for (int i = 0; i < p->size; i++) p->answer[i][0] = 0;
    trace_describe(p->trace, p->answer[0], LINE);
    tell_all(p, MSG_WAIT_QUERY, 0, "", -1, 0);
}

/* Those that wait for nobody first: one of them is who the others wait for. */
static void say_answers(Heartbeat *p)
{
    char line[LINE + 200];
    p->asked = 0;
    for (int waits = 0; waits < 2; waits++)
        for (int i = 0; i < p->size && p->say; i++) {
            const char *none = p->connection[i].left ? "has left" : "does not answer";
            const char *what = p->answer[i][0] ? p->answer[i] : none;
            if ((strncmp(what, "waits", 5) == 0) != waits) continue;
            snprintf(line, sizeof line, i ? "rank %d (%s) %s" : "rank %d%s %s", i, p->connection[i].who, what);
            p->say(p->self, line);
        }
}

static void look_around(Heartbeat *p)
{
    double now = clock_now();
    char   text[100];
    if (now >= p->beat) {
        p->beat = now + 1;
        if (is_hub(p)) tell_all(p, MSG_PING, 0, "", -1, 0);
        else if (!p->connection[0].left) connection_send(&p->connection[0], MSG_PING, p->rank, "", 0, 0);
    }
    for (int i = 0; i < p->wires; i++) {
        Connection *w = &p->connection[i];
        if (w->fd < 0 || w->left || p->quiet || now - w->heard <= p->timeout) continue;
        if (is_hub(p) && i >= p->size) { connection_close(w); continue; }
        snprintf(text, sizeof text, "has given no sign of life for %.0f s (comm.timeout)", now - w->heard);
        end_all(p, i, text);
    }
    double waits = p->left >= 0 && !p->quiet ? trace_waiting_seconds(p->trace) : 0;
    if (waits > p->timeout) {
        snprintf(text, sizeof text, "waits %.0f s in a call, but rank %d has left the run", waits, p->left);
        if (is_hub(p)) end_all(p, p->rank, text);
        end_here(p, text);
    }
    if (p->due > 0 && now > p->due) ask(p, now);
    if (p->asked > 0 && (all_answered(p) || now - p->asked > 1.5)) say_answers(p);
}

static void *run(void *arg)
{
    Heartbeat *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        int n = 0;
        p->polls[n++] = (struct pollfd){ .fd = p->wake, .events = POLLIN };
        p->polls[n++] = (struct pollfd){ .fd = free_place(p) ? p->door : -1, .events = POLLIN };
        for (int i = 0; i < p->wires; i++)
            p->polls[n++] = (struct pollfd){ .fd = p->connection[i].fd, .events = POLLIN };
        int wait_ms = p->asked > 0 ? 50 : 250;
        pthread_mutex_unlock(&p->lock);
        poll(p->polls, (nfds_t)n, wait_ms);
        pthread_mutex_lock(&p->lock);
        if (p->stop) break;
        let_in(p);
        for (int i = 0; i < p->wires; i++)
            if (p->connection[i].fd >= 0) read_wire(p, i);
        look_around(p);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- opening ---- */

Status heartbeat_open(Heartbeat **out, int rank, int size, double timeout, Trace *trace)
{
    Heartbeat *p = *out = calloc(1, sizeof *p);
    if (!p) return fail(E_FIT, "no memory");
    *p = (Heartbeat){ .rank = rank, .size = size, .wires = rank ? 1 : size + STRANGERS, .timeout = timeout,
                  .trace = trace, .door = -1, .left = -1 };
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->news, NULL);
    p->wake   = eventfd(0, EFD_CLOEXEC);
    p->connection   = calloc((size_t)p->wires, sizeof *p->connection);
    p->polls  = calloc((size_t)p->wires + 2, sizeof *p->polls);
    p->answer = calloc((size_t)size, sizeof *p->answer);
    for (int i = 0; p->connection && i < p->wires; i++) p->connection[i].fd = -1;
    if (p->wake >= 0 && p->connection && p->polls && p->answer) return OK;
    heartbeat_close(p);
    *out = NULL;
    return fail(E_FIT, "no memory");
}

Status heartbeat_listen(Heartbeat *p, HeartbeatEndpoint *door, bool local)
{
    *door = (HeartbeatEndpoint){ 0 };
    if (getrandom(p->key, sizeof p->key, 0) != sizeof p->key)
        return fail(E_COMM, "no random numbers: %s", strerror(errno));
    memcpy(door->key, p->key, sizeof p->key);
    p->door = connection_listen(door, local);
    return p->door < 0 ? fail(E_COMM, "rank 0 cannot listen for its peers: %s", strerror(errno)) : OK;
}

static bool greet(Heartbeat *p, const HeartbeatEndpoint *door, int address)
{
    Connection  *w = &p->connection[0];
    Message   n = { 0 };
    char   hello[16 + 160];
    *w = (Connection){ .fd = connection_connect(door, address, 2000), .heard = clock_now() };
    memcpy(hello, door->key, 16);
    who_am_i(hello + 16, sizeof hello - 16);
    bool sent = w->fd >= 0 && connection_send(w, MSG_HELLO, p->rank, hello, 16 + (int)strlen(hello + 16), 2000);
    double until = clock_now() + 10;
    int    got = 0;
    while (sent && !(got = connection_receive(w, &n)) && clock_now() < until)
        poll(&(struct pollfd){ .fd = w->fd, .events = POLLIN }, 1, 200);
    if (got > 0 && n.kind == MSG_WELCOME) {
        snprintf(w->who, sizeof w->who, "%.150s", n.text);
        return true;
    }
    connection_close(w);
    return false;
}

static Status begin(Heartbeat *p)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);          /* signals are for the main thread */
    int bad = pthread_create(&p->thread, NULL, run, p);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    p->runs = !bad;
    return bad ? fail(E_COMM, "no thread: %s", strerror(bad)) : OK;
}

static Status wait_for_all(Heartbeat *p)
{
    struct timespec until;
    int             who = 0, bad = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    pthread_mutex_lock(&p->lock);
    while (p->in < p->size - 1 && !bad) bad = pthread_cond_timedwait(&p->news, &p->lock, &until);
    bool all = p->in == p->size - 1;
    for (int i = p->size - 1; i > 0; i--) if (p->connection[i].fd < 0) who = i;
    pthread_mutex_unlock(&p->lock);
    if (all) return OK;
    return fail(E_COMM, "rank %d did not reach rank 0 over TCP; is there a firewall between them?", who);
}

Status heartbeat_connect(Heartbeat *p, const HeartbeatEndpoint *door)
{
    p->beat = clock_now();
    if (is_hub(p)) {
        TRY(begin(p));
        return wait_for_all(p);
    }
    for (int i = 0; i < door->n && i < HEARTBEAT_ADDRESSES; i++)
        if (greet(p, door, i)) return begin(p);
    return fail(E_COMM, "rank %d does not reach rank 0 over TCP (%d addresses tried); is there a firewall?",
                p->rank, door->n);
}

/* ---- what the rank says ---- */

void heartbeat_close(Heartbeat *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    if (p->connection && p->runs && !p->quiet) {
        if (is_hub(p)) tell_all(p, MSG_GOODBYE, 0, "", -1, 200);
        else if (!p->connection[0].left) connection_send(&p->connection[0], MSG_GOODBYE, p->rank, "", 0, 200);
    }
    pthread_mutex_unlock(&p->lock);
    if (p->runs) {
        uint64_t one = 1;
        if (write(p->wake, &one, sizeof one) < 0) { }            /* it looks four times a second anyway */
        pthread_join(p->thread, NULL);
    }
    for (int i = 0; p->connection && i < p->wires; i++) connection_close(&p->connection[i]);
    if (p->door >= 0) close(p->door);
    if (p->wake >= 0) close(p->wake);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->news);
    free(p->connection), free(p->polls), free(p->answer);
    free(p);
}

void heartbeat_abort(Heartbeat *p, const char *why)
{
    char            text[MESSAGE_TEXT];
    struct timespec until;
    if (!p || !p->runs) return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    snprintf(text, sizeof text, "%.500s", why);
    pthread_mutex_lock(&p->lock);
    p->quiet = true;
    if (is_hub(p)) {
        char what[MESSAGE_TEXT];
        snprintf(what, sizeof what, "has given up: %.500s", text);
        end_all(p, 0, what);
    } else if (connection_send(&p->connection[0], MSG_ABORT, p->rank, text, (int)strlen(text), 1000)) {
        while (!p->heard && p->connection[0].fd >= 0 && !pthread_cond_timedwait(&p->news, &p->lock, &until)) { }
    }
    pthread_mutex_unlock(&p->lock);
}

void heartbeat_watch(Heartbeat *p, double seconds, HeartbeatPrint *say, void *self)
{
    if (!p || !is_hub(p)) return;
    pthread_mutex_lock(&p->lock);
    p->due = seconds > 0 ? clock_now() + seconds : 0;
    p->say = say, p->self = self;
    if (seconds <= 0) p->asked = 0;
    pthread_mutex_unlock(&p->lock);
}
