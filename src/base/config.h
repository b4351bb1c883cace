/* base/config.h -- the recipe of a run as a struct, made from config.def, and how it is read and written.
 *
 *   Config cfg;
 *   TRY(config_open(&cfg, "recipe.yaml", n, overrides));      defaults, then the file, then section.key=value
 *   ... cfg.optim.learning_rate ...
 *   config_close(&cfg);
 *
 * Every value is present and within its bounds; a key that the file does not set has its default. A text that
 * is not set is "", never NULL. Texts and lists belong to the Config and live until config_close; code may
 * point a text at a literal of its own (cfg.device.backend = "meta").
 *
 * Errors are E_CONFIG and name the line, the key and what to write instead:
 *   recipe.yaml:12: train.max_step: not a key. Did you mean train.max_steps?
 * A file with several is answered once, with a line for each. */
#ifndef BASE_CONFIG_H
#define BASE_CONFIG_H

#include "base/dispatchers.h"
#include "base/graph_scopes.h"
#include "base/mem_pool.h"
#include "base/precisions.h"
#include "base/status.h"
#include "base/transports.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CONFIG_LR 1e-5      /* optim.learning_rate where all weights train */
#define CONFIG_LORA_LR 1e-4 /* and where adapters do */

typedef struct WordList   { const char *const *item;  int n; } WordList;
typedef struct SourceList { const struct Source *item; int n; } SourceList;

/* tests/config_keys.sh compiles the tree with CONFIG_AUDIT: each use of a key becomes a warning that names
 * it. */
#ifdef CONFIG_AUDIT
#define NAMED(sec, key) key __attribute__((deprecated(#sec "." #key)))
#else
#define NAMED(sec, key) key
#endif

#define BEGIN(sec, help, also)                        struct cfg_##sec {
#define FLAG(sec, key, def, help, also)               bool NAMED(sec, key);
#define INT(sec, key, def, lo, hi, help, also)        int64_t NAMED(sec, key);
#define REAL(sec, key, def, lo, hi, help, also)       double NAMED(sec, key);
#define TEXT(sec, key, def, help, also)               const char *NAMED(sec, key);
#define CHOICE(sec, key, def, choices, help, also)    const char *NAMED(sec, key);
#define LIST(sec, key, choices, help, also, ...)      WordList NAMED(sec, key);
#define SOURCES(sec, key, help, also)                 SourceList NAMED(sec, key);
#define END(sec)                                      } sec;

typedef struct Source {                 /* one entry of data.train or data.eval */
#include "base/config_source.def"
} Source;

typedef struct Config {
#include "base/config.def"
    MemPool keep;                          /* owns the texts and lists that are not defaults */
    uint64_t set_bits[4];                 /* a bit for each row that was set, even to its default */
    bool auto_parallel, auto_memory;      /* the recipe says `parallel: auto`, `memory: auto` */
} Config;

/* Defaults, then the recipe (path NULL: none), then the overrides in order. On failure *cfg is closed. */
MUST Status config_open(Config *cfg, const char *path, int n, char *const *overrides);
/* The words of a command line: a recipe, unless the first is an override or --key; then overrides and --key
 * value in any order. */
MUST Status config_open_words(Config *cfg, int n, char *const *word);
/* "section.key=value": not an option, and not a path with a '=' after its first '/'. */
bool        config_is_override(const char *word);
void        config_close(Config *cfg);                                     /* twice is fine */

/* The same in pieces: text as if it stood in a file called name; one override, "optim.learning_rate=1e-4",
 * "data.train[0].path=a.jsonl". After a failure *cfg is still valid, and half-changed. */
void        config_default(Config *cfg);
MUST Status config_parse(Config *cfg, const char *text, size_t len, const char *name);
MUST Status config_set(Config *cfg, const char *override);
/* Overrides with blanks between them, as a command line takes them; a list may have blanks. */
MUST Status config_set_all(Config *cfg, const char *set);

/* Gives keys that are not set the defaults that depend on other keys: learning_rate with adapters. Opening
 * does it; again after further overrides. */
void config_settle(Config *cfg);

/* The key, if the recipe or an override has set it, even to its default, but not to null; with key NULL the
 * first key of the section that was set. NULL: none was. */
const char *config_is_set(const Config *cfg, const char *section, const char *key);

/* Whether the planner may choose the keys of the section parallel or memory (plan/auto.h): the recipe sets
 * none of them, other than parallel.ranks. asked: it says `auto`. */
bool        config_is_auto(const Config *cfg, const char *section, bool *asked);

/* Every key as YAML that reads back to the same Config. */
void        config_dump(FILE *out, const Config *cfg);
/* The same without keys that have their default; the same of one section. */
void        config_dump_short(FILE *out, const Config *cfg);
void        config_dump_section(FILE *out, const Config *cfg, const char *section);

/* Keys, types, defaults, bounds: of one section, or of all when section is NULL. */
MUST Status config_help(FILE *out, const char *section);
bool        config_has_section(const char *name);

#ifdef __cplusplus
}
#endif
#endif
