/* base/config_table.h -- config.def as a table, for the files that walk it: config*.c and their tests. */
#ifndef BASE_CONFIG_TABLE_H
#define BASE_CONFIG_TABLE_H

#include "base/config.h"
#include "base/yaml.h"

typedef enum { K_FLAG, K_INT, K_REAL, K_TEXT, K_CHOICE, K_LIST, K_SOURCES } ConfigKind;

typedef struct ConfigRow {
    const char *section, *key;
    size_t      offset;               /* of the value in Config; in Source for the rows of an entry */
    const void *def;                  /* the default, of the same type as the value */
    ConfigKind  kind;
    double      min, max;             /* of a number */
    const char *choices, *help, *also;
} ConfigRow;

typedef struct ConfigSection { const char *name, *help, *also; } ConfigSection;

typedef struct ConfigRows { const ConfigRow *row; int n; } ConfigRows;

/* All rows, section after section; the rows of an entry of data.train. */
ConfigRows config_rows(void);
ConfigRows config_source_rows(void);
ConfigRows config_section_rows(const char *section);               /* n = 0: no such section */
const ConfigRow *config_row(ConfigRows rows, const char *key);     /* NULL: none of that name */

const ConfigSection *config_sections(int *n);
extern const Config  config_defaults;
extern const Source  config_source_defaults;

#define ROW_NAME 64                   /* enough for "data.train[9999].max_samples" and any section.key */

enum {                                /* what a list may hold, so that a dump stays within YAML_MAX_NODES */
    CONFIG_MAX_WORDS   = 1000,
    CONFIG_MAX_SOURCES = 5000
};

#define EACH_ROW(r, rows) (const ConfigRow *r = (rows).row; r < (rows).row + (rows).n; r++)

/* One value: from YAML into base + row->offset, and out again. Errors name the key as `name`. */
MUST Status config_read_value(const ConfigRow *row, void *base, MemPool *keep, const char *name,
                              const YamlNode *n);
void        config_put_value(FILE *out, const ConfigRow *row, const void *value);

/* The error for a word that is not a key or section: says what was probably meant. */
MUST Status config_unknown_section(const char *word);
MUST Status config_unknown_key(const char *section, const char *word);
/* The row that --word means: the only key of that name in any section, or another trainer's name for one. */
MUST Status config_find_word(const char *word, const ConfigRow **row);
MUST Status config_unknown_field(const char *entry, const char *word);      /* entry "data.train[1]" */

#endif
