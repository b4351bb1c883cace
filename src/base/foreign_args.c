/* base/foreign_args.c -- see foreign_args.h: YAML and JSON, and which reader a file goes to. */
#include "base/foreign_args.h"

#include "base/yaml.h"
#include <string.h>

ForeignArg *foreign_args_add(ForeignArgs *a, const char *key, size_t len, int line)
{
    ForeignArg *x = mem_pool_alloc(&a->keep, sizeof *x);
    while (len && *key == '-') key++, len--;
    char *name = mem_pool_copy(&a->keep, key, len);
    for (char *c = name; *c; c++)
        if (*c == '-') *c = '_';
    *x = (ForeignArg){ .key = name, .line = line };
    *(a->last ? &a->last->next : &a->first) = x;
    a->last = x;
    return x;
}

void foreign_args_value(ForeignArgs *a, const char *text, size_t len)
{
    ForeignArg *x = a->last;
    if (x->n == FOREIGN_MAX_VALUES) return;
    if (!x->value) x->value = mem_pool_alloc(&a->keep, FOREIGN_MAX_VALUES * sizeof *x->value);
    x->value[x->n++] = mem_pool_copy(&a->keep, text, len);
}

static void add_node(ForeignArgs *a, const YamlNode *n);

static void add_list(ForeignArgs *a, const YamlNode *n)
{
    foreign_args_add(a, n->key, strlen(n->key), n->line);
    for (const YamlNode *e = n->first; e; e = e->next)
        if (e->kind == Y_SCALAR) foreign_args_value(a, e->text, strlen(e->text));
    for (const YamlNode *e = n->first; e; e = e->next)
        if (e->kind == Y_MAP) add_node(a, e);
}

/* Sections are not of interest: the leaves say what is set. Variables for the process set nothing. */
static void add_node(ForeignArgs *a, const YamlNode *n)
{
    if (n->kind == Y_MAP) {
        bool process = n->key && !strcmp(n->key, "ENV_VARS");
        for (const YamlNode *e = n->first; e && !process; e = e->next) add_node(a, e);
    } else if (n->key && n->kind == Y_LIST) {
        add_list(a, n);
    } else if (n->key && !yaml_is_null(n)) {
        foreign_args_add(a, n->key, strlen(n->key), n->line);
        foreign_args_value(a, n->text, strlen(n->text));
    }
}

static Status read_yaml(ForeignArgs *a, const char *text, size_t len, const char *name)
{
    Yaml y;
    TRY(yaml_parse(&y, text, len, name));
    if (y.root) add_node(a, y.root);
    yaml_close(&y);
    return OK;
}

static bool ends_in(const char *name, const char *tail)
{
    size_t n = strlen(name), t = strlen(tail);
    return n >= t && !strcmp(name + n - t, tail);
}

/* A script has lines that begin with --, or assignments; YAML has a colon after its first word. */
static bool is_script(const char *name, const char *text)
{
    if (ends_in(name, ".yaml") || ends_in(name, ".yml") || ends_in(name, ".json")) return false;
    return ends_in(name, ".sh") || !strncmp(text, "#!", 2) || strstr(text, " --") || !strncmp(text, "--", 2);
}

static Status read_text(ForeignArgs *a, const char *text, size_t len, const char *name)
{
    if (ends_in(name, ".py"))
        return fail(E_CONFIG, "%s: Python is not read; give its arguments as YAML, or as --key value", name);
    if (memchr(text, 0, len)) return fail(E_CONFIG, "%s: not a text", name);
    TRY(is_script(name, text) ? foreign_shell_read(a, text, len) : read_yaml(a, text, len, name));
    return a->first ? OK : fail(E_CONFIG, "%s: no arguments in it", name);
}

Status foreign_args_parse(ForeignArgs *a, const char *text, size_t len, const char *name)
{
    *a = (ForeignArgs){ 0 };
    Status st = len > FOREIGN_MAX_BYTES ? fail(E_CONFIG, "%s: above 1 MiB, not a file of arguments", name)
                                        : read_text(a, text, len, name);
    if (st) foreign_args_close(a);
    return st;
}

void foreign_args_close(ForeignArgs *a)
{
    mem_pool_close(&a->keep);
    *a = (ForeignArgs){ 0 };
}
