/* data/line_index.h -- where the samples of a text file begin and end, and the same between starts: KEY.lines
 * of the cache (data/cache_file.h). The key is the file's name, size and time of change. */
#ifndef DATA_LINE_INDEX_H
#define DATA_LINE_INDEX_H

#include "data/format.h"

typedef struct LineIndex {
    Offsets from, to;                /* bytes of each sample */
    Offsets blank;                   /* index of the sample after each blank line */
} LineIndex;

void line_index_close(LineIndex *l);                                        /* twice is fine */
/* Whether the index of the file was kept; every offset in it lies in the file. */
bool line_index_load(LineIndex *l, const FormatFile *f);
/* A file that cannot be kept is searched again at the next start. */
void line_index_save(const LineIndex *l, const FormatFile *f);

#endif
