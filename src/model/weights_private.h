/* model/weights_private.h -- shared by src/model/weights*.c and peft*.c. */
#ifndef MODEL_WEIGHTS_PRIVATE_H
#define MODEL_WEIGHTS_PRIVATE_H

#include "model/code_stage.h"
#include "model/fp8_stage.h"
#include "model/sink.h"
#include "model/weights.h"

typedef struct WeightLoader {
    Model             *m;
    Backend           *be;
    const SafeTensors *st;
    const char        *prefix;
    Fp8Stage          *stage;            /* of weights in 8 bits; NULL: there are none */
    CodeStage         *codes;            /* of weights in int8 or nf4; likewise */
    int64_t            read;             /* elements */
    Meter             *meter;            /* of their bytes; or NULL */
} WeightLoader;

/* The tensor of the files that the model calls `name`, by the loader's prefix; find: NULL without. */
const StTensor *weights_find_tensor(const WeightLoader *l, const char *name);
MUST Status weights_get_tensor(const WeightLoader *l, const char *name, const StTensor **t);

bool        weights_shape_is(const StTensor *t, int rank, const int64_t *shape);
MUST Status weights_wrong_shape(const StTensor *t, int rank, const int64_t *want);      /* the error */

/* Writes n elements of t from element `from` on; codes with scales of blocks are decoded on the way. */
void weights_put_elements(Sink *out, const StTensor *t, int64_t from, int64_t n);
/* Writes the elements of range c from a tensor that starts at offset `base` of the whole parameter. */
void weights_put_range(Sink *out, const StTensor *t, const StridedRange *c, int64_t base);

/* Writes the elements of range c of p, whose form is one of experts. weights_experts.c */
MUST Status weights_load_experts(WeightLoader *l, Sink *out, const Param *p, const StridedRange *c);
/* Checks that the tensors of the experts of p exist and have their shapes. */
MUST Status weights_check_experts(WeightLoader *l, const Param *p);

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
