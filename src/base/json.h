/* base/json.h -- a thin layer over jansson: files in, values out, errors that name the file and the key.
 *
 * Json is jansson's json_t; read it with jansson's own calls where no helper fits. Parsing refuses
 * duplicate keys and nesting deeper than the library's limit: these files come from outside. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "base/status.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef json_t Json;

MUST Status json_load(Json **out, const char *path);                               /* caller: json_decref */
MUST Status json_parse(Json **out, const char *text, size_t len, const char *what);
/* As json_parse, of text that people wrote: strings may hold NUL, so each is read with its length. */
MUST Status json_parse_data(Json **out, const char *text, size_t len, const char *what);

/* Typed reads with a default for an absent or null key. A value of the wrong type is an error naming it. */
MUST Status json_int(const Json *o, const char *key, int64_t def, int64_t *out);
MUST Status json_num(const Json *o, const char *key, double def, double *out);
MUST Status json_flag(const Json *o, const char *key, bool def, bool *out);
MUST Status json_str(const Json *o, const char *key, const char *def, const char **out);
bool        json_has(const Json *o, const char *key);                               /* present and not null */

#endif
