/* data/media_ref.c -- see media_ref.h. Opens no file and no connection. */
#include "data/media_ref.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

int64_t base64_decode(void *out, const char *text, size_t len)
{
    uint8_t *o = out;
    uint32_t bits = 0;
    int64_t  n = 0;
    size_t   digits = 0, padding = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\n' || text[i] == '\r' || text[i] == ' ') continue;      /* line breaks are allowed */
        int d = base64_digit(text[i]);
        if (text[i] == '=') padding++;
        else if (d < 0 || padding) return -1;
        else {
            bits = bits << 6 | (uint32_t)d;
            if (digits++ % 4) o[n++] = (uint8_t)(bits >> (6 - 2 * ((digits - 1) % 4)));
        }
    }
    if (digits % 4 == 1 || (padding && (padding > 2 || (digits + padding) % 4))) return -1;
    return n;
}

static Status data_uri_read(Frame *f, MemPool *keep, const char *uri, size_t len, const char *where)
{
    const char *comma = memchr(uri, ',', len);
    if (!comma || comma - uri < 7 || strncasecmp(comma - 7, ";base64", 7))
        return fail(E_DATA, "%s: a data: URI must say base64 (data:image/png;base64,...)", where);
    size_t  text = len - (size_t)(comma + 1 - uri);
    void   *bytes = mem_pool_alloc(keep, text / 4 * 3 + 3);
    int64_t n = base64_decode(bytes, comma + 1, text);
    if (n < 0) return fail(E_DATA, "%s: the data: URI is not valid base64", where);
    if (n == 0) return fail(E_DATA, "%s: the data: URI is empty", where);
    *f = (Frame){ .bytes = bytes, .len = (size_t)n };
    return OK;
}

/* The length of a scheme such as "https" before "://"; 0 where there is none. */
static size_t scheme_length(const char *s)
{
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || (n && strchr("+-.", s[n]) && s[n])) n++;
    return strncmp(s + n, "://", 3) ? 0 : n;
}

Status media_ref_read(Frame *f, MemPool *keep, const Json *v, const char *where)
{
    *f = (Frame){ 0 };
    if (json_is_object(v)) v = json_has(v, "path") ? json_object_get(v, "path") : json_object_get(v, "url");
    if (!json_is_string(v) || !json_string_length(v))
        return fail(E_DATA, "%s: a picture is named by a path or a data: URI", where);
    const char *s = json_string_value(v);
    size_t      len = json_string_length(v), scheme = scheme_length(s);
    if (strlen(s) != len) return fail(E_DATA, "%s: a path must not contain NUL", where);
    if (!strncasecmp(s, "data:", 5)) return data_uri_read(f, keep, s, len, where);
    if (scheme == 4 && !strncasecmp(s, "file", 4)) s += 7, scheme = 0;
    if (scheme)
        return fail(E_DATA, "%s: a %.*s address; treb downloads nothing: download it first and give its "
                            "path", where, scheme > 16 ? 16 : (int)scheme, s);
    if (!*s) return fail(E_DATA, "%s: the path is empty", where);
    f->path = s;
    return OK;
}
