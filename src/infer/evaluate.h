/* infer/evaluate.h -- held-out data through a model: loss per supervised token, answers, how many are right.
 *
 * Works on any engine that was opened with room to decode, a trainer's between two steps included: it lives
 * in the activation arena, as engine_open has planned. Weights, gradients and moments are not touched.
 *
 *   conf.decode = eval_decode_capacity(max_new, &budget);         before engine_open, in the EngineConf
 *   TRY(evaluate_model(&engine, &eval, &result));      as often as wanted
 *   ... result.total.ce / result.total.supervised, result.total.correct / result.total.asked ...
 *   eval_result_close(&result);
 *
 * A document passes once: the forward that gives its loss also fills the cache from which its last answer is
 * decoded. The answer is right when it is the expected one, white space at both ends aside. */
#ifndef INFER_EVALUATE_H
#define INFER_EVALUATE_H

#include "base/config.h"
#include "base/log.h"
#include "data/sample.h"
#include "infer/generate.h"

typedef struct EvalConf {
    const Config     *recipe;            /* data.*, image.*, video.*, train.seed */
    const SourceList *sources;           /* data.eval of the recipe, or data.train and its held-out share */
    const char       *key;               /* of these sources, for messages; NULL: "data.eval" */
    double            split;             /* that share, eval.split; else 0 */
    const Tokenizer  *tokenizer;
    PatchShape        patch;
    int64_t           max_samples;       /* 0: all */
    int64_t           max_new;           /* tokens of an answer at most; 0: loss alone */
    const char       *samples;           /* file for questions and answers, an object a line; NULL: none */
    int64_t           sample_lines;      /* how many, spread evenly over the data; 0: all */
    bool              blind;             /* every picture is blank: what can be answered without looking */
    int               workers;           /* threads that read and decode; 0: as many as cores */
    const Log        *log;
    bool            (*stop)(void *self); /* asked now and then; true: end with what there is. May be NULL */
    void             *self;
} EvalConf;

typedef struct EvalRow {
    char    channel[64];
    int64_t samples, supervised;         /* documents; tokens that count for the loss */
    int64_t asked, correct;              /* documents with an answer to give; right ones */
    double  ce;                          /* summed over supervised tokens */
} EvalRow;

typedef struct EvalResult {
    EvalRow  total;
    EvalRow *row;                        /* by channel, in the order of the data */
    int      rows;
    int64_t  skipped;                    /* samples that could not be read or do not fit */
    int64_t  generated;                  /* tokens of all answers */
    double   seconds;
} EvalResult;

/* Room to decode that an evaluation wants of an engine with this budget. */
DecodeCapacity  eval_decode_capacity(int64_t max_new, const Budget *b);

MUST Status evaluate_model(Engine *e, const EvalConf *conf, EvalResult *out);
void        eval_result_close(EvalResult *r);                /* twice is fine */

static inline double eval_loss(const EvalRow *r) { return r->supervised ? r->ce / (double)r->supervised : 0; }
static inline double eval_accuracy(const EvalRow *r)
{
    return r->asked ? (double)r->correct / (double)r->asked : 0;
}

/* The table of channels for people. */
void        eval_print(FILE *out, const EvalResult *r);

#endif
