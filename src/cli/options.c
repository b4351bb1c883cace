/* cli/options.c -- see options.h. */
#include "cli/options.h"

#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const Option *find(const Option *o, const char *arg, size_t len)
{
    for (; o->name; o++)
        if (strlen(o->name) == len && !strncmp(o->name, arg, len)) return o;
    return NULL;
}

static Status unknown(const char *verb, const Option *o, const char *arg)
{
    char known[512] = "";
    for (; o->name; o++) {
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, " %s", o->name);
    }
    return fail(E_CONFIG, "%s: %s is not an option; there are%s", verb, arg, *known ? known : " none");
}

static Status take(char **argv, int argc, int *i, const Option *options)
{
    const char *arg = argv[*i], *eq = strchr(arg, '=');
    const Option *o = find(options, arg, eq ? (size_t)(eq - arg) : strlen(arg));
    if (!o) return unknown(argv[0], options, arg);
    if (o->flag) {
        if (eq) return fail(E_CONFIG, "%s: takes no value", o->name);
        return *o->flag = true, OK;
    }
    if (!eq && *i + 1 >= argc) return fail(E_CONFIG, "%s: a value must follow", o->name);
    *o->value = eq ? eq + 1 : argv[++*i];
    return OK;
}

static Status collect(int argc, char **argv, const Option *options, const char **plain, int most, int *got)
{
    *got = 0;
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1]) TRY(take(argv, argc, &i, options));
        else if (*got < most) plain[(*got)++] = argv[i];
        else
            return fail(E_CONFIG, "%s: %s is one argument too many; see treb help %s", argv[0], argv[i],
                        argv[0]);
    }
    return OK;
}

Status options_parse_any(int argc, char **argv, const Option *options, const char **plain, int *n)
{
    return collect(argc, argv, options, plain, argc, n);
}

Status options_parse_many(int argc, char **argv, const Option *options, const char **plain, int *n)
{
    TRY(collect(argc, argv, options, plain, argc, n));
    return *n ? OK : fail(E_CONFIG, "%s: one argument or more is wanted; see treb help %s", argv[0], argv[0]);
}

Status options_parse(int argc, char **argv, const Option *options, const char **plain, int n)
{
    int got;
    TRY(collect(argc, argv, options, plain, n, &got));
    return got == n ? OK : fail(E_CONFIG, "%s: %d argument%s wanted, %d given; see treb help %s", argv[0], n,
                                n == 1 ? "" : "s", got, argv[0]);
}

Status option_int(const char *name, const char *text, int64_t lo, int64_t hi, int64_t *out)
{
    char *end;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || v < lo || v > hi)
        return fail(E_CONFIG, "%s = %s: a whole number between %lld and %lld is wanted", name, text,
                    (long long)lo, (long long)hi);
    return *out = v, OK;
}

Status option_folder(const char *name, const char *text)
{
    return !text || *text ? OK : fail(E_CONFIG, "%s: no folder is named; name one, or drop it", name);
}

Status option_real(const char *name, const char *text, double lo, double hi, double *out)
{
    double v;
    if (!str_number(text, &v) || !(v >= lo && v <= hi))
        return fail(E_CONFIG, "%s = %s: a number between %g and %g is wanted", name, text, lo, hi);
    return *out = v, OK;
}

Status option_list(int argc, char **argv, const char *name, const char **list, int most, int *n)
{
    size_t len = strlen(name);
    *n = 0;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], name, len) || (argv[i][len] && argv[i][len] != '=')) continue;
        if (*n == most) return fail(E_CONFIG, "%s: given more than %d times", name, most);
        list[(*n)++] = argv[i][len] ? argv[i] + len + 1 : argv[++i];
    }
    return OK;
}
