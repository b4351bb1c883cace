/* nn/rows.h -- rows of the residual stream, and the linear layers that tp cuts between them.
 *
 * Between layers a tp rank has T rows of the micro-batch (sequence parallelism); a layer whose weights are
 * cut over tp sees the rows of all its ranks, Ta = tp T, one rank's behind the other's. These
 * functions convert between the two forms. With tp == 1 both are the same rows and nothing is copied.
 *
 * Gathered rows are in scratch and live until the caller resets it. */
#ifndef NN_ROWS_H
#define NN_ROWS_H

#include "nn/module.h"

typedef struct AllRows { Tensor all; Ticket ticket; } AllRows;

static inline int64_t all_rows_count(const Pass *c,
                                     Tensor x) { return x.n[0] * mesh_size(c->env->mesh, AX_TP); }

/* x (T, D) of every rank as (Ta, D). */
AllRows all_rows_start(const Pass *c, Tensor x);
Tensor  all_rows_join(AllRows r);
static inline Tensor all_rows(const Pass *c, Tensor x) { return all_rows_join(all_rows_start(c, x)); }

/* Memory for this rank's summand of y (T, D): (Ta, D), or y itself with tp == 1. */
Tensor  part_rows(const Pass *c, Tensor y);
/* y = this rank's rows of the sum of `part` over tp. */
Ticket  sum_rows_start(const Pass *c, Tensor y, Tensor part);
static inline void sum_rows(const Pass *c, Tensor y, Tensor part) { comm_join(sum_rows_start(c, y, part)); }

/* w cut by its rows: y (Ta, N / tp) = x w' + b of x (T, D). */
void column_linear_fwd(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b);
/* dx (T, D) = dy w summed over tp, where it is wanted; gradients of w and b. */
void column_linear_bwd(const Pass *c, Tensor dx, Tensor dy, Tensor x, Param *w, const Param *b);

/* w cut by its columns: y (T, D) = x w' + b [+ res] of x (Ta, N / tp); b is whole on every rank. */
void row_linear_fwd(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b, Tensor res);
/* dx (Ta, N / tp) = dy w of dy (T, D), where it is wanted; gradients of w, and of b the part that is of these
 * T rows. */
void row_linear_bwd(const Pass *c, Tensor dx, Tensor dy, Tensor x, Param *w, const Param *b);

#endif
