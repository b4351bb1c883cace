/* base/config_table.c -- config.def unrolled twice more: into a Config of defaults, and into rows. */
#include "base/config_table.h"

#include <string.h>

#define BEGIN(sec, help, also)                        .sec = {
#define FLAG(sec, key, def, help, also)               .key = def,
#define INT(sec, key, def, lo, hi, help, also)        .key = (int64_t)def,
#define REAL(sec, key, def, lo, hi, help, also)       .key = def,
#define TEXT(sec, key, def, help, also)               .key = def,
#define CHOICE(sec, key, def, choices, help, also)    .key = def,
#define WORDS(...)                                    (const char *const[]){ __VA_ARGS__ }
#define LIST(sec, key, choices, help, also, ...)      \
    .key = { WORDS(__VA_ARGS__), sizeof(WORDS(__VA_ARGS__)) / sizeof(const char *) },
#define SOURCES(sec, key, help, also)                 .key = { NULL, 0 },
#define END(sec)                                      },

const Source config_source_defaults = {
#include "base/config_source.def"
};

const Config config_defaults = {
#include "base/config.def"
};

#define BEGIN(sec, help, also)
#define FLAG(sec, key, def, help, also)          { AT(sec, key, #key),    K_FLAG,    0, 0, "", help, also },
#define INT(sec, key, def, lo, hi, help, also)   { AT(sec, key, #key),    K_INT,     lo, hi, "", help, also },
#define REAL(sec, key, def, lo, hi, help, also)  { AT(sec, key, #key),    K_REAL,    lo, hi, "", help, also },
#define TEXT(sec, key, def, help, also)          { AT(sec, key, #key),    K_TEXT,    0, 0, "", help, also },
#define CHOICE(sec, key, def, of, help, also)    { AT(sec, key, #key),    K_CHOICE,  0, 0, of, help, also },
#define LIST(sec, key, of, help, also, ...)      { AT(sec, key, #key),    K_LIST,    0, 0, of, help, also },
#define SOURCES(sec, key, help, also)            { AT(sec, key, #key),    K_SOURCES, 0, 0, "", help, also },
#define END(sec)

static const ConfigRow source_rows[] = {
#define AT(sec, field, name) #sec, name, offsetof(Source, field), &config_source_defaults.field
#include "base/config_source.def"
#undef AT
};

static const ConfigRow rows_[] = {
#define AT(sec, field, name) #sec, name, offsetof(Config, sec.field), &config_defaults.sec.field
#include "base/config.def"
#undef AT
};

#define BEGIN(sec, help, also)                    { #sec, help, also },
#define FLAG(sec, key, def, help, also)
#define INT(sec, key, def, lo, hi, help, also)
#define REAL(sec, key, def, lo, hi, help, also)
#define TEXT(sec, key, def, help, also)
#define CHOICE(sec, key, def, choices, help, also)
#define LIST(sec, key, choices, help, also, ...)
#define SOURCES(sec, key, help, also)
#define END(sec)

static const ConfigSection sections[] = {
#include "base/config.def"
};

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

ConfigRows config_rows(void)        { return (ConfigRows){ rows_, COUNT(rows_) }; }
ConfigRows config_source_rows(void) { return (ConfigRows){ source_rows, COUNT(source_rows) }; }

ConfigRows config_section_rows(const char *section)
{
    ConfigRows found = { rows_, 0 };
    for EACH_ROW(r, config_rows()) {
        if (strcmp(r->section, section)) continue;
        if (!found.n) found.row = r;
        found.n++;
    }
    return found;
}

const ConfigRow *config_row(ConfigRows rows, const char *key)
{
    for EACH_ROW(r, rows)
        if (!strcmp(r->key, key)) return r;
    return NULL;
}

const ConfigSection *config_sections(int *n)
{
    *n = COUNT(sections);
    return sections;
}

bool config_has_section(const char *name) { return config_section_rows(name).n > 0; }
