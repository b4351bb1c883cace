/* The network of processes on one machine, for tests of the watchdog; needs root.
 *   loopback command...     runs it in a network namespace of its own that has a loopback interface alone
 *   loopback PID SECONDS    takes that interface of the namespace of a process down for so long, or until
 *                           SIGTERM */
#define _GNU_SOURCE
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static void on_signal(int n) { (void)n; }

static int set_up(int up)
{
    struct ifreq r = { .ifr_name = "lo", .ifr_flags = (short)(up ? IFF_UP | IFF_RUNNING : 0) };
    int fd = socket(AF_INET, SOCK_DGRAM, 0), bad = fd < 0 || ioctl(fd, SIOCSIFFLAGS, &r);
    if (fd >= 0) close(fd);
    return bad;
}

static int cut(const char *pid, unsigned seconds)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/net", atoi(pid));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    signal(SIGTERM, on_signal);
    if (fd < 0 || setns(fd, CLONE_NEWNET) || set_up(0)) return perror("loopback"), 1;
    puts("cut");
    fflush(stdout);
    sleep(seconds);
    return set_up(1);
}

int main(int argc, char **argv)
{
    if (argc < 2) return fprintf(stderr, "usage: loopback command... | loopback PID SECONDS\n"), 2;
    if (argc == 3 && atoi(argv[1]) > 0) return cut(argv[1], (unsigned)atoi(argv[2]));
    if (unshare(CLONE_NEWNET) || set_up(1)) return perror("loopback"), 1;
    execvp(argv[1], argv + 1);
    return perror(argv[1]), 1;
}
