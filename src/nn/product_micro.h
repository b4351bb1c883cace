/* nn/product_micro.h -- products in microscaled codes (ops/quant_micro.h): MXFP8 and NVFP4.
 *
 * Rows and weights are quantised for each product, in scratch; nothing is kept. Rows have groups along the
 * sum. A weight of MXFP8 has them too, anew for its transposed copy; one of NVFP4 has blocks of 16 x 16, so
 * that forward and backward multiply the same values. The rows dy of NVFP4 are rounded at random, by the
 * dropout seed of the micro-batch, so that input gradients are not biased. */
#ifndef NN_PRODUCT_MICRO_H
#define NN_PRODUCT_MICRO_H

#include "nn/module.h"

/* Rows from .. of a weight, `rows` of them, 0: all; or all of it, for dx transposed. */
typedef struct WeightPart { const Param *of; bool transposed; int64_t from, rows; } WeightPart;

void micro_product(const Pass *c, Tensor y, Tensor x, WeightPart w, Tensor bias, Tensor res);
void micro_experts(const Pass *c, Tensor y, Tensor x, WeightPart w, ExpertRows rows);

#endif
