/* base/yaml.c -- libyaml's events into a tree of YamlNode; what the tree promises is in yaml.h.
 *
 * Limits are enforced while reading, before libyaml itself gets deep or large. An anchor is known only once
 * its node is complete, so an alias inside its own anchor finds nothing and cycles cannot arise. */
#include "base/yaml.h"

#include "base/folder.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

typedef struct Anchor { const char *name; const YamlNode *node; } Anchor;

typedef struct Reader {
    yaml_parser_t parser;
    Yaml         *y;
    const char   *name;                       /* of the file, for errors; NULL: none */
    const char   *text;
    size_t        len;
    Anchor        anchor[YAML_MAX_ANCHORS];
    int           anchors;
} Reader;

MUST __attribute__((format(printf, 3, 4)))
static Status refuse(const Reader *r, size_t line, const char *fmt, ...)
{
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return r->name ? fail(E_CONFIG, "%s:%zu: %s", r->name, line + 1, what) : fail(E_CONFIG, "%s", what);
}

/* Whether a line, counted from 0, is indented with a tab: libyaml's own message for that does not help. */
static bool tab_indents(const Reader *r, size_t line)
{
    const char *s = r->text, *end = r->text + r->len;
    while (line && s < end) line -= *s++ == '\n';
    while (s < end && *s == ' ') s++;
    return s < end && *s == '\t';
}

static Status syntax_error(const Reader *r)
{
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_READER_ERROR)
        return refuse(r, p->mark.line, "%s at byte %zu: UTF-8 text is wanted", p->problem, p->problem_offset);
    if (p->error == YAML_SCANNER_ERROR && tab_indents(r, p->problem_mark.line))
        return refuse(r, p->problem_mark.line, "a tab cannot indent in YAML: use spaces");
    return refuse(r, p->problem_mark.line, "%s%s%s", p->problem ? p->problem : "not YAML",
                  p->context ? " " : "", p->context ? p->context : "");
}

static Status next_event(Reader *r, yaml_event_t *e)
{
    return yaml_parser_parse(&r->parser, e) ? OK : syntax_error(r);
}

static Status read_node(Reader *r, yaml_event_t *e, int depth, YamlNode **out);

static Status note_anchor(Reader *r, const char *name, const YamlNode *n)
{
    if (!name) return OK;
    if (r->anchors == YAML_MAX_ANCHORS)
        return refuse(r, (size_t)n->line - 1, "more than %d anchors", YAML_MAX_ANCHORS);
    r->anchor[r->anchors++] = (Anchor){ name, n };
    return OK;
}

static Status read_alias(Reader *r, const yaml_event_t *e, int depth, YamlNode *n)
{
    const char *name = (const char *)e->data.alias.anchor;
    size_t line = e->start_mark.line;
    int i = r->anchors;
    while (i > 0 && strcmp(r->anchor[i - 1].name, name)) i--;      /* the latest of that name */
    if (!i) return refuse(r, line, "alias *%.80s: no anchor of that name is complete before it", name);
    *n = *r->anchor[i - 1].node;
    n->line = (int)line + 1;
    n->next = NULL;
    n->key  = NULL;
    if (depth + n->height > YAML_MAX_DEPTH)
        return refuse(r, line, "nested deeper than %d levels", YAML_MAX_DEPTH);
    return OK;
}

static Status read_scalar(Reader *r, const yaml_event_t *e, YamlNode *n)
{
    const char *text = (const char *)e->data.scalar.value;
    size_t len = e->data.scalar.length;
    if (len > YAML_MAX_TEXT)
        return refuse(r, e->start_mark.line, "a text of more than %d KiB", YAML_MAX_TEXT >> 10);
    if (memchr(text, 0, len)) return refuse(r, e->start_mark.line, "a text with a NUL byte in it");
    n->text  = mem_pool_copy(&r->y->keep, text, len);
    n->plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    return OK;
}

static Status add_entry(Reader *r, YamlNode *n, YamlNode **last, YamlNode *entry)
{
    *(*last ? &(*last)->next : &n->first) = entry;
    *last = entry;
    n->entries++;
    n->nodes += entry->nodes;
    if (n->height < entry->height + 1) n->height = entry->height + 1;
    if (n->nodes > YAML_MAX_NODES)
        return refuse(r, (size_t)entry->line - 1, "more than %d values (counting what aliases stand for)",
                      YAML_MAX_NODES);
    return OK;
}

static Status read_list(Reader *r, int depth, YamlNode *n)
{
    for (YamlNode *last = NULL, *entry;;) {
        yaml_event_t e;
        TRY(next_event(r, &e));
        if (e.type == YAML_SEQUENCE_END_EVENT) return yaml_event_delete(&e), OK;
        TRY(read_node(r, &e, depth, &entry));
        TRY(add_entry(r, n, &last, entry));
    }
}

static Status check_key(const Reader *r, const YamlNode *map, const YamlNode *key)
{
    size_t line = (size_t)key->line - 1;
    if (key->kind != Y_SCALAR) return refuse(r, line, "a key must be a word, not a list or mapping");
    if (map->entries == YAML_MAX_KEYS)
        return refuse(r, line, "more than %d keys in one mapping", YAML_MAX_KEYS);
    for (const YamlNode *e = map->first; e; e = e->next)
        if (!strcmp(e->key, key->text))
            return refuse(r, line, "%.80s: given twice, first on line %d", key->text, e->line);
    return OK;
}

static Status read_map(Reader *r, int depth, YamlNode *n)
{
    for (YamlNode *last = NULL, *key, *entry;;) {
        yaml_event_t e;
        TRY(next_event(r, &e));
        if (e.type == YAML_MAPPING_END_EVENT) return yaml_event_delete(&e), OK;
        TRY(read_node(r, &e, depth, &key));
        TRY(check_key(r, n, key));
        TRY(next_event(r, &e));
        TRY(read_node(r, &e, depth, &entry));
        entry->key  = key->text;
        entry->line = key->line;            /* errors point at the key, wherever its value begins */
        TRY(add_entry(r, n, &last, entry));
    }
}

/* A copy: the event is freed before its node is complete. */
static const char *keep_anchor(Reader *r, const yaml_event_t *e)
{
    const yaml_char_t *a = e->type == YAML_SCALAR_EVENT         ? e->data.scalar.anchor
                         : e->type == YAML_SEQUENCE_START_EVENT ? e->data.sequence_start.anchor
                         : e->type == YAML_MAPPING_START_EVENT  ? e->data.mapping_start.anchor : NULL;
    return a ? mem_pool_copy(&r->y->keep, (const char *)a, strlen((const char *)a)) : NULL;
}

/* The node that event e begins, in *out. Takes e over, whatever happens. */
static Status read_node(Reader *r, yaml_event_t *e, int depth, YamlNode **out)
{
    Status st = OK;
    size_t line = e->start_mark.line;
    yaml_event_type_t type = e->type;
    const char *anchor = keep_anchor(r, e);
    YamlNode *n = *out = mem_pool_alloc(&r->y->keep, sizeof *n);
    *n = (YamlNode){ .line = (int)line + 1, .nodes = 1 };
    if (depth >= YAML_MAX_DEPTH)        st = refuse(r, line, "nested deeper than %d levels", YAML_MAX_DEPTH);
    else if (type == YAML_ALIAS_EVENT)  st = read_alias(r, e, depth, n);
    else if (type == YAML_SCALAR_EVENT) st = read_scalar(r, e, n);
    yaml_event_delete(e);
    if (st) return st;
    if (type == YAML_SEQUENCE_START_EVENT) n->kind = Y_LIST, st = read_list(r, depth + 1, n);
    if (type == YAML_MAPPING_START_EVENT)  n->kind = Y_MAP,  st = read_map(r, depth + 1, n);
    return st ? st : note_anchor(r, anchor, n);
}

/* Stream and document marks around the one root. */
static Status read_stream(Reader *r)
{
    for (;;) {
        yaml_event_t e;
        TRY(next_event(r, &e));
        switch (e.type) {
        case YAML_STREAM_START_EVENT:
        case YAML_DOCUMENT_END_EVENT:
            yaml_event_delete(&e);
            break;
        case YAML_DOCUMENT_START_EVENT: {
            size_t line = e.start_mark.line;
            yaml_event_delete(&e);
            if (r->y->root) return refuse(r, line, "a second document begins here: one is wanted");
            break;
        }
        case YAML_STREAM_END_EVENT:
            return yaml_event_delete(&e), OK;
        default:
            TRY(read_node(r, &e, 0, &r->y->root));
        }
    }
}

Status yaml_parse(Yaml *y, const char *text, size_t len, const char *name)
{
    Reader r = { .y = y, .name = name, .text = text, .len = len };
    *y = (Yaml){ 0 };
    if (len > YAML_MAX_BYTES)
        return fail(E_CONFIG, "%s: larger than %d MiB", name ? name : "value", YAML_MAX_BYTES >> 20);
    REQUIRE(yaml_parser_initialize(&r.parser), "out of host memory");
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, len);
    Status st = read_stream(&r);
    yaml_parser_delete(&r.parser);
    if (st) yaml_close(y);
    return st;
}

Status yaml_load(Yaml *y, const char *path)
{
    char  *text;
    size_t len;
    *y = (Yaml){ 0 };
    TRY(file_read(path, YAML_MAX_BYTES, &text, &len));
    Status st = yaml_parse(y, text, len, path);
    free(text);
    return st;
}

void yaml_close(Yaml *y)
{
    mem_pool_close(&y->keep);
    *y = (Yaml){ 0 };
}
