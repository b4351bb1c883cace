/* infer/answer.h -- finds question and expected answer in a sample, and compares an
 * answer with the latter. */
#ifndef INFER_ANSWER_H
#define INFER_ANSWER_H

#include "data/sample.h"
#include "infer/detokenize.h"

enum { ANSWER_STOPS = 3 };

/* The tokens that an answer begins and ends with in a rendered document: ChatML's, or else those of the
 * folder's template and eos_token. */
typedef struct AnswerFinder {
    const Tokenizer *tokenizer;
    Ids              header;             /* the generation prompt; empty: no answer is found */
    int32_t          stop[ANSWER_STOPS];
    int              stops;
} AnswerFinder;

MUST Status answer_finder_open(AnswerFinder *m, const Tokenizer *t);
void        answer_finder_close(AnswerFinder *m);                            /* may be called twice */

/* The last answer of a document: its prompt is ids[0 .. prompt - 1], the answer ids[prompt .. end - 1].
 * Returns false if there is none. */
bool        answer_find(const AnswerFinder *m, const Ids *ids, int64_t *prompt, int64_t *end);

/* Whether a and b are equal apart from white space at both ends. */
bool        answer_equals(const Text *a, const Text *b);

/* {"question", "answer", "expected", "correct", "images", "channel"}, one line of the samples file. "images"
 * lists the absolute paths of images that are files. */
MUST Status answer_json(Json **out, const AnswerFinder *m, const Sample *s, const SampleConf *c,
                        const char *channel, const Text *answer, const Text *expected, bool correct);

#endif
