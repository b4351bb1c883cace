/* base/json.c -- see json.h. */
#include "base/json.h"

#include "base/folder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STRICT JSON_REJECT_DUPLICATES

/* The stream buffers: json_loadfd would make a system call for every byte. */
Status json_load(Json **out, const char *path)
{
    json_error_t e;
    size_t       len;
    int          fd;
    *out = NULL;
    TRY(file_open_regular(&fd, &len, path));
    FILE *f = fdopen(fd, "rb");
    if (!f) {
        close(fd);
        return fail(E_FIT, "%s: no memory to read it", path);
    }
    *out = json_loadf(f, STRICT, &e);
    fclose(f);
    return *out ? OK : fail(E_DATA, "%s: line %d: %s", path, e.line, e.text);
}

static Status parse(Json **out, const char *text, size_t len, const char *what, size_t flags)
{
    json_error_t e;
    *out = json_loadb(text, len, flags, &e);
    return *out ? OK : fail(E_DATA, "%s: line %d: %s", what, e.line, e.text);
}

Status json_parse(Json **out, const char *text, size_t len, const char *what)
{
    return parse(out, text, len, what, STRICT);
}

Status json_parse_data(Json **out, const char *text, size_t len, const char *what)
{
    return parse(out, text, len, what, STRICT | JSON_ALLOW_NUL);
}

bool json_has(const Json *o, const char *key)
{
    const Json *v = json_object_get(o, key);
    return v && !json_is_null(v);
}

Status json_int(const Json *o, const char *key, int64_t def, int64_t *out)
{
    const Json *v = json_object_get(o, key);
    *out = def;
    if (!v || json_is_null(v)) return OK;
    if (json_is_integer(v)) return *out = json_integer_value(v), OK;
    double d = json_number_value(v);
    if (json_is_real(v) && d == floor(d) && fabs(d) < 9e15) return *out = (int64_t)d, OK;
    return fail(E_DATA, "%s: a whole number is wanted", key);
}

Status json_num(const Json *o, const char *key, double def, double *out)
{
    const Json *v = json_object_get(o, key);
    *out = def;
    if (!v || json_is_null(v)) return OK;
    if (!json_is_number(v)) return fail(E_DATA, "%s: a number is wanted", key);
    return *out = json_number_value(v), OK;
}

Status json_flag(const Json *o, const char *key, bool def, bool *out)
{
    const Json *v = json_object_get(o, key);
    *out = def;
    if (!v || json_is_null(v)) return OK;
    if (!json_is_boolean(v)) return fail(E_DATA, "%s: true or false is wanted", key);
    return *out = json_is_true(v), OK;
}

Status json_str(const Json *o, const char *key, const char *def, const char **out)
{
    const Json *v = json_object_get(o, key);
    *out = def;
    if (!v || json_is_null(v)) return OK;
    if (!json_is_string(v)) return fail(E_DATA, "%s: a string is wanted", key);
    return *out = json_string_value(v), OK;
}
