/* base/config_import.h -- a recipe from the arguments of another trainer: LLaMA-Factory, ms-swift, TRL and
 * transformers, Megatron, accelerate.
 *
 * Keys go by the names that config.def knows them under (`also`); config_import.def has those whose value
 * needs more than another name. What has no counterpart is kept with its line and the reason. */
#ifndef BASE_CONFIG_IMPORT_H
#define BASE_CONFIG_IMPORT_H

#include "base/config.h"
#include "base/foreign_args.h"

typedef struct ImportNote { const char *text; int line; struct ImportNote *next; } ImportNote;

typedef struct Import {
    Config      cfg;
    ForeignArgs args;
    int         taken;                  /* arguments that set a key */
    ImportNote *first, *last;           /* what has no counterpart, and what was assumed */
    int64_t     batch, accumulation, global, ranks, nodes, samples, total;      /* 0: not given */
    bool        full, lora;             /* kind of training, where the file says it */
} Import;

/* On failure *i is closed. A file without one argument that sets a key is E_CONFIG. */
MUST Status config_import(Import *i, const char *text, size_t len, const char *name);
void        config_import_dump(FILE *out, const Import *i, const char *path);
void        config_import_close(Import *i);                        /* twice is fine */

#endif
