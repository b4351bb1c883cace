/* base/config_help.c -- the table shown to people: as help, and as the recipe that a Config amounts to. */
#include "base/config_table.h"

#include "base/str.h"

#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = {
    [K_FLAG]   = "flag",   [K_INT]  = "int",  [K_REAL]    = "number", [K_TEXT] = "text",
    [K_CHOICE] = "one of", [K_LIST] = "list", [K_SOURCES] = "entries"
};

/* The default as text, in buf. */
static const char *spell_default(char *buf, size_t size, const ConfigRow *row)
{
    FILE *f = fmemopen(buf, size, "w");
    REQUIRE(f, "fmemopen");
    config_put_value(f, row, row->def);
    fclose(f);
    buf[size - 1] = 0;
    return !strcmp(buf, "\"\"") ? "-" : buf;
}

static void widen(int *width, const char *text)
{
    if (*width < (int)strlen(text)) *width = (int)strlen(text);
}

/* The help with the bounds of a number or the choices of a word, in buf. */
static const char *spell_help(char *buf, size_t size, const ConfigRow *row)
{
    const char *bounds = row->kind == K_INT && row->max < 1e15 ? "%s (%.0f to %.0f)" : "%s (%g to %g)";
    if (row->max > row->min) snprintf(buf, size, bounds, row->help, row->min, row->max);
    else if (*row->choices)  snprintf(buf, size, "%s (%s)", row->help, row->choices);
    else                     snprintf(buf, size, "%s", row->help);
    return buf;
}

static void help_rows(FILE *out, ConfigRows rows)
{
    char def[64];
    int keys = 0, defs = 0;
    for EACH_ROW(r, rows) widen(&keys, r->key), widen(&defs, spell_default(def, sizeof def, r));
    for EACH_ROW(r, rows) {
        char text[1024];
        int  indent = fprintf(out, "  %-*s  %-7s  %-*s  ", keys, r->key, kinds[r->kind], defs,
                              spell_default(def, sizeof def, r));
        str_print_wrapped(out, spell_help(text, sizeof text, r), indent, indent);
    }
}

static void help_section(FILE *out, const ConfigSection *s)
{
    ConfigRows rows = config_section_rows(s->name);
    bool entries = false;
    fprintf(out, "%s: %s\n", s->name, s->help);
    help_rows(out, rows);
    for EACH_ROW(r, rows) entries |= r->kind == K_SOURCES;
    if (entries) {
        fputs("  an entry is a path, or a mapping of\n", out);
        help_rows(out, config_source_rows());
    }
}

Status config_help(FILE *out, const char *section)
{
    int n;
    const ConfigSection *s = config_sections(&n);
    if (section && !config_has_section(section)) return config_unknown_section(section);
    for (int i = 0; i < n; i++) {
        if (section && strcmp(s[i].name, section)) continue;
        if (!section && i) putc('\n', out);
        help_section(out, &s[i]);
    }
    return OK;
}

static bool has_default(const ConfigRow *r, const void *value)
{
    char *text[2] = { NULL, NULL };
    size_t n;
    const void *from[2] = { value, r->def };
    for (int i = 0; i < 2; i++) {
        FILE *f = open_memstream(&text[i], &n);
        REQUIRE(f, "open_memstream");
        config_put_value(f, r, from[i]);
        fclose(f);
    }
    bool same = !strcmp(text[0], text[1]);
    free(text[0]), free(text[1]);
    return same;
}

/* A section that the planner has still to choose is one word. */
static bool dump_auto(FILE *out, const Config *cfg, const ConfigRow *r, const char **section)
{
    bool asked = false;
    if (!config_is_auto(cfg, r->section, &asked) || !asked) return false;
    if (strcmp(*section, r->section)) fprintf(out, "%s: auto\n", *section = r->section);
    return true;
}

static void dump(FILE *out, const Config *cfg, ConfigRows rows, bool all)
{
    const char *section = "";
    for EACH_ROW(r, rows) {
        const void *value = (const char *)cfg + r->offset;
        if (dump_auto(out, cfg, r, &section) || (!all && has_default(r, value))) continue;
        if (strcmp(section, r->section)) fprintf(out, "%s:\n", section = r->section);
        fprintf(out, "  %s: ", r->key);
        config_put_value(out, r, value);
        putc('\n', out);
    }
}

void config_dump(FILE *out, const Config *cfg)       { dump(out, cfg, config_rows(), true); }
void config_dump_short(FILE *out, const Config *cfg) { dump(out, cfg, config_rows(), false); }

void config_dump_section(FILE *out, const Config *cfg, const char *section)
{
    dump(out, cfg, config_section_rows(section), true);
}
