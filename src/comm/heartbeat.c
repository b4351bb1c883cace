/* comm/heartbeat.c -- see pulse.h. One thread a rank; rank 0's is the hub that hears all and tells all. */
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

struct Pulse {
    int             rank, size, wires;     /* rank 0: a wire for each rank, then strangers; others: one */
    double          timeout;
    Trace          *trace;
    Wire           *wire;
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
    PulseSay       *say;
    void           *self;
    char          (*answer)[LINE];         /* (size) what each rank said it waits in */
};

static bool is_hub(const Pulse *p) { return p->rank == 0; }

static void who_am_i(char *out, size_t n)
{
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(out, n, "host %s, process %ld", host, (long)getpid());
}

/* ---- the end of the run ---- */

/* The main thread may hold any lock there is: nothing but write and _exit is safe here. */
static void end_here(const Pulse *p, const char *why)
{
    char line[NOTE_TEXT + 100];
    int  n = snprintf(line, sizeof line, "treb: rank %d ends: %s\n", p->rank, why);
    if (write(STDERR_FILENO, line, (size_t)n) < 0) { }
    _exit(status_exit_code(E_COMM));
}

static void tell_all(Pulse *p, NoteKind kind, int about, const char *text, int but, int wait_ms)
{
    for (int i = 1; i < p->size; i++)
        if (i != but && p->wire[i].fd >= 0 && !p->wire[i].left)
            wire_put(&p->wire[i], kind, about, text, (int)strlen(text), wait_ms);
}

/* The hub knows first; the others hear it from here. */
static void end_all(Pulse *p, int who, const char *what)
{
    char why[NOTE_TEXT], name[160];
    if (who == p->rank) who_am_i(name, sizeof name);
    else                snprintf(name, sizeof name, "%s", p->wire[is_hub(p) ? who : 0].who);
    snprintf(why, sizeof why, "rank %d (%s) %s", who, name, what);
    if (is_hub(p)) tell_all(p, N_END, who, why, who, 200);
    if (who != p->rank) end_here(p, why);
}

/* ---- what notes say; all with the lock held ---- */

static bool all_answered(const Pulse *p)
{
    for (int i = 1; i < p->size; i++)
        if (!p->answer[i][0] && p->wire[i].fd >= 0 && !p->wire[i].left) return false;
    return true;
}

static void from_rank(Pulse *p, int rank, const Note *n)
{
    Wire *w = &p->wire[rank];
    char  text[NOTE_TEXT];
    switch (n->kind) {
    case N_BYE:
        w->left = true, p->left = rank;
        tell_all(p, N_LEFT, rank, "", rank, 0);
        break;
    case N_ABORT:
        wire_put(w, N_HEARD, rank, "", 0, 200);
        w->left = true;
        snprintf(text, sizeof text, "has given up: %.500s", n->text);
        end_all(p, rank, text);
        break;
    case N_TELL:
        snprintf(p->answer[rank], LINE, "%.290s", n->text);
        break;
    default:
        break;
    }
}

static void from_hub(Pulse *p, const Note *n)
{
    char line[LINE];
    switch (n->kind) {
    case N_BYE:   p->wire[0].left = true, p->left = 0;        break;
    case N_LEFT:  p->left = n->about;                         break;
    case N_HEARD: p->heard = true;                            break;
    case N_END:   if (!p->quiet) end_here(p, n->text);        break;
    case N_ASK:
        trace_line(p->trace, line, sizeof line);
        wire_put(&p->wire[0], N_TELL, p->rank, line, (int)strlen(line), 0);
        break;
    default:
        break;
    }
    pthread_cond_broadcast(&p->news);
}

/* A stranger with the right key becomes the wire of its rank. */
static void from_stranger(Pulse *p, Wire *w, const Note *n)
{
    char me[160];
    bool ours = n->kind == N_HELLO && n->bytes > 16 && !memcmp(n->text, p->key, 16) && n->about > 0 &&
                n->about < p->size && p->wire[n->about].fd < 0;
    if (!ours) { wire_close(w); return; }
    who_am_i(me, sizeof me);
    p->wire[n->about] = *w;
    snprintf(p->wire[n->about].who, sizeof w->who, "%.150s", n->text + 16);
    wire_put(&p->wire[n->about], N_WELCOME, 0, me, (int)strlen(me), 200);
    *w = (Wire){ .fd = -1 };
    p->in++;
    pthread_cond_broadcast(&p->news);
}

static void read_wire(Pulse *p, int i)
{
    Wire *w = &p->wire[i];
    Note  n;
    int   got = 0;
    bool  stranger = is_hub(p) && i >= p->size;
    while (w->fd >= 0 && (got = wire_get(w, &n)) > 0) {
        if (stranger)       from_stranger(p, w, &n);
        else if (is_hub(p)) from_rank(p, i, &n);
        else                from_hub(p, &n);
    }
    if (w->fd < 0 || got >= 0) return;
    wire_close(w);
    if (!stranger && !w->left && !p->quiet && !p->stop) end_all(p, i, "is gone");
}

/* A place for one more stranger, or NULL: whoever knocks then waits outside. */
static Wire *free_place(const Pulse *p)
{
    for (int i = p->size; i < p->wires; i++) if (p->wire[i].fd < 0) return &p->wire[i];
    return NULL;
}

static void let_in(Pulse *p)
{
    for (Wire *w; p->door >= 0 && (w = free_place(p));) {
        int fd = wire_accept(p->door);
        if (fd < 0) return;
        *w = (Wire){ .fd = fd, .heard = clock_now() };
    }
}

/* ---- once in a while ---- */

static void ask(Pulse *p, double now)
{
    p->due = 0, p->asked = now;
    for (int i = 0; i < p->size; i++) p->answer[i][0] = 0;
    trace_line(p->trace, p->answer[0], LINE);
    tell_all(p, N_ASK, 0, "", -1, 0);
}

/* Those that wait for nobody first: one of them is who the others wait for. */
static void say_answers(Pulse *p)
{
    char line[LINE + 200];
    p->asked = 0;
    for (int waits = 0; waits < 2; waits++)
        for (int i = 0; i < p->size && p->say; i++) {
            const char *none = p->wire[i].left ? "has left" : "does not answer";
            const char *what = p->answer[i][0] ? p->answer[i] : none;
            if ((strncmp(what, "waits", 5) == 0) != waits) continue;
            snprintf(line, sizeof line, i ? "rank %d (%s) %s" : "rank %d%s %s", i, p->wire[i].who, what);
            p->say(p->self, line);
        }
}

static void look_around(Pulse *p)
{
    double now = clock_now();
    char   text[100];
    if (now >= p->beat) {
        p->beat = now + 1;
        if (is_hub(p)) tell_all(p, N_BEAT, 0, "", -1, 0);
        else if (!p->wire[0].left) wire_put(&p->wire[0], N_BEAT, p->rank, "", 0, 0);
    }
    for (int i = 0; i < p->wires; i++) {
        Wire *w = &p->wire[i];
        if (w->fd < 0 || w->left || p->quiet || now - w->heard <= p->timeout) continue;
        if (is_hub(p) && i >= p->size) { wire_close(w); continue; }
        snprintf(text, sizeof text, "has given no sign of life for %.0f s (comm.timeout)", now - w->heard);
        end_all(p, i, text);
    }
    double waits = p->left >= 0 && !p->quiet ? trace_waits(p->trace) : 0;
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
    Pulse *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        int n = 0;
        p->polls[n++] = (struct pollfd){ .fd = p->wake, .events = POLLIN };
        p->polls[n++] = (struct pollfd){ .fd = free_place(p) ? p->door : -1, .events = POLLIN };
        for (int i = 0; i < p->wires; i++)
            p->polls[n++] = (struct pollfd){ .fd = p->wire[i].fd, .events = POLLIN };
        int wait_ms = p->asked > 0 ? 50 : 250;
        pthread_mutex_unlock(&p->lock);
        poll(p->polls, (nfds_t)n, wait_ms);
        pthread_mutex_lock(&p->lock);
        if (p->stop) break;
        let_in(p);
        for (int i = 0; i < p->wires; i++)
            if (p->wire[i].fd >= 0) read_wire(p, i);
        look_around(p);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- opening ---- */

Status pulse_open(Pulse **out, int rank, int size, double timeout, Trace *trace)
{
    Pulse *p = *out = calloc(1, sizeof *p);
    if (!p) return fail(E_FIT, "no memory");
    *p = (Pulse){ .rank = rank, .size = size, .wires = rank ? 1 : size + STRANGERS, .timeout = timeout,
                  .trace = trace, .door = -1, .left = -1 };
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->news, NULL);
    p->wake   = eventfd(0, EFD_CLOEXEC);
    p->wire   = calloc((size_t)p->wires, sizeof *p->wire);
    p->polls  = calloc((size_t)p->wires + 2, sizeof *p->polls);
    p->answer = calloc((size_t)size, sizeof *p->answer);
    for (int i = 0; p->wire && i < p->wires; i++) p->wire[i].fd = -1;
    if (p->wake >= 0 && p->wire && p->polls && p->answer) return OK;
    pulse_close(p);
    *out = NULL;
    return fail(E_FIT, "no memory");
}

Status pulse_door(Pulse *p, PulseDoor *door, bool local)
{
    *door = (PulseDoor){ 0 };
    if (getrandom(p->key, sizeof p->key, 0) != sizeof p->key)
        return fail(E_COMM, "no random numbers: %s", strerror(errno));
    memcpy(door->key, p->key, sizeof p->key);
    p->door = wire_listen(door, local);
    return p->door < 0 ? fail(E_COMM, "rank 0 cannot listen for its peers: %s", strerror(errno)) : OK;
}

static bool greet(Pulse *p, const PulseDoor *door, int address)
{
    Wire  *w = &p->wire[0];
    Note   n = { 0 };
    char   hello[16 + 160];
    *w = (Wire){ .fd = wire_connect(door, address, 2000), .heard = clock_now() };
    memcpy(hello, door->key, 16);
    who_am_i(hello + 16, sizeof hello - 16);
    bool sent = w->fd >= 0 && wire_put(w, N_HELLO, p->rank, hello, 16 + (int)strlen(hello + 16), 2000);
    double until = clock_now() + 10;
    int    got = 0;
    while (sent && !(got = wire_get(w, &n)) && clock_now() < until)
        poll(&(struct pollfd){ .fd = w->fd, .events = POLLIN }, 1, 200);
    if (got > 0 && n.kind == N_WELCOME) {
        snprintf(w->who, sizeof w->who, "%.150s", n.text);
        return true;
    }
    wire_close(w);
    return false;
}

static Status begin(Pulse *p)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);          /* signals are for the main thread */
    int bad = pthread_create(&p->thread, NULL, run, p);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    p->runs = !bad;
    return bad ? fail(E_COMM, "no thread: %s", strerror(bad)) : OK;
}

static Status wait_for_all(Pulse *p)
{
    struct timespec until;
    int             who = 0, bad = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    pthread_mutex_lock(&p->lock);
    while (p->in < p->size - 1 && !bad) bad = pthread_cond_timedwait(&p->news, &p->lock, &until);
    bool all = p->in == p->size - 1;
    for (int i = p->size - 1; i > 0; i--) if (p->wire[i].fd < 0) who = i;
    pthread_mutex_unlock(&p->lock);
    if (all) return OK;
    return fail(E_COMM, "rank %d did not reach rank 0 over TCP; is there a firewall between them?", who);
}

Status pulse_enter(Pulse *p, const PulseDoor *door)
{
    p->beat = clock_now();
    if (is_hub(p)) {
        TRY(begin(p));
        return wait_for_all(p);
    }
    for (int i = 0; i < door->n && i < PULSE_ADDRESSES; i++)
        if (greet(p, door, i)) return begin(p);
    return fail(E_COMM, "rank %d does not reach rank 0 over TCP (%d addresses tried); is there a firewall?",
                p->rank, door->n);
}

/* ---- what the rank says ---- */

void pulse_close(Pulse *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    if (p->wire && p->runs && !p->quiet) {
        if (is_hub(p)) tell_all(p, N_BYE, 0, "", -1, 200);
        else if (!p->wire[0].left) wire_put(&p->wire[0], N_BYE, p->rank, "", 0, 200);
    }
    pthread_mutex_unlock(&p->lock);
    if (p->runs) {
        uint64_t one = 1;
        if (write(p->wake, &one, sizeof one) < 0) { }            /* it looks four times a second anyway */
        pthread_join(p->thread, NULL);
    }
    for (int i = 0; p->wire && i < p->wires; i++) wire_close(&p->wire[i]);
    if (p->door >= 0) close(p->door);
    if (p->wake >= 0) close(p->wake);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->news);
    free(p->wire), free(p->polls), free(p->answer);
    free(p);
}

void pulse_abort(Pulse *p, const char *why)
{
    char            text[NOTE_TEXT];
    struct timespec until;
    if (!p || !p->runs) return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    snprintf(text, sizeof text, "%.500s", why);
    pthread_mutex_lock(&p->lock);
    p->quiet = true;
    if (is_hub(p)) {
        char what[NOTE_TEXT];
        snprintf(what, sizeof what, "has given up: %.500s", text);
        end_all(p, 0, what);
    } else if (wire_put(&p->wire[0], N_ABORT, p->rank, text, (int)strlen(text), 1000)) {
        while (!p->heard && p->wire[0].fd >= 0 && !pthread_cond_timedwait(&p->news, &p->lock, &until)) { }
    }
    pthread_mutex_unlock(&p->lock);
}

void pulse_watch(Pulse *p, double seconds, PulseSay *say, void *self)
{
    if (!p || !is_hub(p)) return;
    pthread_mutex_lock(&p->lock);
    p->due = seconds > 0 ? clock_now() + seconds : 0;
    p->say = say, p->self = self;
    if (seconds <= 0) p->asked = 0;
    pthread_mutex_unlock(&p->lock);
}
