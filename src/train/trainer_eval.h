/* train/trainer_eval.h -- evaluations of a run by source of the held-out data; see trainer.h. */
#ifndef TRAIN_TRAINER_EVAL_H
#define TRAIN_TRAINER_EVAL_H

#include "base/log.h"
#include "engine/source_loss.h"
#include "infer/evaluate.h"
#include "train/progress.h"

/* The results of the last evaluation by source. loss.channels 0: the held-out data has one source without a
 * channel. */
typedef struct EvalSources {
    SourceLoss loss;
    double    *accuracy;                 /* by channel; NAN: no answer was asked for */
    float     *rows;                     /* losses of the rows of a micro-batch */
    int64_t    row_cap;
} EvalSources;

MUST Status eval_sources_open(EvalSources *s, const Loader *l, int sources, int64_t rows);
void        eval_sources_close(EvalSources *s);                          /* twice is fine */
void        eval_sources_clear(EvalSources *s);
/* Adds the losses of the micro-batch that e has evaluated last. */
void        eval_sources_add(EvalSources *s, Engine *e, const Stream *micro, const LoaderDoc *doc);
void        eval_sources_answers(EvalSources *s, const EvalResult *r);
/* A line of the log and scalars of the metrics for each source. */
void        eval_sources_log(const EvalSources *s, const Log *log);
int         eval_sources_scalars(const EvalSources *s);                  /* how many eval_sources_put fills */
void        eval_sources_put(const EvalSources *s, Scalar *out, char (*name)[256]);

#endif
