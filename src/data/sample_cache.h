/* data/sample_cache.h -- samples that were loaded to learn their size, kept until they are packed.
 *
 * The sizes of all samples of a step must be known before the step can be packed, and a size costs reading
 * and tokenising the sample. The cache keeps what was read, so that each sample is loaded once in a pass.
 * Its memory is bounded by a number of rows and a number of bytes: a sample that finds no place is not
 * kept and is loaded again when it is needed. The caller serialises all calls. */
#ifndef DATA_SAMPLE_CACHE_H
#define DATA_SAMPLE_CACHE_H

#include "data/sample.h"

typedef struct SampleCache {
    struct SampleCacheRow *row;          /* the sample of position p is in row p % rows, or not kept */
    int64_t rows;
    size_t  bytes, limit;                /* of the samples in it */
} SampleCache;

MUST Status sample_cache_open(SampleCache *c, int64_t rows, size_t limit);
void        sample_cache_close(SampleCache *c);                              /* twice is fine */
void        sample_cache_clear(SampleCache *c);

/* Takes over *s, which is zeroed; or closes it where there is no place. */
void        sample_cache_put(SampleCache *c, int64_t epoch, int64_t position, Sample *s);
/* Gives the sample to the caller; false: it is not kept, and *s is zeroed. */
bool        sample_cache_take(SampleCache *c, int64_t epoch, int64_t position, Sample *s);

#endif
