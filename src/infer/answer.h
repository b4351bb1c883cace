/* infer/answer.h -- what a sample asks and what it expects, and an answer held against that. */
#ifndef INFER_ANSWER_H
#define INFER_ANSWER_H

#include "data/sample.h"
#include "infer/detokenize.h"

/* Where answers begin in rendered documents: <|im_start|> and this header. */
typedef struct AnswerFinder {
    const Tokenizer *tokenizer;
    ChatTokens       token;
    Ids              header;             /* "assistant\n" */
} AnswerFinder;

MUST Status answer_finder_open(AnswerFinder *m, const Tokenizer *t);
void        answer_finder_close(AnswerFinder *m);                            /* twice is fine */

/* The last answer of a document: its prompt is ids[0 .. prompt - 1], the answer ids[prompt .. end - 1].
 * False when there is none. */
bool        answer_find(const AnswerFinder *m, const Ids *ids, int64_t *prompt, int64_t *end);

/* Equal but for white space at both ends. */
bool        answer_equals(const Text *a, const Text *b);

/* One object {"question", "answer", "expected", "correct", "images", "channel"} for people and reports;
 * pictures by absolute path where they are files. */
MUST Status answer_json(Json **out, const AnswerFinder *m, const Sample *s, const SampleConf *c,
                        const char *channel, const Text *answer, const Text *expected, bool correct);

#endif
