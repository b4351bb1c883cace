/* data/tokenizer_text.h -- any bytes to valid UTF-8, and UTF-8 to NFC.
 *
 * Most text is valid and normalised already: both calls then return their input, and copy only where
 * something changes. */
#ifndef DATA_TOKENIZER_TEXT_H
#define DATA_TOKENIZER_TEXT_H

#include "data/ids.h"

typedef struct ByteSpan { const char *v; size_t n; } ByteSpan;               /* bytes that it does not own */
/* Buffers of nfc_normalise; zeroed: empty. */
typedef struct Nfc { Text text; int32_t *code, *spare; size_t cap; } Nfc;

/* Bytes of the code point at s, of which n > 0 bytes exist. Negative where it is invalid: minus the bytes
 * that one U+FFFD replaces, which are the longest prefix of a code point or a single byte. */
int         utf8_step(const char *s, size_t n, int32_t *code);
/* text, or a copy in *buffer with U+FFFD in place of invalid bytes. */
MUST Status utf8_repair(Text *buffer, ByteSpan text, ByteSpan *out);

MUST Status nfc_normalise(Nfc *b, ByteSpan text, ByteSpan *out);                 /* text must be UTF-8 */
void        nfc_close(Nfc *b);                                             /* twice is fine */

#endif
