/* base/foreign_number.c -- see foreign_number.h. */
#include "base/foreign_number.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 16 };

typedef struct Arithmetic {
    const char *at;
    int         depth;
    bool        bad;
} Arithmetic;

/* A backslash stands before * after expr. */
static char peek(Arithmetic *a)
{
    while (isspace((unsigned char)*a->at) || *a->at == '\\') a->at++;
    return *a->at;
}

static int64_t sum(Arithmetic *a);

static int64_t atom(Arithmetic *a)
{
    char *end;
    int64_t x;
    if (peek(a) == '(' && a->depth < DEPTH_MAX) {
        a->at++, a->depth++;
        x = sum(a);
        a->bad |= peek(a) != ')';
        return a->at += !a->bad, a->depth--, x;
    }
    if (!isdigit((unsigned char)*a->at)) return a->bad = true, 0;
    x      = strtoll(a->at, &end, 10);
    a->bad |= end - a->at > 18;
    return a->at = end, x;
}

static int64_t product(Arithmetic *a)
{
    int64_t x = atom(a), y;
    for (char c; !a->bad && (c = peek(a)) && strchr("*/%", c);) {
        a->at++, y = atom(a);
        if (c == '*') a->bad |= __builtin_mul_overflow(x, y, &x);
        else if (!y) a->bad = true;
        else if (!a->bad) x = c == '/' ? x / y : x % y;
    }
    return x;
}

static int64_t sum(Arithmetic *a)
{
    int64_t x = product(a), y;
    for (char c; !a->bad && (c = peek(a)) && strchr("+-", c);) {
        a->at++, y = product(a);
        a->bad |= c == '+' ? __builtin_add_overflow(x, y, &x) : __builtin_sub_overflow(x, y, &x);
    }
    return x;
}

bool foreign_number(const char *text, int64_t *out)
{
    Arithmetic a = { .at = text };
    *out = sum(&a);
    return !a.bad && !peek(&a);
}
