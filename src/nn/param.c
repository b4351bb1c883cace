/* nn/param.c -- declaring parameters. */
#include "nn/param.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static Param *param_add(ParamSet *s, Group g, Init init, Form form)
{
    if (s->n == s->cap) {
        int cap = s->cap ? 2 * s->cap : 64;
        Param **p = realloc(s->p, (size_t)cap * sizeof *p);
        REQUIRE(p, "no memory for %d parameter rows", cap);
        s->p = p, s->cap = cap;
    }
    Param *p = calloc(1, sizeof *p);
    REQUIRE(p, "no memory for parameter row %d", s->n);
    *p = (Param){ .group = g, .init = init, .form = form, .decay = true };
    return s->p[s->n++] = p;
}

static void name_piece(Param *p, const char *fmt, va_list ap)
{
    Piece *q = &p->piece[p->pieces++];
    int n = vsnprintf(q->name, sizeof q->name, fmt, ap);
    REQUIRE(n > 0 && (size_t)n < sizeof q->name, "parameter name too long: %s", q->name);
}

Param *param_matrix(ParamSet *s, Group g, int64_t rows, int64_t cols, const char *fmt, ...)
{
    va_list ap;
    Param *p = param_add(s, g, INIT_NORMAL, FORM_ROWS);
    va_start(ap, fmt);
    name_piece(p, fmt, ap);
    va_end(ap);
    p->rank = 2, p->full[0] = rows, p->full[1] = cols;
    p->piece[0].rank = 2, p->piece[0].shape[0] = rows, p->piece[0].shape[1] = cols;
    return p;
}

Param *param_vector(ParamSet *s, Group g, Init init, int64_t n, const char *fmt, ...)
{
    va_list ap;
    Param *p = param_add(s, g, init, FORM_ROWS);
    va_start(ap, fmt);
    name_piece(p, fmt, ap);
    va_end(ap);
    p->rank = 1, p->full[0] = n, p->decay = false;
    p->piece[0].rank = 1, p->piece[0].shape[0] = n;
    return p;
}

Param *param_experts(ParamSet *s, Form form, int64_t E, int64_t rows, int64_t cols, const char *fmt, ...)
{
    va_list ap;
    Param *p = param_add(s, G_LLM, INIT_NORMAL, form);
    va_start(ap, fmt);
    name_piece(p, fmt, ap);
    va_end(ap);
    p->rank = 3, p->full[0] = E, p->full[1] = rows, p->full[2] = cols;
    p->piece[0].rank = 3;
    for (int i = 0; i < 3; i++) p->piece[0].shape[i] = p->full[i];
    return p;
}

void param_piece(Param *p, int64_t rows, const char *fmt, ...)
{
    va_list ap;
    REQUIRE(p->pieces < 3, "parameter %s has three pieces already", p->piece[0].name);
    va_start(ap, fmt);
    name_piece(p, fmt, ap);
    va_end(ap);
    Piece *q = &p->piece[p->pieces - 1];
    q->rank = p->rank, q->shape[0] = rows, q->shape[1] = p->full[1];
    p->full[0] += rows;
}

void params_close(ParamSet *s)
{
    for (int i = 0; i < s->n; i++) free(s->p[i]);
    free(s->p);
    *s = (ParamSet){ 0 };
}

int64_t param_count(const Param *p)
{
    int64_t n = 1;
    for (int i = 0; i < p->rank; i++) n *= p->full[i];
    return n;
}

int64_t params_count(const ParamSet *s)
{
    int64_t n = 0;
    for (int i = 0; i < s->n; i++) n += param_count(s->p[i]);
    return n;
}
