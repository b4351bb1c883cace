/* cli/data_show.h -- a sample as the model sees it, on a terminal or as a page; for `treb data inspect`. */
#ifndef CLI_DATA_SHOW_H
#define CLI_DATA_SHOW_H

#include "data/sample.h"
#include <stdio.h>

/* What a token is to training: learnt (a row predicts it), only read, or a place for a picture. */
typedef enum { TOKEN_MASKED, TOKEN_TRAINED, TOKEN_VISUAL } TokenKind;

/* Neighbouring tokens shown as one: a run of visual ones, or the few whose bytes together are whole
 * characters. */
typedef struct TokenRun { TokenKind kind; int64_t from, n, slice; } TokenRun;

/* The next run at *at; false at the end. `slice` counts the visual ones. */
bool token_run_next(const Sample *s, const SampleConf *c, int64_t *at, int64_t *slice, TokenRun *out);

typedef struct Show Show;
struct Show {
    FILE             *out;
    const SampleConf *conf;
    SampleScratch    *scratch;
    bool              colour, table;
    void   (*begin)(Show *s, const char *title);
    Status (*sample)(Show *s, const Sample *m, int64_t number, const char *channel);
    void   (*border)(Show *s, const char *text);         /* of a micro-batch */
    void   (*end)(Show *s);
};

void show_terminal(Show *s);
void show_page(Show *s);

#endif
