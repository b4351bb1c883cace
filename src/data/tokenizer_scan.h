/* data/tokenizer_scan.h -- reads JSON text without building a tree.
 *
 * jansson takes half a second to build a tree of the 300,000 small values of a tokenizer; this reads them
 * in place. Only vocabulary and merges are read this way. Input is not trusted: every step stops at the
 * end of the bytes. */
#ifndef DATA_TOKENIZER_SCAN_H
#define DATA_TOKENIZER_SCAN_H

#include "data/tokenizer_text.h"
#include <stdbool.h>

typedef struct Scan {
    const char *begin, *at, *end;
    const char *name;                     /* of the file, for errors: "name: line 3: what is wanted" */
} Scan;

MUST Status scan_fail(const Scan *s, const char *what);
int         scan_peek(Scan *s);                       /* the next byte that is not white space; -1: the end */

/* Members of an object or list. Before the i-th (from 0) scan_more skips the comma, or the closing bracket
 * and sets *more to false. */
MUST Status scan_enter(Scan *s, char bracket);
MUST Status scan_more(Scan *s, char closing, int64_t i, bool *more);

/* A string without its quotes and escapes. out has as many bytes as are left of s. */
MUST Status scan_text(Scan *s, char *out, size_t *len);
MUST Status scan_key(Scan *s, char *out, size_t *len);     /* and the colon behind it */
MUST Status scan_int(Scan *s, int64_t *v);
MUST Status scan_skip(Scan *s, ByteSpan *value);  /* any value; only brackets and quotes are checked */

#endif
