/* base/str.c -- see str.h. */
#include "base/str.h"

#include "base/num.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORD = 63 };

static int fold(char c) { return c == '-' ? '_' : tolower((unsigned char)c); }

int str_distance(const char *a, const char *b)
{
    int row[3][MAX_WORD + 1];               /* the current row of the edit table and the two before it */
    int n = (int)strnlen(a, MAX_WORD), m = (int)strnlen(b, MAX_WORD);
    for (int j = 0; j <= m; j++) row[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *now = row[i % 3], *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            bool same = fold(a[i - 1]) == fold(b[j - 1]);
            now[j] = min_int(last[j - 1] + !same, 1 + min_int(last[j], now[j - 1]));
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) && fold(a[i - 2]) == fold(b[j - 1]))
                now[j] = min_int(now[j], before[j - 2] + 1);
        }
    }
    return row[n % 3][m];
}

int str_unlike(const char *word, const char *candidate)
{
    int len = (int)strnlen(word, MAX_WORD), limit = 1 + len / 4, d = str_distance(word, candidate);
    if (d <= limit) return d;
    bool part = (len >= 4 && strstr(candidate, word)) ||
                (strlen(candidate) >= 4 && strstr(word, candidate));
    return part ? limit : INT_MAX;
}

const char *str_item(const char **rest, char separator, size_t *len)
{
    const char *item = *rest;
    if (!item || !*item) return NULL;
    const char *end = strchr(item, separator);
    *len  = end ? (size_t)(end - item) : strlen(item);
    *rest = end ? end + 1 : NULL;
    return item;
}

bool str_lists(const char *list, char separator, const char *word)
{
    size_t len;
    for (const char *item; (item = str_item(&list, separator, &len));)
        if (strlen(word) == len && !memcmp(item, word, len)) return true;
    return false;
}

static bool like(const char *item, size_t len, const char *word)
{
    for (size_t i = 0; i < len; i++)
        if (fold(item[i]) != fold(word[i])) return false;      /* also where word ends early */
    return !word[len];
}

bool str_lists_like(const char *list, char separator, const char *word)
{
    size_t len;
    for (const char *item; (item = str_item(&list, separator, &len));)
        if (like(item, len, word)) return true;
    return false;
}

int str_utf8(const char *s, uint32_t *code)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };     /* shorter forms exist below these */
    unsigned char c = (unsigned char)s[0];
    int n = c < 0x80 ? 1 : c >> 5 == 6 ? 2 : c >> 4 == 14 ? 3 : c >> 3 == 30 ? 4 : 0;
    if (!c || !n) return 0;
    *code = n == 1 ? c : c & (0x7fu >> n);
    for (int i = 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xc0) != 0x80) return 0;
        *code = *code << 6 | ((unsigned char)s[i] & 0x3f);
    }
    bool surrogate = *code >= 0xd800 && *code < 0xe000;
    return *code < least[n] || *code > 0x10ffff || surrogate ? 0 : n;
}

bool str_is_utf8(const char *s)
{
    uint32_t code;
    for (int n; (n = str_utf8(s, &code));) s += n;
    return !*s;
}

static const char *digits(const char *s, int *count)
{
    for (; isdigit((unsigned char)*s); s++) ++*count;
    return s;
}

bool str_number(const char *text, double *out)
{
    int mantissa = 0, exponent = 0;
    const char *s = text + (*text == '+' || *text == '-');
    s = digits(s, &mantissa);
    if (*s == '.') s = digits(s + 1, &mantissa);
    if (!mantissa) return false;
    if (*s == 'e' || *s == 'E') {
        s++;
        s = digits(s + (*s == '+' || *s == '-'), &exponent);
        if (!exponent) return false;
    }
    if (*s) return false;
    *out = strtod(text, NULL);
    return true;
}

bool str_whole(const char *text, int64_t *out)
{
    double d;
    if (!str_number(text, &d) || d != floor(d) || fabs(d) > 9007199254740992.0) return false;
    *out = (int64_t)d;
    return true;
}

const char *str_bytes(char out[STR_BYTES], double bytes)
{
    static const char *const unit[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
    int                      i      = 0;
    for (; bytes >= 1024 && i < 4; i++) bytes /= 1024;
    snprintf(out, STR_BYTES, i ? "%.1f %s" : "%.0f %s", bytes, unit[i]);
    return out;
}

void str_print_wrapped(FILE *out, const char *text, int column, int indent)
{
    size_t len;
    bool   starts = true;
    for (const char *word; (word = str_item(&text, ' ', &len)); starts = false) {
        bool full = !starts && column + 1 + (int)len > TEXT_WIDTH;
        if (full) fprintf(out, "\n%*s", indent, ""), column = indent;
        column += fprintf(out, "%s%.*s", starts || full ? "" : " ", (int)len, word);
    }
    putc('\n', out);
}
