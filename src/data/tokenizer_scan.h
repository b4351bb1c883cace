/* data/tokenizer_scan.h -- walks JSON text without building a tree: a vocabulary is read in one pass.
 *
 * jansson makes a hash table and a list of a tokenizer's 300,000 small values and takes half a second over
 * it; this reads them in place. Only the two large members are read this way; the rest of a file goes to
 * jansson. Nothing is believed about lengths: every step stops at the end of the bytes. */
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

/* Members of an object or list. Before the i-th (from 0) scan_more takes the comma, or the closing bracket
 * and says that there is none. */
MUST Status scan_enter(Scan *s, char bracket);
MUST Status scan_more(Scan *s, char closing, int64_t i, bool *more);

/* A string without its quotes and escapes. out has room for all that is left of s: it never grows. */
MUST Status scan_text(Scan *s, char *out, size_t *len);
MUST Status scan_key(Scan *s, char *out, size_t *len);     /* and the colon behind it */
MUST Status scan_int(Scan *s, int64_t *v);
MUST Status scan_skip(Scan *s, ByteSpan *value);            /* any value; only brackets and quotes are checked */

#endif
