/* launch/launch.h -- a run of several ranks from its start to its end, with restarts after a lost rank.
 *
 * A rank is lost when its process dies by a signal or is not heard from: the others exit with code 6. The run
 * then starts again from its newest checkpoint, on the hosts that answer. With as many ranks as before the
 * layout is the same, and so is every bit of the result; with fewer the planner picks a layout
 * (plan/relayout.h), and the order of the data stays. Any other failure would come again and ends the run. */
#ifndef LAUNCH_LAUNCH_H
#define LAUNCH_LAUNCH_H

#include "launch/mpirun.h"

typedef struct Launch {
    Mpirun      mpirun;
    RankCommand command;                 /* its ranks and hosts are those of the next start */
    int         ranks, least;            /* wanted; fewest to go on with */
    int         restarts;                /* in a row without a new checkpoint between them; 0: none */
    bool        saves;                   /* the verb is train */
    Path        folder;                  /* of train: checkpoint.output_dir */
    bool        from_path;               /* of train: checkpoint.resume_from_checkpoint names a checkpoint */
} Launch;

/* code: the exit code of the run. Errors of ranks have been printed. */
MUST Status launch_run(Launch *l, int *code);
/* Prints the command and the binding of every rank. */
MUST Status launch_print(FILE *out, const Launch *l);

#endif
