/* data/index.h -- what is known of the sizes of samples: filled as they are met, or for a whole pass at
 * once.
 *
 * A size costs reading a line, tokenising it and looking at picture headers; pixels are never touched.
 * Twelve bytes a sample; any number of threads may read and write, since equal samples give equal rows. */
#ifndef DATA_INDEX_H
#define DATA_INDEX_H

#include "data/sample.h"
#include "data/step_packer.h"

/* drop: data.truncation leaves it out. */
typedef enum { SIZE_UNKNOWN, SIZE_GOOD, SIZE_DROP, SIZE_BAD } SizeKind;

typedef struct IndexRow { int32_t tokens, patches, supervised; } IndexRow;     /* tokens below 0: -SizeKind */
typedef struct Index { IndexRow *row; int64_t n; } Index;

MUST Status index_open(Index *x, int64_t samples);
void        index_close(Index *x);                                           /* twice is fine */
SizeKind    index_get(const Index *x, int64_t id, DocSize *size);

/* Measures one sample unless it is known. Bad: the error says why, every time. */
MUST Status index_measure(Index *x, SampleScratch *t, const SampleConf *c, int64_t id, DocSize *size,
                          SizeKind *kind);
/* Measures everything a pass will draw, in parallel. The first bad sample is an error unless `tolerant`. */
MUST Status index_fill(Index *x, const SampleConf *c, int64_t epoch, int workers, bool tolerant);

/* The plan of one pass by sizes that are all known. */
typedef struct PassTotals { int64_t steps, bins, docs, tokens, patches, supervised; } PassTotals;
MUST Status index_pack_pass(const Index *x, const SampleConf *c, int64_t epoch, int ranks, int micro,
                       PassTotals *out);

#endif
