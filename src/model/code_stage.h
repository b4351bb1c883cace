/* model/code_stage.h -- loads a base that a rank keeps in int8 or nf4 (nn/base_quant.h).
 *
 * One matrix after the other is filled on the device, in the dtype of the model, quantised there, and the
 * part of its codes that this rank has is written in place. So neither host nor device ever has more than one
 * matrix of the base in the dtype of the model. A rank that has a part of a matrix reads all of it, since
 * codes are those of the whole. */
#ifndef MODEL_CODE_STAGE_H
#define MODEL_CODE_STAGE_H

#include "nn/base_quant.h"

#include <pthread.h>

typedef struct CodeStage {
    Backend        *be;
    Arena           arena;               /* of one matrix and its statistics */
    DType           dtype;               /* of the model */
    bool            opened;              /* there is such a weight */
    pthread_mutex_t lock;                /* of the arena */
} CodeStage;

/* Fills t (n) with elements [at, at + n) of the whole of p, flat. */
typedef Status FillWeight(void *self, Backend *be, const Param *p, Tensor t, int64_t at);

bool        code_stage_takes(const Param *p);
MUST Status code_stage_open(CodeStage *s, Backend *be, const ParamSet *params);
void        code_stage_close(CodeStage *s);
MUST Status code_stage_put(CodeStage *s, const Param *p, FillWeight *fill, void *self);

#endif
