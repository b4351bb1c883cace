/* launch/rank.h -- what a rank does for `treb launch`, which has started it with TREB_LAUNCH in its
 * environment: it binds itself to its cores before its first thread exists, and tells its exit code. Without
 * the variable both do nothing. */
#ifndef LAUNCH_RANK_H
#define LAUNCH_RANK_H

#include <stdbool.h>

/* "bind" or "plain"; with "-verbose" at its end each rank prints its binding. */
#define LAUNCH_VARIABLE "TREB_LAUNCH"
/* Begins the line of stderr that tells an exit code; "RANK code CODE" follows. */
#define LAUNCH_EXIT     "treb-launch: rank "

/* True: the environment has changed (OMP_NUM_THREADS); libraries have read it already, so the program must
 * execute itself again. */
bool launch_rank_start(void);
/* To stderr, for treb launch. Called before other ranks learn of a failure, since the first rank that exits
 * ends the others. The first call counts. */
void launch_rank_exit(int code);

#endif
