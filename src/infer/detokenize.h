/* infer/detokenize.h -- ids as text for people: always UTF-8, whatever a model may say.
 *
 * Byte-level tokens may end in the middle of a character, and a model may put bytes together that are none.
 * Text that is complete gets a U+FFFD for those; a stream holds back what the next token may still
 * complete. */
#ifndef INFER_DETOKENIZE_H
#define INFER_DETOKENIZE_H

#include "data/tokenizer.h"

#include <stdio.h>

/* Appends the ids as text, special tokens left out. */
MUST Status detokenize(Text *out, const Tokenizer *t, const int32_t *ids, int64_t n);

/* Appends the bytes of v that are UTF-8; U+FFFD for each that is not. With *rest, a beginning of a character
 * at the very end is not appended, and *rest says how many bytes it has. */
MUST Status utf8_push(Text *out, const char *v, size_t n, size_t *rest);

typedef struct StreamPrinter {
    const Tokenizer *tokenizer;
    FILE            *out;
    Text             held, text;         /* bytes not yet printed; what is printed next */
} StreamPrinter;

MUST Status stream_printer_put(StreamPrinter *s, int32_t id);
MUST Status stream_printer_end(StreamPrinter *s);                                  /* prints what was held back; closes */

#endif
