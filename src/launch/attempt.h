/* launch/attempt.h -- one start of the ranks: mpirun as a child, its output, signals, and how it ended. */
#ifndef LAUNCH_ATTEMPT_H
#define LAUNCH_ATTEMPT_H

#include "launch/words.h"

#include <stdbool.h>

typedef struct Attempt {
    bool saves;                          /* ranks save on SIGUSR1 (train); otherwise SIGTERM ends them */
    int  code;                           /* exit code by the table of `treb`: of the rank that failed first */
    bool lost;                           /* a rank was lost: killed, or not heard from */
    int  stopped;                        /* the signal that asked for the end; 0: none */
} Attempt;

/* Returns once all ranks have ended. SIGINT, SIGTERM, SIGHUP and SIGUSR1 ask the ranks to save and exit; a
 * second one ends them. */
MUST Status attempt_run(Attempt *a, const Words *command, const Words *environment);

#endif
