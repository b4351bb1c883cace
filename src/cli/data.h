/* cli/data.h -- what the verbs of `treb data` share: opening the sources of a recipe, or files named
 * directly. */
#ifndef CLI_DATA_H
#define CLI_DATA_H

#include "data/sample.h"
#include "checkpoint/model_source.h"

typedef struct DataSetup {
    Config      recipe;
    ModelSource model;                   /* tokenizer NULL: files without a model */
    Source     *source;                  /* of files named directly; data.train of `recipe` lists them */
    StreamShape stream;
    PatchShape  patch;
    Budget      budget;
    int         micro;
    Log         log;
} DataSetup;

/* plain: "recipe.yaml [section.key=value ...]" or "FILE ... [section.key=value ...]". */
MUST Status data_setup_open(DataSetup *s, const char *verb, const char **plain, int n);
/* Of a recipe that is open, whose strings stay the caller's. Only errors are logged. */
MUST Status data_setup_of(DataSetup *s, const Config *recipe);
void        data_setup_close(DataSetup *s);                              /* twice is fine */

/* One list of sources of the recipe, opened. once: in file order, else in the order of training. */
typedef struct DataView {
    Dataset    data;
    SampleConf sample;
    Json      *settings;
} DataView;

MUST Status data_view_open(DataView *v, const DataSetup *s, const SourceList *sources, const char *key,
                           bool once, bool tolerant);
void        data_view_close(DataView *v);                                /* twice is fine */

#endif
