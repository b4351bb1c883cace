/* checkpoint/hub_cache.h -- models of the Hugging Face hub in the local cache; nothing is downloaded. */
#ifndef CHECKPOINT_HUB_CACHE_H
#define CHECKPOINT_HUB_CACHE_H

#include "base/folder.h"

/* The folder that a model.path stands for: the path itself where it exists, else the snapshot of the hub id
 * "owner/name" in the cache (HF_HUB_CACHE, HF_HOME/hub, ~/.cache/huggingface/hub). An id that is not there is
 * refused with the command that downloads it. Any other path stays as it is, for the reader to refuse. */
MUST Status hub_cache_find(Path out, const char *path);

#endif
