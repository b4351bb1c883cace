/* tune/machine.h -- what the ranks of a trial will run on. A child process asks, so that this one, which only
 * starts runs, holds no memory of the GPU. */
#ifndef TUNE_MACHINE_H
#define TUNE_MACHINE_H

#include "base/config.h"
#include "plan/hardware.h"

typedef struct Machine {
    char     backend[8];                 /* cpu or cuda */
    Hardware hw;                         /* `this`, or the row of the GPU */
    double   available;                  /* bytes that a rank may take */
} Machine;

MUST Status machine_ask(Machine *m, const Config *recipe, int ranks);

#endif
