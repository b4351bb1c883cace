/* data/fingerprint.h -- which files a run was trained on: enough to tell two sets of files apart. */
#ifndef DATA_FINGERPRINT_H
#define DATA_FINGERPRINT_H

#include "data/dataset.h"

/* {files, bytes, samples, xxh128, synthetic, paths: [{path, bytes}, ...]}; caller: json_decref. The hash
 * covers path, size and the first and last 64 KiB of every file; the list of paths ends after 64 files. */
Json *fingerprint_dataset(const Dataset *d);

#endif
