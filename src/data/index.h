/* data/index.h -- the sizes of samples, filled as samples are measured or for a whole pass at once.
 *
 * Measuring a sample reads its record, tokenises it and reads the headers of its pictures; it decodes no
 * pixels. A row takes twelve bytes. Any number of threads may read and write, because measuring a sample
 * again gives the same row. A size stays for the life of the index: later passes measure nothing. */
#ifndef DATA_INDEX_H
#define DATA_INDEX_H

#include "base/meter.h"
#include "data/sample.h"
#include "data/step_packer.h"

/* DROP: data.truncation leaves the sample out. */
typedef enum { SIZE_UNKNOWN, SIZE_GOOD, SIZE_DROP, SIZE_BAD } SizeKind;

typedef struct IndexRow { int32_t tokens, patches, supervised; } IndexRow;     /* tokens below 0: -SizeKind */
typedef struct Index { IndexRow *row; int64_t n; } Index;

MUST Status index_open(Index *x, int64_t samples);
void        index_close(Index *x);                                           /* twice is fine */
SizeKind    index_get(const Index *x, int64_t id, DocSize *size);

/* Measures one sample unless its size is known. A bad sample gives its error every time. *loaded is the
 * sample where it had to be loaded for that, zeroed otherwise; the caller closes it. */
MUST Status index_measure(Index *x, SampleScratch *t, const SampleConf *c, int64_t id, DocSize *size,
                          SizeKind *kind, Sample *loaded);
/* Measures the samples of the first `n` positions of a pass, in parallel. The first bad sample is an error
 * unless `tolerant`. meter: of samples, or NULL. */
typedef struct IndexRange { int64_t epoch, n; } IndexRange;
MUST Status index_fill(Index *x, const SampleConf *c, const IndexRange *range, int workers, bool tolerant,
                       Meter *meter);

/* Packs one pass, whose sizes are all known, and adds up its steps. */
typedef struct PassTotals { int64_t steps, bins, docs, tokens, patches, supervised; } PassTotals;
MUST Status index_pack_pass(const Index *x, const SampleConf *c, int64_t epoch, int ranks, int micro,
                       PassTotals *out);

/* Packs the first n positions of the first pass, whose sizes are known, as if they went on: the bins that
 * they make, with a fraction for documents in bins that stay open, and the standard error of that number, as
 * a share of it, where the n samples stand for many more. */
typedef struct PackedHead { double bins, error; } PackedHead;
MUST Status index_pack_head(const Index *x, const SampleConf *c, int64_t n, PackedHead *out);

#endif
