/* data/tokenizer_private.h -- the parts of a tokenizer, for tokenizer*.c and their tests.
 *
 *   tokenizer_file.c    tokenizer.json or the older files to a Tokenizer
 *   tokenizer_rules.c   normaliser, pre-tokeniser and added tokens of those files
 *   tokenizer_vocab.c   tokens by id, merges by pair, added tokens in a text
 *   tokenizer_spaces.c  the rules of SentencePiece-style files, whose tokens spell spaces as U+2581
 *   tokenizer_split.c   the regexes that cut text into pieces
 *   tokenizer_bpe.c     a piece to ids
 *   tokenizer.c         text to ids and back */
#ifndef DATA_TOKENIZER_PRIVATE_H
#define DATA_TOKENIZER_PRIVATE_H

#define PCRE2_CODE_UNIT_WIDTH 8

#include <pthread.h>
#include "base/json.h"
#include "data/tokenizer.h"
#include "data/tokenizer_scan.h"
#include "data/tokenizer_text.h"
#include <pcre2.h>

enum {
    TOKENIZER_MAX_FILE = 256 << 20,       /* bytes; the largest vocabularies in use take 30 MB */
    TOKENIZER_MAX_IDS  = 1 << 22,
    TOKENIZER_MAX_TEXT = 1 << 30          /* bytes of one text */
};

typedef enum { TOKEN_NONE, TOKEN_PLAIN, TOKEN_ADDED, TOKEN_SPECIAL } VocabKind;

typedef struct Token { uint32_t at, len; VocabKind kind; } Token;      /* its bytes in Vocab.bytes */

typedef struct Vocab {
    Text      bytes;                      /* of all tokens, concatenated */
    Token    *token;                      /* by id; TOKEN_NONE for an unused id */
    int64_t   size, cap;                 /* largest id + 1 */
    int32_t  *slot;                       /* hash of bytes to id + 1; only until the merges are read */
    size_t    slots;
} Vocab;

/* A pair of neighbours, left << 32 | right, and what it becomes. rank -1: an empty slot. */
typedef struct BpeMerge { uint64_t pair; int32_t rank, id; } BpeMerge;
typedef struct MergeTable {
    BpeMerge *slot;
    int       shift;
    int64_t   n;
} MergeTable; /* 1 << (64 - shift) slots */

typedef struct AddedToken { ByteSpan text; int32_t id; } AddedToken;       /* text: in Vocab.bytes */
typedef struct AddedSet {
    AddedToken *token;                    /* by first byte, the longest first */
    int         n;
    int         from[257];                /* tokens that start with byte b: token[from[b], from[b + 1]) */
} AddedSet;

/* Where a space is put before a text: nowhere; before every segment between added tokens; before those that
 * do not begin with one; before such a segment at the start of the text. */
typedef enum { PREFIX_NONE, PREFIX_SEGMENT, PREFIX_MISSING, PREFIX_FIRST } SpacePrefix;

/* The rules of a file whose tokens are characters with U+2581 for a space, and bytes as <0x0A>. */
typedef struct Spaces {
    bool        on;                       /* off: a byte-level file */
    SpacePrefix prefix;
    bool        split;                    /* pieces begin with U+2581; else a segment is one piece */
    bool        strip;                    /* a decoded text loses a space at its start */
} Spaces;

enum { MAX_SPLITS = 8 };

enum { TEMPLATE_FILES = 8 };
typedef struct TemplateFiles {
    pthread_mutex_t lock;
    struct { char *path; struct ChatTemplate *template; } row[TEMPLATE_FILES];
    int             n;
} TemplateFiles;

struct Tokenizer {
    Vocab       vocab;
    MergeTable  merges;
    int32_t     byte_id[256];
    AddedSet    raw, normal;              /* looked for before and after normalising */
    bool        nfc;
    bool        whole_pieces;             /* a piece that is a token is not merged (ignore_merges) */
    pcre2_code *split[MAX_SPLITS];        /* each cuts the pieces of the one before */
    int         splits;
    Spaces      spaces;
    const char *begin_text;               /* while reading: of `begin`, in the Json; or NULL */
    int32_t     begin, end;               /* before a plain text; eos_token; -1: none */
    struct ChatTemplate *template; /* of its folder; NULL: none */
    char *folder;                  /* of its files; NULL: unknown */
    struct TemplateFiles *files;   /* templates of other files */
    char *template_error;          /* why the folder's template is not read; NULL: it is, or there is none */
};

/* -- tokenizer_vocab.c */
MUST Status vocab_put(Vocab *v, int64_t id, ByteSpan bytes, VocabKind kind, const char *name);
MUST Status vocab_index(Vocab *v, const char *name);                   /* before vocab_find */
int32_t     vocab_find(const Vocab *v, ByteSpan bytes);                   /* -1: none */
void        vocab_unindex(Vocab *v);
ByteSpan       vocab_bytes(const Vocab *v, int32_t id);
void        vocab_close(Vocab *v);
/* Converts the letters that stand for bytes in these files to the bytes, in place; false, with nothing
 * changed, if a letter stands for no byte. */
bool        bytes_from_letters(char *text, size_t *len);

MUST Status merges_open(MergeTable *m);
MUST Status merges_put(MergeTable *m, int32_t left, int32_t right, int32_t id);    /* ranks count up */
void        merges_close(MergeTable *m);

/* The slot of a pair; rank -1: it does not merge. */
static inline BpeMerge *merge_slot(const MergeTable *m, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right, mask = UINT64_MAX >> m->shift;
    uint64_t i = pair * 0x9e3779b97f4a7c15u >> m->shift;
    while (m->slot[i].rank >= 0 && m->slot[i].pair != pair) i = (i + 1) & mask;
    return &m->slot[i];
}

void              added_sort(AddedSet *s);                             /* after all tokens were added */
const AddedToken *added_find(const AddedSet *s, ByteSpan text, size_t from, size_t *at);  /* NULL: no more */

/* -- tokenizer_split.c */
typedef struct Splitter {                 /* one thread's */
    pcre2_match_data    *match;
    pcre2_match_context *limits;
    pcre2_jit_stack     *stack;
} Splitter;

MUST Status split_compile(pcre2_code **code, ByteSpan pattern);
MUST Status splitter_open(Splitter *s, const pcre2_code *code);
void        splitter_close(Splitter *s);
/* The next piece at or after byte `from` < text.n. If it starts later, the text in between is a piece too. */
MUST Status split_next(Splitter *s, const pcre2_code *code, ByteSpan text, size_t from, size_t *start,
                       size_t *end);

/* -- tokenizer_bpe.c */
typedef struct Bpe Bpe;                   /* one thread's cache of pieces and merge buffers */

MUST Status bpe_open(Bpe **b);
void        bpe_close(Bpe *b);
MUST Status bpe_encode(Bpe *b, const Tokenizer *t, Ids *out, ByteSpan piece);
/* A piece of characters and bytes (Spaces). */
MUST Status bpe_encode_characters(Bpe *b, const Tokenizer *t, Ids *out, ByteSpan piece);

/* -- tokenizer_spaces.c */
#define SPACE_LETTER "\xe2\x96\x81"       /* U+2581 */
MUST Status spaces_read(Tokenizer *t, const Json *file);          /* of a file with byte_fallback */
MUST Status spaces_index_bytes(Tokenizer *t, const char *name);   /* byte_id */
/* The segment as the vocabulary spells it, in out; first: it begins the text. */
MUST Status spaces_put(const Spaces *s, Text *out, ByteSpan segment, bool first);
MUST Status spaces_decode(const Tokenizer *t, Text *out, int32_t id);
size_t      spaces_length(const Tokenizer *t, int32_t id);        /* bytes that spaces_decode appends */

/* -- tokenizer_rules.c */
typedef struct Added { const char *text; int64_t id; bool special, normalized; } Added;
typedef struct AddedList { Added *v; int64_t n; } AddedList;           /* texts belong to the Json */

const char *rules_type(const Json *o);                            /* its `type`; or that it has none */
MUST Status rules_flag(const Json *o, const char *what, const char *key, bool def, bool want);
MUST Status rules_read(Tokenizer *t, AddedList *added, const Json *file);       /* tokenizer.json */
MUST Status rules_read_config(Tokenizer *t, AddedList *added, const Json *config);
MUST Status rules_put_added(Tokenizer *t, const AddedList *added, const char *name);
void        added_list_close(AddedList *l);

/* -- tokenizer_file.c */
MUST Status tokenizer_open_memory(Tokenizer **t, const char *bytes, size_t len, const char *name);

#endif
