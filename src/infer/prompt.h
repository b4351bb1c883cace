/* infer/prompt.h -- conversations that a model is to continue: from a JSON line, in any form that a dataset
 * may have, to the documents of a stream with their pictures.
 *
 *   TRY(prompt_reader_open(&r, &recipe, &model));     model: after predict_open
 *   TRY(prompt_read(&p, &r, json, "prompts.jsonl"));  json outlives p; relative pictures are beside that file
 *   TRY(prompt_add(&stream, &p, &r));                 E_FIT: a budget of the stream is full
 *   prompt_close(&p), prompt_reader_close(&r);
 *
 * An answer at the end of the conversation is left out. */
#ifndef INFER_PROMPT_H
#define INFER_PROMPT_H

#include "data/sample.h"
#include "infer/predict.h"

typedef struct PromptReader {
    SampleConf    sc;
    SampleScratch scratch;
} PromptReader;

typedef struct Prompt {
    DataFile file;
    Dataset  data; /* of that one line */
    Sample   sample;
} Prompt;

enum { PROMPT_MOST_TOKENS = 1 << 24 };

MUST Status prompt_reader_open(PromptReader *r, const Config *recipe, const Predictor *model);
void        prompt_reader_close(PromptReader *r); /* may be called twice */

/* Must not be moved: the sample points into it. On failure nothing stays open. */
MUST Status prompt_read(Prompt *p, PromptReader *r, const char *json, const char *where);
MUST Status prompt_add(Stream *s, Prompt *p, PromptReader *r);
void        prompt_close(Prompt *p); /* may be called twice */

#endif
