/* data/index_cache.h -- the sizes of samples (data/index.h) between starts, KEY.sizes of the cache
 * (data/cache_file.h); and the steps that they make, KEY.steps.
 *
 * The key is a hash of the names, sizes and times of change of the dataset's files, of the vocabulary, and of
 * the settings that decide how many tokens and patches a sample has. Pictures are not part of the key: a
 * picture that has changed since is found when it is read. */
#ifndef DATA_INDEX_CACHE_H
#define DATA_INDEX_CACHE_H

#include "data/cache_file.h"
#include "data/index.h"
#include "data/loader.h"

/* E_IO: a file cannot be looked at. */
MUST Status index_cache_key(char key[CACHE_KEY], const SampleConf *c);
/* Whether the sizes were there. */
bool        index_cache_load(Index *x, const char *key);
MUST Status index_cache_save(const Index *x, const char *key);

/* The steps of so many epochs, counted or estimated: beside the sizes they depend on the order of
 * the data and on how many micro-batches a step has. */
typedef struct StepsAsk {
    const char    *key;
    const Dataset *data;
    double         epochs;
    int            ranks, micro;
    int64_t        measured; /* samples that they are estimated from; 0: counted */
} StepsAsk;
bool        index_cache_load_steps(LoaderSteps *steps, const StepsAsk *ask);
MUST Status index_cache_save_steps(const LoaderSteps *steps, const StepsAsk *ask);

#endif
