/* launch/mpirun.h -- the mpirun of Open MPI 4 or 5, and the command line that starts the ranks of a run.
 *
 * Ranks need a launcher that speaks PMIx, so mpirun starts them on one host, too. It binds nothing: each rank
 * binds itself (launch/rank.h), which is the same with every version of mpirun. On one host ranks use shared
 * memory alone and listen on the loopback interface. */
#ifndef LAUNCH_MPIRUN_H
#define LAUNCH_MPIRUN_H

#include "base/folder.h"
#include "launch/hosts.h"
#include "launch/words.h"

typedef struct Mpirun { Path path; int major; } Mpirun;           /* path as found in PATH; 4 or 5 */

typedef struct RankCommand {
    int         ranks;
    Hosts       hosts;                   /* n 0: this machine, or the allocation of a batch system */
    const char *agent;                   /* in place of ssh; NULL: ssh */
    bool        bind, verbose;
    char      **verb;                    /* "train", "recipe.yaml", … */
    int         words;
    Words       overrides;               /* behind the words of the verb */
} RankCommand;

/* name: NULL, or --mpirun. An error says which package to install. */
MUST Status mpirun_find(Mpirun *m, const char *name);
/* The command, and NAME=VALUE words for its environment. */
MUST Status mpirun_command(Words *command, Words *environment, const Mpirun *m, const RankCommand *c);

#endif
