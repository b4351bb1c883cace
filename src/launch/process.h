/* launch/process.h -- programs that this one starts. */
#ifndef LAUNCH_PROCESS_H
#define LAUNCH_PROCESS_H

#include "launch/words.h"

#include <stddef.h>
#include <sys/types.h>

enum { PROCESS_NOT_FOUND = 127 };        /* exit code of a child whose program cannot be executed */

/* Starts a program in a process group of its own, so that Ctrl-C of a terminal reaches only the caller; the
 * program gets SIGTERM if the caller dies. `environment` has NAME=VALUE words for names that are not set.
 * out, err: file descriptors of its output; -1: the caller's own. */
MUST Status process_start(pid_t *pid, const Words *command, const Words *environment, int out, int err);

/* Output and exit code of a program that ends within `seconds`; it is killed otherwise. code: as a shell
 * counts, 128 + signal. */
MUST Status process_read(char *text, size_t n, int *code, const Words *command, double seconds);
int         process_code(int status);                              /* of waitpid, as a shell counts */

#endif
