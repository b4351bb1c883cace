/* freeze PID SECONDS: stops one thread of a process, its main thread, for so long or until the process ends;
 * its other threads run on. For tests of the watchdog; needs the right to trace the process (root). */
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    pid_t pid = argc > 1 ? atoi(argv[1]) : 0;
    int   seconds = argc > 2 ? atoi(argv[2]) : 0, status;
    if (pid <= 0 || seconds <= 0) return fprintf(stderr, "usage: freeze PID SECONDS\n"), 2;
    if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) || ptrace(PTRACE_INTERRUPT, pid, NULL, NULL))
        return perror("freeze"), 1;
    if (waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status)) return perror("freeze"), 1;
    puts("frozen");
    fflush(stdout);
    for (int i = 0; i < 100 * seconds; i++) {
        usleep(10000);
        if (waitpid(pid, &status, __WALL | WNOHANG) == pid && !WIFSTOPPED(status)) return 0;
    }
    return ptrace(PTRACE_DETACH, pid, NULL, NULL) ? 1 : 0;
}
