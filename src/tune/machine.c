/* tune/machine.c -- see machine.h. */
#include "tune/machine.h"

#include "ops/backend.h"
#include "plan/layout_keys.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void look(Machine *m, const Config *c, int ranks)
{
    double left, all, most = c->device.memory_limit * 0x1p30;
    snprintf(m->backend, sizeof m->backend, "%s", backend_pick(c->device.backend));
    backend_memory(m->backend, &left, &all);
    if (!strcmp(m->backend, "cpu")) left /= ranks;
    m->available = most > 0 ? fmin(left, most) : left;
    if (hardware_here(&m->hw, m->backend, ranks)) m->available = 0;
}

static Status read_answer(Machine *m, int fd)
{
    ssize_t n = read(fd, m, sizeof *m);                  /* shorter than what a pipe takes at once */
    if (n != (ssize_t)sizeof *m || m->available <= 0)
        return fail(E_DEVICE, "device.backend: nothing to run on was found; see treb doctor");
    return OK;
}

Status machine_ask(Machine *m, const Config *recipe, int ranks)
{
    int pipes[2];
    _Static_assert(sizeof(Machine) < 65536, "a pipe takes it at once");
    if (pipe(pipes)) return fail(E_OTHER, "no pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        Machine seen = { .available = 0 };
        look(&seen, recipe, ranks);
        _exit(write(pipes[1], &seen, sizeof seen) != (ssize_t)sizeof seen);
    }
    close(pipes[1]);
    Status st = pid < 0 ? fail(E_OTHER, "fork: %s", strerror(errno)) : read_answer(m, pipes[0]);
    close(pipes[0]);
    if (pid > 0) waitpid(pid, NULL, 0);
    return st;
}
