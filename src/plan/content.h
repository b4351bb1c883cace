/* plan/content.h -- what the micro-batches of a run hold, as far as the time of a step depends on it: how
 * full they are, how long documents are, how large pictures, how many tokens are supervised. Memory does not
 * depend on it: it is planned for budgets that are full.
 *
 *   BatchContent c = content_assumed(&recipe, &shape, &full);      or content_of(&sums, budget)
 *   Stream s = content_stream(&full, &c);                          for engine_plan with a timeline */
#ifndef PLAN_CONTENT_H
#define PLAN_CONTENT_H

#include "base/config.h"
#include "base/json.h"
#include "engine/flops.h"

typedef enum { CONTENT_ASSUMED, CONTENT_SAMPLED, CONTENT_MEASURED } ContentSource;

/* Attention costs pairs of rows: its lengths are those of the document of a mean token and of the picture of
 * a mean patch. */
typedef struct BatchContent {
    ContentSource source;
    double        fill;                  /* tokens of documents over the token budget */
    double        document;              /* tokens: 2 pairs / tokens - 1 */
    double        supervised;            /* of tokens */
    double        patches;               /* for each token */
    double        picture;               /* patches: pairs / patches; 0: no pictures */
} BatchContent;

/* From sums over micro-batches that have so many tokens at most. */
BatchContent content_of(const Load *sum, double token_budget, ContentSource source);
/* The most work that the recipe allows: full micro-batches of documents of data.max_length, all supervised;
 * but pictures of a usual size (2,304 patches, or image.max_pixels if that is less). full: of stream_full. */
BatchContent content_assumed(const Config *recipe, const ModelShape *s, const Stream *full);
/* The counts of a mean micro-batch within the budgets of a full one. */
Stream       content_stream(const Stream *full, const BatchContent *c);
/* "data as sampled: micro-batches 72 % full; documents of 455 tokens, 21 % of them supervised; pictures of
 * 1200 patches, 2.64 patches a token" */
void         content_text(char *out, size_t n, const BatchContent *c);
Json        *content_json(const BatchContent *c);

#endif
