/* comm/heartbeat_threads.c -- two more threads of the watchdog, for what may block: one asks the device's
 * library how far it is; the writer writes log lines, the lines that end a run and the record of a hang, to
 * disks that may be what hangs. */
#include "base/clock.h"
#include "base/cond.h"
#include "comm/hang_file.h"
#include "comm/heartbeat_private.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRITE_SECONDS 2.5               /* for the last lines and the record, before the rank exits */

void *heartbeat_run_device(void *heartbeat)
{
    Heartbeat *h = heartbeat;
    pthread_mutex_lock(&h->lock);
    while (!h->stop) {
        pthread_mutex_unlock(&h->lock);
        watch_poll_device(&h->watch);
        pthread_mutex_lock(&h->lock);
        if (!h->stop) cond_wait_for(&h->changed, &h->lock, 0.25);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* ---- the writer ---- */

void heartbeat_say(Heartbeat *h, const char *line)
{
    size_t space = sizeof h->lines - h->lines_bytes, n = strlen(line);
    if (n >= space) return;
    memcpy(h->lines + h->lines_bytes, line, n);
    h->lines_bytes += n;
}

/* A line of at most PIPE_BUF bytes is written whole or not at all: a full pipe without a reader does not
 * block. */
static void write_lines(const Heartbeat *h)
{
    struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };
    for (size_t at = 0; at < h->lines_bytes;) {
        const char *from = h->lines + at, *end = memchr(from, '\n', h->lines_bytes - at);
        size_t n = end ? (size_t)(end + 1 - from) : h->lines_bytes - at;
        if (poll(&p, 1, 500) != 1 || write(STDERR_FILENO, from, n) < 0) return;
        at += n;
    }
}

static void write_last(Heartbeat *h)
{
    write_lines(h);
    if (h->record) hang_file_write(h->folder, h->rank, h->size, &h->watch, h->why);
}

/* One turn, called and left with the lock held. */
static void take_turn(Heartbeat *h)
{
    bool last = h->last_due;
    h->writer_doing = last ? WRITER_ENDS : WRITER_PRINTS;
    pthread_mutex_unlock(&h->lock);
    if (last) write_last(h);
    else      heartbeat_print_states(h);
    pthread_mutex_lock(&h->lock);
    h->writer_doing = WRITER_RESTS;
    if (last) h->last_due = false, h->last_written = true;
    else      h->print_due = false;
    pthread_cond_broadcast(&h->changed);
}

void *heartbeat_run_writer(void *heartbeat)
{
    Heartbeat *h = heartbeat;
    pthread_mutex_lock(&h->lock);
    while (!h->stop || h->last_due) {
        if (h->print_due || h->last_due) take_turn(h);
        else cond_wait_for(&h->changed, &h->lock, 1);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

static bool can_block(int fd)
{
    struct stat info;
    return fstat(fd, &info) || S_ISREG(info.st_mode);
}

/* If the writer hangs in a log line, this thread writes the last lines, unless stderr is a file and may hang
 * too. */
void heartbeat_write_last(Heartbeat *h, const char *why, bool record)
{
    double until = clock_now() + WRITE_SECONDS;
    snprintf(h->why, sizeof h->why, "%s", why);
    h->record = record && h->folder[0], h->last_due = h->writer_running;
    pthread_cond_broadcast(&h->changed);
    while (h->last_due && cond_wait_until(&h->changed, &h->lock, until)) { }
    if (h->last_written || h->writer_doing == WRITER_ENDS) return;
    if (!can_block(STDERR_FILENO)) write_lines(h);
}
