/* base/foreign_args.h -- the arguments of another trainer, from its file: YAML or JSON, flat or in sections,
 * or a shell script with --key value.
 *
 * Of a script only words are read, nothing is run: arguments wherever they stand (in arrays and quoted texts,
 * too), variables that the script itself sets, and defaults such as ${GPUS:-8}. */
#ifndef BASE_FOREIGN_ARGS_H
#define BASE_FOREIGN_ARGS_H

#include "base/mem_pool.h"
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>

enum { FOREIGN_MAX_VALUES = 256, FOREIGN_MAX_BYTES = 1 << 20 };

typedef struct ForeignArg {
    const char        *key;           /* without dashes, '-' as '_' */
    const char       **value;
    int                n, line;       /* n = 0: a bare flag */
    bool               variable;      /* NAME=value of a script rather than an argument */
    struct ForeignArg *next;
} ForeignArg;

typedef struct ForeignArgs {
    ForeignArg *first, *last;
    MemPool     keep;
} ForeignArgs;

/* A file that is neither is E_CONFIG. On failure *a is closed. */
MUST Status foreign_args_parse(ForeignArgs *a, const char *text, size_t len, const char *name);
void        foreign_args_close(ForeignArgs *a);                    /* twice is fine */

/* For the readers: appends an argument without values; appends a value to the last one. */
ForeignArg *foreign_args_add(ForeignArgs *a, const char *key, size_t len, int line);
void        foreign_args_value(ForeignArgs *a, const char *text, size_t len);
MUST Status foreign_shell_read(ForeignArgs *a, const char *text, size_t len);

#endif
