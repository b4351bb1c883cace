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

static bool in_ranges(int32_t c, const int32_t range[][2], size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (c >= range[i][0] && c <= range[i][1]) return true;
    return false;
}

/* With characters that are of no category with case: Other_Lowercase and Other_Uppercase of Unicode. */
static bool is_lower(int32_t c)
{
    static const int32_t other[][2] = {
        { 0xaa, 0xaa },     { 0xba, 0xba },     { 0x2b0, 0x2b8 },   { 0x2c0, 0x2c1 },   { 0x2e0, 0x2e4 },
        { 0x345, 0x345 },   { 0x37a, 0x37a },   { 0x1d2c, 0x1d6a }, { 0x1d78, 0x1d78 }, { 0x1d9b, 0x1dbf },
        { 0x2071, 0x2071 }, { 0x207f, 0x207f }, { 0x2090, 0x209c }, { 0x2170, 0x217f }, { 0x24d0, 0x24e9 },
        { 0x2c7c, 0x2c7d }, { 0xa69c, 0xa69d }, { 0xa770, 0xa770 }, { 0xa7f8, 0xa7f9 }, { 0xab5c, 0xab5f }
    };
    return utf8proc_category(c) == UTF8PROC_CATEGORY_LL || in_ranges(c, other, sizeof other / sizeof *other);
}

static bool is_upper(int32_t c)
{
    static const int32_t other[][2] = { { 0x2160, 0x216f },
                                        { 0x24b6, 0x24cf },
                                        { 0x1f130, 0x1f149 },
                                        { 0x1f150, 0x1f169 },
                                        { 0x1f170, 0x1f189 } };
    return utf8proc_category(c) == UTF8PROC_CATEGORY_LU || in_ranges(c, other, sizeof other / sizeof *other);
}

static bool is_cased(int32_t c)
{
    return is_lower(c) || is_upper(c) || utf8proc_category(c) == UTF8PROC_CATEGORY_LT;
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
        return is_lower(c);
    case 'u':
        return is_upper(c);
    case 'c':
        return is_cased(c);
    case 'w':
        return is_letter(c) || k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL ||
               k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_PC;
    default:
        return is_printable(c);
    }
}

/* Letters whose case folding has several code points, such as ß: their upper case is that of the folded ones.
 * The title case of Greek letters with iota subscript keeps the iota below. */
static int upper_all(int32_t c, bool title, int32_t out[4])
{
    int                 bound, n = (int)utf8proc_decompose_char(c, out, 4, UTF8PROC_CASEFOLD, &bound);
    utf8proc_category_t k   = utf8proc_category(c);
    bool                one = title && (k == UTF8PROC_CATEGORY_LT || (utf8proc_totitle(c) != c && c != 0xdf));
    if (n < 2 || n > 3 || k == UTF8PROC_CATEGORY_LU || one)
        return out[0] = title ? utf8proc_totitle(c) : utf8proc_toupper(c), 1;
    for (int i = 0; i < n; i++) {
        if (!title || !i || c == 0x149) out[i] = utf8proc_toupper(out[i]);
        else if (c >= 0x1f80 && out[i] == 0x3b9) out[i] = 0x345;
    }
    return n;
}

/* Signs inside of words, by which a capital sigma is not the last letter. */
static bool is_ignored(int32_t c)
{
    static const int32_t signs[] = { 0x27,   0x2e,   0x3a,   0xb7,   0x387,  0x55f,  0x5f4,  0x2018, 0x2019,
                                     0x2024, 0x2027, 0xfe13, 0xfe52, 0xfe55, 0xff07, 0xff0e, 0xff1a };
    utf8proc_category_t  k       = utf8proc_category(c);
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (signs[i] == c) return true;
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK;
}

/* Whether the sigma at `at` ends a word: letters stand before it and none after. */
static bool ends_word(Value s, uint32_t at)
{
    bool     before = false;
    uint32_t k      = at;
    while (k && !before) {
        for (k--; k && ((unsigned char)s.s[k] & 0xc0) == 0x80; k--) {}
        if (is_ignored(char_at(s.s + k))) continue;
        before = is_cased(char_at(s.s + k));
        break;
    }
    for (k = at + 2; before && k < s.n; k += (uint32_t)char_bytes(s.s + k)) {
        if (is_ignored(char_at(s.s + k))) continue;
        return !is_cased(char_at(s.s + k));
    }
    return before;
}

static int lower_all(Value s, uint32_t at, int32_t out[4])
{
    int32_t c = char_at(s.s + at);
    if (c == 0x130) return out[0] = 'i', out[1] = 0x307, 2;
    if (c == 0x3a3 && ends_word(s, at)) return out[0] = 0x3c2, 1;
    return out[0] = utf8proc_tolower(c), 1;
}

static int change(Value s, uint32_t at, LetterCase how, bool first, int32_t out[4])
{
    int32_t c = char_at(s.s + at);
    int     bound;
    if (how == CASE_FOLD) return (int)utf8proc_decompose_char(c, out, 4, UTF8PROC_CASEFOLD, &bound);
    if (how == CASE_SWAP) how = char_is(c, "upper") ? CASE_LOWER : char_is(c, "lower") ? CASE_UPPER : how;
    if (how == CASE_SWAP) return out[0] = c, 1;
    bool title = how == CASE_TITLE || how == CASE_CAPITAL;
    if (how == CASE_LOWER || (title && !first)) return lower_all(s, at, out);
    return upper_all(c, title, out);
}

/* A code point becomes up to three, which take up to three times its bytes. */
Status change_case(Jinja *j, Value *out, Value s, LetterCase how)
{
    char  *copy;
    size_t n     = 0;
    bool   first = true;
    TAKE(j, copy, 3 * (size_t)s.n + 1);
    for (uint32_t at = 0; at < s.n; at += (uint32_t)char_bytes(s.s + at)) {
        int32_t to[4];
        int     k = change(s, at, how, first, to);
        for (int i = 0; i < k; i++) n += (size_t)char_put(copy + n, to[i]);
        first = how == CASE_TITLE ? !is_cased(char_at(s.s + at)) : false;
    }
    return *out = str(copy, n), OK;
}
