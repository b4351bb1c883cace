/* data/format.h -- one file of samples: the interface of a dataset format, and a record, which is a sample
 * before it is parsed.
 *
 * A file is mapped once and indexed on opening; after that any number of threads read records by number,
 * in any order. Files are not trusted: a format checks every length it reads, and a record lies inside the
 * file. To add a format, write format_<name>.c ending in `const Format format_<name>` and a row in
 * formats.c. */
#ifndef DATA_FORMAT_H
#define DATA_FORMAT_H

#include "base/mem_pool.h"
#include "data/chat.h"
#include "data/pack.h"

typedef enum { RECORD_JSON, RECORD_TEXT, RECORD_CAPTION, RECORD_TOKENS } RecordKind;

/* A member of an archive that belongs to the record; its name has no NUL at the end. */
typedef struct RecordFile { const char *name; size_t name_len; const void *bytes; size_t len; } RecordFile;

/* One temporal slice of a picture or video: its grid in patches, and its first and last row of the file list;
 * b is -1 for a picture. */
typedef struct RecordSlice { int32_t h, w, a, b; } RecordSlice;

typedef struct Record {
    RecordKind         kind;
    const char        *text;             /* a JSON object, plain text, or the caption of the pictures */
    size_t             len;
    bool               more;             /* of a text: the document continues in the next record */
    const RecordFile  *file;
    int                files;
    const int32_t     *ids, *targets;    /* RECORD_TOKENS: already rendered */
    int64_t            tokens;
    const RecordSlice *slice;
    int64_t            slices;
    MemPool               keep;             /* memory of the record that is not in the file */
    char               where[320];       /* "train.jsonl:17" */
} Record;

void record_close(Record *r);            /* twice is fine */
bool record_file_is_picture(const RecordFile *f);      /* by the suffix of its name */
bool record_file_is_video(const RecordFile *f);

/* Settings of the run that a format may need. */
typedef struct FormatConf {
    const Tokenizer *tokenizer;          /* NULL: texts are not cut by tokens */
    int64_t          max_length;
} FormatConf;

typedef struct FormatFile {
    const struct Format *format;         /* NULL: not open */
    const char *path;                    /* for messages; the caller keeps it */
    const char *bytes;
    size_t      len;
    bool                 mapped, inflated; /* inflated: from a compressed file */
    int64_t     samples;
    MemPool        keep;                    /* memory of the format's tables */
    void       *self;
    char        damage[320];             /* why the file ends early, or "" */
} FormatFile;

typedef struct Format {
    const char *name, *suffixes;                                     /* ".jsonl,.ndjson" */
    Status (*index)(FormatFile *f, const FormatConf *conf);          /* fills samples, self, damage */
    Status (*read)(const FormatFile *f, int64_t i, Record *r);       /* r->where is set even on failure */
    /* The rest may be NULL. size: true where the file stores the size. suits: an error where the file was
     * made with other settings. close: frees memory that is not in keep. */
    bool   (*size)(const FormatFile *f, int64_t i, DocSize *size);
    Status (*suits)(const FormatFile *f, const Json *settings);
    void   (*close)(FormatFile *f);
} Format;

MUST Status format_open(FormatFile *f, const char *path, const FormatConf *conf);
MUST Status format_open_memory(FormatFile *f, const char *name, const void *bytes, size_t len,
                               const char *path, const FormatConf *conf);
void        format_close(FormatFile *f);                             /* twice is fine */
MUST Status format_read(const FormatFile *f, int64_t i, Record *r);
bool        format_has_suffix(const char *path);                     /* the suffix of some format */

/* A growing table of offsets, for formats that index a file by offset. */
typedef struct Offsets { uint64_t *v; int64_t n, cap; } Offsets;
MUST Status offsets_push(Offsets *o, uint64_t v);
void        offsets_close(Offsets *o);

#endif
