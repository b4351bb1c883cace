/* model/weights_private.h -- shared by reading and writing checkpoints. */
#ifndef MODEL_WEIGHTS_PRIVATE_H
#define MODEL_WEIGHTS_PRIVATE_H

#include "model/weights.h"

/* Parameter i alone, into where it is bound; its tensors' names begin with `prefix` in the file. */
MUST Status weights_load_one(Model *m, Backend *be, const SafeTensors *st, const char *prefix, int i);

/* Whether its tensors are there, in their shapes; nothing of them is read. */
MUST Status weights_check_shapes(Model *m, const SafeTensors *st, const char *prefix, int i);

/* Piece i of p from a tensor that has all of it in p's own order, into where it is bound. */
MUST Status weights_put_piece(Backend *be, const Param *p, int i, const StTensor *t);

/* All of them, without weights_check; how many elements of the files were looked at. */
MUST Status weights_read(Model *m, Backend *be, const SafeTensors *st, int64_t *elements);

void weights_transpose(float *dst, const float *src, int64_t rows, int64_t cols);   /* dst (cols, rows) */

#endif
