/* data/dataset.h -- the sources of a recipe as one numbered set of samples, and the order they are drawn
 * in.
 *
 * Samples are numbered through all files of all sources: that number, the id, names a sample for good. A
 * pass (epoch) draws weight * n samples from a source of n: weight 1 all of them once, 0.5 a half and the
 * other half in the next pass, 2 each of them twice. Which id stands at a position of a pass is a pure
 * function of (seed, epoch, position), so a position is all the state there is.
 *
 * eval.split: a fixed random share of each source, chosen by the seed, belongs to the held-out part and
 * never to the other one. */
#ifndef DATA_DATASET_H
#define DATA_DATASET_H

#include "base/config.h"
#include "base/log.h"
#include "data/format.h"

typedef struct DatasetConf {
    const SourceList *sources;
    const char       *key;               /* of the recipe, for messages: "data.train" */
    double            split;             /* share held out; 0: nothing is */
    bool              held_out;          /* read that share instead of the rest */
    bool              once;              /* file order, each sample once, weights 0 or not */
    bool              tolerant;          /* a damaged file is warned of, its sound part used */
    uint64_t          seed;
    FormatConf        format;
    const Json       *settings;          /* what packed files must have been made for, or NULL */
    const Log        *log;
} DatasetConf;

typedef struct DataFile {
    FormatFile file;
    int64_t    first;                    /* id of its sample 0 */
    int        source;
    Status     status;                   /* of opening it */
    char       text[320];
} DataFile;

typedef struct DataSource {
    const Source *conf;
    int64_t       first, all;            /* ids, max_samples respected */
    int64_t       held;                  /* of them in the held-out part */
    int64_t       n, drawn;              /* in the part that is read, and drawn in each pass */
} DataSource;

typedef struct Dataset {
    DatasetConf conf;
    DataFile   *file;
    DataSource *source;
    int64_t     files, file_cap;
    int         sources;
    int64_t     samples;                 /* ids there are */
    int64_t     pass;                    /* positions in one pass */
    int64_t     damaged;                 /* files that end early */
    Keep        keep;
} Dataset;

MUST Status dataset_open(Dataset *d, const DatasetConf *conf);
void        dataset_close(Dataset *d);                                           /* twice is fine */

int64_t     dataset_id(const Dataset *d, int64_t epoch, int64_t position);
MUST Status dataset_read(const Dataset *d, int64_t id, Record *r);
void        dataset_where(const Dataset *d, int64_t id, char *out, size_t cap); /* "train.jsonl:17" */
bool        dataset_size(const Dataset *d, int64_t id, DocSize *size);           /* known without reading? */
const DataFile   *dataset_file(const Dataset *d, int64_t id);
const DataSource *dataset_source(const Dataset *d, int64_t id);
const char       *dataset_channel(const Dataset *d, int source);                 /* its name, or its path */

#endif
