/* train/mlflow.h -- metrics of a run to an MLflow server while it trains.
 *
 * mlflow_open makes the run on the server and refuses one that cannot be reached. From then on a thread of
 * its own sends: mlflow_scalar copies a number into a ring and never waits. While the server does not answer
 * the ring keeps the newest numbers; a warning says so once, and how many were lost at the end. The run's id
 * is in mlflow.json of its folder, so a resumed run goes on in the same one. On NULL every call is a
 * no-op. */
#ifndef TRAIN_MLFLOW_H
#define TRAIN_MLFLOW_H

#include "base/config.h"
#include "base/log.h"

typedef struct Mlflow Mlflow;

/* dir: the run's folder. */
MUST Status mlflow_open(Mlflow **out, const Config *recipe, const char *dir, const Log *log);
void        mlflow_scalar(Mlflow *m, int64_t step, const char *name, double value);
void        mlflow_flush(Mlflow *m);                            /* what was put is sent now; does not wait */
/* Sends what is left, for some seconds at most, and ends the run on the server. NULL is fine. */
void        mlflow_close(Mlflow *m, bool failed);

#endif
