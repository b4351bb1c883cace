/* model/weights_private.h -- shared by src/model/weights*.c and peft*.c. */
#ifndef MODEL_WEIGHTS_PRIVATE_H
#define MODEL_WEIGHTS_PRIVATE_H

#include "model/weights.h"

/* The name of a tensor of the model in its files. */
void weights_file_name(char *out, size_t n, const ModelShape *s, const char *name);

/* Loads parameter i only; its tensors' names start with `prefix` in the file. */
MUST Status weights_load_one(Model *m, Backend *be, const SafeTensors *st, const char *prefix, int i);

/* Checks that the tensors of parameter i exist and have their shapes; reads no data. */
MUST Status weights_check_shapes(Model *m, const SafeTensors *st, const char *prefix, int i);

/* Loads piece i of p from a tensor that has the whole piece, in p's own layout. */
MUST Status weights_put_piece(Backend *be, const Param *p, int i, const StTensor *t);

/* Loads all parameters without weights_check; *elements: number of elements read from the files. */
MUST Status weights_read(Model *m, Backend *be, const SafeTensors *st, Meter *meter, int64_t *elements);

/* Binds parameter i of m whole, in f32, in the arena, which is cleared, and fills it from its source. */
MUST Status weights_fill_param(Model *m, Backend *be, ParamSource from, Arena *arena, int i);

void weights_transpose(float *dst, const float *src, int64_t rows, int64_t cols);   /* dst (cols, rows) */

#endif
