/* data/format_bin.h -- packed shards: samples as the model sees them, pictures still encoded; what `treb
 * data pack` writes. Little-endian, every part on a multiple of 8 bytes, made to be mapped:
 *
 *   BinHead
 *   per sample: ids (tokens x i32), targets (tokens x i32), RecordSlice x slices,
 *               lengths of files (files x u64), the files one after the other, the name of its place
 *   settings (JSON): what the samples were rendered for; a run that differs refuses the shard
 *   BinRow x samples
 *
 * Head, rows and each sample carry an XXH3 hash: damage is found where it is. */
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
    uint64_t hash;                       /* of all before it */
} BinHead;

typedef struct BinRow {
    uint64_t at, bytes, hash;
    uint32_t tokens, supervised, patches, slices, files, where_bytes;
} BinRow;

/* Writes a shard beside its name and moves it there when it is whole. */
typedef struct BinWriter {
    char     path[4096], temp[4100];
    FILE    *file;
    uint64_t at;
    BinRow  *row;
    int64_t  rows, cap;
    void    *hash;                       /* of the sample being written */
    bool     broken;                     /* the disk refused: no fault of a sample */
} BinWriter;

MUST Status bin_writer_open(BinWriter *w, const char *path);
/* The sample's pictures are read through t and c. */
MUST Status bin_writer_add(BinWriter *w, const Sample *s, SampleScratch *t, const SampleConf *c);
MUST Status bin_writer_finish(BinWriter *w, const Json *settings);
void        bin_writer_abandon(BinWriter *w);   /* removes a shard that is not finished; twice is fine */

#endif
