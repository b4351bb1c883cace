/* model/fp8_stage.h -- loads weights that a rank keeps in 8 bits alone (ShardConf.base_codes).
 *
 * A weight is read in the dtype of the model and quantised: where a GPU has all of the shard one matrix at a
 * time, on the device; else all of it, in host memory. No other copy of it is ever on the device. A rank that
 * holds a slice reads the rows of whole blocks around it, so that the scales are those of the whole
 * weight. */
#ifndef MODEL_FP8_STAGE_H
#define MODEL_FP8_STAGE_H

#include "nn/param.h"

#include <pthread.h>

typedef struct Fp8Stage {
    Backend        *be;                  /* of the weights */
    Backend         host;                /* quantises slices */
    Arena           arena;               /* of one matrix, on a GPU */
    DType           dtype;               /* of the model */
    bool            opened;              /* there is such a weight */
    pthread_mutex_t lock;                /* of `host` */
} Fp8Stage;

bool        fp8_stage_takes(const Param *p);                  /* p is frozen and has codes alone */
MUST Status fp8_stage_open(Fp8Stage *s, Backend *be, const ParamSet *params);
void        fp8_stage_close(Fp8Stage *s);
/* Parts that p is filled in, one after the other, on this backend. */
int64_t     fp8_stage_parts(const Fp8Stage *s, const Param *p);
Backend    *fp8_stage_backend(Fp8Stage *s, const Param *p);
/* Memory for the elements of a part that are to be filled; fp8_stage_put quantises and frees them, after a
 * failure `st` it frees them alone and returns st. */
MUST Status fp8_stage_view(Fp8Stage *s, const Param *p, int64_t part, ShardView *out);
MUST Status fp8_stage_put(Fp8Stage *s, const Param *p, int64_t part, ShardView from, Status st);

#endif
