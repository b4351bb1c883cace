/* base/config_value.c -- one value of a recipe: from a YAML node into its place, and back out as YAML.
 *
 * The row decides the type; YAML's own ideas about types are not asked, so 1e-5 is a number and a path
 * called 123 is a text. `null` gives the default back, nothing at all after the colon is refused: it is more
 * often an unset variable than a wish. */
#include "base/config_table.h"

#include "base/str.h"
#include <inttypes.h>
#include <string.h>

static const size_t sizes[] = {
    [K_FLAG]    = sizeof(bool),         [K_INT]    = sizeof(int64_t),      [K_REAL] = sizeof(double),
    [K_TEXT]    = sizeof(const char *), [K_CHOICE] = sizeof(const char *), [K_LIST] = sizeof(WordList),
    [K_SOURCES] = sizeof(SourceList)
};

static Status read_flag(bool *out, const char *name, const char *text)
{
    *out = !strcasecmp(text, "true");
    if (*out || !strcasecmp(text, "false")) return OK;
    return fail(E_CONFIG, "%s = %.80s: must be true or false", name, text);
}

static Status check_bounds(const ConfigRow *row, const char *name, const char *text, double x)
{
    if (x >= row->min && x <= row->max) return OK;
    return fail(E_CONFIG, "%s = %.80s: must be between %.15g and %.15g", name, text, row->min, row->max);
}

static Status not_a_number(const ConfigRow *row, const char *name, const char *text)
{
    const char *kind = row->kind == K_INT ? "whole number" : "number";
    size_t digits = strspn(text, "0123456789.");
    bool suffix = digits && text[digits] && strchr("kKmMgGtTbB_,", text[digits]);
    return fail(E_CONFIG, "%s = %.80s: must be a %s%s", name, text, kind,
                suffix ? ", written out: suffixes and separators are not read" : "");
}

static Status read_int(const ConfigRow *row, int64_t *out, const char *name, const char *text)
{
    double x;
    if (!str_number(text, &x)) return not_a_number(row, name, text);
    TRY(check_bounds(row, name, text, x));
    return str_whole(text, out) ? OK : not_a_number(row, name, text);
}

static Status read_real(const ConfigRow *row, double *out, const char *name, const char *text)
{
    double x;
    if (!str_number(text, &x)) return not_a_number(row, name, text);
    TRY(check_bounds(row, name, text, x));
    *out = x;
    return OK;
}

/* "a|b|c" as "a, b, c" */
static void spell_choices(char *buf, size_t size, const char *choices)
{
    size_t len, used = 0;
    buf[0] = 0;
    for (const char *item; (item = str_item(&choices, '|', &len)) && used < size;)
        used += (size_t)snprintf(buf + used, size - used, "%s%.*s", used ? ", " : "", (int)len, item);
}

static Status check_choice(const ConfigRow *row, const char *name, const char *text)
{
    char choices[512];
    if (!*row->choices || str_lists(row->choices, '|', text)) return OK;
    spell_choices(choices, sizeof choices, row->choices);
    return fail(E_CONFIG, "%s = %.80s: must be one of %s", name, text, choices);
}

static Status read_text(const ConfigRow *row, const char **out, MemPool *keep, const char *name,
                        const char *text)
{
    TRY(check_choice(row, name, text));
    *out = mem_pool_copy(keep, text, strlen(text));
    return OK;
}

static const struct { const char *key, *values, *ours; } aliases[] = {
#define ALIAS(key, values, ours) { key, values, ours },
#include "base/config_aliases.def"
#undef ALIAS
};

/* Ours for another trainer's value of the key, or the text itself. */
static const char *find_alias(const char *name, const YamlNode *n)
{
    const char *text = n->text;
    for (size_t i = 0; n->plain && i < sizeof aliases / sizeof *aliases; i++)
        if (!strcmp(aliases[i].key, name) && str_lists_like(aliases[i].values, ',', text))
            return aliases[i].ours;
    return text;
}

/* A list of words; one bare word is a list of one. */
static Status read_list(const ConfigRow *row, WordList *out, MemPool *keep, const char *name,
                        const YamlNode *n)
{
    bool        many = n->kind == Y_LIST;
    const char *bare = many ? NULL : find_alias(name, n);
    int         count = many ? n->entries : *bare || !*n->text, i = 0;
    if (count > CONFIG_MAX_WORDS) return fail(E_CONFIG, "%s: more than %d words", name, CONFIG_MAX_WORDS);
    const char **item = mem_pool_alloc(keep, (size_t)count * sizeof *item);
    for (const YamlNode *e = many ? n->first : n; i < count; e = e->next, i++) {
        if (e->kind != Y_SCALAR || yaml_is_null(e))
            return fail(E_CONFIG, "%s: must be a list of words", name);
        TRY(read_text(row, &item[i], keep, name, many ? e->text : bare));
    }
    *out = (WordList){ item, count };
    return OK;
}

Status config_read_value(const ConfigRow *row, void *base, MemPool *keep, const char *name, const YamlNode *n)
{
    void *value = (char *)base + row->offset;
    if (yaml_is_null(n)) {
        if (!*n->text) return fail(E_CONFIG, "%s: no value given (null asks for the default)", name);
        memcpy(value, row->def, sizes[row->kind]);
        return OK;
    }
    if (row->kind == K_LIST && n->kind != Y_MAP) return read_list(row, value, keep, name, n);
    if (n->kind != Y_SCALAR)
        return fail(E_CONFIG, "%s: must be a single value, not a %s", name,
                    n->kind == Y_MAP ? "mapping" : "list");
    const char *text = find_alias(name, n);
    switch (row->kind) {
    case K_FLAG: return read_flag(value, name, text);
    case K_INT:  return read_int(row, value, name, text);
    case K_REAL: return read_real(row, value, name, text);
    default:     return read_text(row, value, keep, name, text);
    }
}

static void put_list(FILE *out, const WordList *list)
{
    putc('[', out);
    for (int i = 0; i < list->n; i++) {
        if (i) fputs(", ", out);
        yaml_put_text(out, list->item[i]);
    }
    putc(']', out);
}

static void put_sources(FILE *out, const SourceList *list)
{
    putc('[', out);
    for (int i = 0; i < list->n; i++) {
        const char *comma = "";
        fputs(i ? ",\n    {" : "\n    {", out);
        for EACH_ROW(r, config_source_rows()) {
            fprintf(out, "%s%s: ", comma, r->key);
            config_put_value(out, r, (const char *)&list->item[i] + r->offset);
            comma = ", ";
        }
        putc('}', out);
    }
    fputs(list->n ? "\n  ]" : "]", out);
}

void config_put_value(FILE *out, const ConfigRow *row, const void *value)
{
    switch (row->kind) {
    case K_FLAG:    fputs(*(const bool *)value ? "true" : "false", out);        break;
    case K_INT:     fprintf(out, "%" PRId64, *(const int64_t *)value);          break;
    case K_REAL:    yaml_put_number(out, *(const double *)value);               break;
    case K_TEXT:
    case K_CHOICE:  yaml_put_text(out, *(const char *const *)value);            break;
    case K_LIST:    put_list(out, value);                                       break;
    case K_SOURCES: put_sources(out, value);                                    break;
    }
}
