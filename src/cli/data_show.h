/* cli/data_show.h -- a sample as the model sees it, on a terminal or on a page; for `treb data inspect`. */
#ifndef CLI_DATA_SHOW_H
#define CLI_DATA_SHOW_H

#include "data/sample.h"
#include "report/page.h"
#include <stdio.h>

typedef struct Show {
    FILE             *out;
    Page             *page;              /* NULL: on a terminal */
    const SampleConf *conf;
    SampleScratch    *scratch;
    bool              colour, table;     /* of the terminal */
} Show;

void        show_begin(Show *s, const char *title);
MUST Status show_sample(Show *s, const Sample *m, int64_t number, const char *channel);
void        show_border(Show *s, const char *text);            /* between micro-batches */
void        show_note(Show *s, const char *text);              /* about the sample before it */

#endif
