/* base/config.c -- a recipe into a Config: sections, keys, entries of data.train, and overrides on top.
 *
 * This file finds the row a name belongs to; config_value.c reads the value, config_unknown.c explains a
 * name that belongs to no row. Errors from a file get their "file:line: " here. */
#include "base/config_table.h"

#include "base/str.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* The errors in the keys of a recipe, collected so that one message names all of them. */
typedef struct Problems {
    Status st;                       /* of the first */
    int    n, shown;
    size_t used;
    char   text[3072];               /* "\n  file:line: ..." of each that has room */
} Problems;

typedef struct Reader {
    Config     *cfg;
    const char *file;                /* NULL: an override, which names itself */
    Problems   *problems;            /* NULL: the first problem ends the reading */
} Reader;

/* Keeps a failure for later and goes on; without a list of problems it is returned at once. */
static Status collect(const Reader *r, Status st)
{
    Problems *p = r->problems;
    if (!st || !p) return st;
    size_t len = strlen(status_text());
    if (!p->n++) p->st = st;
    if (p->used + len + 4 > sizeof p->text) return OK;
    p->used += (size_t)snprintf(p->text + p->used, sizeof p->text - p->used, "\n  %s", status_text());
    p->shown++;
    return OK;
}

static Status report_problems(const Problems *p)
{
    char more[64] = "";
    if (!p->n) return OK;
    if (p->n == 1) return fail(p->st, "%s", p->text + strlen("\n  "));
    if (p->shown < p->n) snprintf(more, sizeof more, "\n  and %d more", p->n - p->shown);
    return fail(E_CONFIG, "%d keys of the recipe are wrong:%s%s", p->n, p->text, more);
}

static Status located(const Reader *r, const YamlNode *n, Status st)
{
    return st && r->file ? wrap(st, "%s:%d", r->file, n->line) : st;
}

/* One field of an entry, "data.train[1]" "weight". */
static Status read_field(const Reader *r, Source *s, const char *entry, const char *key, const YamlNode *n)
{
    char name[ROW_NAME];
    const ConfigRow *row = config_row(config_source_rows(), key);
    if (!row) return located(r, n, config_unknown_field(entry, key));
    snprintf(name, sizeof name, "%s.%s", entry, row->key);
    return located(r, n, config_read_value(row, s, &r->cfg->keep, name, n));
}

/* A mapping of fields, or the bare path. Fields that are not named keep what *s holds. */
static Status read_entry(const Reader *r, Source *s, const char *entry, const YamlNode *n)
{
    if (n->kind == Y_LIST)
        return located(r, n, fail(E_CONFIG, "%s: must be a path or {path: ..., weight: ...}", entry));
    if (n->kind == Y_SCALAR) TRY(read_field(r, s, entry, "path", n));
    for (const YamlNode *e = n->first; e; e = e->next) TRY(read_field(r, s, entry, e->key, e));
    return *s->path ? OK : located(r, n, fail(E_CONFIG, "%s.path: missing", entry));
}

static Status read_sources(const Reader *r, const ConfigRow *row, const YamlNode *n)
{
    bool many = n->kind == Y_LIST;
    int count = many ? n->entries : !yaml_is_null(n), i = 0;       /* one entry needs no list around it */
    if (count > CONFIG_MAX_SOURCES)
        return located(r, n, fail(E_CONFIG, "%s.%s: more than %d entries; globs and tar shards hold more",
                                  row->section, row->key, CONFIG_MAX_SOURCES));
    Source *item = mem_pool_alloc(&r->cfg->keep, (size_t)count * sizeof *item);
    for (const YamlNode *e = many ? n->first : n; i < count; e = e->next, i++) {
        char entry[ROW_NAME];
        snprintf(entry, sizeof entry, "%s.%s[%d]", row->section, row->key, i);
        item[i] = config_source_defaults;
        TRY(read_entry(r, &item[i], entry, e));
    }
    *(SourceList *)((char *)r->cfg + row->offset) = (SourceList){ item, count };
    return OK;
}

static bool is_set(const Config *cfg, const ConfigRow *row)
{
    ptrdiff_t i = row - config_rows().row;
    return cfg->set_bits[i / 64] >> i % 64 & 1;
}

static void mark_set(Config *cfg, const ConfigRow *row, bool set)
{
    ptrdiff_t i = row - config_rows().row;
    uint64_t  bit = 1ull << i % 64;
    REQUIRE((size_t)i < 8 * sizeof cfg->set_bits, "row %d of %d", (int)i, config_rows().n);
    cfg->set_bits[i / 64] = set ? cfg->set_bits[i / 64] | bit : cfg->set_bits[i / 64] & ~bit;
}

const char *config_is_set(const Config *cfg, const char *section, const char *key)
{
    for EACH_ROW(row, config_section_rows(section))
        if (is_set(cfg, row) && (!key || !strcmp(key, row->key))) return row->key;
    return NULL;
}

static bool *auto_flag(Config *cfg, const char *section)
{
    if (!strcmp(section, "parallel")) return &cfg->auto_parallel;
    return !strcmp(section, "memory") ? &cfg->auto_memory : NULL;
}

bool config_is_auto(const Config *cfg, const char *section, bool *asked)
{
    bool free = true, *flag = auto_flag((Config *)cfg, section);
    for EACH_ROW(row, config_section_rows(section))
        free = free && (!is_set(cfg, row) || row->offset == offsetof(Config, parallel.ranks));
    *asked = flag && *flag;
    return flag && free;
}

static Status read_key(const Reader *r, const ConfigRow *row, const YamlNode *n)
{
    char name[ROW_NAME];
    bool *flag = auto_flag(r->cfg, row->section);
    mark_set(r->cfg, row, !yaml_is_null(n));
    if (flag) *flag = false;
    if (row->kind == K_SOURCES) return read_sources(r, row, n);
    snprintf(name, sizeof name, "%s.%s", row->section, row->key);
    return located(r, n, config_read_value(row, r->cfg, &r->cfg->keep, name, n));
}

/* `parallel: auto` takes back what the section has set so far. */
static void set_auto(Config *cfg, ConfigRows rows, bool *flag)
{
    for EACH_ROW(row, rows) {
        ptrdiff_t i = row - config_rows().row;
        cfg->set_bits[i / 64] &= ~(1ull << i % 64);
    }
    if (flag == &cfg->auto_parallel) cfg->parallel = config_defaults.parallel;
    else                             cfg->memory = config_defaults.memory;
    *flag = true;
}

/* A section as one word. */
static Status read_word(const Reader *r, ConfigRows rows, const YamlNode *n)
{
    const char *section = rows.row->section;
    bool *flag = auto_flag(r->cfg, section), is_auto = n->kind == Y_SCALAR && !strcmp(n->text, "auto");
    if (is_auto && flag) return set_auto(r->cfg, rows, flag), OK;
    if (is_auto) return config_unknown_key(section, "auto");
    return fail(E_CONFIG, "%s: must be a mapping of keys, such as {%s: ...}", section, rows.row->key);
}

static Status read_section(const Reader *r, const char *section, const YamlNode *n)
{
    ConfigRows rows = config_section_rows(section);
    if (!rows.n) return located(r, n, config_unknown_section(section));
    if (yaml_is_null(n)) return OK;                             /* a heading with nothing under it */
    if (n->kind != Y_MAP) return located(r, n, read_word(r, rows, n));
    for (const YamlNode *e = n->first; e; e = e->next) {
        const ConfigRow *row = config_row(rows, e->key);
        TRY(collect(r, row ? read_key(r, row, e) : located(r, e, config_unknown_key(section, e->key))));
    }
    return OK;
}

static Status read_recipe(Config *cfg, const char *file, const YamlNode *root)
{
    Problems problems = { 0 };
    Reader   r = { cfg, file, &problems };
    if (!root || yaml_is_null(root)) return OK;
    if (root->kind != Y_MAP)
        return located(&r, root,
                       fail(E_CONFIG, "a recipe is a mapping of sections: model, data, train, ..."));
    for (const YamlNode *e = root->first; e; e = e->next) TRY(collect(&r, read_section(&r, e->key, e)));
    return report_problems(&problems);
}

/* The parts of an override's key, such as "data.train[0].path"; NULL and -1 stand for parts that it lacks. */
typedef struct Target {
    char  name[160];                 /* whole; the pieces point into `cut` */
    char  cut[160];
    char *section, *key, *field;
    int   index;
    const char *value;               /* the text after '=' */
} Target;

static Status parse_index(Target *t, char *bracket)
{
    char *end;
    *bracket++ = 0;
    long i = isdigit((unsigned char)*bracket) ? strtol(bracket, &end, 10) : -1;
    if (i < 0 || i >= CONFIG_MAX_SOURCES || *end != ']' || (end[1] && end[1] != '.'))
        return fail(E_CONFIG, "%s: an entry is written data.train[0], a field data.train[0].path", t->name);
    t->index = (int)i;
    t->field = end[1] ? end + 2 : NULL;
    return OK;
}

static Status parse_target(Target *t, const char *override)
{
    const char *equals = strchr(override, '=');
    size_t len = equals ? (size_t)(equals - override) : 0;
    *t = (Target){ .index = -1 };
    if (!equals || !len || len >= sizeof t->name)
        return fail(E_CONFIG, "%.100s: an override is written section.key=value", override);
    memcpy(t->name, override, len);
    memcpy(t->cut, override, len);
    t->value = equals + 1;
    t->section = t->cut;
    t->key = strchr(t->cut, '.');
    if (!t->key) return OK;
    *t->key++ = 0;
    char *bracket = strchr(t->key, '[');
    return bracket ? parse_index(t, bracket) : OK;
}

/* Texts are taken from the command line as they are, so that globs need no YAML quotes inside the shell's. */
static Status parse_value(Yaml *y, const Target *t, const ConfigRow *row)
{
    const char *text = t->value;
    const ConfigRow *last = t->field ? config_row(config_source_rows(), t->field) : row;
    bool is_text = last && (last->kind == K_TEXT || last->kind == K_CHOICE);
    bool is_path = last && last->kind == K_SOURCES && *text != '[' && *text != '{';
    *y = (Yaml){ 0 };
    if (strlen(text) > YAML_MAX_TEXT)
        return fail(E_CONFIG, "%s: a text of more than %d KiB", t->name, YAML_MAX_TEXT >> 10);
    if (!str_is_utf8(text)) return fail(E_CONFIG, "%s: the value is not UTF-8 text", t->name);
    if ((!is_text && !is_path) || *text == '"' || *text == '\'')
        TRY_CTX(yaml_parse(y, text, strlen(text), NULL), "%s = %.80s", t->name, text);
    if (y->root) return OK;
    y->root  = mem_pool_alloc(&y->keep, sizeof *y->root);
    *y->root = (YamlNode){ .text = is_text || is_path ? text : "", .plain = true, .nodes = 1 };
    return OK;
}

/* Changes entry t->index, or appends it when it is the next one. */
static Status set_entry(const Reader *r, const ConfigRow *row, const Target *t, const YamlNode *n)
{
    SourceList *list = (SourceList *)((char *)r->cfg + row->offset);
    if (t->index > list->n)
        return fail(E_CONFIG, "%s: %s.%s has %d entries; the next is [%d]", t->name, row->section, row->key,
                    list->n, list->n);
    int count = list->n + (t->index == list->n);
    char entry[ROW_NAME];
    snprintf(entry, sizeof entry, "%s.%s[%d]", row->section, row->key, t->index);
    Source *item = mem_pool_alloc(&r->cfg->keep, (size_t)count * sizeof *item);
    if (list->n) memcpy(item, list->item, (size_t)list->n * sizeof *item);
    if (t->index == list->n || !t->field) item[t->index] = config_source_defaults;
    if (t->field) TRY(read_field(r, &item[t->index], entry, t->field, n));
    else          TRY(read_entry(r, &item[t->index], entry, n));
    if (!*item[t->index].path) return fail(E_CONFIG, "%s.path: missing; it comes before other fields", entry);
    *list = (SourceList){ item, count };
    return OK;
}

static Status set_target(const Reader *r, const Target *t)
{
    Yaml y;
    if (!config_has_section(t->section)) return config_unknown_section(t->section);
    const ConfigRow *row = t->key ? config_row(config_section_rows(t->section), t->key) : NULL;
    if (t->key && !row) return config_unknown_key(t->section, t->key);
    if (t->index >= 0 && row->kind != K_SOURCES)
        return fail(E_CONFIG, "%s: %s.%s has no entries to number", t->name, t->section, t->key);
    TRY(parse_value(&y, t, row));
    Status st = !row          ? read_section(r, t->section, y.root)
              : t->index >= 0 ? set_entry(r, row, t, y.root)
                              : read_key(r, row, y.root);
    yaml_close(&y);
    return st;
}

void config_default(Config *cfg) { *cfg = config_defaults; }

Status config_parse(Config *cfg, const char *text, size_t len, const char *name)
{
    Yaml y;
    TRY(yaml_parse(&y, text, len, name));
    Status st = read_recipe(cfg, name, y.root);
    yaml_close(&y);
    return st;
}

Status config_set(Config *cfg, const char *override)
{
    Target t;
    Reader r = { .cfg = cfg };
    TRY(parse_target(&t, override));
    return set_target(&r, &t);
}

Status config_set_all(Config *cfg, const char *set)
{
    for (const char *at = set + strspn(set, " "); *at; at += strspn(at, " ")) {
        char   one[512];
        size_t n = 0, depth = 0;
        for (; at[n] && (depth || at[n] != ' '); n++) depth += at[n] == '[', depth -= at[n] == ']';
        snprintf(one, sizeof one, "%.*s", (int)n, at);
        TRY(config_set(cfg, one));
        at += n;
    }
    return OK;
}

void config_settle(Config *cfg)
{
    bool adapters = cfg->lora.rank > 0 || *cfg->lora.path;
    if (config_is_set(cfg, "optim", "learning_rate")) return;
    cfg->optim.learning_rate = adapters ? CONFIG_LORA_LR : CONFIG_LR;
}

Status config_open(Config *cfg, const char *path, int n, char *const *overrides)
{
    Yaml y = { 0 };
    config_default(cfg);
    Status st = path ? yaml_load(&y, path) : OK;
    if (!st) st = read_recipe(cfg, path, y.root);
    yaml_close(&y);
    for (int i = 0; !st && i < n; i++) st = config_set(cfg, overrides[i]);
    config_settle(cfg);
    if (st) config_close(cfg);
    return st;
}

void config_close(Config *cfg)
{
    mem_pool_close(&cfg->keep);
    *cfg = (Config){ 0 };
}
