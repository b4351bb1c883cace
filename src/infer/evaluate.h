/* infer/evaluate.h -- evaluation on held-out data: loss per supervised token, generated answers, accuracy.
 *
 * Works on any engine that was opened with decode capacity, including a trainer's between two steps: it uses
 * the activation arena, as engine_open has planned. Weights, gradients and moments are not changed.
 *
 *   conf.decode = eval_decode_capacity(max_new, &budget);   before engine_open, in the EngineConf
 *   TRY(evaluate_model(&engine, &eval, &result));           any number of times
 *   ... result.total.ce / result.total.supervised, result.total.correct / result.total.asked ...
 *   eval_result_close(&result);
 *
 * With several ranks all of them call it: the replicas of the model (dp) share the samples, and every rank
 * gets the result of all. The loss of a sample is a sum of doubles over its rows, that of a channel one over
 * its samples, in the order of the data, so the layout changes it by rounding alone. A failure of one rank is
 * one of all (comm_agree).
 *
 * One forward pass over a document gives its loss and fills the KV cache from which its last answer is
 * generated. An answer is correct if it equals the expected one apart from white space at both ends. */
#ifndef INFER_EVALUATE_H
#define INFER_EVALUATE_H

#include "base/config.h"
#include "base/log.h"
#include "data/sample.h"
#include "infer/generate.h"

typedef struct EvalConf {
    const Config     *recipe;            /* data.*, image.*, video.*, train.seed */
    const SourceList *sources;           /* data.eval of the recipe, or data.train if eval.split is used */
    const char       *key;               /* of these sources, for messages; NULL: "data.eval" */
    double            split;             /* held-out share of data.train, eval.split; else 0 */
    const Tokenizer  *tokenizer;
    PatchShape        patch;
    int64_t           max_samples;       /* 0: all */
    int64_t           max_new;           /* maximum tokens of an answer; 0: loss only */
    const char       *samples;           /* JSON-lines file for questions and answers, which rank 0 writes in
                                            the order of the data; NULL: none, on all ranks */
    int64_t           sample_lines;      /* lines of it, spread evenly over the data; 0: all */
    bool              blind;             /* control: every image is blank */
    int               workers;           /* threads of a rank that read and decode data; 0: by cores */
    const Log        *log;
    bool            (*stop)(void *self); /* polled between batches; true on any rank: end early. Or NULL */
    void             *self;
} EvalConf;

typedef struct EvalRow {
    char    channel[64];
    int64_t samples, supervised;         /* documents; tokens with a loss */
    int64_t asked, correct;              /* answers generated; of these, correct ones */
    double  ce;                          /* cross entropy summed over supervised tokens */
} EvalRow;

typedef struct EvalResult {
    EvalRow  total;
    EvalRow *row;                        /* one per channel, in the order of the data */
    int      rows;
    int64_t  skipped;                    /* samples that could not be read or do not fit */
    int64_t  generated;                  /* tokens, over all answers */
    bool     stopped;                    /* EvalConf.stop ended it: samples are missing */
    double   seconds;
} EvalResult;

/* Decode capacity for an evaluation in an engine with this budget. */
DecodeCapacity eval_decode_capacity(int64_t max_new, const Budget *b);

MUST Status evaluate_model(Engine *e, const EvalConf *conf, EvalResult *out);
void        eval_result_close(EvalResult *r);                /* may be called twice */

static inline double eval_loss(const EvalRow *r) { return r->supervised ? r->ce / (double)r->supervised : 0; }
static inline double eval_accuracy(const EvalRow *r)
{
    return r->asked ? (double)r->correct / (double)r->asked : 0;
}

/* Prints a table with one line per channel. */
void        eval_print(FILE *out, const EvalResult *r);

#endif
