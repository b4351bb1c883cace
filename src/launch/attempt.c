/* launch/attempt.c -- see attempt.h. */
#define _GNU_SOURCE                      /* pipe2 */
#include "launch/attempt.h"

#include "base/clock.h"
#include "launch/output.h"
#include "launch/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

/* After a rank has failed the others end by themselves, and mpirun after them; it may wait for ever for its
 * daemon on a host that is lost. */
static const double END_SECONDS = 10, KILL_SECONDS = 5, DRAIN_SECONDS = 0.5;

typedef struct Watch {
    Attempt *attempt;
    pid_t    pid;
    int      out, err, signals;          /* file descriptors; -1: closed */
    Output   errors;
    int      status;                     /* of waitpid */
    bool     ended;
    double   end_by;                     /* when the next stronger signal is sent; 0: not set */
    int      sent;                       /* the strongest signal sent so far */
} Watch;

/* ---- signals ---- */

static void send_signal(Watch *w, int sig, double patience)
{
    kill(sig == SIGKILL ? -w->pid : w->pid, sig);
    w->sent = sig, w->end_by = patience > 0 ? clock_now() + patience : 0;
}

/* The first request lets ranks save, however long that takes; each further one is stronger. mpirun passes
 * SIGUSR1 on, and kills the ranks on SIGTERM. */
static void stop_ranks(Watch *w, int sig)
{
    if (w->sent == SIGTERM) send_signal(w, SIGKILL, 0);
    else if (w->attempt->stopped || !w->attempt->saves) send_signal(w, SIGTERM, KILL_SECONDS);
    else send_signal(w, SIGUSR1, 0);
    if (!w->attempt->stopped) w->attempt->stopped = sig;
}

static void take_signals(Watch *w)
{
    struct signalfd_siginfo s;
    while (read(w->signals, &s, sizeof s) == sizeof s)
        if (s.ssi_signo != SIGCHLD) stop_ranks(w, (int)s.ssi_signo);
    if (!w->ended && waitpid(w->pid, &w->status, WNOHANG) == w->pid)
        w->ended = true, w->end_by = clock_now() + DRAIN_SECONDS;
}

static void open_signals(Watch *w, sigset_t *before)
{
    static const int watched[] = { SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD };
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++) sigaddset(&set, watched[i]);
    sigprocmask(SIG_BLOCK, &set, before);
    w->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* ---- time ---- */

static void check_time(Watch *w)
{
    bool failed = w->errors.errors || w->errors.reported > w->errors.codes[0];
    output_tick(&w->errors);
    if (w->ended) return;
    if (failed && !w->end_by && w->sent != SIGKILL) w->end_by = clock_now() + END_SECONDS;
    if (!w->end_by || clock_now() < w->end_by) return;
    if (w->sent == SIGTERM) send_signal(w, SIGKILL, 0);
    else                    send_signal(w, SIGTERM, KILL_SECONDS);
}

static bool is_over(const Watch *w)
{
    bool drained = w->out < 0 && w->err < 0;
    return w->ended && (drained || clock_now() > w->end_by);
}

/* ---- output ---- */

static void write_all(const char *bytes, size_t n)
{
    for (ssize_t done; n > 0; bytes += done, n -= (size_t)done)
        if ((done = write(STDOUT_FILENO, bytes, n)) <= 0) return;
}

static void take_output(Watch *w, int *fd)
{
    char    bytes[16384];
    ssize_t n = read(*fd, bytes, sizeof bytes);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0) { close(*fd); *fd = -1; return; }
    if (fd == &w->out) write_all(bytes, (size_t)n);
    else               output_take(&w->errors, bytes, (size_t)n);
}

static void watch_ranks(Watch *w)
{
    while (!is_over(w)) {
        struct pollfd p[] = { { w->signals, POLLIN, 0 }, { w->out, POLLIN, 0 }, { w->err, POLLIN, 0 } };
        poll(p, 3, 200);
        if (p[1].revents) take_output(w, &w->out);
        if (p[2].revents) take_output(w, &w->err);
        take_signals(w);
        check_time(w);
    }
}

/* ---- the result ---- */

/* The code of a rank that failed by itself; that of its peers, which lost a rank; mpirun's own failure. A
 * signal ends mpirun's count above 128. */
static void set_result(Attempt *a, const Output *o, int status)
{
    int code = process_code(status), comm = status_exit_code(E_COMM);
    if (o->cause)  a->code = o->cause;
    else if (!code && o->codes[0] == o->reported) a->code = 0;
    else           a->code = comm;
    a->lost = a->code == comm;
}

static Status start_ranks(Watch *w, const Words *command, const Words *environment)
{
    int out[2], err[2];
    if (pipe2(out, O_CLOEXEC)) return fail(E_OTHER, "no pipe: %s", strerror(errno));
    w->out = out[0];
    if (pipe2(err, O_CLOEXEC)) return close(out[1]), fail(E_OTHER, "no pipe: %s", strerror(errno));
    w->err = err[0];
    Status st = process_start(&w->pid, command, environment, out[1], err[1]);
    close(out[1]), close(err[1]);
    return st;
}

Status attempt_run(Attempt *a, const Words *command, const Words *environment)
{
    Watch    w = { .attempt = a, .out = -1, .err = -1 };
    sigset_t before;
    output_open(&w.errors, stderr);
    open_signals(&w, &before);
    Status st = start_ranks(&w, command, environment);
    if (!st) {
        watch_ranks(&w);
        set_result(a, &w.errors, w.status);
        output_finish(&w.errors, a->code && !a->stopped);
    }
    if (w.out >= 0) close(w.out);
    if (w.err >= 0) close(w.err);
    close(w.signals);
    sigprocmask(SIG_SETMASK, &before, NULL);
    output_close(&w.errors);
    return st;
}
