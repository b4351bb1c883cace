/* base/yaml.h -- a thin layer over libyaml: a file becomes a small tree, a text becomes a scalar.
 *
 * The tree holds one document of scalars, lists and mappings, with the line each came from. It is checked
 * before it is returned: keys are texts and occur once, aliases are resolved, texts hold no NUL bytes, and
 * depth and size are capped after expansion of aliases, so that a walk may recurse and always ends. Tags are
 * ignored: the reader of a value decides its type. */
#ifndef BASE_YAML_H
#define BASE_YAML_H

#include "base/mem_pool.h"
#include "base/status.h"
#include <stdbool.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    YAML_MAX_BYTES   = 4 << 20,     /* of a file */
    YAML_MAX_TEXT    = 64 << 10,    /* bytes of one scalar */
    YAML_MAX_DEPTH   = 32,
    YAML_MAX_NODES   = 100000,      /* counting an alias as all it stands for */
    YAML_MAX_KEYS    = 512,         /* of one mapping */
    YAML_MAX_ANCHORS = 256
};

typedef enum { Y_SCALAR, Y_LIST, Y_MAP } YamlKind;

typedef struct YamlNode {
    YamlKind         kind;
    int              line;          /* from 1 */
    const char      *key;           /* of an entry of a mapping, else NULL */
    const char      *text;          /* of a scalar */
    bool             plain;         /* a scalar without quotes: null, ~ and nothing at all mean "not given" */
    struct YamlNode *first, *next;  /* entries of a list or mapping, in order */
    int              entries;       /* how many */
    int              nodes, height; /* with all below, aliases expanded */
} YamlNode;

typedef struct Yaml {
    YamlNode *root;                 /* NULL: an empty file */
    MemPool      keep;
} Yaml;

/* Errors are E_CONFIG, or E_IO when the file cannot be read, and read "name:line: what"; with name NULL
 * (text that came from no file) just "what". On failure *y is closed. */
MUST Status yaml_load(Yaml *y, const char *path);
MUST Status yaml_parse(Yaml *y, const char *text, size_t len, const char *name);
void        yaml_close(Yaml *y);                                /* twice is fine */

bool yaml_is_null(const YamlNode *n);                           /* null, ~ or nothing, unquoted */
void yaml_put_text(FILE *out, const char *text);                /* quoted where YAML would misread it */
void yaml_put_number(FILE *out, double x);                      /* shortest that reads back the same */

#ifdef __cplusplus
}
#endif
#endif
