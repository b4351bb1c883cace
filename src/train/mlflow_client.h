/* train/mlflow_client.h -- calls of MLflow's REST API 2.0, by libcurl, which is loaded when a run asks for
 * it.
 *
 * The server's address is log.mlflow_uri, else MLFLOW_TRACKING_URI; MLFLOW_TRACKING_TOKEN, or
 * MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, go with every call. */
#ifndef TRAIN_MLFLOW_CLIENT_H
#define TRAIN_MLFLOW_CLIENT_H

#include "base/json.h"
#include "data/ids.h"

typedef struct MlflowClient {
    void *curl;                          /* a handle of libcurl */
    void *headers;
    char  uri[1024];                     /* without a slash at the end */
    Text  answer;
} MlflowClient;

MUST Status mlflow_client_open(MlflowClient *c, const char *uri);
/* POSTs `ask` (released) to api/2.0/mlflow/PATH; ask NULL: a GET. *out may be NULL; else the caller releases
 * the answer. An answer of the server that is an error is E_IO with its text. */
MUST Status mlflow_call(MlflowClient *c, const char *path, Json *ask, Json **out);
void        mlflow_client_close(MlflowClient *c);                       /* twice is fine */

#endif
