/* launch/words.h -- a growing list of words, as execvp takes them. */
#ifndef LAUNCH_WORDS_H
#define LAUNCH_WORDS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct Words { char **at; int n; } Words;      /* at: n words, then NULL; NULL while it is empty */

MUST Status words_add(Words *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
MUST Status words_add_all(Words *w, int n, char *const *words);
void        words_close(Words *w);                                 /* twice is fine */
void        words_print(FILE *out, const Words *w);                /* quoted for a shell */

#endif
