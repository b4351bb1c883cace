/* cli/options.c -- see options.h. */
#include "cli/options.h"

#include "base/str.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const Option *find(const Option *o, const char *arg, size_t len)
{
    for (; o->name; o++)
        if (strlen(o->name) == len && !strncmp(o->name, arg, len)) return o;
    return NULL;
}

static const Option *find_nearest(const Option *o, const char *arg)
{
    const Option *best = NULL;
    int least = INT_MAX;
    for (; o->name; o++) {
        int unlike = str_unlike(arg + strspn(arg, "-"), o->name + strspn(o->name, "-"));
        if (unlike < least) least = unlike, best = o;
    }
    return best;
}

static Status refuse_unknown(const char *verb, const Option *o, const char *arg)
{
    char known[512] = "";
    const Option *best = find_nearest(o, arg);
    if (best) return fail(E_CONFIG, "%s: %s is not an option. Did you mean %s?", verb, arg, best->name);
    for (; o->name; o++) {
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", o->name);
    }
    return fail(E_CONFIG, "%s: %s is not an option; options are %s", verb, arg, *known ? known : "none");
}

static Status append(OptionList *list, const Option *o, const char *text)
{
    if (list->n == OPTION_LIST_MAX)
        return fail(E_CONFIG, "%s: given more than %d times", o->name, OPTION_LIST_MAX);
    list->value[list->n++] = text;
    return OK;
}

/* INT64_MAX is not a double; the nearest one is above it. */
static int64_t whole_bound(double hi) { return hi >= (double)INT64_MAX ? INT64_MAX : (int64_t)hi; }

static Status store(const Option *o, char *args, const char *text)
{
    void *field = args + o->at;
    switch (o->kind) {
    case OPT_FLAG: *(bool *)field = true; return OK;
    case OPT_TEXT: *(const char **)field = text; return OK;
    case OPT_INT:  return option_int(o->name, text, (int64_t)o->lo, whole_bound(o->hi), field);
    case OPT_REAL: return option_real(o->name, text, o->lo, o->hi, field);
    case OPT_LIST: return append(field, o, text);
    }
    return OK;
}

static Status take(char **argv, int argc, int *i, const Option *options, void *args)
{
    const char *arg = argv[*i], *eq = strchr(arg, '=');
    const Option *o = find(options, arg, eq ? (size_t)(eq - arg) : strlen(arg));
    if (!o) return refuse_unknown(argv[0], options, arg);
    if (o->kind == OPT_FLAG) return eq ? fail(E_CONFIG, "%s: takes no value", o->name) : store(o, args, NULL);
    if (!eq && *i + 1 >= argc) return fail(E_CONFIG, "%s: a value must follow", o->name);
    return store(o, args, eq ? eq + 1 : argv[++*i]);
}

static Status check_count(const char *verb, const PlainArgs *p)
{
    if (p->n >= p->least) return OK;
    return fail(E_CONFIG, "%s: name %s (%s%s, %d given); see treb %s --help", verb, p->what,
                p->least == 1 ? "one argument" : "two arguments", p->least < p->most ? " or more" : "", p->n,
                verb);
}

static Status collect(int argc, char **argv, const Option *options, void *args, PlainArgs *p)
{
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1]) TRY(take(argv, argc, &i, options, args));
        else if (p->n < p->most) p->value[p->n++] = argv[i];
        else
            return fail(E_CONFIG, "%s: %s is one argument too many; see treb %s --help", argv[0], argv[i],
                        argv[0]);
    }
    return check_count(argv[0], p);
}

Status options_parse(int argc, char **argv, const Option *options, void *args, PlainArgs *plain)
{
    PlainArgs none = { 0 };
    if (!plain) return collect(argc, argv, options, args, &none);
    plain->n = 0, plain->value = calloc((size_t)argc + 1, sizeof *plain->value);
    if (!plain->value) return fail(E_FIT, "no memory for the arguments of %s", argv[0]);
    Status st = collect(argc, argv, options, args, plain);
    if (st) plain_args_close(plain);
    return st;
}

void plain_args_close(PlainArgs *p)
{
    free(p->value);
    p->value = NULL, p->n = 0;
}

Status option_int(const char *name, const char *text, int64_t lo, int64_t hi, int64_t *out)
{
    char *end;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || v < lo || v > hi)
        return fail(E_CONFIG, "%s = %s: must be a whole number between %lld and %lld", name, text,
                    (long long)lo, (long long)hi);
    return *out = v, OK;
}

Status option_real(const char *name, const char *text, double lo, double hi, double *out)
{
    double v;
    if (!str_number(text, &v) || !(v >= lo && v <= hi))
        return fail(E_CONFIG, "%s = %s: must be a number between %g and %g", name, text, lo, hi);
    return *out = v, OK;
}

Status option_dtype(const char *name, const char *text, DType *out)
{
    if (!dtype_parse(out, text) && (*out == F32 || *out == BF16)) return OK;
    return fail(E_CONFIG, "%s = %s: must be f32 or bf16", name, text);
}

Status option_folder(const char *name, const char *text)
{
    return !text || *text
               ? OK
               : fail(E_CONFIG, "%s: the folder's name is empty; name one, or drop the option", name);
}
