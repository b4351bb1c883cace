/* jinja/unicode.c -- code points of UTF-8 texts: white space, letter case, classes. */
#include "jinja/jinja_private.h"

#include <string.h>
#include <utf8proc.h>

/* Texts are valid UTF-8: the JSON reader and jinja_open check it. */
size_t char_bytes(const char *s)
{
    unsigned char c = (unsigned char)*s;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

int32_t char_at(const char *s)
{
    size_t  n = char_bytes(s);
    int32_t c = n == 1 ? (unsigned char)*s : (unsigned char)*s & (0xff >> (n + 1));
    for (size_t i = 1; i < n; i++) c = c << 6 | ((unsigned char)s[i] & 0x3f);
    return c;
}

size_t chars_count(Value s)
{
    size_t n = 0;
    for (uint32_t i = 0; i < s.n; i++) n += ((unsigned char)s.s[i] & 0xc0) != 0x80;
    return n;
}

size_t chars_offset(Value s, size_t index)
{
    size_t at = 0;
    while (index-- && at < s.n) at += char_bytes(s.s + at);
    return at;
}

int char_put(char *out, int32_t c) { return (int)utf8proc_encode_char(c, (utf8proc_uint8_t *)out); }

bool char_is_space(int32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t space_after(const char *s, size_t n)
{
    size_t at = 0;
    while (at < n && char_is_space(char_at(s + at))) at += char_bytes(s + at);
    return at;
}

size_t space_before(const char *s, size_t n)
{
    size_t end = n;
    while (end) {
        size_t at = end - 1;
        while (at && ((unsigned char)s[at] & 0xc0) == 0x80) at--;
        if (!char_is_space(char_at(s + at))) break;
        end = at;
    }
    return n - end;
}

static bool is_cased(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

static bool is_letter(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

static bool is_printable(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    if (c == ' ') return true;
    return k != UTF8PROC_CATEGORY_CN && k < UTF8PROC_CATEGORY_ZS;
}

bool char_is(int32_t c, const char *what)
{
    utf8proc_category_t k = utf8proc_category(c);
    switch (*what) {
    case 'a':
        return is_letter(c);
    case 'd':
        return k == UTF8PROC_CATEGORY_ND;
    case 'n':
        return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
    case 'l':
        return k == UTF8PROC_CATEGORY_LL;
    case 'u':
        return k == UTF8PROC_CATEGORY_LU;
    case 'c':
        return is_cased(c);
    default:
        return is_printable(c);
    }
}

static int32_t change(int32_t c, LetterCase how, bool first)
{
    if (how == CASE_SWAP) how = utf8proc_category(c) == UTF8PROC_CATEGORY_LU ? CASE_LOWER : CASE_UPPER;
    if (how == CASE_TITLE || how == CASE_CAPITAL) return first ? utf8proc_totitle(c) : utf8proc_tolower(c);
    return how == CASE_LOWER ? utf8proc_tolower(c) : utf8proc_toupper(c);
}

/* One code point becomes one, except that the upper case of ß is SS. */
Status change_case(Jinja *j, Value *out, Value s, LetterCase how)
{
    char  *copy;
    size_t n     = 0;
    bool   first = true;
    TAKE(j, copy, 3 * (size_t)s.n + 1);
    for (uint32_t at = 0; at < s.n; at += (uint32_t)char_bytes(s.s + at)) {
        int32_t c = char_at(s.s + at), to = change(c, how, first);
        if (c == 0xdf && (how == CASE_UPPER || how == CASE_SWAP)) copy[n++] = 'S', to = 'S';
        n += (size_t)char_put(copy + n, to);
        first = how == CASE_TITLE ? !is_cased(c) : false;
    }
    return *out = str(copy, n), OK;
}
