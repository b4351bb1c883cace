/* cli/program.h -- what every program of this tree does before its first line of work and after its last.
 *
 * `treb` is the product; a folder such as demo/ is a program of its own over the library, built as
 * treb-<folder> beside it. The verbs of `treb` that belong to such a program start it by name. */
#ifndef CLI_PROGRAM_H
#define CLI_PROGRAM_H

#include "base/status.h"

/* Prepares the process. It may start the program again with the same arguments and another environment. */
void        program_start(char **argv);
/* Flushes the output, prints the error if there is one with a text, and returns the exit code. */
int         program_finish(Status st);
void        program_print_error(void);                       /* "treb: ...", the status text */

/* Replaces this process by the program `name` from the folder of the running binary. argv[0] is ignored; the
 * arguments after it are passed on. Returns only on failure, with an error that names the missing file. */
MUST Status program_exec_sibling(const char *name, int argc, char **argv);

#endif
