/* slow_disk.so, for LD_PRELOAD: a disk on which writes take long. SLOW_WRITE_MS is added to each pwrite, up
 * to SLOW_WRITES of them; the first fsync of the process takes SLOW_SYNC_MS more, and making the
 * folder of the records of a hang SLOW_HANG_MS. For tests of the watchdog. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

static void sleep_of(const char *variable)
{
    const char *text = getenv(variable);
    long ms = text ? atol(text) : 0;
    nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 }, NULL);
}

/* The number of calls before this one. */
static long count(long *calls) { return __atomic_fetch_add(calls, 1, __ATOMIC_RELAXED); }

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    static long calls;
    const char *most = getenv("SLOW_WRITES");
    ssize_t   (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, "pwrite");
    if (count(&calls) < (most ? atol(most) : 0)) sleep_of("SLOW_WRITE_MS");
    return real(fd, bytes, n, at);
}

int fsync(int fd)
{
    static long calls;
    int       (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    if (!count(&calls)) sleep_of("SLOW_SYNC_MS");
    return real(fd);
}

int mkdir(const char *path, mode_t mode)
{
    int (*real)(const char *, mode_t) = dlsym(RTLD_NEXT, "mkdir");
    size_t n = strlen(path);
    if (n > 5 && !strcmp(path + n - 5, "/hang")) sleep_of("SLOW_HANG_MS");
    return real(path, mode);
}
