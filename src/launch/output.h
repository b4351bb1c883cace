/* launch/output.h -- what ranks and mpirun print on stderr: each error once, and nothing of mpirun's own text
 * where a rank has said what happened.
 *
 * A line "treb: …" is an error. Where every rank prints the same, the first is shown. "treb: rank N exits: …"
 * follows the failure of another rank: such lines wait, for a second at most, for the error itself. Log lines
 * pass at once, but for warnings and errors ("[3] error: …") that another rank has printed already. */
#ifndef LAUNCH_OUTPUT_H
#define LAUNCH_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { OUTPUT_LINE = 8192, OUTPUT_ERRORS = 32, OUTPUT_LOGGED = 64 };

typedef struct LoggedLine { int rank; uint64_t hash; } LoggedLine;

typedef struct Output {
    FILE  *out;
    char   line[OUTPUT_LINE];            /* begun and not ended */
    size_t n;
    char  *shown[OUTPUT_ERRORS];         /* errors, without what only the rank that prints it says */
    int    shown_n;
    char  *held[OUTPUT_ERRORS];          /* lines that wait */
    int    held_n;
    double held_since;
    char  *noise;                        /* what mpirun has said */
    size_t noise_n;
    bool   in_block;                     /* between two lines of dashes */
    LoggedLine logged[OUTPUT_LOGGED];    /* the latest warnings and errors of the log */
    int    logged_n;
    int    codes[8];                     /* ranks that have reported exit code 0 … 7 */
    int    reported;                     /* ranks that have reported a code */
    int    errors;                       /* lines "treb: …": a rank that prints one ends */
    int    cause;                        /* the first code besides 0 and that of lost peers; 0: none */
} Output;

void output_open(Output *o, FILE *out);
void output_take(Output *o, const char *bytes, size_t n);
void output_tick(Output *o);             /* shows lines that have waited for a second */
/* Shows the rest; mpirun's text, too, if the run failed and no rank has said why. */
void output_finish(Output *o, bool failed);
void output_close(Output *o);

#endif
