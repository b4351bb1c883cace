/* cli/options.h -- flags of a verb: a table of names and where their values go. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct Option {
    const char  *name;                   /* "--out"; a zero row ends the table */
    const char **value;                  /* takes a value: `--out FILE` or `--out=FILE` */
    bool        *flag;                   /* or is a flag by itself */
} Option;

/* Fills options and exactly n plain arguments; an unknown flag lists the known ones. */
MUST Status options_parse(int argc, char **argv, const Option *options, const char **plain, int n);
/* The same for one plain argument or more; plain has room for argc of them. */
MUST Status options_parse_many(int argc, char **argv, const Option *options, const char **plain, int *n);
/* Or for any number of them, none included. */
MUST Status options_parse_any(int argc, char **argv, const Option *options, const char **plain, int *n);
/* Every value of an option that may be given more than once; the table above must have it too. */
MUST Status option_list(int argc, char **argv, const char *name, const char **list, int most, int *n);
MUST Status option_int(const char *name, const char *text, int64_t lo, int64_t hi, int64_t *out);
MUST Status option_real(const char *name, const char *text, double lo, double hi, double *out);
/* A folder that is given has a name: a variable of the shell that is not set has none. NULL: not given. */
MUST Status option_folder(const char *name, const char *text);

#endif
