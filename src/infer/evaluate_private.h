/* infer/evaluate_private.h -- shared by evaluate.c, evaluate_read.c and evaluate_records.c.
 *
 * Samples are dealt out to the replicas of the model (dp) in turn: position p goes to replica p % dp. A
 * replica reads a block of them at a time and packs them into batches; all ranks of a replica read the same.
 * After a block the replicas exchange a record per sample, so that every rank has the sums, in the order of
 * the data. */
#ifndef INFER_EVALUATE_PRIVATE_H
#define INFER_EVALUATE_PRIVATE_H

#include "base/thread_pool.h"
#include "infer/answer.h"
#include "infer/evaluate.h"

enum { EVAL_BLOCK = 256 };               /* samples that a replica reads at once, without their pixels */

/* The result of one sample. */
typedef struct EvalRecord {
    char    channel[sizeof ((EvalRow *)0)->channel];
    int64_t supervised;
    double  ce;
    int64_t line;                        /* bytes of its line in the samples file; 0: it has none */
    int8_t  evaluated, skipped, asked, correct;
} EvalRecord;

typedef struct EvalItem {
    Sample  sample;
    int64_t position;                    /* in the order of the evaluation */
    int     record;                      /* in Eval.record */
    Status  status;                      /* of reading the sample or decoding its images, with its text */
    char    text[512];
    bool    bad;                         /* left out: a rank of the replica cannot read it */
    int64_t prompt, end;                 /* answer_find; prompt 0: there is no answer to generate */
    int64_t patch, slice, from;          /* first patch, slice, supervised row in the stream */
    int64_t supervised;
} EvalItem;

typedef struct Eval {
    const EvalConf *conf;
    Engine         *e;
    EvalResult     *out;
    Dataset         data;
    SampleConf      sc;
    Json           *settings;
    AnswerFinder    finder;
    Generator       gen;
    GenerateConf    sampling;
    Stream          stream;
    ThreadPool      pool;
    int             workers;
    SampleScratch  *scratch;             /* one per worker */
    int             replica, replicas;   /* this rank's coordinate on dp, and its size */
    int64_t         samples;             /* of the whole evaluation */
    EvalItem       *item;                /* (EVAL_BLOCK) of this replica */
    int64_t         items, block;        /* in the block; position of its first sample */
    EvalItem       *batch;               /* the documents of the stream, within item */
    int64_t         docs;
    int32_t        *tokens, *asked;      /* (docs) prompt lengths; documents with an answer to generate */
    Ids            *answers;
    float          *loss;                /* (supervised rows of the budget) */
    EvalRecord     *record, *all;        /* (EVAL_BLOCK) of this replica; of each replica */
    Text            lines, all_lines;    /* of the samples file: of this replica's block; of all replicas */
    FILE           *file;                /* rank 0 writes it */
} Eval;

/* evaluate_read.c */
MUST Status eval_open_data(Eval *v);
MUST Status eval_read_block(Eval *v);                        /* usable samples of the block, in v->item */
MUST Status eval_read_pixels(Eval *v);                       /* of the batch */
void        eval_item_close(EvalItem *x);

/* evaluate_records.c */
MUST Status eval_open_records(Eval *v);
void        eval_close_records(Eval *v);
MUST Status eval_score_answer(Eval *v, const EvalItem *x, const Ids *got);
/* After a block, on all ranks: adds the records of all replicas to the result and writes their lines. */
MUST Status eval_join_records(Eval *v);

#endif
