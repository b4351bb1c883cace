/* infer/detokenize.h -- token ids to text, which is valid UTF-8 whatever the model generates.
 *
 * A byte-level token may end in the middle of a character, and a model may generate bytes that are no
 * character. Each such byte becomes U+FFFD. A StreamPrinter keeps an incomplete character back until the next
 * token completes it. */
#ifndef INFER_DETOKENIZE_H
#define INFER_DETOKENIZE_H

#include "data/tokenizer.h"

#include <stdio.h>

/* Appends the text of the ids without special tokens. */
MUST Status detokenize(Text *out, const Tokenizer *t, const int32_t *ids, int64_t n);

/* Appends v with U+FFFD for each byte that is not UTF-8. rest not NULL: an incomplete character at the end of
 * v is not appended, and *rest is its length in bytes. */
MUST Status utf8_push(Text *out, const char *v, size_t n, size_t *rest);

typedef struct StreamPrinter {
    const Tokenizer *tokenizer;
    FILE            *out;
    Text             pending, text;      /* bytes not yet printed; valid text being printed */
    bool             begun;              /* it has got an id */
} StreamPrinter;

MUST Status stream_printer_put(StreamPrinter *s, int32_t id);
MUST Status stream_printer_end(StreamPrinter *s);             /* prints pending bytes and frees the buffers */

#endif
