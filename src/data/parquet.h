/* data/parquet.h -- the parts of a Parquet reader: metadata, pages and the values of a row.
 *
 * Nothing is loaded whole. Opening reads the footer and the first row of every page, from the file's
 * OffsetIndex where it has one, else by counting the rows of each page; reading a row decodes the pages that
 * it lies in, one of each column. Lengths in the file are never trusted; a page may have at
 * most PARQUET_PAGE_MAX bytes, which bounds the memory of a reading thread to that per column. */
#ifndef DATA_PARQUET_H
#define DATA_PARQUET_H

#include "base/mem_pool.h"
#include "base/status.h"
#include "data/codec.h"
#include "data/ids.h"
#include <stdbool.h>

enum { PARQUET_PAGE_MAX = 512 << 20, PARQUET_VALUES_MAX = 4 << 20, PARQUET_COLUMNS = 4096 };

typedef enum {
    PQ_BOOLEAN,
    PQ_INT32,
    PQ_INT64,
    PQ_INT96,
    PQ_FLOAT,
    PQ_DOUBLE,
    PQ_BYTES,
    PQ_FIXED
} ParquetType;
/* What a value stands for, where its type alone does not say it. */
typedef enum { PQ_AS_STORED, PQ_DECIMAL, PQ_DATE, PQ_TIME, PQ_TIMESTAMP, PQ_HALF, PQ_UUID } ParquetMeaning;
typedef enum { PQ_REQUIRED, PQ_OPTIONAL, PQ_REPEATED } ParquetRepeat;

/* A node of the schema. column: of a leaf, its number; -1: a group. first: its first leaf. scale: digits of a
 * decimal after its point; digits: those of the fraction of a second that a time counts in, 3, 6 or 9. */
typedef struct ParquetNode {
    const char         *name;
    ParquetRepeat       repeat;
    ParquetType         type;
    int                 type_length, children, column, first;
    int                 max_def, max_rep;
    bool                is_list, is_map, is_text, is_unsigned, is_utc;
    ParquetMeaning      meaning;
    int                 scale, digits;
    struct ParquetNode *child; /* `children` of them, not adjacent to their own children */
} ParquetNode;

/* A data page: where its header lies, the row that begins first in it or after it, and its chunk. */
typedef struct ParquetPage {
    uint64_t offset;
    int64_t  row;
    int32_t  chunk;
} ParquetPage;
typedef struct ParquetChunk {
    uint64_t begin, end;
    bool     outside; /* of the file: allowed where the row group is empty */
    Codec    codec;
    uint64_t dictionary;
    bool     has_dictionary;
    int64_t  index, index_bytes; /* its OffsetIndex; 0 bytes: there is none */
} ParquetChunk;

typedef struct ParquetColumn {
    const ParquetNode *leaf;
    ParquetChunk      *chunk; /* one for each row group */
    ParquetPage       *page;
    int64_t            pages, page_cap;
} ParquetColumn;

typedef struct Parquet {
    const char    *path;
    const uint8_t *bytes;
    size_t         len;
    ParquetNode    root;
    ParquetColumn *column;
    int            columns, groups;
    int64_t        rows;
    int64_t       *group_row; /* the first row of each group */
    MemPool        keep;
} Parquet;

MUST Status parquet_open(Parquet *p, const char *path, const void *bytes, size_t len);
int64_t     parquet_group_end(const Parquet *p, int group); /* the row after its last */
/* Lists the pages of a chunk by its OffsetIndex. *found is false where the chunk has none that can be true:
 * its pages are then counted one by one. */
MUST Status parquet_index_read(const Parquet *p, ParquetColumn *c, int group, bool *found);
MUST Status parquet_page_add(ParquetColumn *c, ParquetPage page);
void        parquet_close(Parquet *p); /* twice is fine */

/* One value with its levels. Of a number, `bits` holds it; of bytes, they belong to the page. */
typedef struct ParquetCell {
    uint16_t rep, def;
    uint32_t n;
    union {
        int64_t        i;
        double         f;
        const uint8_t *v;
    };
} ParquetCell;
typedef struct ParquetCells {
    ParquetCell *cell;
    int64_t      n;
} ParquetCells;

/* The header of a page, and the page's bytes in the file. */
typedef struct ParquetHead {
    int      type, encoding, def_encoding, rep_encoding;
    int64_t  size, packed, values, rows, def_bytes, rep_bytes;
    bool     v2, compressed;
    uint64_t body; /* offset of the bytes after the header */
} ParquetHead;
enum { PAGE_DATA = 0, PAGE_DICTIONARY = 2, PAGE_DATA_V2 = 3 };

MUST Status parquet_head(const Parquet *p, uint64_t at, uint64_t end, ParquetHead *h);
/* Decodes a data page; everything goes to keep. levels_only: values stay empty. */
MUST Status parquet_page(const Parquet *p, const ParquetColumn *c, const ParquetPage *page, bool levels_only,
                         MemPool *keep, ParquetCells *out, int64_t *rows);

/* Values of one encoding: n of them. Dictionary indices are looked up in dict. */
typedef struct PageBytes {
    const uint8_t *at, *end;
} PageBytes;
MUST Status parquet_values(const ParquetNode *leaf, int encoding, PageBytes b, const ParquetCells *dict,
                           ParquetCell *out, int64_t n, MemPool *keep);
/* n numbers of `width` bits in the hybrid of runs and bit-packed groups. */
bool        parquet_runs(PageBytes *b, int width, uint32_t *out, int64_t n);
bool        parquet_delta(PageBytes *b, int64_t *out, int64_t n); /* DELTA_BINARY_PACKED */

/* Pages that were decoded lately, shared by the threads that read a file: at most PARQUET_CACHE bytes of them
 * and those in use. */
typedef struct ParquetCache ParquetCache;
typedef struct CachedPage {
    ParquetCells cells;
    int32_t     *start; /* index of the first cell of each row that begins in the page */
    int64_t      rows;
    int          column;
    int64_t      page;
    MemPool      keep;
    size_t       bytes;
    int          users;
    uint64_t     used;
} CachedPage;
enum { PARQUET_CACHE = 16 << 20, PARQUET_CACHED = 64 };

MUST Status parquet_cache_open(ParquetCache **c);
void        parquet_cache_close(ParquetCache *c); /* NULL is fine */
MUST Status parquet_cache_take(ParquetCache *c, const Parquet *p, int column, int64_t page, CachedPage **out);
void        parquet_cache_drop(ParquetCache *c, CachedPage *page); /* no longer in use */

/* A value, a text and other bytes as JSON. */
MUST Status parquet_value_json(const ParquetNode *n, const ParquetCell *c, Text *out);
MUST Status parquet_text_json(const uint8_t *s, size_t n, Text *out);
MUST Status parquet_bytes_json(const uint8_t *s, size_t n, Text *out);

/* Row i as a JSON object. */
MUST Status parquet_row_json(const Parquet *p, ParquetCache *c, int64_t i, Text *out);

#endif
