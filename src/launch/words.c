/* launch/words.c -- see words.h. */
#define _GNU_SOURCE                      /* vasprintf */
#include "launch/words.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

Status words_add(Words *w, const char *fmt, ...)
{
    char  **more = realloc(w->at, ((size_t)w->n + 2) * sizeof *more), *text = NULL;
    va_list args;
    if (more) w->at = more;
    va_start(args, fmt);
    bool made = more && vasprintf(&text, fmt, args) >= 0;
    va_end(args);
    if (!made) return fail(E_FIT, "no memory for a command of %d words", w->n + 1);
    w->at[w->n++] = text, w->at[w->n] = NULL;
    return OK;
}

Status words_add_all(Words *w, int n, char *const *words)
{
    for (int i = 0; i < n; i++) TRY(words_add(w, "%s", words[i]));
    return OK;
}

void words_close(Words *w)
{
    for (int i = 0; i < w->n; i++) free(w->at[i]);
    free(w->at);
    *w = (Words){ 0 };
}

static void print_quoted(FILE *out, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%^";
    if (*word && !word[strspn(word, plain)]) { fputs(word, out); return; }
    putc('\'', out);
    for (; *word; word++)
        if (*word == '\'') fputs("'\\''", out);
        else               putc(*word, out);
    putc('\'', out);
}

void words_print(FILE *out, const Words *w)
{
    for (int i = 0; i < w->n; i++) {
        if (i) putc(' ', out);
        print_quoted(out, w->at[i]);
    }
    putc('\n', out);
}
