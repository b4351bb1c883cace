/* engine/router_bias.h -- balancing without a loss (DeepSeek-V3): after an update the score bias of every
 * expert moves by conf.bias_rate towards the mean load of the step, over all micro-batches and all ranks. */
#ifndef ENGINE_ROUTER_BIAS_H
#define ENGINE_ROUTER_BIAS_H

#include "engine/engine.h"

void router_bias_open(Engine *e);                      /* memory for the counts, in the optimizer's arena */
/* Nothing without conf.bias_rate. verdict: as AdamW's. */
void router_bias_step(Engine *e, Tensor verdict);

#endif
