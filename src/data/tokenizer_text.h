/* data/tokenizer_text.h -- text on its way in: any bytes to UTF-8, and UTF-8 to normal form C.
 *
 * Most text is UTF-8 and normal already. Both calls say so by handing back what they were given, and copy
 * only where something changes. */
#ifndef DATA_TOKENIZER_TEXT_H
#define DATA_TOKENIZER_TEXT_H

#include "data/ids.h"

typedef struct ByteSpan { const char *v; size_t n; } ByteSpan;               /* bytes that belong to someone else */
/* A zeroed one is empty and ready. */
typedef struct Nfc { Text text; int32_t *code, *spare; size_t cap; } Nfc;

/* Bytes of the code point at s (n > 0 of them are there); minus the bytes that stand for one U+FFFD if it is
 * none: the longest beginning of a code point, or a single byte. */
int         utf8_step(const char *s, size_t n, int32_t *code);
/* text, or its repaired copy in *room: U+FFFD for whatever is not UTF-8. */
MUST Status utf8_repair(Text *cap, ByteSpan text, ByteSpan *out);

MUST Status nfc_normalise(Nfc *b, ByteSpan text, ByteSpan *out);                 /* text must be UTF-8 */
void        nfc_close(Nfc *b);                                             /* twice is fine */

#endif
