/* nn/product.h -- the products of a weight, in the format that Env.precision gives its site (nn/precision.h).
 *
 * Layers compute y = x w', dx = dy w and dw = dy' x through these functions alone; adapters are products of
 * their own, always in the dtype of the weights (nn/lora.h).
 *
 * In 8 bits (ops/quant.h, power-of-two scales) a product quantises its rows in groups of 128 along the sum,
 * in scratch, and takes the weight in blocks of 128 x 128 from its kept copy (nn/fp8_weight.h), or quantises
 * it too. In the microscaled formats nn/product_micro.h makes both. No scale outlives a step: a replay
 * quantises the same values to the same bits, and checkpoints hold none. A row is quantised by itself, so
 * that its result does not depend on the rows beside it; in NVFP4 these have a part in the tensor scale. */
#ifndef NN_PRODUCT_H
#define NN_PRODUCT_H

#include "nn/activation.h"
#include "nn/module.h"

bool product_is_coded(const Pass *c, const Param *w, ProductKind kind);
/* Of these, in the 8 bits of ops/quant.h: ops may write rows in codes. */
bool product_is_fp8(const Pass *c, const Param *w, ProductKind kind);

/* Columns of y that a part of product_y_part must begin on: the blocks of w stay whole. */
int64_t product_column_step(const Pass *c, const Param *w);

void product_y(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b);         /* y = x w' + b */
/* Columns from .. of y: rows from .. of w, as many as y has columns. */
void product_y_part(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b, int64_t from);
void product_residual(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b, Tensor res);
void product_gelu(const Pass *c, Tensor y, Tensor pre, Tensor x, const Param *w, const Param *b, Gelu kind);
void product_dx(const Pass *c, Tensor dx, Tensor dy, const Param *w, int flags);    /* 0 or GEMM_ACC */
void product_dgelu(const Pass *c, Tensor dpre, Tensor dy, const Param *w, Tensor pre, Gelu kind);
void product_dw(const Pass *c, Param *w, Tensor dy, Tensor x);      /* w.g, where w has one */

/* Rows x with memory in scratch for their codes where w's product of this kind reads codes; the op
 * that writes x fills it. */
CodedRows coded_rows(const Pass *c, Tensor x, const Param *w, ProductKind kind, ExpertRows rows);
/* Codes of x.x into that memory, if there is any. */
void encode_rows(const Pass *c, CodedRows x, ExpertRows rows);

/* The same products for experts, over rows sorted by expert (ops/grouped_gemm.c), with a LoRA term. Where
 * rows have no codes and the product needs them, it makes them. */
void experts_y(const Pass *c, Tensor y, CodedRows x, const Param *w, ExpertRows rows, LoraTerm lora);
void experts_dx(const Pass *c, Tensor dx, CodedRows dy, const Param *w, ExpertRows rows, LoraTerm lora);
void experts_dw(const Pass *c, Param *w, Tensor dy, Tensor x, ExpertRows rows);

/* The same from columns in codes (ops/quantize_cols.c), in memory of scratch. dy has a scale for each column,
 * x for a block. */
ColumnCodes dy_columns(const Pass *c, int64_t width, ExpertRows rows);
ColumnCodes x_columns(const Pass *c, int64_t width, ExpertRows rows);
void experts_dw_coded(const Pass *c, Param *w, ColumnCodes dy, ColumnCodes x, ExpertRows rows);

/* Fused with an activation; see Activation. The codes of h and dgu are filled, where there is memory, and so
 * are their columns; stores_rows: their values are read too. */
typedef struct ExpertAct { const Activation *act; ExpertRows rows; Tensor gate; bool stores_rows; } ExpertAct;
typedef struct ExpertCols { ColumnCodes dgu, h, dout; } ExpertCols;
void experts_act(const Pass *c, ExpertAct by, Tensor gu, CodedRows h, CodedRows x, const Param *w,
                 LoraTerm lora);
void experts_dact(const Pass *c, ExpertAct by, CodedRows dgu, ExpertCols cols, Tensor dgate, CodedRows dout,
                  const Param *w, Tensor gu, LoraTerm lora);

#endif
