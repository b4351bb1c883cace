/* data/format_bin.h -- packed shards, written by `treb data pack`: rendered samples with their pictures as
 * files: as they were, or decoded, in the size that the model reads (BMP). Little-endian, every part aligned
 * to 8 bytes, for mapping:
 *
 *   BinHead
 *   per sample: ids (tokens x i32), targets (tokens x i32), RecordSlice x slices,
 *               lengths of files (files x u64), the files, the origin of the sample ("train.jsonl:17")
 *   settings (JSON) that the samples were rendered with; a run with others refuses the shard
 *   BinRow x samples
 *
 * Head, rows and each sample have an XXH3 hash, so that damage is located. */
#ifndef DATA_FORMAT_BIN_H
#define DATA_FORMAT_BIN_H

#include "base/file_version.h"
#include "data/sample.h"

#define BIN_MAGIC "TBSHARD"

typedef struct BinHead {
    char     magic[8];
    uint32_t version, bytes;             /* bytes: of this struct */
    uint64_t file_bytes, samples;
    uint64_t rows_at, rows_hash;
    uint64_t settings_at, settings_bytes;
    uint64_t hash;                       /* of the fields before it */
} BinHead;

typedef struct BinRow {
    uint64_t at, bytes, hash;
    uint32_t tokens, supervised, patches, slices, files, where_bytes;
} BinRow;

/* Writes a shard under a temporary name and renames it when it is complete. */
typedef struct BinWriter {
    char     path[4096], temp[4100];
    FILE    *file;
    uint64_t at;
    BinRow  *row;
    int64_t  rows, cap;
    void    *hash;                       /* XXH3 state of the sample that is written */
    bool     decoded;                    /* pictures are stored decoded; set after bin_writer_open */
    bool     broken;                     /* writing failed: not an error of a sample */
} BinWriter;

MUST Status bin_writer_open(BinWriter *w, const char *path);
/* Reads the pictures of the sample with t and c. */
MUST Status bin_writer_add(BinWriter *w, const Sample *s, SampleScratch *t, const SampleConf *c);
MUST Status bin_writer_finish(BinWriter *w, const Json *settings);
void        bin_writer_abandon(BinWriter *w);   /* removes a shard that is not finished; twice is fine */

#endif
