/* base/str.h -- small helpers on text: edit distance, lists in a string, UTF-8, numbers, wrapped lines. */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Edits that turn a into b: insert, delete, replace, or swap two neighbours. Case and the choice of '-' or
 * '_' cost nothing. Words beyond 63 letters are compared by their first 63. */
int  str_distance(const char *a, const char *b);

/* Distance for "did you mean": the edit distance, or less for a word that is part of the other; INT_MAX when
 * the words have too little in common. */
int  str_unlike(const char *word, const char *candidate);

/* Steps through "a,b,c": the next item and its length, NULL at the end. Begin with *rest at the text. */
const char *str_item(const char **rest, char separator, size_t *len);
bool str_lists(const char *list, char separator, const char *word);       /* exactly */
bool str_lists_like(const char *list, char separator, const char *word);  /* but for case, '-' and '_' */

/* Bytes of the code point at s and its value; 0 at the end and where s is not UTF-8. */
int  str_utf8(const char *s, uint32_t *code);
bool str_is_utf8(const char *s);

/* A decimal number and nothing else: no hex, no inf, no suffix. True if the whole text is one. */
bool str_number(const char *text, double *out);
bool str_whole(const char *text, int64_t *out);     /* also 1e6 and 2.0: what counts is the value */

/* Prints the words of text from `column` on and a line break. A line ends at TEXT_WIDTH; the next one begins
 * at `indent`. */
enum { TEXT_WIDTH = 110 };
void str_print_wrapped(FILE *out, const char *text, int column, int indent);

enum { STR_BYTES = 32 };
const char *str_bytes(char out[STR_BYTES], double bytes); /* "1.4 MiB" */

#ifdef __cplusplus
}
#endif
#endif
