/* data/format.h -- one file of samples: what a format offers, and a sample before anyone has understood
 * it.
 *
 * A file is mapped once and indexed on opening; after that any number of threads read records by number,
 * in any order. Files come from outside: a format never trusts a length in one, and what it hands out lies
 * inside the file. A format is a file format_<name>.c ending in one const Format, and a row in formats.c. */
#ifndef DATA_FORMAT_H
#define DATA_FORMAT_H

#include "base/keep.h"
#include "data/chat.h"
#include "data/pack.h"

typedef enum { RECORD_JSON, RECORD_TEXT, RECORD_CAPTION, RECORD_TOKENS } RecordKind;

/* A member of the archive that belongs to the record; name is not closed with a NUL. */
typedef struct RecordFile { const char *name; size_t name_len; const void *bytes; size_t len; } RecordFile;

/* One temporal slice of a picture or video: grid in patches, rows of the file list. b is -1 for a picture. */
typedef struct RecordSlice { int32_t h, w, a, b; } RecordSlice;

typedef struct Record {
    RecordKind         kind;
    const char        *text;             /* JSON object, plain text, or the caption of the pictures */
    size_t             len;
    bool               more;             /* of a text: it goes on in the next record */
    const RecordFile  *file;
    int                files;
    const int32_t     *ids, *targets;    /* RECORD_TOKENS: rendered already */
    int64_t            tokens;
    const RecordSlice *slice;
    int64_t            slices;
    Keep               keep;             /* owns what is not in the file itself */
    char               where[320];       /* "train.jsonl:17" */
} Record;

void record_close(Record *r);            /* twice is fine */
bool record_file_is_picture(const RecordFile *f);      /* by the ending of its name */

/* What a format may need to know of the run that reads it. */
typedef struct FormatConf {
    const Tokenizer *tokenizer;          /* NULL: texts are not cut by tokens */
    int64_t          max_length;
} FormatConf;

typedef struct FormatFile {
    const struct Format *format;         /* NULL: not open */
    const char *path;                    /* for messages; the caller's */
    const char *bytes;
    size_t      len;
    bool        mapped;
    int64_t     samples;
    Keep        keep;                    /* of the format's own tables */
    void       *self;
    char        damage[320];             /* why the file ends early; "": it does not */
} FormatFile;

typedef struct Format {
    const char *name, *suffixes;                                     /* ".jsonl,.ndjson" */
    Status (*index)(FormatFile *f, const FormatConf *conf);          /* fills samples, self, damage */
    Status (*read)(const FormatFile *f, int64_t i, Record *r);       /* r->where is set even on failure */
    bool   (*size)(const FormatFile *f, int64_t i, DocSize *size);   /* or NULL: known without reading? */
    Status (*suits)(const FormatFile *f, const Json *settings);      /* or NULL: made for such a run? */
    void   (*close)(FormatFile *f);                                  /* or NULL: keep holds all */
} Format;

MUST Status format_open(FormatFile *f, const char *path, const FormatConf *conf);
MUST Status format_open_memory(FormatFile *f, const char *name, const void *bytes, size_t len,
                               const char *path, const FormatConf *conf);
void        format_close(FormatFile *f);                             /* twice is fine */
MUST Status format_read(const FormatFile *f, int64_t i, Record *r);
bool        format_knows(const char *path);                          /* by its suffix */

/* Growable table of offsets, for formats that cut a file at places they find. */
typedef struct Offsets { uint64_t *v; int64_t n, cap; } Offsets;
MUST Status offsets_push(Offsets *o, uint64_t v);
void        offsets_close(Offsets *o);

#endif
