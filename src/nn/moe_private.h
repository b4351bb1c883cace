/* nn/moe_private.h -- between the files of the MoE layer. */
#ifndef NN_MOE_PRIVATE_H
#define NN_MOE_PRIVATE_H

#include "nn/dispatch.h"

/* The shared experts: their output with the residual, in scratch; res itself where there are none. Backward:
 * their gradient of the input, in scratch, absent where there are none. want: y or dx is wanted. */
Tensor moe_shared_fwd(const Pass *c, const Moe *m, MoeAct *a, Tensor x, Tensor res, bool want);
Tensor moe_shared_bwd(const Pass *c, const Moe *m, MoeAct *a, Tensor dy, Tensor x, bool want);

/* Tokens to the experts, through them and back, by the routing in a->route. count: the router
 * statistics of all tokens are taken while the rows travel. y absent: only what backward reads. */
void moe_experts_fwd(const Pass *c, const Moe *m, MoeAct *a, Tensor y, Tensor x, Tensor res, bool count);
/* dx and dweight where they are wanted; x: the tokens. */
void moe_experts_bwd(const Pass *c, const Moe *m, MoeAct *a, Tensor dx, Tensor dweight, Tensor dy, Tensor x);

/* Chunks build their routing while the buffers of expert rows are in scratch; a layer that runs at once
 * builds it before. Raises the peak of scratch to that of chunks, so that memory does not depend on the
 * routing. */
void moe_reserve_routing_scratch(const Pass *c);

/* The same two for a layer whose rows do not fit the buffers of its ranks (a->token_chunks > 1), chunk after
 * chunk in the same buffers. Nothing of a chunk is kept; backward recomputes each one from the selected
 * experts, and the gradients of the experts' weights add up chunk by chunk, within a chunk by source and
 * token. All other values are those of a layer that runs at once, row by row. fresh: the routing was made by
 * this call. */
void moe_chunked_fwd(const Pass *c, const Moe *m, MoeAct *a, Tensor y, Tensor x, Tensor res, bool fresh);
void moe_chunked_bwd(const Pass *c, const Moe *m, MoeAct *a, Tensor dx, Tensor dweight, Tensor dy, Tensor x);

#endif
