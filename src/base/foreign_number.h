/* base/foreign_number.h -- arithmetic of shell scripts: the text inside $(( )), or after expr. */
#ifndef BASE_FOREIGN_NUMBER_H
#define BASE_FOREIGN_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

/* Whole numbers, + - * / % and parentheses; variables are replaced before. false: the text is something else,
 * divides by zero, or leaves 64 bits. */
bool foreign_number(const char *text, int64_t *out);

#endif
