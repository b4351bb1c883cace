/* base/yaml_put.c -- scalars as YAML text that any YAML reader takes for what it is. */
#include "base/yaml.h"

#include "base/str.h"
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const words[] = {      /* plain, these are not texts (the list is YAML 1.1's) */
    "", "~", "null", "true", "false", "yes", "no", "on", "off", "y", "n", ".inf", "-.inf", "+.inf", ".nan"
};

bool yaml_is_null(const YamlNode *n)
{
    return n->kind == Y_SCALAR && n->plain &&
           (!*n->text || !strcmp(n->text, "~") || !strcasecmp(n->text, "null"));
}

/* Letters, digits and a few marks that mean nothing to YAML; anything beyond is quoted, needed or not. */
static bool plain_enough(const char *text)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcasecmp(text, words[i])) return false;
    if (!isalpha((unsigned char)*text) && *text != '/' && *text != '_') return false;
    for (const char *c = text; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("/_.-+", *c)) return false;
    return true;
}

static bool printable(uint32_t c)
{
    if (c < 0x20 || (c >= 0x7f && c < 0xa0)) return false;
    if (c == 0x2028 || c == 0x2029 || c == 0xfeff) return false;        /* line ends, byte order mark */
    return c != 0xfffe && c != 0xffff;
}

void yaml_put_text(FILE *out, const char *text)
{
    if (plain_enough(text)) {
        fputs(text, out);
        return;
    }
    putc('"', out);
    while (*text) {
        uint32_t c;
        int n = str_utf8(text, &c);
        bool raw = n && printable(c);
        if (!n) n = 1, c = (unsigned char)*text;          /* not UTF-8: as the code point of that value */
        if (c == '"' || c == '\\') fprintf(out, "\\%c", (int)c);
        else if (raw)              fwrite(text, 1, (size_t)n, out);
        else if (c == '\n')        fputs("\\n", out);
        else if (c == '\t')        fputs("\\t", out);
        else if (c < 0x100)        fprintf(out, "\\x%02" PRIx32, c);
        else                       fprintf(out, "\\u%04" PRIx32, c);
        text += n;
    }
    putc('"', out);
}

void yaml_put_number(FILE *out, double x)
{
    char digits[40];
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, x);
        if (strtod(digits, NULL) == x) break;
    }
    char *e = strchr(digits, 'e');
    size_t mantissa = e ? (size_t)(e - digits) : strlen(digits);
    bool dot = memchr(digits, '.', mantissa);               /* without one, others take 1e-05 for a word */
    fprintf(out, "%.*s%s%s", (int)mantissa, digits, dot ? "" : ".0", e ? e : "");
}
