/* ops/energy.h -- joules and the average SM clock of some work, where the device tells them. */
#ifndef OPS_ENERGY_H
#define OPS_ENERGY_H

#include "ops/ops.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct Energy { double joules, mhz, seconds; } Energy;   /* joules 0: not known */

/* A thread reads the clock while the work runs. */
typedef struct EnergyMeter {
    const Device *device;
    pthread_t     thread;
    atomic_bool   stop;
    bool          running;
    double        joules, started;       /* at the start */
    double        mhz;                   /* sum of the readings */
    int           readings;
} EnergyMeter;

void   energy_start(EnergyMeter *m, const Backend *be);      /* the device is idle */
Energy energy_stop(EnergyMeter *m);                          /* the work is done */

#endif
