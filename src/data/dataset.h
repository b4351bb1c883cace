/* data/dataset.h -- the sources of a recipe as one numbered set of samples, and the order they are drawn
 * in.
 *
 * Samples are numbered through all files of all sources; the number is the id of the sample. A pass
 * (epoch) draws weight * n samples from a source of n: weight 1 draws each once, 0.5 one half and the
 * other half in the next pass, 2 each twice. The id at a position of a pass is a pure function of (seed,
 * epoch, position), so the position is the only state.
 *
 * eval.split holds out a fixed random share of each source, chosen by the seed. */
#ifndef DATA_DATASET_H
#define DATA_DATASET_H

#include "base/config.h"
#include "base/log.h"
#include "data/format.h"

typedef struct DatasetConf {
    const SourceList *sources;
    const char       *key;               /* name of the list in the recipe, for messages: "data.train" */
    double            split;             /* share held out; 0: none */
    bool              held_out;          /* read that share instead of the rest */
    bool              once;              /* file order, each sample once; of weights only 0 counts */
    bool              tolerant;          /* a damaged file is a warning, its intact part is used */
    uint64_t          seed;
    FormatConf        format;
    const Json       *settings;          /* settings that packed files must have been made with, or NULL */
    const Log        *log;
} DatasetConf;

typedef struct DataFile {
    FormatFile file;
    int64_t    first;                    /* id of its sample 0 */
    int        source;
    Status     status;                   /* result of opening it */
    char       text[320];
} DataFile;

typedef struct DataSource {
    const Source *conf;
    int64_t       first, all;            /* ids, max_samples respected */
    int64_t       held;                  /* how many of `all` are held out */
    int64_t       n, drawn;              /* samples in the part that is read; draws in each pass */
} DataSource;

typedef struct Dataset {
    DatasetConf conf;
    DataFile   *file;
    DataSource *source;
    int64_t     files, file_cap;
    int         sources;
    int64_t     samples;                 /* number of ids */
    int64_t     pass;                    /* positions in one pass */
    int64_t     damaged;                 /* files that end early */
    Text           unread; /* names of files in folders that are not read, or empty; ends with a NUL */
    MemPool        keep;
} Dataset;

MUST Status dataset_open(Dataset *d, const DatasetConf *conf);
void        dataset_close(Dataset *d);                                           /* twice is fine */

int64_t     dataset_id(const Dataset *d, int64_t epoch, int64_t position);
MUST Status dataset_read(const Dataset *d, int64_t id, Record *r);
void        dataset_where(const Dataset *d, int64_t id, char *out, size_t cap); /* "train.jsonl:17" */
bool        dataset_size(const Dataset *d, int64_t id, DocSize *size);  /* false: not known without reading */
const DataFile   *dataset_file(const Dataset *d, int64_t id);
const DataSource *dataset_source(const Dataset *d, int64_t id);
const char       *dataset_channel(const Dataset *d, int source);                 /* its name, or its path */

#endif
