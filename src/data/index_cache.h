/* data/index_cache.h -- the sizes of samples (data/index.h) between starts, in the user's cache folder
 * (folder_cache): index/KEY.sizes; and the steps that they make, index/KEY.steps.
 *
 * The key is a hash of the names, sizes and times of change of the dataset's files, of the vocabulary, and of
 * the settings that decide how many tokens and patches a sample has. A file that is not there, or is damaged,
 * leaves the index as it is. Pictures are not part of the key: a picture that has changed since is found when
 * it is read. Nothing is written beside the data. */
#ifndef DATA_INDEX_CACHE_H
#define DATA_INDEX_CACHE_H

#include "data/index.h"

enum { INDEX_KEY = 33 };

/* E_IO: a file cannot be looked at. */
MUST Status index_cache_key(char key[INDEX_KEY], const SampleConf *c);
/* Whether the sizes were there. */
bool        index_cache_load(Index *x, const char *key);
MUST Status index_cache_save(const Index *x, const char *key);

/* The steps of so many epochs, which packing all of them gives: beside the sizes they depend on the order of
 * the data and on how many micro-batches a step has. */
typedef struct StepsAsk {
    const char    *key;
    const Dataset *data;
    double         epochs;
    int            ranks, micro;
} StepsAsk;
bool        index_cache_load_steps(int64_t *steps, const StepsAsk *ask);
MUST Status index_cache_save_steps(int64_t steps, const StepsAsk *ask);

#endif
