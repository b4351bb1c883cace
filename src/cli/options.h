/* cli/options.h -- the options of a verb: one row each with its name, its help and where its value goes.
 *
 *   typedef struct PackArgs { int64_t shard_mb; bool json; } PackArgs;
 *   static const Option options[] = {
 *       OPTION_INT(PackArgs, shard_mb, "--shard-mb", "N", 1, 1 << 20, "megabytes of a shard (default 1024)"),
 *       OPTION_FLAG(PackArgs, json, "--json", "print the result as JSON"),
 *       OPTION_END
 *   };
 *   PackArgs a = { .shard_mb = 1024 };                          the defaults
 *   TRY(options_parse(argc, argv, options, &a, &plain));
 *
 * Parsing, usage, the man page and shell completion read these rows and nothing else. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "tensor/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { OPT_FLAG, OPT_TEXT, OPT_INT, OPT_REAL, OPT_LIST } OptionKind;

typedef struct Option {
    const char *name;                    /* "--out"; NULL ends the table */
    const char *arg; /* what the usage calls its value: "FILE", "f32|bf16"; NULL: a flag */
    const char *help;
    OptionKind  kind;
    size_t      at;                      /* offset of the value in the verb's struct of arguments */
    double      lo, hi;                  /* bounds of a number */
} Option;

/* Fields: bool, const char *, int64_t, double, OptionList. */
#define OPTION_FLAG(type, field, name, help) { name, NULL, help, OPT_FLAG, offsetof(type, field), 0, 0 }
#define OPTION_TEXT(type, field, name, arg, help) { name, arg, help, OPT_TEXT, offsetof(type, field), 0, 0 }
#define OPTION_INT(type, field, name, arg, lo, hi, help) \
    { name, arg, help, OPT_INT, offsetof(type, field), (double)(lo), (double)(hi) }
#define OPTION_REAL(type, field, name, arg, lo, hi, help) \
    { name, arg, help, OPT_REAL, offsetof(type, field), lo, hi }
#define OPTION_LIST(type, field, name, arg, help) { name, arg, help, OPT_LIST, offsetof(type, field), 0, 0 }
#define OPTION_END { NULL, NULL, NULL, OPT_FLAG, 0, 0, 0 }

/* Values of an option that may be given more than once, in the order of the command line. */
enum { OPTION_LIST_MAX = 256 };
typedef struct OptionList { const char *value[OPTION_LIST_MAX]; int n; } OptionList;

/* Arguments that are not options: between least and most of them; value has n pointers into argv. `what` says
 * in an error what to name, such as "a recipe"; it is set where least is 1 or 2. */
typedef struct PlainArgs { const char **value; int n, least, most; const char *what; } PlainArgs;

enum { PLAIN_ANY = 1 << 20 };

/* Fills args and plain; without plain no plain argument is allowed. argv[0] is the verb as errors name it. An
 * unknown option is answered with the nearest one, or else with all of them.
 * plain->value is allocated: plain_args_close. */
MUST Status options_parse(int argc, char **argv, const Option *options, void *args, PlainArgs *plain);
void        plain_args_close(PlainArgs *p);                               /* twice is fine */

MUST Status option_int(const char *name, const char *text, int64_t lo, int64_t hi, int64_t *out);
MUST Status option_real(const char *name, const char *text, double lo, double hi, double *out);
MUST Status option_dtype(const char *name, const char *text, DType *out);    /* F32 or BF16 */
/* Refuses an option whose value is an empty string, as an unset shell variable gives; NULL: not given. */
MUST Status option_folder(const char *name, const char *text);

#endif
