/* jinja/format.c -- "%s" % x, the filter format, and str.format(). */
#include "jinja/jinja_private.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* [[fill]align][sign][0][width][,][.precision][kind] */
typedef struct Spec {
    char fill[5], align, sign, kind;
    bool zero, comma, alternate;
    int  width, precision;
} Spec;

enum { WIDTH_MAX = 10000, MANUAL = -2 }; /* MANUAL: fields of a format are numbered */

static Status read_width(const char **p, const char *end, int *out)
{
    for (*out = 0; *p < end && isdigit((unsigned char)**p); ++*p) {
        *out = *out * 10 + **p - '0';
        if (*out > WIDTH_MAX) return fail(E_DATA, "Too many decimal digits in format string");
    }
    return OK;
}

static void insert_commas(char *text)
{
    size_t digits = strspn(text + (*text == '-'), "0123456789"), from = *text == '-';
    for (size_t at = from + digits; at > from + 3; at -= 3)
        memmove(text + at - 2, text + at - 3, strlen(text + at - 3) + 1), text[at - 3] = ',';
}

/* The digits of a number by its kind, without padding. */
static Status number_text(const Spec *s, Value v, char out[512])
{
    char kind      = s->kind ? s->kind : v.kind == V_FLOAT ? 'g' : 'd';
    int  precision = s->precision < 0 ? 6 : s->precision > 60 ? 60 : s->precision;
    char sign[2]   = { s->sign == '+' || s->sign == ' ' ? s->sign : 0, 0 };
    if (!is_number(v))
        return fail(E_DATA, "%%%c format: a real number is required, not %s", kind, type_name(v));
    if (number(v) < 0) sign[0] = 0;
    if (strchr("di", kind) || (strchr("xXo", kind) && v.kind != V_FLOAT)) {
        char    fmt[8] = { '%', 'l', 'l', kind == 'i' ? 'd' : kind, 0 };
        int64_t i      = v.kind == V_FLOAT ? (int64_t)v.f : whole(v);
        char    digits[64];
        snprintf(digits, sizeof digits, fmt, (long long)(kind == 'd' || kind == 'i' ? i : i < 0 ? -i : i));
        snprintf(out, 512, "%s%s%s", sign, i < 0 && kind != 'd' && kind != 'i' ? "-" : "", digits);
    } else if (strchr("feEgGF%", kind)) {
        char   fmt[8] = { '%', '.', '*', kind == '%' ? 'f' : kind, 0 };
        double f      = kind == '%' ? 100 * number(v) : number(v);
        snprintf(out, 512, "%s", sign);
        snprintf(out + strlen(out), 500, fmt, precision, f);
        if (kind == '%') strcat(out, "%");
    } else return fail(E_DATA, "Unknown format code '%c' for object of type '%s'", kind, type_name(v));
    if (s->comma) insert_commas(out);
    return OK;
}

static Status pad(Jinja *j, Buffer *b, const Spec *s, Value text, bool numeric)
{
    int64_t n = (int64_t)chars_count(text), room = s->width > n ? s->width - n : 0;
    char    align = s->align ? s->align : numeric ? '>' : '<';
    int64_t left  = align == '>' || align == '=' ? room : align == '^' ? room / 2 : 0;
    size_t  sign  = (s->zero || align == '=') && text.n && strchr("+-", text.s[0]) ? 1 : 0;
    TRY(buffer_put(j, b, text.s, sign));
    for (int64_t i = 0; i < left; i++) TRY(buffer_puts(j, b, s->fill[0] ? s->fill : " "));
    TRY(buffer_put(j, b, text.s + sign, text.n - sign));
    for (int64_t i = left; i < room; i++) TRY(buffer_puts(j, b, s->fill[0] ? s->fill : " "));
    return OK;
}

/* %c: a code point by its number, or a text of one. */
static Status put_char(Jinja *j, Buffer *b, const Spec *s, Value v)
{
    char  text[8];
    Value copy;
    if (v.kind == V_STR && chars_count(v) == 1) return pad(j, b, s, v, false);
    if (v.kind != V_INT && v.kind != V_BOOL) return fail(E_DATA, "%%c requires int or char");
    int64_t c = whole(v);
    if (c < 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return fail(E_DATA, "%%c arg not in range(0x110000)");
    TRY(copy_str(j, &copy, text, (size_t)char_put(text, (int32_t)c)));
    return pad(j, b, s, copy, false);
}

static Status put_text(Jinja *j, Buffer *b, const Spec *s, Value v)
{
    Value text;
    TRY(to_str(j, &text, v));
    if (s->precision >= 0) text.n = (uint32_t)chars_offset(text, (size_t)s->precision);
    return pad(j, b, s, text, false);
}

static Status put_number(Jinja *j, Buffer *b, Spec *s, Value v)
{
    char  text[512];
    Value copy;
    TRY(number_text(s, v, text));
    if (s->zero && !s->align) strcpy(s->fill, "0"), s->align = '=';
    TRY(copy_str(j, &copy, text, strlen(text)));
    return pad(j, b, s, copy, true);
}

/* The value of a %-conversion: by name in a mapping, or the next argument. */
static Status percent_value(const Args *a, int *used, const char **p, const char *end, Value *out)
{
    if (**p != '(') {
        if (*used >= a->n) return fail(E_DATA, "not enough arguments for format string");
        return *out = a->v[(*used)++], OK;
    }
    const char *close = memchr(*p, ')', (size_t)(end - *p));
    if (!close) return fail(E_DATA, "incomplete format key");
    Value        key = str(*p + 1, (size_t)(close - *p) - 1);
    const Value *v   = a->n == 1 && a->v[0].kind == V_DICT ? dict_find(a->v[0].dict, key) : NULL;
    for (int i = 0; i < a->names && !v; i++)
        if (same(a->name[i], key)) v = &a->named[i];
    if (!v) return fail(E_DATA, "format requires a mapping with the key '%.*s'", (int)key.n, key.s);
    *p = close + 1, *used = a->n;
    return *out = *v, OK;
}

static Status percent_one(Jinja *j, Buffer *b, const Args *a, int *used, const char **p, const char *end)
{
    Spec  s = { .precision = -1 };
    Value v = none(), repr;
    if (*p < end && **p == '%') return ++*p, buffer_puts(j, b, "%");
    if (*p < end && **p == '(') TRY(percent_value(a, used, p, end, &v));
    else v.kind = V_ABSENT;
    for (; *p < end && strchr("-+ #0", **p); ++*p) {
        if (**p == '-') s.align = '<';
        else if (**p == '0') s.zero = true;
        else if (**p == '#') s.alternate = true;
        else s.sign = **p;
    }
    TRY(read_width(p, end, &s.width));
    if (!s.align) s.align = s.zero ? 0 : '>';
    if (*p < end && **p == '.') {
        ++*p;
        TRY(read_width(p, end, &s.precision));
    }
    if (*p >= end) return fail(E_DATA, "incomplete format");
    if (v.kind == V_ABSENT) TRY(percent_value(a, used, &(const char *){ "" }, end, &v));
    s.kind = *(*p)++;
    if (s.kind == 's') return put_text(j, b, &s, v);
    if (strchr("dixXofFeEgG", s.kind)) return put_number(j, b, &s, v);
    if (s.kind == 'c') return put_char(j, b, &s, v);
    if (s.kind != 'r') return fail(E_DATA, "unsupported format character '%c'", s.kind);
    Buffer text = { 0 };
    TRY(buffer_repr(j, &text, v));
    return repr = buffer_str(&text), put_text(j, b, &s, repr);
}

Status format_percent(Jinja *j, Value format, const Args *a, Value *out)
{
    Buffer      b    = { 0 };
    int         used = 0;
    const char *p = format.s, *end = p + format.n;
    while (p < end) {
        const char *next = memchr(p, '%', (size_t)(end - p));
        TRY(buffer_put(j, &b, p, (size_t)((next ? next : end) - p)));
        if (!next) break;
        p = next + 1;
        TRY(percent_one(j, &b, a, &used, &p, end));
    }
    /* Python takes one argument with items for a mapping, of which nothing need be used. */
    if (used < a->n &&
        !(a->n == 1 && (a->v[0].kind == V_DICT || a->v[0].kind == V_LIST || a->v[0].kind == V_UNDEFINED)))
        return fail(E_DATA, "not all arguments converted during string formatting");
    return *out = buffer_str(&b), OK;
}

/* The number that n characters spell; -1 where they are not digits. */
static int digits_value(const char *p, size_t n)
{
    int v = 0;
    for (size_t i = 0; i < n && n < 9; i++) {
        if (!isdigit((unsigned char)p[i])) return -1;
        v = v * 10 + p[i] - '0';
    }
    return n && n < 9 ? v : -1;
}

/* name.attr[key] of a replacement field. */
static Status field_value(Jinja *j, const Args *a, int *next, const char *p, const char *end, Value *out)
{
    size_t n = 0;
    Value  v = { .kind = V_ABSENT };
    while (p + n < end && p[n] != '.' && p[n] != '[') n++;
    int  i     = n == 0 ? *next : digits_value(p, n);
    bool mixed = n == 0 ? i == MANUAL : i >= 0 && *next > 0;
    if (mixed)
        return fail(E_DATA, "cannot switch from manual field specification to automatic field numbering");
    if (i >= 0) *next = n ? MANUAL : *next + 1;
    if (i >= 0 && i < a->n) v = a->v[i];
    for (int k = 0; i < 0 && k < a->names; k++)
        if (a->name[k].n == n && !memcmp(a->name[k].s, p, n)) v = a->named[k];
    if (v.kind == V_ABSENT && i >= 0)
        return fail(E_DATA, "Replacement index %d out of range for positional args tuple", i);
    if (v.kind == V_ABSENT) return fail(E_DATA, "'%.*s'", (int)n, p);
    for (p += n; p < end;) {
        bool item = *p++ == '[';
        for (n = 0; p + n < end && (item ? p[n] != ']' : p[n] != '.' && p[n] != '['); n++) {}
        Value key   = str(p, n);
        int   index = item ? digits_value(p, n) : -1;
        TRY(item ? get_item(j, v, index >= 0 ? integer(index) : key, &v) : get_attr(j, v, key, &v));
        p += n + item;
    }
    return *out = v, OK;
}

static bool is_align(char c) { return c && strchr("<>^=", c); }

static Status read_spec(Spec *s, const char *p, const char *end)
{
    *s          = (Spec){ .precision = -1 };
    size_t fill = p < end ? char_bytes(p) : 0;
    if (p + fill < end && is_align(p[fill])) memcpy(s->fill, p, fill), s->align = p[fill], p += fill + 1;
    else if (p < end && is_align(*p)) s->align = *p++;
    if (p < end && strchr("+- ", *p)) s->sign = *p++;
    if (p < end && *p == '#') s->alternate = true, p++;
    if (p < end && *p == '0') s->zero = true, p++;
    TRY(read_width(&p, end, &s->width));
    if (p < end && *p == ',') s->comma = true, p++;
    if (p < end && *p == '.') {
        p++;
        TRY(read_width(&p, end, &s->precision));
    }
    if (p < end) s->kind = *p++;
    return p == end ? OK : fail(E_DATA, "Invalid format specifier");
}

/* Texts have alignment, width and precision; other values no format at all. */
static Status check_spec(const Spec *s, Value v, bool given)
{
    if (v.kind != V_STR && given)
        return fail(E_DATA, "unsupported format string passed to %s.__format__", type_name(v));
    if (s->kind && s->kind != 's')
        return fail(E_DATA, "Unknown format code '%c' for object of type 'str'", s->kind);
    if (s->sign) return fail(E_DATA, "Sign not allowed in string format specifier");
    if (s->alternate) return fail(E_DATA, "Alternate form (#) not allowed in string format specifier");
    if (s->align == '=') return fail(E_DATA, "'=' alignment not allowed in string format specifier");
    return s->comma ? fail(E_DATA, "Cannot specify ',' with 's'.") : OK;
}

static Status put_field(Jinja *j, Buffer *b, const Args *a, int *next, const char *p, const char *end)
{
    const char *colon = memchr(p, ':', (size_t)(end - p)), *name = colon ? colon : end;
    const char *bang = memchr(p, '!', (size_t)(name - p));
    Spec        s;
    Value       v;
    TRY(field_value(j, a, next, p, bang ? bang : name, &v));
    TRY(read_spec(&s, colon ? colon + 1 : end, end));
    if (bang && bang + 1 < name && bang[1] == 'r') {
        Buffer text = { 0 };
        TRY(buffer_repr(j, &text, v));
        v = buffer_str(&text);
    } else if (bang) TRY(to_str(j, &v, v));
    bool plain = v.kind == V_FLOAT && !s.kind && s.precision < 0 && !s.comma && !s.sign && !s.zero;
    bool given = colon && colon + 1 < end;
    if (v.kind == V_BOOL && given) v = integer(v.b);
    if (!is_number(v)) {
        TRY(check_spec(&s, v, given));
        if (s.zero && !s.align) strcpy(s.fill, "0");
    }
    if (!is_number(v) || v.kind == V_BOOL || plain) {
        if (plain && !s.align) s.align = '>';
        return put_text(j, b, &s, v);
    }
    return put_number(j, b, &s, v);
}

static Status str_format(Jinja *j, Value self, const Args *a, Value *out)
{
    Buffer      b    = { 0 };
    int         next = 0;
    const char *p = self.s, *end = p + self.n;
    while (p < end) {
        size_t n = 0;
        while (p + n < end && p[n] != '{' && p[n] != '}') n++;
        TRY(buffer_put(j, &b, p, n));
        p += n;
        if (p == end) break;
        if (p + 1 < end && p[1] == *p) {
            TRY(buffer_put(j, &b, p, 1));
            p += 2;
            continue;
        }
        const char *close = *p == '{' ? memchr(p, '}', (size_t)(end - p)) : NULL;
        if (!close) return fail(E_DATA, "Single '%c' encountered in format string", *p);
        TRY(put_field(j, &b, a, &next, p + 1, close));
        p = close + 1;
    }
    return *out = buffer_str(&b), OK;
}

const Builtin method_format = { .name = "format", .raw = str_format };
