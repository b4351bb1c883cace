/* model/fp8_stage.h -- loads weights that a rank keeps in 8 bits alone (ShardConf.base_codes).
 *
 * A weight is read into host memory in the dtype of the model, quantised there, and its codes go to the
 * device: no other copy of it is ever on the device. A rank that holds a slice reads the rows of whole blocks
 * around it, so that the scales are those of the whole weight. */
#ifndef MODEL_FP8_STAGE_H
#define MODEL_FP8_STAGE_H

#include "nn/param.h"

#include <pthread.h>

typedef struct Fp8Stage {
    Backend        *be;                  /* of the weights */
    Backend         host;                /* quantises */
    DType           dtype;               /* of the model */
    bool            opened;              /* there is such a weight */
    pthread_mutex_t lock;                /* of `host` */
} Fp8Stage;

bool        fp8_stage_takes(const Param *p);                  /* p has codes and nothing else */
MUST Status fp8_stage_open(Fp8Stage *s, Backend *be, const ParamSet *params);
void        fp8_stage_close(Fp8Stage *s);
/* Host memory for the elements of p that are to be filled; fp8_stage_put quantises and frees them, after a
 * failure `st` it frees them alone and returns st. */
MUST Status fp8_stage_view(const Fp8Stage *s, const Param *p, ShardView *out);
MUST Status fp8_stage_put(Fp8Stage *s, const Param *p, ShardView from, Status st);

#endif
