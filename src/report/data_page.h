/* report/data_page.h -- samples as the model sees them, as one HTML page: pictures with the grid of their
 * visual tokens, and the text as runs of trained, masked and visual tokens. For `treb data inspect
 * --html`. */
#ifndef REPORT_DATA_PAGE_H
#define REPORT_DATA_PAGE_H

#include "data/sample.h"
#include "report/page.h"

/* The role of a token in training: a row predicts it, it is only read, or it is part of a picture. */
typedef enum { TOKEN_MASKED, TOKEN_TRAINED, TOKEN_VISUAL } TokenRole;

/* Neighbouring tokens shown together: all tokens of a picture, or the few whose bytes make whole
 * characters. */
typedef struct TokenRun { TokenRole role; int64_t from, n, slice; } TokenRun;

/* The next run at *at; false at the end. *slice counts pictures. */
bool        token_run_next(const Sample *s, const SampleConf *c, int64_t *at, int64_t *slice, TokenRun *out);

void        data_page_open(Page *p, const char *title);        /* for page_write and page_close */
void        data_page_border(Page *p, const char *text);       /* a line between micro-batches */
MUST Status data_page_sample(Page *p, const Sample *m, const SampleConf *c, SampleScratch *t,
                             const char *title);

#endif
