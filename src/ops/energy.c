/* ops/energy.c -- see energy.h. */
#include "ops/energy.h"

#include "base/clock.h"
#include "base/thread.h"

#include <time.h>

static void *read_clock(void *arg)
{
    const struct timespec pause = { .tv_nsec = 5000000 };
    EnergyMeter *m = arg;
    while (!atomic_load(&m->stop)) {
        double joules, mhz;
        if (m->device->energy(&joules, &mhz)) m->mhz += mhz, m->readings++;
        nanosleep(&pause, NULL);
    }
    return NULL;
}

void energy_start(EnergyMeter *m, const Backend *be)
{
    double mhz;
    *m = (EnergyMeter){ .device = be->device };
    if (!be->device->energy || !be->device->energy(&m->joules, &mhz)) return;
    m->started = clock_now();
    m->running = !thread_start(&m->thread, read_clock, m);
}

Energy energy_stop(EnergyMeter *m)
{
    double joules, mhz;
    Energy e = { 0 };
    if (!m->running) return e;
    atomic_store(&m->stop, true);
    pthread_join(m->thread, NULL);
    if (!m->readings || !m->device->energy(&joules, &mhz)) return e;
    return (Energy){ joules - m->joules, m->mhz / m->readings, clock_now() - m->started };
}
