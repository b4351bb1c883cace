/* launch/process.c -- see process.h. */
#define _GNU_SOURCE                      /* pipe2 */
#include "launch/process.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

int process_code(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

static void set_missing(const Words *environment)
{
    for (int i = 0; i < environment->n; i++) {
        char *word = environment->at[i], *eq = strchr(word, '=');
        if (!eq) continue;
        *eq = 0;                                             /* the child's own copy */
        setenv(word, eq + 1, 0);
    }
}

__attribute__((noreturn)) static void become(const Words *command, const Words *environment, int out, int err)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (out >= 0) dup2(out, STDOUT_FILENO);
    if (err >= 0) dup2(err, STDERR_FILENO);
    if (environment) set_missing(environment);
    execvp(command->at[0], command->at);
    fprintf(stderr, "%s: %s\n", command->at[0], strerror(errno));
    _exit(PROCESS_NOT_FOUND);
}

Status process_start(pid_t *pid, const Words *command, const Words *environment, int out, int err)
{
    fflush(NULL);
    *pid = fork();
    if (*pid == 0) become(command, environment, out, err);
    if (*pid < 0) return fail(E_OTHER, "%s: %s", command->at[0], strerror(errno));
    setpgid(*pid, *pid);                                     /* in either process, whichever is first */
    return OK;
}

/* Reads until the end of the pipe; false: the time is over. */
static bool read_until(int fd, char *text, size_t n, double end)
{
    size_t at = 0;
    for (double left; (left = end - clock_now()) > 0;) {
        char    chunk[1024];
        ssize_t got = poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, (int)(1000 * left) + 1) > 0
                          ? read(fd, chunk, sizeof chunk) : -1;
        if (got == 0) return true;
        for (ssize_t i = 0; i < got && at + 1 < n; i++) text[at++] = chunk[i];
        text[at] = 0;
    }
    return false;
}

Status process_read(char *text, size_t n, int *code, const Words *command, double seconds)
{
    int   pipes[2], status = 0;
    pid_t pid;
    *text = 0;
    if (pipe2(pipes, O_CLOEXEC)) return fail(E_OTHER, "no pipe: %s", strerror(errno));
    Status st = process_start(&pid, command, NULL, pipes[1], pipes[1]);
    close(pipes[1]);
    if (!st && !read_until(pipes[0], text, n, clock_now() + seconds)) kill(-pid, SIGKILL);
    close(pipes[0]);
    if (!st) waitpid(pid, &status, 0);
    *code = process_code(status);
    return st;
}
