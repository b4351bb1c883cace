/* cli/data_look.h -- lengths and pictures of a dataset, by a few hundred of its samples: what `treb init` and
 * predictions from a recipe know of the data. */
#ifndef CLI_DATA_LOOK_H
#define CLI_DATA_LOOK_H

#include "cli/data.h"
#include "plan/content.h"

enum { DATA_LOOK = 400 };                /* most samples that are loaded */

/* Of samples spread evenly over the data. */
typedef struct DataLook {
    int64_t samples, looked, bad, pictures;
    int64_t longest, most_patches;       /* tokens of the longest sample; patches of the largest */
    Load    sum;                         /* of those looked at */
    DocSize size[DATA_LOOK];             /* of each of them */
    char    error[512];                  /* of the first bad sample */
} DataLook;

MUST Status  data_look(DataLook *d, const DataView *v, const Tokenizer *tokenizer);
static inline double data_look_mean(const DataLook *d, int64_t sum)
{
    return (double)sum / (double)d->looked;
}

/* What micro-batches of this budget hold of such samples: they are packed as a run packs them. */
MUST Status  data_look_content(BatchContent *c, const DataLook *d, const Budget *b);
/* The same for data.train of a recipe; false, and a warning of what is assumed: it or its tokenizer cannot be
 * read. */
bool         data_content(BatchContent *c, const Config *recipe, const Log *log);

#endif
