/* data/parquet_value.c -- one value of a Parquet column as JSON, by the meaning that the schema gives it:
 * decimals and half floats are numbers, dates and times are texts as ISO 8601 writes them. Bytes that are no
 * text become data: URIs. */
#include "data/parquet.h"

#include "data/tokenizer_text.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DECIMAL_BYTES = 64, DECIMAL_DIGITS = 160, JULIAN_1970 = 2440588 };
#define DAY_SECONDS ((int64_t)86400)

static Status put(Text *out, const char *s) { return text_push(out, s, strlen(s)); }

Status parquet_text_json(const uint8_t *s, size_t n, Text *out)
{
    TRY(put(out, "\""));
    for (size_t i = 0, from = 0; i <= n; i++) {
        if (i < n && s[i] >= 32 && s[i] != '"' && s[i] != '\\') continue;
        TRY(text_push(out, (const char *)s + from, i - from));
        from = i + 1;
        if (i < n) TRY(text_printf(out, s[i] == '"' || s[i] == '\\' ? "\\%c" : "\\u%04x", s[i]));
    }
    return put(out, "\"");
}

Status parquet_bytes_json(const uint8_t *s, size_t n, Text *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char              quad[4];
    TRY(put(out, "\"data:;base64,"));
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v =
            (uint32_t)s[i] << 16 | (i + 1 < n ? (uint32_t)s[i + 1] << 8 : 0) | (i + 2 < n ? s[i + 2] : 0);
        for (int k = 0; k < 4; k++) quad[k] = digits[v >> (18 - 6 * k) & 63];
        if (i + 1 >= n) quad[2] = '=';
        if (i + 2 >= n) quad[3] = '=';
        TRY(text_push(out, quad, 4));
    }
    return put(out, "\"");
}

/* Bytes without an annotation are a text where they are UTF-8 without control characters. */
static bool is_text(const uint8_t *s, size_t n)
{
    int32_t code;
    for (size_t i = 0; i < n;) {
        int k = utf8_step((const char *)s + i, n - i, &code);
        if (k <= 0 || (code < 32 && code != '\n' && code != '\t' && code != '\r')) return false;
        i += (size_t)k;
    }
    return true;
}

static Status put_real(double v, Text *out)
{
    char text[40];
    if (!isfinite(v)) return put(out, "null");
    snprintf(text, sizeof text, "%.17g", v);
    TRY(put(out, text));
    return strpbrk(text, ".e") ? OK : put(out, ".0");
}

static Status put_whole(const ParquetNode *n, int64_t v, Text *out)
{
    if (n->type == PQ_INT32 && n->is_unsigned) return text_printf(out, "%lu", (unsigned long)(uint32_t)v);
    /* JSON's integers end at 2^63 here: larger ones are written as reals. */
    if (n->is_unsigned && v < 0) return put_real((double)(uint64_t)v, out);
    return text_printf(out, "%lld", (long long)v);
}

/* The digits of a magnitude, which becomes 0; the last digit is written before `end`. */
static char *write_digits(uint8_t *big_endian, size_t n, char *end)
{
    for (bool more = true; more;) {
        unsigned rest = 0;
        more          = false;
        for (size_t i = 0; i < n; i++) {
            unsigned v    = rest << 8 | big_endian[i];
            big_endian[i] = (uint8_t)(v / 10);
            rest          = v % 10, more = more || big_endian[i];
        }
        *--end = (char)('0' + rest);
    }
    return end;
}

/* The magnitude of a number of two's complement, highest byte first; true: it is negative. */
static bool magnitude(uint8_t *v, size_t n)
{
    if (!(v[0] & 128)) return false;
    unsigned carry = 1;
    for (size_t i = n; i--;) carry += (uint8_t)~v[i], v[i] = (uint8_t)carry, carry >>= 8;
    return true;
}

/* All digits of a decimal; a whole one that a JSON integer may not hold is written as a real. */
static Status put_decimal(const ParquetNode *n, const ParquetCell *c, Text *out)
{
    uint8_t bytes[DECIMAL_BYTES] = { 0 };
    char    digits[2 * DECIMAL_DIGITS + 1], *end = digits + 2 * DECIMAL_DIGITS, *at;
    bool    stored = n->type == PQ_BYTES || n->type == PQ_FIXED;
    size_t  len    = stored ? c->n : 8;
    if (!len || len > sizeof bytes) return fail(E_DATA, "Parquet: a decimal of %zu bytes is not read", len);
    for (size_t i = 0; i < len; i++)
        bytes[i] = stored ? c->v[i] : (uint8_t)((uint64_t)c->i >> (56 - 8 * i));
    bool negative = magnitude(bytes, len);
    *end          = 0;
    for (at = write_digits(bytes, len, end); end - at <= n->scale;) *--at = '0';
    TRY(put(out, negative ? "-" : ""));
    TRY(text_push(out, at, (size_t)(end - at - n->scale)));
    if (n->scale) return text_printf(out, ".%s", end - n->scale);
    return end - at > 18 ? put(out, ".0") : OK;
}

static Status put_half(const uint8_t *v, Text *out)
{
    int    bits = v[0] | v[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    if (exponent == 31) size = NAN; /* as infinities, null */
    return put_real(bits >> 15 ? -size : size, out);
}

static Status put_uuid(const uint8_t *v, Text *out)
{
    TRY(put(out, "\""));
    for (int i = 0; i < 16; i++)
        TRY(text_printf(out, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", v[i]));
    return put(out, "\"");
}

/* The day of the Gregorian calendar that is `days` after 1970-01-01. Years begin in March here, so that the
 * leap day is the last one; 719468 days are from 0000-03-01 to 1970-01-01. */
static Status put_day(int64_t days, Text *out)
{
    int64_t  z = days + 719468, era = (z >= 0 ? z : z - 146096) / 146097;
    unsigned of_era = (unsigned)(z - era * 146097);
    unsigned year   = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    unsigned of_year = of_era - (365 * year + year / 4 - year / 100), month = (5 * of_year + 2) / 153;
    unsigned day = of_year - (153 * month + 2) / 5 + 1;
    month        = month < 10 ? month + 3 : month - 9;
    return text_printf(out, "%04lld-%02u-%02u", (long long)year + era * 400 + (month <= 2), month, day);
}

static Status put_clock(int64_t seconds, int64_t fraction, int digits, Text *out)
{
    TRY(text_printf(out, "%02d:%02d:%02d", (int)(seconds / 3600), (int)(seconds / 60 % 60),
                    (int)(seconds % 60)));
    return fraction ? text_printf(out, ".%0*lld", digits, (long long)fraction) : OK;
}

/* v: units of 10^-digits seconds since the begin of 1970, or of the day. */
static Status put_time(const ParquetNode *n, int64_t v, Text *out)
{
    int64_t unit    = n->digits == 3 ? 1000 : n->digits == 6 ? 1000000 : 1000000000;
    int64_t seconds = v / unit - (v % unit < 0), fraction = v % unit + (v % unit < 0 ? unit : 0);
    int64_t days = seconds / DAY_SECONDS - (seconds % DAY_SECONDS < 0);
    TRY(put(out, "\""));
    if (n->meaning == PQ_TIMESTAMP) {
        TRY(put_day(days, out));
        TRY(put(out, "T"));
    }
    TRY(put_clock(seconds - days * DAY_SECONDS, fraction, n->digits, out));
    return put(out, n->meaning == PQ_TIMESTAMP && n->is_utc ? "+00:00\"" : "\"");
}

/* The older timestamps of Hive and Spark: nanoseconds of a day, and the day of the Julian calendar. */
static Status put_int96(const uint8_t *v, Text *out)
{
    int64_t  nanos;
    uint32_t day;
    memcpy(&nanos, v, 8), memcpy(&day, v + 8, 4);
    if (nanos < 0 || nanos >= DAY_SECONDS * 1000000000) return parquet_bytes_json(v, 12, out);
    TRY(put(out, "\""));
    TRY(put_day((int64_t)day - JULIAN_1970, out));
    TRY(put(out, "T"));
    TRY(put_clock(nanos / 1000000000, nanos % 1000000000, 9, out));
    return put(out, "\"");
}

static Status put_date(int64_t days, Text *out)
{
    TRY(put(out, "\""));
    TRY(put_day(days, out));
    return put(out, "\"");
}

static Status put_stored(const ParquetNode *n, const ParquetCell *c, Text *out)
{
    switch (n->type) {
    case PQ_BOOLEAN: return put(out, c->i ? "true" : "false");
    case PQ_INT32:
    case PQ_INT64:   return put_whole(n, c->i, out);
    case PQ_INT96:   return put_int96(c->v, out);
    case PQ_FLOAT:
    case PQ_DOUBLE:  return put_real(c->f, out);
    default:
        if (n->is_text || is_text(c->v, c->n)) return parquet_text_json(c->v, c->n, out);
        return parquet_bytes_json(c->v, c->n, out);
    }
}

Status parquet_value_json(const ParquetNode *n, const ParquetCell *c, Text *out)
{
    switch (n->meaning) {
    case PQ_DECIMAL:   return put_decimal(n, c, out);
    case PQ_DATE:      return put_date(c->i, out);
    case PQ_TIME:
    case PQ_TIMESTAMP: return put_time(n, c->i, out);
    case PQ_HALF:      return put_half(c->v, out);
    case PQ_UUID:      return put_uuid(c->v, out);
    default:           return put_stored(n, c, out);
    }
}
