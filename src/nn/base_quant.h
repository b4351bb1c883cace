/* nn/base_quant.h -- which frozen weights are kept in codes alone (model.base_quant), and of which matrices
 * they are made.
 *
 * Codes are those of the whole matrix, whatever part of it a rank has: a matrix is one tensor of a
 * checkpoint, or one expert's matrix of a stack. So layouts agree to the bit; a cut must fall between blocks
 * (base_quant_check). The sites are those of nn/precision.def. */
#ifndef NN_BASE_QUANT_H
#define NN_BASE_QUANT_H

#include "nn/precision.h"

typedef struct BaseQuant { CodeFormat format; bool site[SITES]; } BaseQuant;    /* CODE_NONE: none */

/* format: a choice of model.base_quant; words: of model.base_quant_weights. */
MUST Status base_quant_read(BaseQuant *b, const char *format, const char *const *words, int n);
const char *base_quant_name(CodeFormat f);
bool        base_quant_has(const BaseQuant *b, const Param *w);
/* Refuses weights that a layout cuts inside blocks, or whose elements are no whole blocks. */
MUST Status base_quant_check(const BaseQuant *b, const ParamSet *s);

/* Matrix i of those that a rank's shard of a weight has elements of: elements at .. of the whole, flat, and
 * the first of its groups among those of all these matrices (nf4). */
typedef struct CodeMatrix { int64_t at, rows, K, group; StridedRange range; } CodeMatrix;
int64_t     code_matrices(const Param *p);
/* `range`: the elements of the shard that lie in the matrix; `at` counts from the matrix. count 0: none. */
CodeMatrix  code_matrix(const Param *p, int64_t i);
int64_t     code_groups(const Param *p);                        /* of all matrices */

#endif
