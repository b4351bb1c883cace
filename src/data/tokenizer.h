/* data/tokenizer.h -- BPE from a tokenizer.json, byte-level or SentencePiece-style: text to ids and back.
 *
 * Added tokens are matched in the raw text first (leftmost, longest). Each segment between them is
 * normalised, split by the regexes of the file, and each piece is merged by rank. A Tokenizer is
 * read-only after opening: any number of threads may use one, each with its own TokenScratch. */
#ifndef DATA_TOKENIZER_H
#define DATA_TOKENIZER_H

#include "data/ids.h"
#include <stdbool.h>

struct ChatTemplate;

typedef struct Tokenizer Tokenizer;
typedef struct TokenScratch TokenScratch;         /* one thread's buffers and cache of pieces */

MUST Status tokenizer_open(Tokenizer **t, const char *path);   /* tokenizer.json, or its folder */
void        tokenizer_close(Tokenizer *t);                        /* NULL is fine */
MUST Status token_scratch_open(TokenScratch **s, const Tokenizer *t);
void        token_scratch_close(TokenScratch *s);

/* Appends to out. plain: added tokens in the text are ordinary text (for text that comes from users). */
MUST Status tokenizer_encode(const Tokenizer *t, TokenScratch *s, Ids *out, const char *text, size_t len,
                             bool plain);
/* Appends the UTF-8 bytes of the ids; an unknown id is an error. skip_special leaves special tokens out. */
MUST Status tokenizer_decode(const Tokenizer *t, Text *out, const int32_t *ids, int64_t n, bool skip_special);
/* The same of ids in the middle of a text: a space before the first one stays. */
MUST Status tokenizer_decode_next(const Tokenizer *t, Text *out, const int32_t *ids, int64_t n,
                                  bool skip_special);

/* The chat template of the tokenizer's folder, see data/chat_template.h: NULL where the folder has none.
 * E_DATA where it has one that is not read. */
MUST Status tokenizer_template(const Tokenizer *t, const struct ChatTemplate **out);

/* The template of another file; it belongs to the tokenizer. */
MUST Status tokenizer_template_file(const Tokenizer *t, const char *path, const struct ChatTemplate **out);

size_t tokenizer_token_bytes(const Tokenizer *t, int32_t id); /* bytes of text that the token stands for */
bool   tokenizer_is_added(const Tokenizer *t, int32_t id);
int32_t     tokenizer_id(const Tokenizer *t, const char *token);  /* id of an added token; -1: none */
/* Before every plain text, and what ends an answer (eos_token of tokenizer_config.json); -1: none. */
int32_t     tokenizer_begin(const Tokenizer *t);
int32_t     tokenizer_end(const Tokenizer *t);
int64_t     tokenizer_size(const Tokenizer *t);                   /* largest id + 1 */

#endif
