/* nn/embed.h -- the table of token embeddings. Under tp a rank has a part of the vocabulary: ids of other
 * parts give zero rows, and the sum over tp has every row once. */
#ifndef NN_EMBED_H
#define NN_EMBED_H

#include "nn/module.h"

/* x (T, D) = rows of the table by c->batch->ids (Ta). */
void embed_table_fwd(const Pass *c, const Param *table, Tensor x);
/* table.g += rows of dx (T, D) by id, `pad` left out (-1: none). A frozen table is skipped. */
void embed_table_bwd(const Pass *c, Param *table, Tensor dx, int64_t pad);

#endif
