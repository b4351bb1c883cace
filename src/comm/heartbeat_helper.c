/* comm/heartbeat_helper.c -- a second thread of the watchdog for everything that may block: questions to the
 * device's library, log lines, the record of a hang on a disk that may be what hangs. */
#include "base/clock.h"
#include "base/cond.h"
#include "comm/hang_file.h"
#include "comm/heartbeat_private.h"

static void write_record(const Heartbeat *h)
{
    hang_file_write(h->folder, h->rank, h->size, &h->watch, h->why);
}

/* One turn, called and left with the lock held. */
static void take_turn(Heartbeat *h)
{
    bool print = h->print_due, record = h->record_due && !h->recorded;
    h->helper_doing = record ? HELPER_WRITES : print ? HELPER_PRINTS : HELPER_ASKS_DEVICE;
    pthread_mutex_unlock(&h->lock);
    if (record)     write_record(h);
    else if (print) heartbeat_print_states(h);
    else            watch_poll_device(&h->watch);
    pthread_mutex_lock(&h->lock);
    h->helper_doing = HELPER_RESTS;
    if (record)     h->recorded = true;
    else if (print) h->print_due = false;
    pthread_cond_broadcast(&h->changed);
}

void *heartbeat_run_helper(void *heartbeat)
{
    Heartbeat *h = heartbeat;
    pthread_mutex_lock(&h->lock);
    while (!h->stop) {
        take_turn(h);
        if (!h->stop && !h->print_due && (!h->record_due || h->recorded))
            cond_wait_for(&h->changed, &h->lock, 0.25);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* A helper that a library blocks cannot write the record: then this thread does. */
void heartbeat_record(Heartbeat *h, const char *why)
{
    double until = clock_now() + 2;
    if (!h->folder[0] || h->record_due) return;
    snprintf(h->why, sizeof h->why, "%s", why);
    h->record_due = true;
    pthread_cond_broadcast(&h->changed);
    while (h->helper_running && !h->recorded && cond_wait_until(&h->changed, &h->lock, until)) { }
    if (!h->recorded && h->helper_doing <= HELPER_ASKS_DEVICE) write_record(h);
}
